"""Workers take only threads that a version of their graph can continue."""

from __future__ import annotations

from typing import Any

import pytest

from checkpoint_savers import BaseCheckpointSaver
from pregel_async import Command
from pregel_async.service import RunService
from tests.helpers.versioned_graphs import graph, versions

pytestmark = pytest.mark.anyio


def service(saver: Any, *numbers: int, **options: Any) -> RunService:
    return RunService({"orders": versions(None, *numbers)}, saver, **options)


@pytest.mark.parametrize(("stored", "lacking"), [(2, 3), (3, 2)], ids=["an older thread", "a newer thread"])
async def test_a_worker_takes_threads_of_versions_that_it_has(
    saver: BaseCheckpointSaver, stored: int, lacking: int
) -> None:
    """P15, P16: a worker that lacks the version of an open thread leaves its run to a worker that has it."""
    await graph(stored, saver).ainvoke({}, "t")
    async with service(saver, 2, 3, work=False) as web:
        run = await web.start("orders", Command(resume="yes"), thread_id="t")
        async with service(saver, lacking):
            other = await web.start("orders", {}, thread_id="new")
            result = await web.join(other.run_id)
            assert [each.value for each in result.interrupts] == [f"{lacking}?"]
            waiting = await web.get_run(run.run_id)
            assert (waiting.status, waiting.attempt) == ("pending", 0)
            async with service(saver, 2, 3):
                result = await web.join(run.run_id)
        assert (result.run.status, result.values) == ("success", {"log": [f"{stored}: yes"]})


async def test_an_idle_thread_moves(saver: BaseCheckpointSaver) -> None:
    """P15: a new input to an idle thread is run by the newest version that the worker has."""
    await graph(2, saver).ainvoke({}, "t")
    async with service(saver, 2, 3) as both:
        answered = await both.join((await both.start("orders", Command(resume="yes"), thread_id="t")).run_id)
        assert answered.values == {"log": ["2: yes"]}
        asked = await both.join((await both.start("orders", {}, thread_id="t")).run_id)
        assert [each.value for each in asked.interrupts] == ["3?"]
