"""How the conformance kit runs things in threads of the system."""

from __future__ import annotations

import anyio
import pytest

from checkpoint_savers.conformance.savers.suite import in_threads

pytestmark = pytest.mark.anyio


async def test_one_that_fails_at_once_keeps_no_other_from_its_work() -> None:
    """All begin together, and each does its work, whatever another raises: readers that wait for a writer's end see it."""
    for _ in range(30):
        done: list[int] = []

        async def fail() -> None:
            raise LookupError("this one")

        async def work(done: list[int] = done) -> None:
            await anyio.lowlevel.checkpoint()
            done.append(1)

        with pytest.raises(BaseExceptionGroup) as caught:
            await in_threads(fail, work, work)
        assert [type(error) for error in caught.value.exceptions] == [LookupError]
        assert done == [1, 1]
