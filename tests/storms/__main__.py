"""`python -m tests.storms --count 1000`: a storm, and a report of what it found."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import anyio

from tests.helpers.postgres_tools import execute

from .storm import Storm


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storms", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="the number of disturbances")
    parser.add_argument("--saver", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--postgres", default="postgresql://127.0.0.1:5432/test", help="a connection string")
    parser.add_argument("--schema", help="a new schema of PostgreSQL, which remains; else one is made and dropped")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--conversations", type=int, default=12, help="threads that are used at the same time")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds in which all runs must end at last")
    parser.add_argument("--place", type=Path, help="a new folder for the files, which remain; else they are removed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = given.place or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        sqlite = given.saver == "sqlite"
        # The report counts all runs that are stored, so that no earlier storm may have used the schema.
        schema = given.schema or f"storm_{os.urandom(6).hex()}"
        source = f"sqlite:{place / 'runs.db'}" if sqlite else f"postgres:{schema}:{given.postgres}"
        storm = Storm(source, place, given.seed, given.conversations)
        report = anyio.run(storm.report, storm.rage(given.count, given.patience))
        if not sqlite and given.schema is None:
            execute(f'DROP SCHEMA "{schema}" CASCADE', url=given.postgres)
    print(*report.found, report, sep="\n")
    return int(bool(report.found))


if __name__ == "__main__":
    sys.exit(main())
