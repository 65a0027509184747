"""`simulate`: it finds defects, reports how to reproduce them, and accepts correct graphs."""

from __future__ import annotations

import asyncio
import operator
from collections import Counter
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, Send, StateGraph, interrupt, task
from pregel_async._runtime.engine import runner
from pregel_async._runtime.persistence.lease import ThreadLease
from pregel_async.errors import GraphRecursionError
from pregel_async.testing import Fault, Faults, Script, SimulationError, fails, simulate
from pregel_async.testing.faults import FaultPlan, PlannedFault, RunSize, draw_plan

NONE = Faults(crashes=0, cancellations=0, storage=0, stalls=0, rivals=0)
ANSWERS = {"sure?": "yes"}


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


@task
async def fetch(url: str) -> str:
    return f"page {url}"


@task
def count(text: str) -> int:
    return len(text)


def plain(state: State) -> dict[str, list[str]]:
    found = fetch("x").result()
    return {"log": [f"plain {count(found).result()}"]}


async def spread(state: State) -> dict[str, list[str]]:
    return {"log": ["spread"]}


async def one(number: int) -> dict[str, list[str]]:
    return {"log": [f"one {number} {await fetch(str(number))}"]}


async def ask(state: State) -> dict[str, list[str]]:
    return {"log": [f"asked {interrupt('sure?')}"]}


def made(*more: Any) -> Any:
    graph = StateGraph(State).add_node(spread).add_node(one).add_node(plain).add_node(ask)
    graph.add_edge(START, "spread").add_conditional_edges("spread", lambda state: [Send("one", n) for n in range(3)])
    graph.add_edge("spread", "plain").add_edge("plain", "ask")
    return graph.compile()


GRAPH = made()


def test_a_sound_graph_passes_on_every_seed(simulation_seed: int) -> None:
    """A correct graph with fan-out, plain functions, tasks and a question reaches the same end under all faults."""
    simulation = simulate(GRAPH, {"log": ["in"]}, seed=simulation_seed, answers=ANSWERS, faults=Faults(failures=1))
    assert simulation.values["log"][-1] == "asked yes" and simulation.failure is None
    assert len(simulation.values["log"]) == 7
    assert simulation.ran["spread"] >= 1 and simulation.calls >= 2


def test_the_same_seed_is_the_very_same_trace() -> None:
    """The same seed gives the same trace step by step, even with plain functions in threads."""
    for seed in range(10):
        first, second = (simulate(GRAPH, {"log": []}, seed=seed, answers=ANSWERS) for _ in range(2))
        assert str(first) == str(second)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_every_durability(durability: Any) -> None:
    """In every durability mode stored supersteps are never lost, and the end is the same."""
    for seed in range(15):
        simulate(GRAPH, {"log": ["in"]}, seed=seed, answers=ANSWERS, durability=durability)


def test_undisturbed() -> None:
    """Without faults each piece of work runs once on every schedule; a node that asks runs once more."""
    for seed in range(10):
        simulation = simulate(GRAPH, {"log": []}, seed=seed, answers=ANSWERS, faults=NONE)
        assert simulation.ran == Counter(spread=1, one=3, fetch=4, count=1, plain=1, ask=2)
        assert simulation.faults == [] and simulation.calls == 2


def test_several_inputs_one_after_the_other() -> None:
    """The next input is given when no work of the previous one is left."""
    simulation = simulate(GRAPH, {"log": ["first"]}, {"log": ["second"]}, seed=4, answers=ANSWERS)
    said = simulation.values["log"]
    assert [line for line in said if line in ("first", "second")] == ["first", "second"]
    assert said.count("asked yes") == 2


def test_a_nondeterministic_graph_is_found() -> None:
    """P2: a node that depends on more than its input is found. The failure reports the seed, the plan and the trace."""
    numbers = iter(range(10_000))

    async def node(state: State) -> dict[str, list[str]]:
        return {"log": [f"run {next(numbers)}"]}

    graph = StateGraph(State).add_node(node).add_edge(START, "node").compile(InMemorySaver())
    with pytest.raises(SimulationError) as caught:
        simulate(graph, {"log": []}, seed=7, faults=NONE)
    text = str(caught.value)
    assert "seed 7: P2: what is stored differs" in text and "'run 0'" in text and "'run 1'" in text
    assert "what was planned to go wrong" in text and "runs: node" in text and "simulate(..., seed=7)" in text
    assert "--simulation-seed=7" in text and caught.value.simulation.seed == 7
    simulate(graph, {"log": []}, seed=7, deterministic=False)


