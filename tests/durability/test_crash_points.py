"""A failure at every call of a saver, in every scenario: before and after the call, as an error and as the end of the
process.

Whichever call was hit, a resume continues from there to the same result by the same trace. By default each case tries
some of the calls; see `places`.
"""

from __future__ import annotations

from typing import Any

import pytest

from checkpoint_savers.abc import BaseCheckpointSaver
from pregel_async.types import Durability
from tests.durability.durable_environment import (
    EXPIRY,
    MODES,
    Died,
    Failing,
    How,
    Watch,
    When,
    config_of,
    is_one_chain,
    left_to_do,
    places,
    trace_of,
)
from tests.durability.durable_graphs import SCENARIOS, Op, Probe, Scenario, length_of
from tests.helpers.environments import SeededEnvironment

pytestmark = pytest.mark.anyio


@pytest.mark.pairwise
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
    environment: SeededEnvironment,
    request: pytest.FixtureRequest,
) -> None:
    """P2, P3, P4, P5, P6, in each durability mode: result, trace and chain are those of the undisturbed run; recorded
    tasks run once; no more is lost than the mode puts at risk; failing storage stops the run there with that error."""
    expected, _ = await play(scenario, mode, saver, environment, 0, how, when)
    for at in places(request):
        outcome, hit = await play(scenario, mode, saver, environment, at, how, when)
        assert outcome == expected, f"call {at}, {hit}"
        if hit is None:
            assert at > 2  # the calls for the lease and one commit
            return


async def play(
    scenario: Scenario,
    mode: Durability,
    saver: BaseCheckpointSaver,
    environment: SeededEnvironment,
    at: int,
    how: How,
    when: When,
) -> tuple[Any, str | None]:
    """Make a scenario's calls; one call of the saver fails, and the graph's call is repeated after that.

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
                # A new process, after the lease of its predecessor has expired; or the same process, if the lease was
                # released.
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
                assert op.raises is None or (hit and op.limit), "it was meant to fail"
            await watch.look(disturbed=again)
    await is_one_chain(saver, mode=mode)
    trace = await trace_of(graph.with_checkpointer(saver))  # it does not fail any more
    await saver.adelete_thread("t")  # refused if the thread was not released
    return (result, trace), hit


def stopped_there(
    raised: BaseException | None, storage: Failing, verb: str, op: Op, probe: Probe, mode: Durability
) -> None:
    """P4, P9: the run raised the storage's error, or its own with a note on the other; and nothing ran afterwards."""
    assert raised is not None, f"the run went on in spite of a failing {verb}"
    if isinstance(storage.error, Died):
        return
    # when the results of several tasks could not be recorded, one error is raised
    if not str(raised).startswith("injected"):
        assert op.raises is not None and isinstance(raised, op.raises), repr(raised)
        assert any("injected" in note for note in raised.__notes__), raised.__notes__
    # Tasks of the same superstep are cancelled, which tasks that have not begun notice at their first await.
    siblings = {length_of(probe.started[storage.started - 1])} if verb == "record" else set()
    on = [key for key in probe.started[storage.started :] if length_of(key) not in siblings]
    if mode == "async" and verb == "commit":
        # The superstep that runs concurrently with the transaction may finish.
        on = on if len({length_of(key) for key in probe.started[storage.started - 1 :]}) > 2 else []
    assert not on, f"ran on after a failing {verb}: {on}"
