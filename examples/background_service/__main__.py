"""Run the service under uvicorn, with one SQLite file: `python -m examples.background_service`."""

from __future__ import annotations

import argparse
import os

import uvicorn


def main() -> None:
    """Parse the command line and run the server until it is stopped."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.background_service", description="Runs in the background."
    )
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--db", default="reports.db", help="where runs are kept (%(default)s)")
    options = parser.parse_args()
    os.environ["REPORT_DB"] = options.db
    # The server first ends its connections, and then its lifespan, in which the worker has `GRACE` seconds (app.py).
    uvicorn.run("examples.background_service.app:app", port=options.port, timeout_graceful_shutdown=3)


if __name__ == "__main__":
    main()
