"""Random programs with fan-out, sends, questions, tasks, subgraphs, retries, timeouts and error handlers, through
schedules, faults and crashes.

By default 300 programs; PREGEL_SIMULATIONS sets another number. A failure reports its seed, the program, the plan and
the trace; `PREGEL_SIMULATION_SEED=17 pytest tests/simulation` repeats one.
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
from tests.simulation.random_policies import PolicyBuild, YieldingHooks, handles, program

COUNT = int(os.environ.get("PREGEL_SIMULATIONS", "200"))
ONE = os.environ.get("PREGEL_SIMULATION_SEED")
PORTIONS = 12


def answers(question: Interrupt) -> Any:
    return answer_to(question.value)


def one(seed: int) -> Simulation | None:
    """Simulate one program; return None if the program does not end."""
    made = program(random.Random(seed))
    graph = PolicyBuild(YieldingHooks(seed))(made, InMemorySaver())
    inputs = inputs_of(made)[: 2 if seed % 4 == 0 else 1]
    # An error handler also handles injected failures, so a program with one may reach another end.
    # (Error handlers never get storage errors.)
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
    """P2 to P9: with any faults and schedule, a program reaches the end of its undisturbed run and repeats no recorded
    work."""
    seeds = [int(ONE)] * (portion == 0) if ONE is not None else range(portion, COUNT, PORTIONS)
    ended = sum(one(seed) is not None for seed in seeds)
    assert ended >= len(seeds) * 0.9  # otherwise the programs test too little


def test_a_seed_is_a_simulation() -> None:
    """The same seed gives exactly the same trace, in steps and times; another seed gives another."""
    for seed in range(5):
        first, second, other = one(seed), one(seed), one(seed + 1000)
        assert first is not None and second is not None
        assert first.trace == second.trace and str(first) == str(second)
        assert other is None or other.trace != first.trace
