"""Single flight: of several callers that need the same value at the same time, one computes it, whichever of them
fail, are cancelled or disappear."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from checkpoint_savers.caches import Flights
from checkpoint_savers.caches import flights as module

LOOPS: tuple[dict[str, Any], ...] = (
    {"backend": "asyncio"},
    {"backend": "trio"},
    *([{"backend": "asyncio", "backend_options": {"use_uvloop": True}}] if sys.platform != "win32" else []),
)


async def turns(number: int = 10) -> None:
    for _ in range(number):
        await anyio.lowlevel.checkpoint()


class Caller:
    """A caller that needs the value of a key, and computes it as the test says."""

    def __init__(self, flights: Flights, name: str, key: str = "k") -> None:
        self.flights = flights
        self.name = name
        self.key = key
        self.leads = anyio.Event()
        self.go = anyio.Event()
        self.outcome: bytes | None | Exception = None
        self.got: tuple[bytes | None, bool] | None = None
        self.error: BaseException | None = None

    async def compute(self) -> bytes | None:
        self.leads.set()
        await self.go.wait()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    async def __call__(self) -> None:
        try:
            self.got = await self.flights.share(self.key, self.compute)
        except BaseException as error:
            self.error = error
            if not isinstance(error, Exception):
                raise

    def lands(self, outcome: bytes | None | Exception) -> None:
        self.outcome = outcome
        self.go.set()


class Pause:
    """Waits until the test that drives the coroutine by hand resumes it."""

    def __await__(self) -> Any:
        yield


@pytest.fixture
def flights() -> Flights:
    return Flights()


def waiting(flights: Flights, key: str = "k") -> int:
    flight = flights._under_way.get(key)
    return 0 if flight is None else len(flight.waiters)


@pytest.mark.anyio
class TestOnOneLoop:
    async def test_ten_concurrent_callers_compute_once(self, flights: Flights) -> None:
        """The first caller computes, the nine others wait and get its value, and no state is left."""
        callers = [Caller(flights, str(number)) for number in range(10)]
        async with anyio.create_task_group() as group:
            for caller in callers:
                group.start_soon(caller)
                await turns()
            assert [caller.leads.is_set() for caller in callers] == [True] + [False] * 9
            assert len(flights) == 1 and waiting(flights) == 9
            callers[0].lands(b"value")
        assert [caller.got for caller in callers] == [(b"value", True)] + [(b"value", False)] * 9
        assert len(flights) == 0

    async def test_a_later_caller_computes_again(self, flights: Flights) -> None:
        """Flights keep no values: storing values is up to the cache."""

        async def compute(value: bytes) -> bytes:
            return value

        assert await flights.share("k", partial(compute, b"1")) == (b"1", True)
        assert await flights.share("k", partial(compute, b"2")) == (b"2", True)
        assert module._LEADING.get() == ()

    async def test_another_key_does_not_wait(self, flights: Flights) -> None:
        """Each key has a flight of its own."""
        callers = [Caller(flights, key, key) for key in ("a", "b", "c")]
        async with anyio.create_task_group() as group:
            for caller in callers:
                group.start_soon(caller)
            await turns()
            assert all(caller.leads.is_set() for caller in callers) and len(flights) == 3
            for caller in callers:
                caller.lands(caller.key.encode())
        assert [caller.got for caller in callers] == [(b"a", True), (b"b", True), (b"c", True)]

    async def test_an_empty_value_is_a_value(self, flights: Flights) -> None:
        """An empty value is shared like any other; only None means that there is no value."""
        callers = [Caller(flights, str(number)) for number in range(2)]
        async with anyio.create_task_group() as group:
            for caller in callers:
                group.start_soon(caller)
                await turns()
            callers[0].lands(b"")
        assert [caller.got for caller in callers] == [(b"", True), (b"", False)]

    @pytest.mark.parametrize("failure", [ValueError("mine"), None], ids=["raises", "has nothing to share"])
    async def test_when_the_leader_fails_the_next_leads(self, flights: Flights, failure: Exception | None) -> None:
        """A leader's failure affects only the leader; one of the waiters computes, and the others get its value."""
        callers = [Caller(flights, str(number)) for number in range(5)]
        led: list[Caller] = []
        async with anyio.create_task_group() as group:
            for caller in callers:
                group.start_soon(caller)
            for number in range(4):
                await turns()
                (leader,) = [caller for caller in callers if caller.leads.is_set() and caller not in led]
                led.append(leader)
                assert waiting(flights) == 4 - number
                leader.lands(failure if number < 3 else b"value")
        (last,) = [caller for caller in callers if caller not in led]
        assert [caller.error for caller in led] == [failure] * 3 + [None]
        assert [caller.got for caller in led[:3]] == [None if failure else (None, True)] * 3
        assert [led[3].got, last.got] == [(b"value", True), (b"value", False)]
        assert len(flights) == 0

    async def test_when_the_leader_is_cancelled_the_next_leads(self, flights: Flights) -> None:
        """A cancellation ends the cancelled caller only."""
        callers = [Caller(flights, str(number)) for number in range(3)]
        async with anyio.create_task_group() as group:
            async with anyio.create_task_group() as first:
                first.start_soon(callers[0])
                await turns()
                for caller in callers[1:]:
                    group.start_soon(caller)
                    await turns()
                first.cancel_scope.cancel()
            await turns()
            (leader,) = [caller for caller in callers[1:] if caller.leads.is_set()]
            leader.lands(b"value")
        assert callers[0].got is None and callers[0].error is not None
        assert {caller.got for caller in callers[1:]} == {(b"value", True), (b"value", False)}

    async def test_when_an_asyncio_task_is_cancelled(self, flights: Flights, anyio_backend_name: str) -> None:
        """`Task.cancel()` has the same effect, on a waiter and on a leader."""
        if anyio_backend_name != "asyncio":
            pytest.skip("trio has no cancellation of its own besides scopes")
        callers = [Caller(flights, str(number)) for number in range(4)]
        tasks = []
        for caller in callers:
            tasks.append(asyncio.ensure_future(caller()))
            await turns()
        tasks[1].cancel()
        tasks[0].cancel()
        await asyncio.wait(tasks[:2])
        assert tasks[0].cancelled() and tasks[1].cancelled()
        await turns()
        assert not callers[1].leads.is_set() and callers[2].leads.is_set()
        callers[2].lands(b"value")
        await asyncio.wait(tasks)
        assert [caller.got for caller in callers[2:]] == [(b"value", True), (b"value", False)]

    async def test_a_cancelled_waiter_leaves_no_trace(self, flights: Flights) -> None:
        """The leader and the other waiters continue, and no state of the cancelled one is kept."""
        leader, gone, stays = (Caller(flights, name) for name in ("leader", "gone", "stays"))
        async with anyio.create_task_group() as group:
            group.start_soon(leader)
            await turns()
            group.start_soon(stays)
            async with anyio.create_task_group() as doomed:
                doomed.start_soon(gone)
                await turns()
                assert waiting(flights) == 2
                doomed.cancel_scope.cancel()
            assert waiting(flights) == 1
            leader.lands(b"value")
        assert leader.got == (b"value", True) and stays.got == (b"value", False) and gone.got is None
        assert not gone.leads.is_set() and len(flights) == 0

    async def test_a_waiter_that_is_cancelled_as_the_flight_ends(self, flights: Flights) -> None:
        """A waiter that is woken to lead and cancelled at once does not make the others wait for it."""
        gone, stays = Caller(flights, "gone"), Caller(flights, "stays")
        leader = flights.share("k", Pause)
        apart = copy_context()
        apart.run(leader.send, None)
        async with anyio.create_task_group() as group:
            async with anyio.create_task_group() as doomed:
                doomed.start_soon(gone)
                await turns()
                group.start_soon(stays)
                await turns()
                assert waiting(flights) == 2
                apart.run(leader.close)  # ends the flight: both waiters are notified, and neither has run yet
                doomed.cancel_scope.cancel()
            await stays.leads.wait()
            stays.lands(b"value")
        assert gone.got is None and not gone.leads.is_set()
        assert stays.got == (b"value", True)

    async def test_a_computation_that_requests_its_own_key(self, flights: Flights) -> None:
        """A computation that requests its own key would wait for itself: it computes once more instead, at any depth
        and in any task."""
        ran: list[str] = []

        async def inner() -> bytes:
            ran.append("inner")
            return b"inner"

        async def middle() -> bytes | None:
            ran.append("middle")
            async with anyio.create_task_group() as group:
                group.start_soon(flights.share, "outer", inner)
            return (await anyio.to_thread.run_sync(lambda: anyio.from_thread.run(flights.share, "middle", inner)))[0]

        async def outer() -> bytes | None:
            ran.append("outer")
            return (await flights.share("middle", middle))[0]

        with anyio.fail_after(30):
            assert await flights.share("outer", outer) == (b"inner", True)
        assert ran == ["outer", "middle", "inner", "inner"]
        assert len(flights) == 0

    async def test_computations_that_wait_for_each_other(self, flights: Flights) -> None:
        """Of two computations that need each other's value, even through a third, one gives up waiting and computes
        the value itself."""
        other = Flights()  # another cache's
        ran: list[str] = []
        all_lead = anyio.Event()

        async def alone(name: str) -> bytes:
            ran.append(name)
            return name.encode()

        async def lead(home: Flights, name: str, wanted_home: Flights, wanted: str) -> None:
            async def compute() -> bytes | None:
                if len(flights) + len(other) == 3:
                    all_lead.set()
                await all_lead.wait()
                return (await wanted_home.share(wanted, partial(alone, f"{wanted} for {name}")))[0]

            await home.share(name, compute)

        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(lead, flights, "a", flights, "b")
                group.start_soon(lead, flights, "b", other, "c")
                group.start_soon(lead, other, "c", flights, "a")
        assert len(ran) == 1
        assert len(flights) == len(other) == 0

    async def test_a_computation_that_needs_another_shares_it(self, flights: Flights) -> None:
        """A computation that leads one flight may wait for another, and does not compute without need."""
        needed = Caller(flights, "needed", "needed")
        got: list[tuple[bytes | None, bool]] = []

        async def compute() -> bytes | None:
            got.append(await flights.share("needed", Caller(flights, "never").compute))
            return got[-1][0]

        async with anyio.create_task_group() as group:
            group.start_soon(needed)
            await turns()
            for key in ("a", "b"):
                group.start_soon(flights.share, key, compute)
            await turns()
            assert waiting(flights, "needed") == 2
            needed.lands(b"value")
        assert got == [(b"value", False)] * 2

    async def test_a_cancelled_wait_does_not_count(self, flights: Flights) -> None:
        """A computation that no longer waits for another does not count when cycles are detected."""
        first, second = Caller(flights, "first", "first"), Caller(flights, "second", "second")
        gave_up, ask = anyio.Event(), anyio.Event()
        got: list[tuple[bytes | None, bool]] = []

        async def impatient() -> bytes | None:
            async with anyio.create_task_group() as group:
                group.start_soon(flights.share, "second", Caller(flights, "never").compute)
                await turns()
                assert waiting(flights, "second") == 1
                group.cancel_scope.cancel()
            gave_up.set()
            await first.go.wait()
            return first.outcome if isinstance(first.outcome, bytes) else None

        async def asks() -> bytes | None:
            second.leads.set()
            await ask.wait()
            got.append(await flights.share("first", Caller(flights, "never").compute))
            return got[-1][0]

        first.compute, second.compute = impatient, asks
        async with anyio.create_task_group() as group:
            group.start_soon(second)
            await second.leads.wait()
            group.start_soon(first)
            await gave_up.wait()
            ask.set()
            await turns()
            first.lands(b"value")
        assert got == [(b"value", False)]

    async def test_a_task_that_outlives_its_computation(self, flights: Flights) -> None:
        """A task that outlives the computation that started it waits for a later flight of the key like any other
        caller."""
        later = Caller(flights, "later")
        left = Caller(flights, "left")
        async with anyio.create_task_group() as group:

            async def compute() -> bytes:
                group.start_soon(wait_and_ask)
                return b"first"

            asks = anyio.Event()

            async def wait_and_ask() -> None:
                await asks.wait()
                await left()

            assert await flights.share("k", compute) == (b"first", True)
            group.start_soon(later)
            await turns()
            asks.set()
            await turns()
            assert waiting(flights) == 1
            later.lands(b"second")
        assert left.got == (b"second", False)


