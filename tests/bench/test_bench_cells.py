"""The benchmark itself: its workloads give right results on our engine and on the limit, and its report shows the
measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import anyio
import pytest

from . import plots, report, run, service
from .cell import cell, timed
from .engines import ENGINES, LIMIT, OURS, PEER, TRIO
from .results import Results, Round
from .rows import CHAIN, FILE, GROUPS, LOOP, MANY, TARGETS, AtMost, Cell, Faster, Grows, Within, cells
from .workloads import Case

TINY = {
    "n": 6,
    "early": 2,
    "turns": 2,
    "calls": 2,
    "messages": 5,
    "threads": 3,
    "nodes": 4,
    "times": 2,
}


def tiny(whole: Cell) -> dict[str, Any]:
    return {name: TINY.get(name, value) for name, value in whole.params}


SMALL = {f"{each.workload} {tiny(each)}": each for each in cells() if dict(each.params).get("saver") != "postgres"}


@pytest.mark.parametrize("engine", [OURS, TRIO, LIMIT])
@pytest.mark.parametrize("whole", [pytest.param(each, id=name) for name, each in SMALL.items()])
def test_a_cell_is_right_and_has_the_figures_that_the_table_shows(whole: Cell, engine: str) -> None:
    """Each workload runs with a right result on both event loops and as bare code, and has the figures of its rows.
    (Those on PostgreSQL differ in the saver alone, and need a server.)"""
    found = cell(engine, whole.workload, tiny(whole), 0)
    if whole.workload == "compiling" and engine == LIMIT:
        assert found == {"cannot": ""}  # there is nothing to compile
        return
    wanted = {row.figure for group in GROUPS for row in group.rows if row.cell.workload == whole.workload}
    assert wanted <= found.keys()
    assert all(found[figure] > 0 for figure in wanted - {"grown_mb"})


def test_a_wrong_result_is_no_figure() -> None:
    """A wrong result fails the cell."""

    async def run() -> int:
        return 41

    with pytest.raises(AssertionError, match="a wrong result: 41"):
        anyio.run(timed, Case(run=run, units=1, right=lambda result: result == 42), 0.0)


def some() -> Results:
    """Two rounds of a cost, a rate and a size."""
    figures = {OURS: 10.0, PEER: 100.0, LIMIT: 20.0}
    cost = [{name: {"us": value * load} for name, value in figures.items()} for load in (1, 3)]
    rate = [{name: {"per_s": 1000 / value} for name, value in figures.items()}]
    return Results(
        rounds={
            CHAIN.cell.id: cost,
            MANY["sync"].cell.id: [{**rate[0], "pydantic-graph": {"cannot": "it keeps no threads"}}],
            FILE[100].cell.id: [{OURS: {"file_mb": 0.1}}],
            FILE[1000].cell.id: [{OURS: {"file_mb": 0.9}}],
        }
    )


def test_ratios_compare_what_ran_in_one_round() -> None:
    """A round on a busy machine changes times but not ratios; for a rate, more is better."""
    results = some()
    assert results.median(CHAIN, OURS) == 20
    assert results.faster(CHAIN) == pytest.approx(10) and results.over_limit(CHAIN) == pytest.approx(0.5)
    assert results.faster(MANY["sync"]) == pytest.approx(10)
    assert results.over_limit(MANY["sync"]) == pytest.approx(0.5)


def test_targets_are_reached_or_missed() -> None:
    """A target for speed is a minimum, one for size a maximum; one without a measurement is neither reached nor
    missed."""
    results = some()
    assert results.reached(Faster(CHAIN, 10)) is True and results.reached(Faster(CHAIN, 11)) is False
    assert results.reached(Within(CHAIN, 0.5)) is True and results.reached(Within(CHAIN, 0.4)) is False
    assert results.reached(AtMost(FILE[1000], 1)) is True and results.reached(AtMost(FILE[1000], 0.5)) is False
    assert results.reached(Grows(FILE[1000], FILE[100], 9.1)) is True
    assert results.reached(Grows(FILE[1000], FILE[100], 8)) is False
    assert Results().reached(TARGETS[0]) is None


def test_the_report_says_what_is_missing_and_why() -> None:
    """A cell that an engine cannot run is a dash with a note; each group and target has its row, whatever was
    measured."""
    page = report.document(some(), "benchmarks")
    assert "— <sup>1</sup>" in page and "<sup>1</sup> pydantic-graph: it keeps no threads." in page
    assert all(f"## {group.title}\n" in page for group in GROUPS)
    assert page.count("not measured") == sum(some().measured(target) is None for target in TARGETS)
    for workload in {each.workload for each in cells()} - {"compiling", "importing"}:
        assert f"- `{workload}`: " in page  # what the limit is


def test_plots_are_drawn_of_what_there_is() -> None:
    """The plots are valid SVG, and all bars and lines stay inside."""
    drawn = report.drawn(some())
    assert drawn.keys() == {"supersteps", "conversations", "file"}
    drawn["all"] = plots.bars("a & b", {"one": dict.fromkeys(ENGINES, 0.002)}, report.TITLES)
    for picture in drawn.values():
        root = ElementTree.fromstring(picture)
        for bar in root.iter("{http://www.w3.org/2000/svg}rect"):
            assert 0 <= float(bar.get("x", "0")) + float(bar.get("width", "0")) <= plots.WIDTH


def test_numbers_have_three_digits_that_matter() -> None:
    """Numbers of any size have three significant digits."""
    shown = {0: "0", 0.01234: "0.0123", 1.5: "1.50", 12.34: "12.3", 99.96: "100", 123.4: "123", 45678.9: "45 679"}
    assert {value: plots.number(value) for value in shown} == shown


def test_engines_take_turns_and_what_fails_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first engine changes from round to round, a cell's own number of rounds is honoured, and an engine without
    figures is tried once."""
    asked: list[str] = []

    def measure(engine: str, whole: Cell, budget: float) -> dict[str, Any]:
        asked.append(engine)
        return {"cannot": "it keeps no threads"} if engine == PEER else {"us": 1.0}

    monkeypatch.setattr(run, "measure", measure)
    found = run.rounds_of(CHAIN.cell, (OURS, PEER, LIMIT), 3, 0)
    assert asked == [OURS, PEER, LIMIT, LIMIT, OURS, OURS, LIMIT]
    assert [list(each) for each in found] == [[OURS, PEER, LIMIT], [OURS, LIMIT], [OURS, LIMIT]]
    once = next(each for each in cells() if each.rounds == 1)
    assert len(run.rounds_of(once, (OURS, LIMIT), 3, 0)) == 1


