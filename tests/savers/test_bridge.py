"""P7, P13: a call that waits for another thread returns when that thread is done, on every event loop, however often
the call is cancelled."""

from __future__ import annotations

import asyncio
import signal
import threading
from types import FrameType

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers.bridge import DriverThread, Waiter, block, current_loop, running_library, wait_until_woken, wake

anyio_only = pytest.mark.anyio


class Work:
    """A job of another thread; it ends when the test calls `end()`."""

    def __init__(self) -> None:
        self.begun = False
        self.ended = False
        self.waiter: Waiter | None = None

    def start(self, waiter: Waiter) -> None:
        self.begun = True
        self.waiter = waiter

    def end(self) -> None:
        def run() -> None:
            self.ended = True
            assert self.waiter is not None
            wake([self.waiter])

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await anyio.lowlevel.checkpoint()


@anyio_only
async def test_until_returns_when_notified() -> None:
    """`wait_until_woken` returns when its waiter is notified, from whichever thread."""
    work = Work()
    async with anyio.create_task_group() as group:
        group.start_soon(wait_until_woken, work.start)
        await turns()
        assert work.begun
        work.end()


@anyio_only
async def test_notified_before_waiting() -> None:
    """`wait_until_woken` returns at once if its waiter was notified before it waits, even by the same thread."""
    await wait_until_woken(lambda waiter: wake([waiter]))


@anyio_only
async def test_an_error_of_start() -> None:
    """P7: if `start` raises, no work has begun, and `until` raises that error without waiting."""

    def start(waiter: Waiter) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        await wait_until_woken(start)


@anyio_only
async def test_many_wait() -> None:
    """One call wakes all waiters, each once."""
    works = [Work() for _ in range(100)]
    async with anyio.create_task_group() as group:
        for work in works:
            group.start_soon(wait_until_woken, work.start)
        await turns()
        wake([work.waiter for work in works if work.waiter is not None])


@anyio_only
async def test_a_cancelled_scope_waits() -> None:
    """P7: a call that is cancelled by a scope ends when the other thread has finished; then the cancellation is
    raised."""
    work = Work()
    after = False

    async def wait() -> None:
        nonlocal after
        try:
            await wait_until_woken(work.start)
        finally:
            assert work.ended
        after = True

    async with anyio.create_task_group() as outer:
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await turns()

            async def end_later() -> None:
                await turns()
                assert not work.ended
                work.end()

            outer.start_soon(end_later)
            group.cancel_scope.cancel()
    assert work.ended
    assert not after, "the cancellation was lost"


@anyio_only
async def test_a_scope_that_is_already_cancelled() -> None:
    """P7: in a cancelled scope no work begins."""
    work = Work()

    def start(waiter: Waiter) -> None:
        work.start(waiter)
        wake([waiter])

    with anyio.CancelScope() as scope:
        scope.cancel()
        await wait_until_woken(start)
    assert scope.cancelled_caught
    assert not work.begun


@anyio_only
async def test_shielded() -> None:
    """P7: a shielded call returns in spite of a cancelled scope; its caller is cancelled at the next checkpoint."""
    work = Work()
    done: list[str] = []

    async def wait() -> None:
        await wait_until_woken(work.start, shielded=True)
        done.append("returned")
        await anyio.lowlevel.checkpoint()
        done.append("went on")

    async with anyio.create_task_group() as outer:
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await turns()

            async def end_later() -> None:
                await turns()
                assert not done
                work.end()

            outer.start_soon(end_later)
            group.cancel_scope.cancel()
    assert done == ["returned"]


@anyio_only
async def test_shielded_in_a_scope_that_is_already_cancelled() -> None:
    """P7: in a cancelled scope, a shielded call begins all the same, and returns."""
    work = Work()
    returned = False

    def start(waiter: Waiter) -> None:
        work.start(waiter)
        wake([waiter])

    with anyio.CancelScope() as scope:
        scope.cancel()
        await wait_until_woken(start, shielded=True)
        returned = True
        await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught and work.begun and returned


