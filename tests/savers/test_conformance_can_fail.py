"""The conformance suite can fail: the named clauses detect each of many savers that have one defect."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import anyio
import pytest

from checkpoint_savers import InMemorySaver
from checkpoint_savers.conformance import SaverConformance
from checkpoint_savers.conformance.savers.suite import OpenSaver, Suite, _killed_owner, clauses
from checkpoint_savers.conformance.savers.upkeep.deleting import Deleting
from tests.savers import broken_files, broken_leases, broken_reading, broken_upkeep
from tests.savers.defects import BROKEN

pytestmark = pytest.mark.anyio

MODULES = (broken_leases, broken_files, broken_reading, broken_upkeep)
"""Importing these modules fills `BROKEN`."""

WITHOUT = sorted({(saver.__bases__[0], clause) for saver, clause in BROKEN}, key=repr)
"""Each clause with the defect-free saver that a defective saver derives from."""

SECONDS = 30.0
"""The limit for a clause: a saver that takes longer hangs."""


def parameters(clause: Any) -> Iterator[dict[str, Any]]:
    """Yield the parameters with which pytest would call a clause, one set after the other."""
    choices: list[list[dict[str, Any]]] = []
    for mark in getattr(clause, "pytestmark", []):
        if mark.name == "parametrize":
            names, rows = mark.args[0], mark.args[1]
            names, rows = ((names,), [(row,) for row in rows]) if isinstance(names, str) else (names, rows)
            choices.append([dict(zip(names, row, strict=True)) for row in rows])
    for chosen in product(*choices):
        yield {name: value for one in chosen for name, value in one.items()}


async def failure(saver: type[InMemorySaver], clause: str, backend: str, folder: Path) -> BaseException | None:
    """Return the exception that a clause raises for a saver; None if the clause passes."""
    suite, asked = SaverConformance(), False
    ask = getattr(suite, clause)
    for number, given in enumerate(parameters(ask)):
        place = folder / str(number)
        place.mkdir()
        open_saver = opener(saver, place)
        async with open_saver() as opened:
            fixtures: Mapping[str, Any] = {
                "saver": opened,
                "open_saver": open_saver,
                "dead_owner": _killed_owner(),
                "cells": getattr(opened, "cells", None),
                "files": partial(list, [place]),
                "anyio_backend_name": backend,
                **given,
            }
            try:
                with anyio.fail_after(SECONDS):
                    await ask(**{name: fixtures[name] for name in inspect.signature(ask).parameters})
            except pytest.skip.Exception:
                continue
            except (Exception, pytest.fail.Exception, BaseExceptionGroup) as found:
                return found
        asked = True
    assert asked, f"{clause} was skipped"
    return None


def opener(saver: type[InMemorySaver], folder: Path) -> OpenSaver:
    """Return a function that opens the same storage each time, unless the saver has an opener of its own."""
    own: Callable[[Path], OpenSaver] | None = getattr(saver, "opener", None)
    return partial(nullcontext, saver()) if own is None else own(folder)


@pytest.mark.parametrize(("saver", "clause"), BROKEN, ids=lambda one: getattr(one, "__name__", one))
async def test_a_defect_is_detected(
    saver: type[InMemorySaver], clause: str, anyio_backend_name: str, tmp_path: Path
) -> None:
    """The clause fails on the saver with the defect."""
    found = await failure(saver, clause, anyio_backend_name, tmp_path)
    assert found is not None, f"{saver.__name__} keeps {clause}"


@pytest.mark.parametrize(("saver", "clause"), WITHOUT, ids=lambda one: getattr(one, "__name__", one))
async def test_without_the_defect_the_clause_passes(
    saver: type[InMemorySaver], clause: str, anyio_backend_name: str, tmp_path: Path
) -> None:
    """The same clause passes on the same saver without the defect, so it was the defect that the clause detected."""
    found = await failure(saver, clause, anyio_backend_name, tmp_path)
    if found is not None:
        raise found


def test_every_part_of_the_suite_can_fail() -> None:
    """Each class of clauses detects some defect."""
    named = {clause for _, clause in BROKEN}
    found = {author for name, author in clauses(SaverConformance).items() if name in named}
    assert set(SaverConformance.__bases__) - found == set()


def test_two_clauses_of_one_name_are_refused() -> None:
    """Two parts of the suite with a clause of the same name are refused, as the second one would never run."""

    class More(Suite):
        async def test_nothing_to_delete(self) -> None: ...

    with pytest.raises(TypeError, match="Deleting and More both have a clause test_nothing_to_delete"):
        type("Both", (More, Deleting), {})
    type("Own", (SaverConformance,), {"test_nothing_to_delete": More.test_nothing_to_delete})


def test_a_name_in_lacks_must_exist() -> None:
    """A name in `lacks` that is neither a method nor a clause is refused, as it would skip nothing."""
    with pytest.raises(TypeError, match="test_delating"):
        type("Mistaken", (SaverConformance,), {"lacks": {"test_delating": "not offered"}})
    type("Right", (SaverConformance,), {"lacks": {"erase": "not offered", "test_deleting": "not offered"}})
