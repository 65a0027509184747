"""Run the service under uvicorn, with one SQLite file: `python -m examples.chat_service`."""

from __future__ import annotations

import argparse
import os

import uvicorn


def main() -> None:
    """Parse the command line and run the server until it is stopped."""
    parser = argparse.ArgumentParser(prog="python -m examples.chat_service", description="A chat in the browser.")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--db", default="chat.db", help="where conversations are kept (%(default)s)")
    options = parser.parse_args()
    os.environ["CHAT_DB"] = options.db
    # Longer than the runs have (`GRACE` in app.py). The server drops connections after this time, and runs that are
    # still draining would be cancelled with them.
    uvicorn.run("examples.chat_service.app:app", port=options.port, timeout_graceful_shutdown=30)


if __name__ == "__main__":
    main()
