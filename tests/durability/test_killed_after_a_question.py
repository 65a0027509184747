"""An open question and its answers survive SIGKILL of the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


class KilledProcesses:
    """Calls the graph in one process after the other; each is killed once it has printed a line."""

    def __init__(self, database: Path, backend: str) -> None:
        self.worked = 0
        self._command = [sys.executable, str(HERE / "question_child.py"), str(database), backend]

    def call(self, given: Any) -> Any:
        environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
        command = [*self._command, json.dumps(given)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True)
        assert process.stdout is not None
        while (said := process.stdout.readline().strip()) == "work":
            self.worked += 1
        process.kill()
        _, error = process.communicate()
        assert process.returncode == -9, error
        return said if said == "in" else json.loads(said)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_question_survives_a_kill(backend: str, tmp_path: Path) -> None:
    """P8, P4, P5: an open question survives SIGKILL with its id; so does an answer, even if the process is killed right
    after it; a called task that finished before the question does not run again."""
    killed = KilledProcesses(tmp_path / "db", backend)
    what, asked = killed.call({})
    assert (what, [value for _, value in asked]) == ("asked", ["first?", "first?"])
    assert killed.call(None) == ["asked", asked]
    assert killed.call({"resume": {asked[0][0]: "die"}}) == "in"
    assert killed.call(None) == "in"  # the question is not asked again
    assert killed.worked == 2


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_answers_over_kills(backend: str, tmp_path: Path) -> None:
    """P8: answers given in separate processes, in any order, are applied once each."""
    killed = KilledProcesses(tmp_path / "db", backend)
    _, ((a, _), (b, _)) = killed.call({})
    said = killed.call({"resume": {b: 0}})
    assert killed.call(None) == said
    b_second = said[1][1][0]
    assert said == ["asked", [[a, "first?"], [b_second, "second?"]]]
    assert killed.call({"resume": {b_second: False}}) == ["asked", [[a, "first?"]]]
    _, ((a_second, value),) = killed.call({"resume": "yes"})
    assert (value, len({a, b, a_second, b_second})) == ("second?", 4)
    assert killed.call({"resume": {a_second: None}}) == ["end", ["work", "yes", None, "work", 0, False]]
    assert killed.call(None) == ["end", ["work", "yes", None, "work", 0, False]]
    assert killed.worked == 2
