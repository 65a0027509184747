"""The pytest plugin, in pytest runs of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.helpers.code_blocks import blocks

ROOT = Path(__file__).parents[2]

TEST = """
from checkpoint_savers.errors import StorageError
from pregel_async.testing import Fault, FaultySaver, VirtualClock

def test_seeds(simulation_seed):
    print("seed is", simulation_seed)
    assert simulation_seed != 3

def test_fixtures(virtual_clock, faulty_saver):
    assert isinstance(virtual_clock, VirtualClock) and isinstance(faulty_saver, FaultySaver)
    assert faulty_saver.clock() == virtual_clock.now()
    faulty_saver.add(Fault(how="slow", seconds=1.0))
"""

OWN = """
import pytest

@pytest.mark.parametrize("simulation_seed", [99])
def test_own(simulation_seed):
    assert simulation_seed == 99
"""


def pytest_in(folder: Path, test: str, *args: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(test)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "pregel_async.pytest_plugin", "-p", "no:cacheprovider", *args]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_a_test_runs_on_so_many_seeds(tmp_path: Path) -> None:
    """`--simulations` sets the number of seeds, and a failure names its seed."""
    ran = pytest_in(tmp_path, TEST, "--simulations=5")
    assert "5 passed" in ran.stdout and "1 failed" in ran.stdout, ran.stdout
    assert "test_seeds[seed 3]" in ran.stdout
    assert "20 passed, 1 failed" not in pytest_in(tmp_path, TEST).stdout


def test_one_seed_again(tmp_path: Path) -> None:
    """`--simulation-seed` runs only that seed."""
    ran = pytest_in(tmp_path, TEST, "--simulation-seed=7", "-rP")
    assert "2 passed" in ran.stdout and "seed is 7" in ran.stdout, ran.stdout


def test_seeds_of_ones_own(tmp_path: Path) -> None:
    """A test with its own parametrized seeds is left alone."""
    assert "1 passed" in pytest_in(tmp_path, OWN).stdout


def test_what_the_docs_show(tmp_path: Path) -> None:
    """The tests in docs/testing.md run unchanged."""
    found = {code.splitlines()[0]: code for _, code in blocks(ROOT / "docs" / "testing.md")}
    ran = pytest_in(tmp_path, found["# test_agent.py"], "--simulations=4", "-W", "error")
    assert "6 passed" in ran.stdout, ran.stdout  # the last test runs on two event loops


def test_the_kit_is_loaded_on_first_use(tmp_path: Path) -> None:
    """The kit is imported only when a test requests it; `import pregel_async` does not load it."""
    test = """
import sys

def test_nothing():
    assert "pregel_async.testing.simulate" not in sys.modules
"""
    ran = pytest_in(tmp_path, test, "-W", "error")
    assert "1 passed" in ran.stdout, ran.stdout
    code = "import sys, pregel_async; sys.exit(bool({'pytest', 'pregel_async.testing'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
