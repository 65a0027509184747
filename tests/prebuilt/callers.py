"""Call agents on each saver, by the sync verbs and by the async ones on each event loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from checkpoint_savers import BaseCheckpointSaver
from pregel_async import open_sync
from tests.helpers.each_saver import SAVERS, opener

WAYS = [f"{kind}-{how}" for kind in SAVERS for how in ("sync", "asyncio", "trio")]
WAYS.remove("postgres-trio")  # schemas take half of the time of these tests; trio on PostgreSQL is in tests/savers


class Caller:
    """Calls graphs from a test that is no coroutine.

    Attributes:
        saver: the saver of the test's graphs.
    """

    def __init__(self, saver: BaseCheckpointSaver, portal: BlockingPortal | None) -> None:
        self.saver = saver
        self._portal = portal

    def invoke(self, graph: Any, given: Any, **options: Any) -> Any:
        if self._portal is None:
            return graph.invoke(given, "t", **options)

        async def run() -> Any:
            return await graph.ainvoke(given, "t", **options)

        return self._portal.call(run)

    def stream(self, graph: Any, given: Any, **options: Any) -> list[Any]:
        if self._portal is None:
            return list(graph.stream(given, "t", **options))

        async def run() -> list[Any]:
            return [part async for part in graph.astream(given, "t", **options)]

        return self._portal.call(run)

    def state(self, graph: Any) -> Any:
        """The values of the thread's newest state."""
        if self._portal is None:
            return graph.get_state("t").values

        async def read() -> Any:
            return (await graph.aget_state("t")).values

        return self._portal.call(read)


@pytest.fixture(params=WAYS)
def caller(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Caller]:
    kind, how = request.param.split("-")
    with ExitStack() as stack:
        opens = stack.enter_context(opener(kind, tmp_path))
        if how == "sync":
            yield Caller(stack.enter_context(open_sync(opens())), None)
        else:
            portal = stack.enter_context(start_blocking_portal(how))
            yield Caller(stack.enter_context(portal.wrap_async_context_manager(opens())), portal)
