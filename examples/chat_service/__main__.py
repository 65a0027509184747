"""`python -m examples.chat_service`: the service under uvicorn, with one SQLite file."""

from __future__ import annotations

import argparse
import os

import uvicorn


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.chat_service", description="A chat in the browser.")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--db", default="chat.db", help="where conversations are kept (%(default)s)")
    options = parser.parse_args()
    os.environ["CHAT_DB"] = options.db
    # Longer than the runs have (`GRACE` in app.py): the server waits for them, and not the other way round.
    uvicorn.run("examples.chat_service.app:app", port=options.port, timeout_graceful_shutdown=30)


if __name__ == "__main__":
    main()
