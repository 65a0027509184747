"""Remove the lines that keep the promises, one at a time, and check that the suite notices.

    python -m tests.planted.run                 the whole list
    python -m tests.planted.run --only NAME     the faults whose names begin with NAME; may be repeated
    python -m tests.planted.run --list          the names of all faults

The repository is copied to a temporary folder, a fault of `faults.py` is planted there, and the tests named for it are
run: each of them must fail. Before that all named tests run once on the unchanged copy, and must pass. The exit status
is 1 if a named test does not notice its fault, or if the list does not fit the source.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.planted.faults import FAULTS
from tests.planted.planting import ROOT, Fault, FaultNotFound, place_of, planted

TIMEOUT = 180.0
"""Seconds for the tests of one fault. A test that hangs notices its fault."""

PYTEST = ("-m", "pytest", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-o", "addopts=--strict-markers")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_HANGING = 60
"""Seconds after which a hanging test says where it hangs."""


class Answer(NamedTuple):
    """The outcome of a pytest run.

    Attributes:
        status: pytest's exit status; None when it was killed at the timeout.
        failed: ids of the tests that failed, with their parameters and without.
        output: what it printed.
        seconds: how long it took.
    """

    status: int | None
    failed: frozenset[str]
    output: str
    seconds: float


class Verdict(NamedTuple):
    """The outcome of a planted fault.

    Attributes:
        noticed: whether all of the named tests have noticed it.
        summary: its text in the table.
        output: the tests' output where something is wrong.
    """

    fault: Fault
    noticed: bool
    summary: str
    output: str
    seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="only faults whose names begin with this")
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="number of faults that are tried at the same time"
    )
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds for the tests of one fault")
    parser.add_argument("--verbose", action="store_true", help="what the tests print, where something is wrong")
    options = parser.parse_args(arguments)
    chosen = _chosen(FAULTS, options.only)
    if not chosen:
        parser.error(f"no fault is called {', '.join(options.only)}")
    if options.list:
        for fault in chosen:
            print(f"{fault.name}\n    {fault.promise}\n    {fault.symbol}")
            print("".join(f"    {test}\n" for test in fault.tests))
        return 0
    try:
        for fault in chosen:
            with_fault(ROOT, fault)
    except FaultNotFound as error:
        print(error, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        base = Path(folder)
        copy_to(base)
        if not _passes(base, chosen, options.timeout):
            return 1
        judge_and_print = _judge_and_print(base, options.timeout, max(len(fault.name) for fault in chosen))
        with ThreadPoolExecutor(max(1, options.jobs)) as pool:
            verdicts = list(pool.map(judge_and_print, chosen))
    missed = [verdict for verdict in verdicts if not verdict.noticed]
    if options.verbose:
        for verdict in missed:
            print(f"\n---- {verdict.fault.name}\n{verdict.output}")
    print(f"\n{len(verdicts) - len(missed)} of {len(verdicts)} faults are noticed by each test that is named for them")
    for verdict in missed:
        print(f"    {verdict.fault.name}: {verdict.summary}")
    return 1 if missed else 0


def _chosen(faults: Iterable[Fault], only: Sequence[str] | None) -> list[Fault]:
    return [fault for fault in faults if only is None or any(fault.name.startswith(name) for name in only)]


def _passes(base: Path, faults: Sequence[Fault], timeout: float) -> bool:
    """Return True if the named tests pass without any fault."""
    tests = sorted({test for fault in faults for test in fault.tests})
    answer = run_tests(base, tests, timeout * max(1, len(faults)))
    if answer.status == 0:
        print(f"without a fault: {len(tests)} tests pass ({answer.seconds:.0f} s)\n", flush=True)
        return True
    print(f"without a fault the tests do not pass ({answer.status}):\n{answer.output}", file=sys.stderr)
    return False


def _judge_and_print(base: Path, timeout: float, width: int) -> Callable[[Fault], Verdict]:
    """Return a function that plants a fault, judges it, and prints its row."""

    def attempt(fault: Fault) -> Verdict:
        verdict = judge(base, fault, timeout)
        mark = "noticed " if verdict.noticed else "SURVIVES"
        print(f"{mark} {fault.name:{width}} {verdict.seconds:5.1f} s  {verdict.summary}", flush=True)
        return verdict

    return attempt


def judge(base: Path, fault: Fault, timeout: float) -> Verdict:
    """Put a fault into a copy of its own, and run the tests that must notice it.

    Args:
        base: a copy without the fault. Its byte code is used, except for the fault's own file: Python would not notice an
            edit of the same size within the same second.
    """
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        root = Path(folder) / "copy"
        shutil.copytree(base, root)
        file, edited = with_fault(root, fault)
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink()
        file.write_text(edited, encoding="utf-8")
        answer = run_tests(root, fault.tests, timeout)
    if answer.status is None:
        return Verdict(fault, True, f"the tests hang, and were ended after {timeout:.0f} s", "", answer.seconds)
    if answer.status not in (0, 1):  # no test failed: the code cannot be imported, or a test does not exist
        summary = f"pytest ends with status {answer.status}, and no test has reported a result"
        return Verdict(fault, False, summary, answer.output, answer.seconds)
    silent = [test for test in fault.tests if test not in answer.failed]
    if silent:
        return Verdict(fault, False, f"not noticed by {', '.join(silent)}", answer.output, answer.seconds)
    return Verdict(fault, True, ", ".join(test.rpartition("/")[2] for test in fault.tests), "", answer.seconds)


def with_fault(root: Path, fault: Fault) -> tuple[Path, str]:
    """Return the file of a copy that the fault is for, and its source with the fault in it.

    Raises:
        FaultNotFound: the list does not fit the source.
    """
    file, first, last = place_of(fault)
    return root / file, planted((root / file).read_text(encoding="utf-8"), fault, first, last)


def copy_to(folder: Path) -> None:
    """Copy the files that git tracks, as they are in the working tree."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)


def run_tests(root: Path, tests: Sequence[str], timeout: float) -> Answer:
    """Run tests of a copy, on the copy's code."""
    env = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, *PYTEST, "-o", f"faulthandler_timeout={_HANGING}", *tests]
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=root, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            _end(process)
            status = None
        output.seek(0)
        text = output.read().decode(errors="replace")
    failed = _FAILED.findall(text)
    ids = frozenset(failed) | {each.partition("[")[0] for each in failed}
    return Answer(status, ids, text, time.monotonic() - began)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the tests and the processes that they have started."""
    if sys.platform == "win32":
        process.kill()
    else:
        os.killpg(process.pid, 9)
    process.wait()


if __name__ == "__main__":
    sys.exit(main())
