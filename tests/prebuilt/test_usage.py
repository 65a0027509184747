"""What calls of models cost: tokens and money, in budgets, figures and OpenTelemetry."""

from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import START, Budget, Command, MessagesState, RetryPolicy, StateGraph, interrupt, task
from pregel_async.adapters import StreamFailedError, read_message, stream_message
from pregel_async.adapters.usage import TokenUsage, read_usage
from pregel_async.errors import BudgetExceededError, GraphValidationError
from pregel_async.observing import Figures
from pregel_async.prebuilt import (
    ModelCall,
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    Price,
    anthropic_messages,
    as_model,
    before_model,
    create_agent,
    create_react_agent,
    openai_chat,
    openai_responses,
)
from tests.helpers.exported_telemetry import Exported
from tests.prebuilt.calls import asking, call
from tests.prebuilt.recording import ModelCalls
from tests.prebuilt.scripted import Script
from tests.prebuilt.test_models import ANTHROPIC_EVENTS, CHAT_CHUNKS, RESPONSE_EVENTS, Client

pytestmark = pytest.mark.anyio

HI = {"messages": [{"role": "user", "content": "hi"}]}
USED = {"input_tokens": 1000, "output_tokens": 100, "total_tokens": 1100}
PRICES = {"big": Price(2.5, 10), "m": Price(1, 2)}


def said(content: str = "well", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "usage": USED, **more}


async def look(what: str) -> str:
    """Look."""
    return what


async def test_an_agent_counts_each_call(saver: BaseCheckpointSaver) -> None:
    """Tokens and cost are in the thread's state, in the run's figures, and in the events."""
    model = Script({**asking(call("look", what="a")), "usage": USED}, said())
    agent = create_agent(model, [look], prices={"ScriptedModel": Price(2.5, 10)}, checkpointer=saver)
    figures, calls = Figures(), ModelCalls()
    await agent.ainvoke(HI, "t", observer=[figures, calls])
    spent = {"input_tokens": 2000, "output_tokens": 200, "cost_usd": Decimal("0.007")}
    assert (await agent.aget_state("t")).spent == figures.spent == spent
    assert (figures.model_calls, figures.input_tokens, figures.output_tokens) == (2, 2000, 200)
    assert figures.cost_usd == Decimal("0.007")
    assert "2 model calls: 2000 input tokens, 200 output tokens, 0.0070 USD" in str(figures)
    assert [(each.model, each.attempt.node, each.attempt.step) for each in calls.seen] == [
        ("ScriptedModel", "model", n) for n in (1, 3)
    ]
    await agent.ainvoke(HI, "t")
    assert (await agent.aget_state("t")).spent["cost_usd"] == Decimal("0.0105")


async def test_unknown_models_count_tokens_alone() -> None:
    figures = Figures()
    await create_react_agent(Script(said()), []).ainvoke(HI, observer=figures)
    assert figures.spent == {"input_tokens": 1000, "output_tokens": 100}
    assert (figures.input_tokens, figures.cost_usd) == (1000, 0)


async def test_models_that_report_nothing() -> None:
    figures = Figures()
    await create_agent(Script("hello"), prices={"ScriptedModel": Price(1, 1)}).ainvoke(HI, observer=figures)
    assert (figures.model_calls, figures.spent) == (1, {})


async def test_a_budget_stops_an_agent() -> None:
    """A limit is given to the agent, or to a call; the run stops at the next barrier, and can be continued."""
    model = Script({**asking(call("look", what="a")), "usage": USED}, said())
    limits = {"cost_usd": Budget(thread=Decimal("0.003"))}
    agent = create_agent(
        model, [look], prices={"ScriptedModel": Price(2.5, 10)}, budgets=limits, checkpointer=InMemorySaver()
    )
    with pytest.raises(BudgetExceededError) as stopped:
        await agent.ainvoke(HI, "t")
    assert (stopped.value.name, stopped.value.spent) == ("cost_usd", Decimal("0.0035"))
    with pytest.raises(BudgetExceededError):
        await agent.ainvoke(HI, "t2", budgets={"input_tokens": Budget(run=10), "cost_usd": Budget(thread=Decimal(1))})
    done = await agent.ainvoke(None, "t", budgets={"cost_usd": Budget(thread=Decimal(1))})
    assert done["messages"][-1]["content"] == "well"