def test_a_node_that_leaves_something_running_is_found() -> None:
    """P7: work that continues after a call has returned is found."""
    left: list[Any] = []

    async def linger() -> None:
        await asyncio.sleep(3600)

    async def node(state: State) -> dict[str, list[str]]:
        left.append(asyncio.get_running_loop().create_task(linger()))
        return {"log": ["done"]}

    graph = StateGraph(State).add_node(node).add_edge(START, "node").compile()
    with pytest.raises(SimulationError, match="P7: the call has returned, and tasks still run"):
        simulate(graph, {"log": []}, seed=0)


def test_a_node_that_never_ends_is_found() -> None:
    """P7: a node that never ends is found, without a real wait."""

    async def node(state: State) -> dict[str, list[str]]:
        await asyncio.get_running_loop().create_future()
        return {}

    graph = StateGraph(State).add_node(node).add_edge(START, "node").compile()
    with pytest.raises((SimulationError), match="P7: "):
        simulate(graph, {"log": []}, seed=0)


def broken_on_some_seed(promise: str) -> None:
    """Assert that some of the first seeds find the defect."""
    found: list[str] = []
    for seed in range(60):
        if any(failure.startswith(promise) for failure in found):
            return
        try:
            simulate(GRAPH, {"log": []}, seed=seed, answers=ANSWERS, faults=Faults(crashes=2, failures=2))
        except SimulationError as error:
            found.append(error.promise)
    raise AssertionError(f"no seed has found it: {found}")


def test_results_that_are_not_replayed_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """P5: a runtime that runs recorded work again is found."""
    from pregel_async._core.task import NEW
    from pregel_async._runtime.persistence.namespace_writer import NamespaceWriter

    monkeypatch.setattr(NamespaceWriter, "recorded", lambda self, task, run: NEW)
    broken_on_some_seed("P5")


def test_a_lease_that_is_not_released_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """P6: a run that ends without releasing its thread is found."""

    async def leave(self: ThreadLease, *error: object) -> None:
        return None

    monkeypatch.setattr(ThreadLease, "__aexit__", leave)
    broken_on_some_seed("P6")


def test_chunks_that_come_too_early_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """P4: a chunk that shows a superstep as finished before it is stored is found."""

    async def early(self: Any, task: Any, outcome: Any) -> None:
        await self._graph.events.finished(task, outcome)

    monkeypatch.setattr(runner.Runner, "_show_finished", early)
    broken_on_some_seed("P4")


def test_a_graph_that_fails_for_good() -> None:
    """The end of a graph that fails permanently is its failure, with or without faults."""
    graph = StateGraph(State).add_node("node", Script(fails(ValueError("never")), repeats=True)).add_edge(START, "node")
    for seed in range(10):
        simulation = simulate(graph.compile(), {"log": []}, seed=seed)
        assert simulation.failure == ("ValueError", "never")


def test_a_process_is_started_again() -> None:
    """The factory of a graph is called for each process, as memory does not survive a crash."""
    starts: list[int] = []

    def process() -> Any:
        starts.append(0)
        return made()

    crashed = 0
    for seed in range(12):
        starts.clear()
        simulation = simulate(process, {"log": []}, seed=seed, answers=ANSWERS, faults=Faults(crashes=2, rivals=0))
        again = sum("a new process starts" in line for line in simulation.trace)
        assert len(starts) == 3 + again  # to be looked at, undisturbed, disturbed
        crashed += again
    assert crashed


def test_bad_calls() -> None:
    """Bad input: a graph with questions needs answers; a graph without an end is reported as such; numbers of faults
    are not negative."""
    with pytest.raises(ValueError, match="answers"):
        simulate(GRAPH, {"log": []}, seed=0)
    loop = StateGraph(State).add_node(spread).add_edge(START, "spread").add_edge("spread", "spread").compile()
    with pytest.raises(GraphRecursionError):
        simulate(loop, {"log": []}, seed=0, config={"recursion_limit": 5})
    with pytest.raises(ValueError, match="crashes"):
        Faults(crashes=-1)


def test_plans() -> None:
    """A plan is drawn from the seed, within the run's size, and has a readable repr."""
    import random

    size = RunSize(steps=50, operations=10, node_starts=5, calls=2)
    plans = [draw_plan(Faults(failures=2), size, random.Random(seed)) for seed in range(50)]
    assert plans == [draw_plan(Faults(failures=2), size, random.Random(seed)) for seed in range(50)]
    assert draw_plan(NONE, size, random.Random(0)) == FaultPlan()
    kinds = Counter(each.kind for drawn in plans for each in drawn.runtime)
    assert set(kinds) == {"crash", "cancel", "cancel natively", "rival", "fail"}
    assert {each.how for drawn in plans for each in drawn.storage} == {"crash", "fail", "lose", "slow"}
    assert str(PlannedFault("crash", 3)) == "the process dies before step 3"
    assert str(Fault(how="lose", on="any", at=2, operations=5)) == "any 2 fails 5 times"
