"""A failure at every call of a saver, in every scenario: before the call and after it, as an error and as the end of
the process. Whatever was hit, a resume goes on from there, to the same result by the same trace.

By default each case tries some of the calls; see `places`.
"""

from __future__ import annotations

from typing import Any

import pytest

from checkpoint_savers.abc import BaseCheckpointSaver
from pregel_async.types import Durability
from tests.durability.durable_graphs import SCENARIOS, Op, Probe, Scenario, length_of
from tests.durability.durable_world import (
    EXPIRY,
    MODES,
    Died,
    Failing,
    How,
    TestWorld,
    Watch,
    When,
    config_of,
    is_one_chain,
    left_to_do,
    places,
    trace_of,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("how", ["error", "down", "die"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
async def test_every_call(
    scenario: Scenario,
    mode: Durability,
    how: How,
    when: When,
    saver: BaseCheckpointSaver,
    environment: TestWorld,
    request: pytest.FixtureRequest,
) -> None:
    """P2, P3, P4, P5, P6, in each durability mode: result, trace and chain are the undisturbed run's; what is recorded
    runs once; no more is lost than the mode puts at risk; failing storage stops the run there, with that error."""
    expected, _ = await play(scenario, mode, saver, environment, 0, how, when)
    for at in places(request):
        outcome, hit = await play(scenario, mode, saver, environment, at, how, when)
        assert outcome == expected, f"call {at}, {hit}"
        if hit is None:
            assert at > 2  # the lease and a commit
            return


async def play(
    scenario: Scenario,
    mode: Durability,
    saver: BaseCheckpointSaver,
    environment: TestWorld,
    at: int,
    how: How,
    when: When,
) -> tuple[Any, str | None]:
    """Make a scenario's calls; one call of the saver fails, the graph's call is made again after that.

    Returns:
        Result and trace, and the verb that failed.
    """
    probe = Probe()
    watch = Watch(saver, probe, mode=mode)
    storage = Failing(saver, probe, at, how, when)
    graph = scenario.build(probe).compile(storage, environment=environment)
    result: Any = None
    hit: str | None = None
    for number, op in enumerate(scenario.ops):
        probe.op = number
        given = op.given
        again = True
        while again:
            raised: BaseException | None = None
            try:
                result = await graph.ainvoke(given, config_of(scenario, number), durability=mode)
            except (Exception, Died, BaseExceptionGroup) as error:
                raised = error
            again = storage.error is not None
            if again:
                hit = storage.calls[at - 1]
                stopped_there(raised, storage, hit, op, probe, mode)
                # A new process, whose predecessor's claim has lapsed; or the same, when it could have been given up.
                if how != "error" or hit in ("acquire", "release"):
                    environment.time += EXPIRY
                probe.dead = False
                storage = Failing(saver, probe, 0, how, when)
                graph = scenario.build(probe).compile(storage, environment=environment)
                given = await left_to_do(saver, number, scenario.ops)
            elif raised is not None:
                if op.raises is None or not isinstance(raised, op.raises):
                    raise raised
            else:
                assert op.raises is None or (hit and op.limit), "it was to fail"
            await watch.look(disturbed=again)
    await is_one_chain(saver, mode=mode)
    trace = await trace_of(graph.with_checkpointer(saver))  # which fails no more
    await saver.adelete_thread("t")  # refused when the thread was not given up
    return (result, trace), hit


def stopped_there(
    raised: BaseException | None, storage: Failing, verb: str, op: Op, probe: Probe, mode: Durability
) -> None:
    """P4, P9: the run ended with the storage's error; or with its own, which tells of the other; and nothing ran on."""
    assert raised is not None, f"the run went on in spite of a failing {verb}"
    if isinstance(storage.error, Died):
        return
    if not str(raised).startswith("injected"):  # of several tasks that each could not be recorded, one error is told
        assert op.raises is not None and isinstance(raised, op.raises), repr(raised)
        assert any("injected" in note for note in raised.__notes__), raised.__notes__
    # Tasks of the superstep itself are told to stop, which those that have not begun only see at their first await.
    siblings = {length_of(probe.started[storage.started - 1])} if verb == "record" else set()
    on = [key for key in probe.started[storage.started :] if length_of(key) not in siblings]
    if mode == "async" and verb == "commit":
        # The superstep that runs beside the transaction comes to its end.
        on = on if len({length_of(key) for key in probe.started[storage.started - 1 :]}) > 2 else []
    assert not on, f"ran on after a failing {verb}: {on}"
