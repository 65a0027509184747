"""The pytest plugin: runs the conformance suite on a saver without a test file, and reports which promises hold.

    pytest --saver mypackage.store:open_saver

pytest loads it wherever this package is installed. It imports the suite only if an option requests it.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the conformance suite (a pytest hook).

    Args:
        parser: pytest's parser.
    """
    group = parser.getgroup("checkpoint-savers", "conformance of savers (checkpoint_savers.conformance)")
    group.addoption(
        "--saver",
        metavar="MODULE:NAME",
        help="run the conformance suite on the saver that this function opens: it is called with a folder, another for "
        "each storage, and gives an async context manager that gives the saver",
    )
    group.addoption(
        "--saver-lacks",
        action="append",
        default=[],
        metavar="NAME=REASON",
        help="what that saver does not offer, and why: a verb (such as erase) or a clause (test_...); several times",
    )
    group.addoption(
        "--saver-crashes",
        type=int,
        default=None,
        metavar="N",
        help="how many processes of that saver are killed on each event loop; more find more",
    )
    group.addoption(
        "--promises",
        action="store_true",
        help="say which promises hold, clause by clause, of all savers that are tested (--saver does)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Load the conformance suite if an option requests it (a pytest hook).

    Args:
        config: pytest's config.
    """
    if config.getoption("saver") is not None or config.getoption("promises"):
        from .conformance.plugin import configure

        configure(config)
