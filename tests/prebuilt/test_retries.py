"""`ModelRetryMiddleware`, `ToolRetryMiddleware` and `ModelFallbackMiddleware`."""

from __future__ import annotations

from typing import Any

import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import Command, interrupt
from pregel_async.errors import GraphValidationError
from pregel_async.prebuilt import (
    InvalidModelError,
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    ToolRetryMiddleware,
    create_agent,
)
from tests.prebuilt.calls import asking, call, contents
from tests.prebuilt.scripted import Script

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

HI = {"messages": [{"role": "user", "content": "hi"}]}


class Waits:
    """Records the seconds to wait, and does not wait."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


class Failing:
    """A model that fails a number of times."""

    def __init__(self, times: int, error: Exception | None = None) -> None:
        self.times = times
        self.error = error or ConnectionError("no line")
        self.calls = 0

    async def __call__(self, messages: list[Any], tools: list[Any]) -> Any:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return "hello"


async def test_a_model_call_is_retried() -> None:
    """The delays grow up to the limit."""
    waits = Waits()
    retry = ModelRetryMiddleware(max_retries=4, max_delay=3.0, jitter=False, wait=waits)
    model = Failing(4)
    assert contents(await create_agent(model, middleware=[retry]).ainvoke(HI))[-1] == "hello"
    assert (model.calls, waits.seconds) == (5, [1.0, 2.0, 3.0, 3.0])


def test_a_model_that_keeps_failing() -> None:
    waits = Waits()
    for options, said in (
        ({}, "The call of the model failed after 3 attempts with ConnectionError: no line"),
        ({"max_retries": 0}, "The call of the model failed after 1 attempt with ConnectionError: no line"),
        ({"on_failure": lambda error: f"sorry: {error}"}, "sorry: no line"),
    ):
        retry = ModelRetryMiddleware(**{"wait": waits, "backoff_factor": 0.0, **options})
        assert contents(create_agent(Failing(9), middleware=[retry]).invoke(HI))[-1] == said
    assert len(waits.seconds) == 4
    assert all(0.75 <= seconds <= 1.25 for seconds in waits.seconds)
    raising = ModelRetryMiddleware(on_failure="error", wait=waits, initial_delay=0.0)
    with pytest.raises(ConnectionError):
        create_agent(Failing(9), middleware=[raising]).invoke(HI)
    assert len(waits.seconds) == 4


class RefusedError(Exception):
    is_retryable = False


async def test_which_errors_are_retried() -> None:
    """Others are raised at once, whatever `on_failure` says."""
    for rule, error in (
        ((OSError, KeyError), ValueError("x")),
        ([KeyError], ValueError("x")),
        (KeyError, ValueError("x")),
        (lambda error: False, ValueError("x")),
        (None, RefusedError("x")),
    ):
        model = Failing(1, error)
        options: Any = {} if rule is None else {"retry_on": rule}
        with pytest.raises(type(error)):
            await create_agent(model, middleware=[ModelRetryMiddleware(wait=Waits(), **options)]).ainvoke(HI)
        assert model.calls == 1


async def test_a_tool_is_retried() -> None:
    """Only the tools that are named; a call that keeps failing is answered with the error."""
    waits, ran = Waits(), list[str]()

    def find(q: str) -> str:
        ran.append(q)
        if q == "down" or ran.count(q) == 1:
            raise ConnectionError("no line")
        return f"found {q}"

    def other() -> str:
        raise ConnectionError("other")

    model = Script(asking(call("find", "1", q="a"), call("find", "2", q="down")), asking(call("other", "3")))
    agent = create_agent(
        model, [find, other], middleware=[ToolRetryMiddleware(tools=[find], wait=waits, initial_delay=0.5)]
    )
    seen: list[Any] = []
    with pytest.raises(ConnectionError, match="other"):
        async for state in agent.astream(HI, stream_mode="values"):
            seen = state["messages"]
    assert [each["content"] for each in seen if each["role"] == "tool"] == [
        "found a",
        "The tool 'find' failed after 3 attempts with ConnectionError: no line",
    ]
    assert seen[3]["status"] == "error"
    assert (ran.count("a"), ran.count("down"), len(waits.seconds)) == (2, 3, 3)


async def test_a_question_is_no_failure() -> None:
    def book() -> str:
        return f"booked {interrupt('when?')}"

    agent = create_agent(
        Script(asking(call("book")), "done"),
        [book],
        middleware=[ToolRetryMiddleware(tools=["book"], wait=Waits())],
        checkpointer=InMemorySaver(),
    )
    assert "__interrupt__" in await agent.ainvoke(HI, "t")
    assert contents(await agent.ainvoke(Command(resume="today"), "t"))[2] == "booked today"


async def test_other_models_are_called() -> None:
    """In their order, and the error of the last one is raised."""
    first, second, third = Failing(9), Failing(9, ValueError("second")), Failing(0)
    agent = create_agent(first, middleware=[ModelFallbackMiddleware(second, third)])
    assert contents(await agent.ainvoke(HI))[-1] == "hello"
    assert (first.calls, second.calls, third.calls) == (1, 1, 1)
    with pytest.raises(ValueError, match="second"):
        await create_agent(first, middleware=[ModelFallbackMiddleware(second)]).ainvoke(HI)


def test_bad_options() -> None:
    for name in ("max_retries", "backoff_factor", "initial_delay", "max_delay"):
        with pytest.raises(GraphValidationError, match=name):
            ModelRetryMiddleware(**{name: -1})
    with pytest.raises(GraphValidationError, match="on_failure"):
        ToolRetryMiddleware(on_failure="stop")
    with pytest.raises(InvalidModelError):
        ModelFallbackMiddleware(3)