def test_cycle_detection_is_linear() -> None:
    """Cycle detection visits each flight once, however many paths lead to it."""
    layers = [[module._Flight() for _ in range(3)] for _ in range(50)]
    for above, below in zip(layers, layers[1:], strict=False):
        for one in above:
            one.needs.extend(below)
    assert module._would_deadlock(layers[0][0], (layers[-1][2],))
    assert not module._would_deadlock(layers[0][0], (module._Flight(),))


def start_by_hand(share: Any) -> Any:
    """Begin a call on a loop that ends before the call does. The returned object keeps the call alive."""

    async def begin() -> Any:
        return share.send(None)

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(begin())
    finally:
        loop.close()
    return [share]


@pytest.mark.anyio
async def test_a_waiter_whose_loop_has_ended(flights: Flights) -> None:
    """A thread that ended under its waiting tasks blocks no other caller."""
    leader, last = Caller(flights, "leader"), Caller(flights, "last")
    async with anyio.create_task_group() as group:
        group.start_soon(leader)
        await turns()
        never = Caller(flights, "never")
        (lost,) = await anyio.to_thread.run_sync(lambda: start_by_hand(flights.share("k", never.compute)))
        group.start_soon(last)
        await turns()
        assert waiting(flights) == 2
        leader.lands(ValueError())
        await last.leads.wait()
        last.lands(b"value")
    assert last.got == (b"value", True)
    lost.close()
    assert len(flights) == 0


