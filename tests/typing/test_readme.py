"""The programs in README and docs/ pass both checkers' strictest settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.helpers.code_blocks import ROOT, blocks


def test_readmes_programs_type_check(tmp_path: Path) -> None:
    """Types are inferred for programs as users write them."""
    texts = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    programs = [program for text in texts for _, program in blocks(text)]
    assert len(programs) >= 12
    files = []
    for number, block in enumerate(programs):
        path = tmp_path / f"readme_{number}.py"
        path.write_text(block, "utf-8")
        files.append(str(path))
    config = tmp_path / "pyrightconfig.json"
    config.write_text(f'{{"typeCheckingMode": "strict", "extraPaths": ["{ROOT}"]}}', "utf-8")
    tools = Path(sys.executable).parent
    for command in (
        [str(tools / "mypy"), "--strict", "--config-file=", f"--cache-dir={tmp_path}/cache", *files],
        [str(tools / "pyright"), "--pythonpath", sys.executable, "-p", str(config)],
    ):
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
