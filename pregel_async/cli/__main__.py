"""Run the command line with `python -m pregel_async.cli`."""

from __future__ import annotations

from . import main

if __name__ == "__main__":
    main()
