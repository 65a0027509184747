"""The suite for the saver that `pytest --saver` names. pytest collects this module only with that option."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from ..abc import BaseCheckpointSaver
from . import SaverConformance
from .savers.suite import OpenSaver


class SaverOptions(NamedTuple):
    """The saver and its settings, as the command line gives them.

    Attributes:
        name: the value of `--saver`.
        opener: opens the saver on a folder.
        lacks: clauses and verbs to skip, with the reasons.
        crashes: the number of processes to kill on each event loop; None for the suite's default.
    """

    name: str
    opener: Callable[[Path], AbstractAsyncContextManager[BaseCheckpointSaver]]
    lacks: Mapping[str, str]
    crashes: int | None


SAVER_OPTIONS = pytest.StashKey[SaverOptions]()
"""The key under which pytest's config holds the options."""


class TestSaver(SaverConformance):
    @pytest.fixture(autouse=True)
    def offered(self, request: pytest.FixtureRequest) -> None:
        """Apply the options of the command line, then skip clauses that the saver does not support."""
        options = request.config.stash[SAVER_OPTIONS]
        self.lacks = options.lacks
        if options.crashes is not None:
            self.crashes = options.crashes
        self.skip_what_is_lacking(request.node)

    @pytest.fixture
    def open_saver(self, pytestconfig: pytest.Config, tmp_path: Path) -> OpenSaver:
        """Return a function that opens the saver of the command line on the test's own folder."""
        return partial(pytestconfig.stash[SAVER_OPTIONS].opener, tmp_path)
