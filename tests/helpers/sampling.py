"""Leave out cases that only the long sessions run."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest


def leave_out(config: pytest.Config, items: list[pytest.Item], is_left_out: Callable[[pytest.Item], bool]) -> None:
    """Take cases out of a collection, unless all are to run, or one is asked for by its id.

    Args:
        config: of the run.
        items: what was collected; changed in place.
        is_left_out: returns True for a case that only the long sessions run.
    """
    named = any("[" in argument for argument in config.args)
    if named or config.getoption("--loops") == "all" or os.environ.get("PREGEL_EVERY") == "1":
        return
    left_out = [item for item in items if is_left_out(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        without = set(left_out)
        items[:] = [item for item in items if item not in without]