async def test_a_call_that_does_not_run_again_counts_once(saver: BaseCheckpointSaver) -> None:
    """The model has answered when a tool asks: the resume does not call it, and does not count it."""

    def ask() -> str:
        return str(interrupt("well?"))

    model = Script({**asking(call("ask")), "usage": USED}, said())
    agent = create_agent(model, [ask], checkpointer=saver)
    first, second = Figures(), Figures()
    await agent.ainvoke(HI, "t", observer=first)
    await agent.ainvoke(Command(resume="yes"), "t", observer=second)
    assert (first.input_tokens, second.input_tokens) == (1000, 1000)
    assert (await agent.aget_state("t")).spent["input_tokens"] == 2000


async def test_a_recorded_task_counts_once(saver: BaseCheckpointSaver) -> None:
    """The call of a model in a task, whose node runs again after a question."""

    @task
    async def ask_model() -> Any:
        return await as_model(Script(said())).answer(ModelCall(messages=["hi"]))

    async def node(state: MessagesState) -> Any:
        answer = await ask_model()
        interrupt("well?")
        return {"messages": [answer]}

    budgets = {"input_tokens": Budget()}
    graph = StateGraph(MessagesState).add_node(node).add_edge(START, "node").compile(saver, budgets=budgets)
    await graph.ainvoke({"messages": []}, "t")
    await graph.ainvoke(Command(resume=1), "t")
    # The graph has no budget of output tokens, and these are not counted.
    assert (await graph.aget_state("t")).spent == {"input_tokens": 1000}