@anyio_only
async def test_under_the_callers_shield() -> None:
    """P7: under a shield of its caller, the call works in a cancelled scope and is not cancelled."""
    work = Work()
    done = False
    async with anyio.create_task_group() as group:

        async def wait() -> None:
            nonlocal done
            with anyio.CancelScope(shield=True):
                await wait_until_woken(work.start)
                done = True

        group.start_soon(wait)
        await turns()
        group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await turns()
            work.end()
    assert done


@pytest.fixture
def on_asyncio(anyio_backend_name: str) -> None:
    if anyio_backend_name != "asyncio":
        pytest.skip("about Task.cancel(), which trio has not")


@anyio_only
@pytest.mark.usefixtures("on_asyncio")
class TestNative:
    """asyncio's own ways to cancel a task."""

    @pytest.mark.parametrize("times", [1, 2, 7])
    async def test_cancelled_again_and_again(self, times: int) -> None:
        """P7: `Task.cancel()`, any number of times, does not end the wait earlier, and no cancellation is lost or
        added."""
        work = Work()
        counts: list[int] = []

        async def wait() -> None:
            try:
                await wait_until_woken(work.start)
            finally:
                task = asyncio.current_task()
                assert task is not None
                counts.append(task.cancelling())

        task = asyncio.ensure_future(wait())
        await turns()
        for number in range(times):
            task.cancel(f"number {number}")
            await turns()
            assert not task.done()
        work.end()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert task.cancelled()
        assert counts == [times]
        assert caught.value.args in ((f"number {times - 1}",), ())  # 3.11 and later keep the message, uvloop may not

    async def test_a_timeout(self) -> None:
        """P7: `asyncio.timeout` recognises its own cancellation."""
        work = Work()
        deadline = asyncio.get_running_loop().time()

        async def end_later() -> None:
            await turns(20)
            work.end()

        ender = asyncio.ensure_future(end_later())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await wait_until_woken(work.start)
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
        assert work.ended
        await ender

    async def test_a_task_group(self) -> None:
        """P7: if a sibling fails, `asyncio.TaskGroup` waits for the call."""
        work = Work()

        async def end_later() -> None:
            await turns(20)
            work.end()

        async def fail() -> None:
            await turns()
            enders.append(asyncio.ensure_future(end_later()))
            raise LookupError

        enders: list[asyncio.Future[None]] = []

        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.TaskGroup() as group:
                group.create_task(wait_until_woken(work.start))
                group.create_task(fail())
        assert caught.group_contains(LookupError)
        assert work.ended
        await enders[0]

    async def test_a_cancelled_scope_does_not_spin(self) -> None:
        """P7: anyio cancels a task of a cancelled scope in every iteration of the loop until the task ends; a
        waiting call does not cause that."""
        work = Work()
        seen: list[int] = []

        async def wait() -> None:
            task = asyncio.current_task()
            assert task is not None
            with anyio.CancelScope() as scope:
                asyncio.get_running_loop().call_soon(scope.cancel)
                try:
                    await wait_until_woken(work.start)
                finally:
                    seen.append(task.cancelling())
            assert task.cancelling() == 0

        task = asyncio.ensure_future(wait())
        await turns(50)
        work.end()
        await task
        assert seen[0] <= 2

    async def test_a_native_cancellation_after_a_scopes(self) -> None:
        """P7: if a scope and `Task.cancel()` both cancel, the scope may swallow its own cancellation, but not the
        task's."""
        work = Work()
        after = False

        async def wait() -> None:
            nonlocal after
            with anyio.CancelScope() as scope:
                asyncio.get_running_loop().call_soon(scope.cancel)
                await wait_until_woken(work.start)
            await turns()
            after = True

        task = asyncio.ensure_future(wait())
        await turns()
        task.cancel()
        await turns()
        work.end()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not after

    async def test_shielded(self) -> None:
        """P7: no shield holds off `Task.cancel()`: the cancellation is raised when the other thread has finished."""
        work = Work()
        task = asyncio.ensure_future(wait_until_woken(work.start, shielded=True))
        await turns()
        task.cancel()
        await turns()
        assert not task.done()
        work.end()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def test_notified_and_cancelled_in_one_iteration(self) -> None:
        """P7: a call that is notified, and cancelled before its task runs again, raises the cancellation."""
        work = Work()
        task = asyncio.ensure_future(wait_until_woken(work.start))
        await turns()
        work.end()
        await asyncio.sleep(0)  # the call has been notified, and its task runs in the next iteration
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_a_loop_that_was_closed() -> None:
    """P13: closing a loop under a waiting task does not affect other waiters."""
    work, other = Work(), Work()
    loop = asyncio.new_event_loop()
    task = loop.create_task(wait_until_woken(work.start))
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()

    async def main() -> None:
        second = asyncio.ensure_future(wait_until_woken(other.start))
        await turns()
        assert work.waiter is not None and other.waiter is not None
        wake([work.waiter, other.waiter])
        await second

    asyncio.run(main())
    loop.set_exception_handler(lambda loop, context: None)  # asyncio logs the task that was left
    task._log_destroy_pending = False


