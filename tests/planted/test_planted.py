"""The list of planted faults fits the source and the suite. `nox -s planted` checks that the faults are noticed."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache

import pytest

from tests.planted.faults import FAULTS
from tests.planted.planting import ROOT, Fault, FaultNotFound, place_of, planted

by_name = pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])


@by_name
def test_a_faults_code_is_there_once(fault: Fault) -> None:
    """Each symbol contains the fault's code once, and the file is valid Python with the fault, so the list stays
    current."""
    file, first, last = place_of(fault)
    source = (ROOT / file).read_text(encoding="utf-8")
    edited = planted(source, fault, first, last)
    assert ast.dump(ast.parse(edited)) != dumped(file)
    compile(edited, file, "exec")


@by_name
def test_a_faults_tests_exist(fault: Fault) -> None:
    """Each fault names at least one test, and all named tests exist."""
    assert fault.tests
    for test in fault.tests:
        file, *names = test.partition("[")[0].split("::")
        assert names, f"{test} names no single test"
        assert names[-1] in names_in(file) | (shared_tests() if len(names) > 1 else frozenset()), test


def test_names_and_promises() -> None:
    """A fault has a unique name, and names the promise that it breaks."""
    assert [name for name, times in Counter(fault.name for fault in FAULTS).items() if times > 1] == []
    assert all(fault.promise and fault.before != fault.after for fault in FAULTS)


def test_code_that_is_not_there_once() -> None:
    """A fault whose code is missing or occurs twice raises an error; layout does not count."""
    fault = Fault("one", "", "f", "x = 1", "x = 2", ())
    assert planted("x = 1\ndef f():\n    x   =  1\n", fault, 2, 3) == "x = 1\ndef f():\n    x = 2\n"
    assert planted("def f():\n    'x = 1'\n", fault, 1, 2) == "def f():\n    'x = 2'\n"
    for source in ("def f():\n    y = 1\n", "def f():\n    x = 1\n    x = 1\n", "def f():\n  pass\nx = 1\n"):
        with pytest.raises(FaultNotFound, match="'one'"):
            planted(source, fault, 1, min(3, source.count("\n")) - source.endswith("\nx = 1\n"))


@pytest.mark.parametrize("symbol", ["no_such_function", "__init__", "pick_up.no"])
def test_a_symbol_that_names_nothing_or_several(symbol: str) -> None:
    with pytest.raises(FaultNotFound, match=symbol):
        place_of(Fault("one", "", symbol, "", "", ()))


@cache
def dumped(file: str) -> str:
    return ast.dump(ast.parse((ROOT / file).read_text(encoding="utf-8")))


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


@cache
def shared_tests() -> frozenset[str]:
    """Return the tests that test classes inherit from the packages' public suites."""
    files = [*ROOT.glob("checkpoint_savers/conformance/**/*.py"), ROOT / "pregel_async/channels/laws.py"]
    return frozenset[str]().union(*(names_in(str(file.relative_to(ROOT))) for file in files))
