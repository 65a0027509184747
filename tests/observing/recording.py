"""Helpers of this folder's tests: a clock that the test sets, a saver with set durations, an observer that records
events, and states."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypedDict, TypeVar

import anyio.lowlevel

from checkpoint_savers import InMemorySaver
from pregel_async import START, StateGraph
from pregel_async._runtime.platform.environment import SystemEnvironment
from pregel_async.observing import Event, Observer
from tests.helpers.passing_saver import WRITES, Through

T = TypeVar("T")
E = TypeVar("E")


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


class Clock(SystemEnvironment):
    """A clock that moves only when a test sets it, or when code sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 1000.0

    def now(self) -> float:
        return 4_000_000_000.0 + self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        if seconds >= 10:  # a lease's heartbeat: no test here lasts that long
            await anyio.sleep_forever()
        self.time += seconds
        await anyio.lowlevel.checkpoint()

    def jitter(self) -> float:
        return 0.5


class TimedSaver(Through):
    """Stores threads in memory. Each write takes the next of these times, in seconds, and then none."""

    def __init__(self, clock: Clock, *times: float) -> None:
        super().__init__(InMemorySaver(clock=clock.now))
        self.ticking = clock
        self.times = list(times)
        self.fails: dict[str, Exception] = {}

    async def around(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        if verb in WRITES and verb in ("commit", "record"):
            self.ticking.time += self.times.pop(0) if self.times else 0.0
        if verb in self.fails:
            raise self.fails[verb]
        return await call()


class EventLog(Observer):
    """Records each event that it observes."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def observe(self, event: Event, /) -> None:
        self.events.append(event)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def one(self, kind: type[E]) -> E:
        (event,) = self.of(kind)
        return event

    @property
    def names(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


def node(name: str, *, clock: Clock | None = None, takes: float = 0.0, fails: int = 0) -> Any:
    """Create a node that logs its name after so many seconds of the clock, and fails so many times first."""
    left = [fails]

    async def call(state: State) -> State:
        await anyio.lowlevel.checkpoint()
        if clock is not None:
            clock.time += takes
        if left[0]:
            left[0] -= 1
            raise ConnectionError(f"{name} failed")
        return {"log": [name]}

    return call


def chain(*nodes: tuple[str, Any], **options: Any) -> Any:
    """A graph of nodes one after the other, not compiled."""
    made = StateGraph(State)
    before = START
    for name, call in nodes:
        made.add_node(name, call, **options).add_edge(before, name)
        before = name
    return made


def parallel(**nodes: Any) -> Any:
    """A graph of parallel nodes, not compiled."""
    made = StateGraph(State)
    for name, call in nodes.items():
        made.add_node(name, call).add_edge(START, name)
    return made