def test_ctrl_c_on_trio() -> None:
    """P7, P13: on trio, Ctrl-C passes through a shield; here it is raised only after the wait."""
    import trio

    work = Work()
    idle = threading.Event()

    class Idle(trio.abc.Instrument):  # trio is imported here
        """Sets an event when trio waits for I/O. Trio handles a signal in the middle of its own work, and not always
        well."""

        def before_io_wait(self, timeout: float) -> None:
            if timeout > 0:
                idle.set()

    def start(waiter: Waiter) -> None:
        work.start(waiter)

        def run() -> None:
            idle.wait()
            signal.raise_signal(signal.SIGINT)
            work.end()

        threading.Thread(target=run).start()

    async def main() -> None:
        try:
            await wait_until_woken(start)
        finally:
            assert work.ended

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            trio.run(main, instruments=[Idle()])
    finally:
        signal.signal(signal.SIGINT, before)
    assert work.ended


@anyio_only
async def test_a_drivers_thread() -> None:
    """P13: a driver's thread runs one coroutine on asyncio, whatever loop its caller has, and has ended when `join`
    returns."""
    go = threading.Event()
    where: list[str] = []

    async def main() -> None:
        asyncio.get_running_loop()
        where.append(threading.current_thread().name)
        assert threading.current_thread().daemon
        go.wait()

    driver = DriverThread("a driver", main)
    driver.start()
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(driver.join)
        await turns()
        go.set()
    await driver.join()
    assert where == ["a driver"]
    assert "a driver" not in {thread.name for thread in threading.enumerate()}


def test_block() -> None:
    """A plain thread waits until it is notified, by whichever thread."""
    work = Work()

    def start(waiter: Waiter) -> None:
        work.start(waiter)
        threading.Thread(target=work.end).start()

    block(start)
    assert work.ended
    block(lambda waiter: wake([waiter]))


def test_ctrl_c_while_it_blocks() -> None:
    """P7: Ctrl-C, pressed once or twice, is raised when the work is done, and not before."""
    work, main = Work(), threading.main_thread().ident
    assert main is not None
    noticed = threading.Semaphore(0)

    def handle(_: object, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code is block.__code__:  # but not in the code that starts the work
            noticed.release()
            raise KeyboardInterrupt

    def run() -> None:
        for _ in range(2):
            while not noticed.acquire(timeout=0.01):
                signal.pthread_kill(main, signal.SIGINT)
        work.end()

    before = signal.signal(signal.SIGINT, handle)
    try:
        with pytest.raises(KeyboardInterrupt):
            block(lambda waiter: (work.start(waiter), threading.Thread(target=run).start())[0])
    finally:
        signal.signal(signal.SIGINT, before)
    assert work.ended


def test_which_event_loop_runs() -> None:
    """`running_library` names each kind of event loop in its tasks, and none in a plain thread."""
    assert running_library() is None and current_loop() is None

    async def main(name: str) -> None:
        assert running_library() == name
        assert current_loop() is not None

    for name in ("asyncio", "trio"):
        anyio.run(main, name, backend=name)