@pytest.mark.anyio
async def test_a_leader_whose_loop_has_ended(flights: Flights) -> None:
    """When Python frees the leader's coroutine, in whatever thread, the next caller leads."""

    async def compute() -> bytes:
        await asyncio.get_running_loop().create_future()
        return b"never"

    (lost,) = await anyio.to_thread.run_sync(lambda: start_by_hand(flights.share("k", compute)))
    last = Caller(flights, "last")
    async with anyio.create_task_group() as group:
        group.start_soon(last)
        await turns()
        assert len(flights) == 1 and not last.leads.is_set()
        lost.close()
        await last.leads.wait()
        last.lands(b"value")
    assert last.got == (b"value", True) and len(flights) == 0
    assert module._LEADING.get() == ()


def in_threads(*works: Callable[[], Awaitable[None]]) -> None:
    """Run each function in a thread with a loop of its own: asyncio, trio and uvloop in turn."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            anyio.run(works[number], **LOOPS[number % len(LOOPS)])
        except BaseException as error:
            errors.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(works))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a caller waits for ever"
    finally:
        sys.setswitchinterval(before)
    if errors:
        raise BaseExceptionGroup("in threads", errors)


@pytest.mark.parametrize("fails", [False, True], ids=["shares", "fails"])
@pytest.mark.parametrize("waiter", range(len(LOOPS)), ids=lambda number: str(LOOPS[number]))
@pytest.mark.parametrize("leader", range(len(LOOPS)), ids=lambda number: str(LOOPS[number]))
def test_callers_on_several_event_loops(leader: int, waiter: int, fails: bool) -> None:
    """P13: values and the lead pass between event loops, whichever kind leads and whichever waits."""
    flights = Flights()
    leads, waits = threading.Event(), threading.Event()
    got: list[tuple[bytes | None, bool]] = []

    async def led() -> bytes | None:
        leads.set()
        await anyio.to_thread.run_sync(waits.wait)
        return None if fails else b"first"

    async def second() -> bytes:
        return b"second"

    def run(number: int) -> None:
        async def main() -> None:
            if number == 0:
                got.append(await flights.share("k", led))
                return
            await anyio.to_thread.run_sync(leads.wait)
            async with anyio.create_task_group() as group:

                async def wait() -> None:
                    got.append(await flights.share("k", second))

                group.start_soon(wait)
                while not waiting(flights):
                    await anyio.lowlevel.checkpoint()
                waits.set()

        anyio.run(main, **LOOPS[(leader, waiter)[number]])

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert sorted(got, key=repr) == (
        [(None, True), (b"second", True)] if fails else [(b"first", False), (b"first", True)]
    )


@pytest.mark.parametrize("seed", range(5))
def test_many_threads_with_failures_and_cancellations(seed: int) -> None:
    """P7, P13: two callers never compute the same value at once, every caller that is not cancelled gets a value,
    and no state is left."""
    flights = Flights()
    computing = dict.fromkeys("abc", 0)
    landed: set[bytes] = set()
    got: list[bytes] = []

    async def worker(number: int) -> None:
        by = random.Random(seed * 1000 + number)

        async def ask(key: str, fate: str) -> None:
            async def compute() -> bytes | None:
                computing[key] += 1
                assert computing[key] == 1
                try:
                    await turns(by.randrange(4))
                    if fate == "fails":
                        raise ValueError
                    value = f"{key} {number} {by.random()}".encode()
                    landed.add(value)
                    return None if fate == "nothing" else value
                finally:
                    computing[key] -= 1

            try:
                value, led = await flights.share(key, compute)
            except ValueError:
                assert fate == "fails"
                return
            if value is None:
                assert led and fate == "nothing"
                return
            assert value in landed and value.startswith(key.encode())
            got.append(value)

        for _ in range(30):
            async with anyio.create_task_group() as group:
                for _ in range(6):
                    fate = by.choice(["fine", "fine", "fails", "nothing"])
                    group.start_soon(ask, by.choice("abc"), fate)
                await turns(by.randrange(6))
                if by.random() < 0.3:
                    group.cancel_scope.cancel()

    in_threads(*(partial(worker, number) for number in range(6)))
    assert got
    assert len(flights) == 0 and set(computing.values()) == {0}
