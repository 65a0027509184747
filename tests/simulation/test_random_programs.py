"""Random programs with fan-out, sends, questions, called tasks, graphs inside, retries, timeouts and handlers, through
schedules, faults and crashes.

By default 300; PREGEL_SIMULATIONS says another number. A failure tells its seed, the program, the plan and the trace:
`PREGEL_SIMULATION_SEED=17 pytest tests/simulation` repeats one.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import Interrupt
from pregel_async.errors import GraphRecursionError
from pregel_async.testing import Faults, Simulation, simulate
from tests.helpers.law_programs import answer_to, inputs_of, story
from tests.simulation.random_policies import Disturbing, Turning, handles, program

COUNT = int(os.environ.get("PREGEL_SIMULATIONS", "200"))
ONE = os.environ.get("PREGEL_SIMULATION_SEED")
PORTIONS = 12


def answers(question: Interrupt) -> Any:
    return answer_to(question.value)


def one(seed: int) -> Simulation | None:
    """One program's simulation; None when the program has no end."""
    made = program(random.Random(seed))
    graph = Disturbing(Turning(seed))(made, InMemorySaver())
    inputs = inputs_of(made)[: 2 if seed % 4 == 0 else 1]
    # A handler handles whatever its node raises, a failure of the simulation's own too: a program that has one may come
    # to another end then. (What storage raises is nobody's to handle.)
    faults = Faults(crashes=2, failures=0 if handles(made) else 2)
    try:
        return simulate(graph, *inputs, seed=seed, answers=answers, faults=faults, config={"recursion_limit": 30})
    except GraphRecursionError:
        return None
    except BaseException as error:
        error.add_note("\n".join(["the program:", *(f"    {line}" for line in story(made))]))
        raise


@pytest.mark.parametrize("portion", range(PORTIONS))
def test_random_programs(portion: int) -> None:
    """P2 to P9: whatever goes wrong and whatever the schedule, a program comes to the end that it has undisturbed, and
    repeats nothing that was recorded."""
    seeds = [int(ONE)] * (portion == 0) if ONE is not None else range(portion, COUNT, PORTIONS)
    ended = sum(one(seed) is not None for seed in seeds)
    assert ended >= len(seeds) * 0.9  # else the programs are no good


def test_a_seed_is_a_simulation() -> None:
    """The same seed gives the very same trace, to the step and the second; another gives another."""
    for seed in range(5):
        first, second, other = one(seed), one(seed), one(seed + 1000)
        assert first is not None and second is not None
        assert first.trace == second.trace and str(first) == str(second)
        assert other is None or other.trace != first.trace
