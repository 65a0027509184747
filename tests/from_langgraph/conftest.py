"""Fixtures of the command line's tests, for the import by command."""

from tests.cli.conftest import call, shell

__all__ = ["call", "shell"]
