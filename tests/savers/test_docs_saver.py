"""The saver that docs/savers.md shows passes the conformance suite, exactly as it is printed there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from checkpoint_savers.conformance import OpenSaver, SaverConformance
from tests.helpers.code_blocks import ROOT, blocks

NAME = "folder_saver"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The example as a module that started processes can import, too."""
    (code,) = [code for _, code in blocks(ROOT / "docs" / "savers.md") if code.startswith(f"# {NAME}.py\n")]
    folder = tmp_path_factory.mktemp("docs")
    (folder / f"{NAME}.py").write_text(code, "utf-8")
    sys.path.insert(0, str(folder))
    try:
        yield import_module(NAME)
    finally:
        sys.path.remove(str(folder))
        del sys.modules[NAME]


@pytest.mark.one_loop  # it waits in worker threads only, which are anyio's on each event loop
class TestFolderSaver(SaverConformance):
    @pytest.fixture
    def open_saver(self, example: ModuleType, tmp_path: Path) -> OpenSaver:
        return partial(example.open_saver, tmp_path)

    @pytest.fixture
    def files(self, tmp_path: Path) -> Callable[[], list[Path]]:
        return lambda: [tmp_path]