def test_figures_that_are_not_measured_again_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long run can be split; the report is written when all figures exist, or on request."""
    file, page, measured = tmp_path / "all.json", tmp_path / "bench.md", list[str]()

    def bench(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["bench", *arguments, "--results", str(file)])
        return run.main()

    def rounds_of(whole: Cell, engines: tuple[str, ...], rounds: int, budget: float) -> list[Round]:
        measured.append(whole.workload)
        return [{OURS: {"us": 1.0}}] * rounds

    monkeypatch.setattr(run, "rounds_of", rounds_of)
    monkeypatch.setattr(run, "OUTPUT", page)
    assert bench("--only", "loop", "--rounds", "2") == 0 and not page.exists()
    assert bench("--only", ",".join({each.workload for each in cells()} - {"loop"}), "--rounds", "1") == 0
    assert measured.count("loop") == 1 and page.exists()
    assert len(Results.load(file).rounds[LOOP.cell.id]) == 2
    page.unlink()
    assert bench("--draw") == 0 and page.exists() and measured.count("loop") == 1
    with pytest.raises(SystemExit):
        bench("--only", "nothing")


def test_a_failing_cell_fails_the_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The other cells are measured; the exit status and a footnote report the failure."""
    broken = Cell(workload="chain", params=(("nodes", 3),), engines=(OURS,))  # there is no such parameter
    found = run.measure(OURS, broken, 0)
    assert found["failed"] and "nodes" in found["cannot"]
    assert "TypeError" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["bench", "--only", "loop", "--rounds", "1"])
    monkeypatch.setattr(run, "measure", lambda *given: found)
    assert run.main() == 1


def service_figures() -> service.Figures:
    """Figures that are just on target: seconds, milliseconds, shares."""
    found: service.Figures = {}
    for goal in service.GOALS:
        for of_saver in [found.setdefault(goal.program, {}).setdefault(each, {}) for each in goal.savers] or [
            found.setdefault(goal.program, {})
        ]:
            # A figure with two targets is as good as the stricter one asks.
            of_saver[goal.figure] = min(goal.bound / goal.scale, of_saver.get(goal.figure, goal.bound))
    return found


def test_the_section_of_services(tmp_path: Path) -> None:
    """Each target has a line for each saver, with whether it is reached; measuring services leaves the other sections as
    they are, and measuring those leaves the one of services."""
    figures = service_figures()
    good = service.section(figures, {"date": "today"})
    assert good.count("| reached |") == len(service.rows(figures)) > len(service.GOALS) and "missed" not in good
    figures["service_workers"]["postgres"]["cancel p99"] = 0.0501
    figures["service_throughput"]["sqlite"]["share"] = 0.349
    figures["service_workers"]["sqlite"]["mark"] = -0.01
    bad = service.section(figures, {})
    assert bad.count("| **missed** |") == 2 and "| at most 50 ms | 50.1 ms | **missed** |" in bad
    page = tmp_path / "page.md"
    report.write(Results(), page)
    without = page.read_text("utf-8")
    once = service.with_section(without, bad)
    assert service.section_of(without) == "" and service.section_of(once) == bad
    again = service.with_section(once, good)
    assert service.section_of(again) == good and again.replace(good + "\n", "") == without
    page.write_text(again, "utf-8")
    report.write(Results(), page)
    assert page.read_text("utf-8") == again
