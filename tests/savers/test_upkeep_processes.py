"""Upkeep with other processes on one file (P3, P6): a run in another process, and processes that are killed during
upkeep."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from checkpoint_savers import SqliteSaver
from checkpoint_savers.errors import ThreadBusyError
from checkpoint_savers.upkeep.retention import Retention
from tests.savers.sqlite_tools import ENV
from tests.savers.upkeep_graphs import ids_of, steps

pytestmark = pytest.mark.anyio

RUNNING = """if True:
    import sys
    import anyio
    from checkpoint_savers import SqliteSaver
    from tests.savers.upkeep_graphs import steps

    def wait(state):
        print("running", flush=True)
        sys.stdin.read()

    async def main():
        async with SqliteSaver(sys.argv[1]) as saver:
            builder = steps(None).builder
            graph = builder.add_node("wait", wait).add_edge("two", "wait").compile(saver)
            await graph.ainvoke({"log": ["in"]}, "t")

    anyio.run(main)
"""

PRUNING = """if True:
    import sys
    import anyio
    from checkpoint_savers import SqliteSaver
    from checkpoint_savers.upkeep.retention import Retention
    from tests.savers.upkeep_graphs import steps

    async def main():
        async with SqliteSaver(sys.argv[1], synchronous="NORMAL") as saver:
            graph = steps(saver)
            while True:
                await graph.ainvoke({"log": ["in"]}, "t")
                await saver.aprune("t", retention=Retention(keep=3))
                await saver.acopy_thread("t", "copy")
                await saver.adelete_for_runs([(await graph.aget_state("copy")).metadata["run_id"]])
                await graph.ainvoke({"log": ["in"]}, "t")
                await saver.aprune("t", retention=Retention(keep=2))
                print("turn", flush=True)

    anyio.run(main)
"""


def child(code: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        env=ENV,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


async def test_a_run_of_another_process(tmp_path: Path) -> None:
    """P6: a thread that another process owns is left alone and unchanged; when the process is killed, it is pruned
    at once."""
    path = tmp_path / "threads.db"
    async with SqliteSaver(path) as saver:
        await steps(saver).ainvoke({"log": ["in"]}, "t")
        with child(RUNNING, path) as process:
            assert process.stdout is not None and process.stdout.readline() == "running\n"
            before = await saver.dump("t")
            for verb in (
                lambda: saver.aprune("t", retention=Retention(keep=1)),
                lambda: saver.aerase_thread("t"),
                lambda: saver.acopy_thread("t", "copy"),
                lambda: saver.apin("t"),
            ):
                with pytest.raises(ThreadBusyError) as caught:
                    await verb()
                assert str(process.pid) in str(caught.value)
            assert (await saver.aprune(strategy="keep_latest")).busy == ("t",)
            assert await saver.dump("t") == before and await saver.acount_threads() == 1
            process.kill()
        assert (await saver.aprune("t", retention=Retention(keep=1))).checkpoints
        assert len(await ids_of(saver, "t")) == 1


@pytest.mark.slow
async def test_killed_during_upkeep(tmp_path: Path) -> None:
    """P3: whenever the process is killed, the stored thread can be read and continued."""
    path = tmp_path / "threads.db"
    luck = random.Random(0)
    for turn in range(5):
        with child(PRUNING, path) as process:
            assert process.stdout is not None
            for _ in range(luck.randint(1, 3)):
                assert process.stdout.readline() == "turn\n"
            for _ in range(luck.randint(0, 40_000)):
                pass  # at any point
            process.kill()
        async with SqliteSaver(path, synchronous="NORMAL") as saver:
            graph = steps(saver)
            for name in ("t", "copy"):
                states = [each.values async for each in graph.aget_state_history(name)]
                # Deleting the run's checkpoints may have left the thread empty: then the state is that before the
                # input.
                assert all(state.get("log", [])[:1] in ([], ["in"]) for state in states)
            log = (await graph.ainvoke(None if (await graph.aget_state("t")).next else {"log": ["in"]}, "t"))["log"]
            assert log == ["in", "one", "two"] * (len(log) // 3), turn
            await saver.aprune(strategy="keep_latest")
            assert len(await ids_of(saver, "t")) == 1
            await saver.aerase_thread("copy")
