"""P5, P12: after any faults in a random program, a reader that reconnects ends with the text of an undisturbed run."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

import anyio
from hypothesis import given, note
from hypothesis import strategies as st

from checkpoint_savers import InMemorySaver
from checkpoint_savers.abc import BaseCheckpointSaver
from pregel_async import get_runtime, get_stream_writer
from pregel_async.errors import EmptyInputError, GraphRecursionError
from pregel_async.types import Durability
from tests.helpers.environments import SeededEnvironment
from tests.helpers.law_programs import Build, Hooks, Program, inputs_of, programs
from tests.helpers.passing_saver import WRITES, Through
from tests.helpers.stream_reader import kept_by_reader
from tests.laws.conversations import THREAD, all_at_once, law, show

T = TypeVar("T")

How = Literal["die", "cancel", "reload"]


class Died(BaseException):
    """Stands for the end of the process."""


class Trouble:
    """What ends one process: it dies at one of its steps, its run is cancelled there, or its reader leaves.

    Attributes:
        left: the number of steps until then.
        scope: the run's cancel scope.
    """

    def __init__(self, how: How, left: int) -> None:
        self.how = how
        self.left = left
        self.dead = False
        self.scope = anyio.CancelScope()

    def step(self) -> None:
        self.left -= 1
        if self.left == 0 and self.how == "cancel":
            self.scope.cancel()
        if self.dead or (self.left == 0 and self.how == "die"):
            self.dead = True
            raise Died


class Dying(Through):
    """A saver of a process that may die before a write."""

    def __init__(self, inner: BaseCheckpointSaver, trouble: Trouble) -> None:
        super().__init__(inner)
        self._trouble = trouble

    async def around(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        if verb in WRITES:
            self._trouble.step()
        return await call()


class StreamingHooks(Hooks):
    """Programs that stream a word at each suspension point."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__()
        self._trouble = trouble

    async def turn(self) -> None:
        await get_stream_writer()(get_runtime().execution_info.task_id)
        self._trouble.step()
        await anyio.lowlevel.checkpoint()


class Client:
    """A client that calls a graph, answers its questions, and reads its stream.

    Attributes:
        seen: all parts received.
    """

    def __init__(self, made: Program, mode: Durability) -> None:
        self.seen: list[Any] = []
        self._made = made
        self._environment = SeededEnvironment()
        self._saver = InMemorySaver(clock=self._environment.now)
        self._mode: Durability = mode
        self._cursor: str | None = None
        self._answers: Any = None

    def _graph(self, trouble: Trouble) -> Any:
        return Build(StreamingHooks(trouble))(self._made, Dying(self._saver, trouble), self._environment)

    async def talk(self, trouble: Trouble) -> bool:
        """Continue the conversation in a new process until the fault.

        Returns: True at the end of the conversation.
        """
        graph = self._graph(trouble)
        most = trouble.left if trouble.how == "reload" else 10**6
        try:
            with trouble.scope:
                while True:
                    if self._cursor is None:
                        self.seen, self._saver = [], InMemorySaver(clock=self._environment.now)
                        graph = self._graph(trouble)
                        stream = self._call(graph, inputs_of(self._made)[0])
                    elif self._answers is not None:
                        stream, self._answers = self._call(graph, self._answers), None
                    else:
                        stream = self._call(graph, None, after=self._cursor)
                    async with stream as parts:
                        await stream.begin()
                        self._cursor = stream.cursor
                        async for part in parts:
                            self.seen.append(part)
                            self._cursor = stream.cursor
                            most -= 1
                            if most == 0:
                                return False
                    state = await graph.aget_state("t")
                    if not state.interrupts:
                        assert not state.next
                        return True
                    self._answers = all_at_once(state.interrupts)
        except EmptyInputError:
            # With "async" the input, too, is at risk until its transaction has ended: the client begins anew.
            assert self._mode == "async" and await self._saver.scan("t", None) == ()
            self._cursor = None
        except BaseException as error:
            if not died(error):
                raise
            self._environment.time += 100
        return False

    def _call(self, graph: Any, given: Any, **more: Any) -> Any:
        how: dict[str, Any] = {"on_conflict": "wait", **more} if more else {"keep_events": True}
        return graph.astream(
            given, THREAD, stream_mode="custom", subgraphs=True, version="v2", durability=self._mode, **how
        )

    @property
    def words(self) -> Counter[str]:
        return Counter(part["data"] for part in kept_by_reader(self.seen) if part["type"] == "custom")


def died(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(died(one) for one in error.exceptions)
    return isinstance(error, Died)


@law()
@given(
    made=programs(),
    seed=st.integers(0, 9999),
    loop=st.sampled_from(("asyncio", "trio")),
    mode=st.sampled_from(("sync", "sync", "async")),
)
def test_a_reader_has_the_text_of_an_undisturbed_run(made: Program, seed: int, loop: str, mode: Durability) -> None:
    """P5, P12: a reader has the whole text after up to four crashes, cancellations and reloads, in any order."""
    show(made)
    luck = random.Random(seed)

    async def main() -> None:
        undisturbed, reader = Client(made, mode), Client(made, mode)
        try:
            assert await undisturbed.talk(Trouble("die", 10**6))
        except GraphRecursionError:
            return
        for _ in range(luck.randint(1, 4)):
            trouble = Trouble(luck.choice(("die", "cancel", "reload")), luck.randint(1, 25))
            note(f"{trouble.how} {trouble.left}")
            if await reader.talk(trouble):
                break
        else:
            while not await reader.talk(Trouble("die", 10**6)):
                pass
        assert reader.words == undisturbed.words

    anyio.run(main, backend=loop)
