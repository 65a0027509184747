"""The suite for the saver that `pytest --saver` names. pytest collects this module then."""

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
    """What the command line says.

    Attributes:
        name: of the saver, as it was given.
        opener: opens it on a folder.
        lacks: what it does not offer, with the reasons.
        crashes: how many processes are killed; None for as many as usual.
    """

    name: str
    opener: Callable[[Path], AbstractAsyncContextManager[BaseCheckpointSaver]]
    lacks: Mapping[str, str]
    crashes: int | None


SAVER_OPTIONS = pytest.StashKey[SaverOptions]()
"""Where pytest's config has it."""


class TestSaver(SaverConformance):
    @pytest.fixture(autouse=True)
    def offered(self, request: pytest.FixtureRequest) -> None:
        options = request.config.stash[SAVER_OPTIONS]
        self.lacks = options.lacks
        if options.crashes is not None:
            self.crashes = options.crashes
        self.skip_what_is_lacking(request.node)

    @pytest.fixture
    def open_saver(self, pytestconfig: pytest.Config, tmp_path: Path) -> OpenSaver:
        return partial(pytestconfig.stash[SAVER_OPTIONS].opener, tmp_path)
