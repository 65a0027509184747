"""How the conformance kit runs functions in operating-system threads."""

from __future__ import annotations

import anyio
import pytest

from checkpoint_savers.conformance.savers.suite import in_threads

pytestmark = pytest.mark.anyio


async def test_one_that_fails_at_once_does_not_stop_the_others() -> None:
    """All functions start together, and each runs to its end, whatever another raises: readers that wait for the end
    of a writer see it."""
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