class Shaky:
    """Fails at its first call, after it has streamed tokens and reported its input."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, messages: list[Any], tools: list[Any]) -> Any:
        self.calls += 1
        events = ANTHROPIC_EVENTS if self.calls > 1 else ANTHROPIC_EVENTS[:3]

        async def stream() -> AsyncIterator[Any]:
            for event in events:
                yield event

        return await stream_message(stream())


@pytest.mark.parametrize("retries", ["middleware", "node"])
async def test_a_retried_call_counts_each_time(retries: str) -> None:
    """The broken stream counts what the provider has reported by then."""
    figures, calls = Figures(), ModelCalls()
    if retries == "middleware":
        again = ModelRetryMiddleware(max_retries=1, initial_delay=0, jitter=False)
        agent = create_agent(Shaky(), middleware=[again])
        await agent.ainvoke(HI, observer=[figures, calls])
    else:
        model = as_model(Shaky())

        async def node(state: MessagesState) -> Any:
            return {"messages": [await model.answer(ModelCall(messages=["hi"]))]}

        policy = RetryPolicy(initial_interval=0, jitter=False, retry_on=StreamFailedError)
        builder = StateGraph(MessagesState).add_node(node, retry_policy=policy).add_edge(START, "node")
        graph = builder.compile(budgets={"input_tokens": Budget(), "output_tokens": Budget()})
        await graph.ainvoke({"messages": []}, observer=[figures, calls])
    assert figures.spent == {"input_tokens": 2, "output_tokens": 2}
    broken, whole = calls.seen
    assert (broken.input_tokens, broken.output_tokens, broken.response_model, broken.provider) == (
        1,
        0,
        "m",
        "anthropic",
    )
    assert isinstance(broken.error, StreamFailedError)
    assert (whole.input_tokens, whole.output_tokens, whole.error) == (1, 2, None)


async def test_a_cancelled_call_counts_what_was_reported() -> None:
    figures, calls = Figures(), ModelCalls()

    async def model(messages: list[Any], tools: list[Any]) -> Any:
        async def stream() -> AsyncIterator[Any]:
            yield ANTHROPIC_EVENTS[0]
            scope.cancel()
            await anyio.sleep_forever()

        return await stream_message(stream())

    with anyio.CancelScope() as scope:
        await create_agent(model).ainvoke(HI, observer=[figures, calls])
    (seen,) = calls.seen
    assert (seen.input_tokens, seen.error, figures.spent) == (1, None, {"input_tokens": 1})


async def test_a_function_that_calls_other_models() -> None:
    """Each message counts once: streams, whole answers, and models that count themselves."""
    inner = as_model(Script(said()))
    whole = {"id": "c", "model": "m-1", "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}}]}

    async def several(messages: list[Any], tools: list[Any]) -> Any:
        client = Client(CHAT_CHUNKS, is_async=True)
        await stream_message(await client.chat.completions.create())
        read_message({**whole, "usage": {"prompt_tokens": 5, "completion_tokens": 6}})
        return await inner.answer(ModelCall(messages=["hi"]))

    figures, calls = Figures(), ModelCalls()
    await create_agent(several).ainvoke(HI, observer=[figures, calls])
    assert [(each.model, each.input_tokens) for each in calls.seen] == [("ScriptedModel", 1000), ("several", 6)]
    assert figures.spent == {"input_tokens": 1006, "output_tokens": 108}


@pytest.mark.parametrize(("id", "count"), [("a", 1), ("b", 2), (None, 1)], ids=["same", "other", "unknown"])
async def test_messages_of_equal_usage(id: str | None, count: int) -> None:
    """A returned message with another id than the one that was read is another message, also with equal usage."""
    choices = [{"index": 0, "message": {"role": "assistant", "content": "x"}}]
    usage = {"prompt_tokens": 5, "completion_tokens": 6}

    async def several(messages: list[Any], tools: list[Any]) -> Any:
        read_message({"id": "a", "model": "m-1", "choices": choices, "usage": usage})
        return {"role": "assistant", "content": "y", "usage": usage, **({} if id is None else {"id": id})}

    figures = Figures()
    await create_agent(several).ainvoke(HI, observer=figures)
    assert figures.spent == {"input_tokens": 5 * count, "output_tokens": 6 * count}


@pytest.mark.parametrize("answer", ["well", said()], ids=["without usage", "with usage"])
async def test_a_model_around_another_one(answer: Any) -> None:
    """A class that only passes calls on, as that of a supervisor, is one call of a model and not two."""

    class Around:
        name, follows_schemas = "around", False

        async def answer(self, call: ModelCall) -> Any:
            return await as_model(Script(answer)).answer(call)

    figures, calls = Figures(), ModelCalls()
    await create_agent(Around()).ainvoke(HI, observer=[figures, calls])
    assert [each.model for each in calls.seen] == ["ScriptedModel"]
    assert figures.input_tokens == (0 if answer == "well" else 1000)


async def test_models_of_middleware_have_the_prices_of_the_agent() -> None:
    """Prices apply to fallbacks and to models that hooks call; prices of `as_model` take precedence."""

    async def broken(messages: list[Any], tools: list[Any]) -> Any:
        raise ConnectionError("no line")

    async def small(messages: list[Any], tools: list[Any]) -> Any:
        return said()

    @before_model
    async def summarise(state: Any, runtime: Any) -> Any:
        await as_model(small).answer(ModelCall(messages=["hi"]))

    fallback = ModelFallbackMiddleware(as_model(small, prices={"small": Price(5, 0)}))
    agent = create_agent(broken, middleware=[summarise, fallback], prices={"small": Price(1, 0)})
    calls = ModelCalls()
    await agent.ainvoke(HI, observer=calls)
    assert [(each.model, each.cost_usd) for each in calls.seen] == [
        ("small", Decimal("0.001")),
        ("broken", None),
        ("small", Decimal("0.005")),
    ]


PROVIDERS: list[Any] = [
    pytest.param(openai_chat, CHAT_CHUNKS, "openai", id="chat"),
    pytest.param(openai_responses, RESPONSE_EVENTS, "openai", id="responses"),
    pytest.param(anthropic_messages, ANTHROPIC_EVENTS, "anthropic", id="anthropic"),
]


@pytest.mark.parametrize(("make", "events", "provider"), PROVIDERS)
async def test_models_of_sdks(make: Any, events: list[Any], provider: str) -> None:
    """The model that has answered is priced before the one that was asked for."""
    calls = ModelCalls()
    model = make(Client(events, is_async=True), "big")
    await create_agent(model, prices=PRICES).ainvoke(HI, observer=calls)
    await create_agent(model, prices={"big": PRICES["big"]}).ainvoke(HI, observer=calls)
    first, second = calls.seen
    assert (first.model, first.response_model, first.provider) == ("big", "m", provider)
    assert (first.input_tokens, first.output_tokens, first.cost_usd) == (1, 2, Decimal("0.000005"))
    assert second.cost_usd == Decimal("0.0000225")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(USED, TokenUsage(input=1000, output=100), id="ours"),
        pytest.param(
            {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
            TokenUsage(input=9, output=2, cache_read=4),
            id="chat",
        ),
        pytest.param(
            {
                "input_tokens": 9,
                "input_tokens_details": {"cached_tokens": 4},
                "output_tokens": 7,
                "output_tokens_details": {"reasoning_tokens": 3},
            },
            TokenUsage(input=9, output=7, cache_read=4, reasoning=3),
            id="responses",
        ),
        pytest.param(
            SimpleNamespace(input_tokens=9, output_tokens=2, cache_read_input_tokens=4, cache_creation_input_tokens=1),
            TokenUsage(input=14, output=2, cache_read=4, cache_write=1),
            id="anthropic",
        ),
        pytest.param(
            {
                "input_tokens": 14,
                "output_tokens": 2,
                "details": {"cache_read_input_tokens": 4, "cache_creation_input_tokens": 1},
            },
            TokenUsage(input=14, output=2, cache_read=4, cache_write=1),
            id="a message of anthropic",
        ),
        pytest.param(
            {
                "input_tokens": 14,
                "output_tokens": 2,
                "input_token_details": {"cache_read": 4, "cache_creation": 1},
                "output_token_details": {"reasoning": 1},
            },
            TokenUsage(input=14, output=2, cache_read=4, cache_write=1, reasoning=1),
            id="langchain",
        ),
        pytest.param({"tokens": 3}, None, id="unknown"),
        pytest.param(None, None, id="none"),
    ],
)
def test_forms_of_usage(given: Any, expected: TokenUsage | None) -> None:
    assert read_usage(given) == expected


def test_prices() -> None:
    """Dollars per million tokens, exactly. Cached input has the price of input unless it has its own."""
    usage = TokenUsage(input=1_000_000, output=1_000_000, cache_read=500_000, cache_write=100_000, reasoning=900_000)
    assert Price(3, 15).cost(usage) == 18
    assert Price(3, 15, cache_read=0.3, cache_write=3.75).cost(usage) == Decimal("16.725")
    assert Price(0.1, 0).cost(TokenUsage(input=3, output=0)) == Decimal("0.0000003")


@pytest.mark.parametrize(
    ("make", "error", "why"),
    [
        pytest.param(lambda: Price(-1, 1), ValueError, "the price of input is not below zero", id="negative"),
        pytest.param(lambda: Price(1, float("nan")), ValueError, "the price of output", id="not finite"),
        pytest.param(lambda: Price("1", 1), TypeError, "the price of input", id="text"),
        pytest.param(
            lambda: create_agent(Script("hello"), prices={"ScriptedModel": (1, 2)}),
            GraphValidationError,
            "prices are a mapping",
            id="no price",
        ),
    ],
)
def test_invalid_prices(make: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        make()


async def test_outside_of_a_run_nothing_is_counted() -> None:
    assert await as_model(Script(said())).answer(ModelCall(messages=["hi"])) == said()


async def test_open_telemetry() -> None:
    """Spans and metrics of calls of models have the names of the semantic conventions."""
    exported = Exported()
    model = openai_chat(Client(CHAT_CHUNKS, is_async=True), "big")
    await create_agent(model, prices=PRICES, name="a").ainvoke(HI, observer=exported.observer)
    span = exported.one("chat big")
    assert span.attributes is not None
    assert span.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "big",
        "gen_ai.response.model": "m",
        "gen_ai.usage.input_tokens": 1,
        "gen_ai.usage.output_tokens": 2,
        "pregel_async.cost_usd": 0.000005,
    }
    assert exported.tree == ["run a", "  superstep", "    node model", "      chat big"]
    metrics = exported.metrics()
    about = {key: value for key, value in span.attributes.items() if key.startswith("gen_ai") and "usage" not in key}
    assert metrics["gen_ai.client.token.usage"] == [
        ({**about, "gen_ai.token.type": kind}, (1, tokens)) for kind, tokens in (("input", 1), ("output", 2))
    ]
    assert metrics["pregel_async.cost_usd"] == [({"pregel.graph.name": "a", **about}, 0.000005)]
    ((attributes, (count, _)),) = metrics["gen_ai.client.operation.duration"]
    assert (attributes, count) == (about, 1)


async def test_open_telemetry_of_a_failed_call() -> None:
    async def broken(messages: list[Any], tools: list[Any]) -> Any:
        raise ConnectionError("no line")

    exported = Exported()
    with pytest.raises(ConnectionError):
        await create_agent(broken).ainvoke(HI, observer=exported.observer)
    span = exported.one("chat broken")
    assert span.attributes is not None
    assert span.attributes["error.type"] == "ConnectionError"
    assert "gen_ai.usage.input_tokens" not in span.attributes
    assert span.status.description == "ConnectionError: no line"
