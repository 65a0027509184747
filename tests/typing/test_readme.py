"""The programs in README and docs/ pass both checkers' strictest settings."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_readmes_programs_type_check(tmp_path: Path) -> None:
    """Types are inferred for programs as users write them."""
    texts = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    blocks = [
        block for text in texts for block in re.findall(r"```python\n(.*?)```", text.read_text("utf-8"), re.DOTALL)
    ]
    assert len(blocks) >= 12
    files = []
    for number, block in enumerate(blocks):
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
