"""`SummarizationMiddleware`: the older part of a conversation becomes a summary."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async.errors import GraphValidationError
from pregel_async.prebuilt import InvalidModelError, SummarizationMiddleware, create_agent
from pregel_async.prebuilt.middleware.token_counts import count_tokens_approximately
from pregel_async.testing import Crash, FaultySaver
from tests.prebuilt.calls import asking, call, contents
from tests.prebuilt.scripted import Script

pytestmark = pytest.mark.anyio


def said(*texts: str) -> list[Any]:
    """A conversation whose messages alternate between the user and the assistant."""
    return [{"role": "assistant" if at % 2 else "user", "content": text, "id": text} for at, text in enumerate(texts)]


async def test_a_summary_takes_the_place_of_older_messages(saver: BaseCheckpointSaver) -> None:
    """The newest messages are kept with their ids; the model sees the summary; further turns continue."""
    writer = Script("they said a to d")
    middleware = SummarizationMiddleware(writer, trigger=("messages", 6), keep=("messages", 2))
    model = Script("done")
    agent = create_agent(model, middleware=[middleware], checkpointer=saver)
    first = await agent.ainvoke({"messages": said("a", "b", "c")}, "t")
    assert contents(first) == ["a", "b", "c", "done"]
    done = await agent.ainvoke({"messages": [{"role": "user", "content": "e", "id": "e"}, *said("f")]}, "t")
    heading = "Summary of the conversation so far:\n\nthey said a to d"
    assert contents(done) == [heading, "e", "f", "done"]
    assert [message["id"] for message in done["messages"][:3]] == ["a", "e", "f"]
    assert contents({"messages": model.seen[-1]}) == [heading, "e", "f"]
    ((prompt,),) = writer.seen
    assert prompt["content"].endswith("user: a\n\nassistant: b\n\nuser: c\n\nassistant: done\n</messages>")
    again = await agent.ainvoke({"messages": said("g", "h", "i")}, "t")
    assert contents(again)[1:] == ["h", "i", "done"]
    assert "user: Summary of the conversation so far:\n\nthey said a to d" in writer.seen[1][0]["content"]


async def test_a_crash_after_the_summary(saver: BaseCheckpointSaver) -> None:
    """The next process does not summarize again."""
    dying = FaultySaver(saver)
    writer = Script("summary")
    ran: list[int] = []

    async def model(messages: list[Any], tools: list[Any]) -> Any:
        ran.append(len(messages))
        if len(ran) == 1:
            dying.crash()
        return "done"

    agent = create_agent(
        model,
        middleware=[SummarizationMiddleware(writer, trigger=("messages", 4), keep=("messages", 1))],
        checkpointer=dying,
    )
    with pytest.raises(Crash):
        await agent.ainvoke({"messages": said("a", "b", "c", "d", "e")}, "t", durability="sync")
    await dying.restart()
    done = await agent.ainvoke(None, "t")
    assert contents(done)[1:] == ["e", "done"]
    assert (len(writer.seen), ran) == (1, [2, 2])


TURN = [
    {"role": "user", "content": "u", "id": "u"},
    {**asking(call("find", "1", q="a"), call("find", "2", q="b")), "id": "asks"},
    {"role": "tool", "tool_call_id": "1", "content": "one", "id": "one"},
    {"role": "tool", "tool_call_id": "2", "content": "two", "id": "two"},
    {"role": "assistant", "content": "so", "id": "so"},
    {"role": "user", "content": "v", "id": "v"},
]


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("keep", "kept"),
    [(1, ["v"]), (2, ["so", "v"]), (3, ["asks", "one", "two", "so", "v"]), (4, ["asks", "one", "two", "so", "v"])],
)
async def test_calls_and_results_stay_together(keep: int, kept: list[str]) -> None:
    agent = create_agent(
        Script("done"),
        middleware=[SummarizationMiddleware(Script("sum"), trigger=("messages", 6), keep=("messages", keep))],
    )
    done = await agent.ainvoke({"messages": TURN})
    assert [message["id"] for message in done["messages"]][1:-1] == kept


@pytest.mark.one_loop
async def test_results_without_a_call_are_summarized() -> None:
    orphan = [
        *said("a", "b"),
        {"role": "tool", "tool_call_id": "9", "content": "lost", "id": "l"},
        *said("c", "d", "e"),
    ]
    middleware = Counted(Script(""), trigger=("messages", 3), keep=("messages", 4))
    update = await middleware.abefore_model({"messages": orphan}, _runtime())
    assert [message["id"] for message in update["messages"]] == ["a", "b", "l"]


def _runtime() -> Any:
    from pregel_async import Runtime

    return Runtime()


class Counted(SummarizationMiddleware):
    """Returns what would be summarized."""

    async def _summary_of(self, older: Any, state: Any, runtime: Any) -> str:
        return "+".join(message["content"] for message in older)


def by_words(messages: Any) -> int:
    return sum(len(message["content"].split()) for message in messages)


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("trigger", "summarizes"),
    [
        (None, False),
        (("tokens", 10), True),
        (("tokens", 11), False),
        (("messages", 6), False),
        ({"tokens": 10, "messages": 5}, True),
        ({"tokens": 10, "messages": 6}, False),
        ([{"tokens": 11}, ("messages", 5)], True),
        (("fraction", 0.1), True),
        (("fraction", 0.11), False),
    ],
    ids=str,
)
async def test_triggers(trigger: Any, summarizes: bool) -> None:
    """A tuple is one size, a dict asks for all of its sizes, and a list for one of its entries."""
    model = Script("")
    model.profile = {"max_input_tokens": 100}
    middleware = Counted(model, trigger=trigger, keep=("messages", 1), token_counter=by_words)
    update = await middleware.abefore_model({"messages": said("a b", "c d", "e f", "g h", "i j")}, _runtime())
    assert (update is not None) is summarizes


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("keep", "summarized"),
    [(("tokens", 4), "a b+c d+e f"), (("fraction", 0.06), "a b+c d"), (("tokens", 1), "a b+c d+e f+g h")],
    ids=str,
)
async def test_sizes_of_what_is_kept(keep: Any, summarized: str) -> None:
    """The newest message is kept even if it is longer than allowed."""
    model = Script("")
    model.profile = {"max_input_tokens": 100}
    middleware = Counted(model, trigger=("messages", 5), keep=keep, token_counter=by_words)
    update = await middleware.abefore_model({"messages": said("a b", "c d", "e f", "g h", "i j")}, _runtime())
    assert update["messages"][0]["content"].endswith(f"\n\n{summarized}")


@pytest.mark.one_loop
async def test_the_providers_count_triggers() -> None:
    answer = {"role": "assistant", "content": "b", "id": "b", "usage": {"total_tokens": 5000}}
    middleware = Counted(Script(""), trigger=("tokens", 5000), keep=("messages", 1))
    chat = [*said("a"), answer, *said("c")]
    assert await middleware.abefore_model({"messages": chat}, _runtime()) is not None
    assert await middleware.abefore_model({"messages": said("a", "b", "c")}, _runtime()) is None


SUMMARY = {"role": "user", "content": "old", "id": "s", "additional_kwargs": {"lc_source": "summarization"}}


@pytest.mark.one_loop
async def test_a_summary_alone_is_not_summarized() -> None:
    """What is kept may itself reach the trigger: the summary is not rewritten before each call."""
    middleware = Counted(Script(""), trigger=("tokens", 1), keep=("messages", 4))
    chat = said("a", "b", "c", "d")
    assert await middleware.abefore_model({"messages": [SUMMARY, *chat]}, _runtime()) is None
    assert await middleware.abefore_model({"messages": [SUMMARY, *chat, *said("e")]}, _runtime()) is not None


async def find(q: str) -> str:
    return f"found {q}"


@pytest.mark.one_loop
async def test_what_is_put_into_the_prompt() -> None:
    """The newest that fit, and an earlier summary; of one message that does not fit, its end. Calls are written out."""

    async def prompt_of(messages: list[Any], most: int | None) -> str:
        writer = Script("new")
        middleware = SummarizationMiddleware(
            writer,
            trigger=("messages", 2),
            keep=("messages", 1),
            token_counter=by_words,
            trim_tokens_to_summarize=most,
            summary_prompt="{messages} {x}",
        )
        await create_agent(Script("done"), middleware=[middleware]).ainvoke({"messages": messages})
        return str(writer.seen[0][0]["content"])

    assert await prompt_of([SUMMARY, *said("1 1", "2 2", "3", "v")], 4) == "user: old\n\nassistant: 2 2\n\nuser: 3 {x}"
    cut = await prompt_of(said("1 2 3 4 5 6 7 8 9", "v"), 4)
    assert cut.startswith("user: [...] ") and cut.endswith("8 9 {x}") and "4" not in cut
    turn = await prompt_of([*TURN[1:4], *said("v")], None)
    assert turn == ('assistant: \ncalls find with {"q": "a"}\ncalls find with {"q": "b"}\n\ntool: one\n\ntool: two {x}')


@pytest.mark.one_loop
async def test_failures_of_the_model_are_repeated() -> None:
    tried: list[int] = []

    async def writer(messages: list[Any], tools: list[Any]) -> Any:
        tried.append(1)
        if len(tried) % 3:
            raise ConnectionError("no line")
        return "sum"

    middleware = SummarizationMiddleware(writer, trigger=("messages", 2), keep=("messages", 1))
    middleware.retry.initial_delay = 0
    agent = create_agent(Script("done"), middleware=[middleware])
    assert contents(await agent.ainvoke({"messages": said("a", "b")}))[0].endswith("sum")
    middleware.retry.max_retries = 1
    with pytest.raises(ConnectionError):
        await agent.ainvoke({"messages": said("a", "b")})


@pytest.mark.one_loop
@pytest.mark.parametrize("summarizer", [None, lambda messages: " \n"], ids=["model", "function"])
async def test_an_empty_summary_removes_nothing(summarizer: Any) -> None:
    middleware = SummarizationMiddleware(
        Script(" "), trigger=("messages", 3), keep=("messages", 1), summarizer=summarizer
    )
    done = await create_agent(Script("done"), middleware=[middleware]).ainvoke({"messages": said("a", "b", "c")})
    assert contents(done) == ["a", "b", "c", "done"]


@pytest.mark.one_loop
async def test_summarizers() -> None:
    """Another model, or a function of the messages."""
    other = Script("other")

    def plain(messages: list[Any]) -> str:
        return f"{len(messages)} messages"

    async def slow(messages: list[Any]) -> str:
        return plain(messages)

    def wrong(messages: list[Any]) -> Any:
        return 3

    for summarizer, text in ((other, "other"), (plain, "2 messages"), (slow, "2 messages")):
        middleware = SummarizationMiddleware(
            Script("own"), trigger=("messages", 3), keep=("messages", 1), summarizer=summarizer
        )
        done = await create_agent(Script("done"), middleware=[middleware]).ainvoke({"messages": said("a", "b", "c")})
        assert contents(done)[0].endswith(text)
    with pytest.raises(TypeError, match="returns the text"):
        await SummarizationMiddleware(Script(""), summarizer=wrong)._summary_of(said("a"), {}, None)


@pytest.mark.one_loop
async def test_the_summary_is_not_streamed() -> None:
    async def tokens(*given: str) -> Any:
        for each in given:
            yield each

    async def writer(messages: list[Any], tools: list[Any]) -> Any:
        return tokens("se", "cret")

    async def model(messages: list[Any], tools: list[Any]) -> Any:
        return tokens("he", "llo")

    middleware = SummarizationMiddleware(writer, trigger=("messages", 3), keep=("messages", 1))
    agent = create_agent(model, middleware=[middleware])
    parts = [part async for part in agent.astream({"messages": said("a", "b", "c")}, stream_mode="messages")]
    assert [chunk["content"] for chunk, _ in parts if chunk["content"]] == ["he", "llo"]


@pytest.mark.one_loop
async def test_only_what_is_new_is_stored() -> None:
    """The write of a summary has the summary and ids, and no message that is kept."""
    agent = create_agent(
        Script("done"),
        middleware=[SummarizationMiddleware(Script("sum"), trigger=("messages", 480), keep=("messages", 400))],
        checkpointer=InMemorySaver(),
    )
    chat = said(*(f"{at} " + "x" * 1000 for at in range(481)))
    seen: Any = {}
    async for part in agent.astream({"messages": chat}, "t", stream_mode="updates"):
        seen |= part
    written = seen["SummarizationMiddleware.before_model"]["messages"]
    assert [each["role"] for each in written] == ["user", *["remove"] * 80]
    assert len(str(written)) < 200_000
    assert len((await agent.aget_state("t")).values["messages"]) == 402


def test_token_counts() -> None:
    """Texts by their length, media at a flat rate, calls and results with their data."""
    text = count_tokens_approximately([{"role": "user", "content": "x" * 400}])
    assert text == 104
    image = {"type": "image_url", "image_url": {"url": "data:" + "x" * 100_000}}
    blocks = [{"type": "text", "text": "x" * 400}, image]
    assert count_tokens_approximately([{"role": "user", "content": blocks}]) == 192
    asks = asking(call("find", "1", q="x" * 400))
    assert 100 < count_tokens_approximately([asks]) < 120
    assert count_tokens_approximately(["hi", ("user", "hi")]) == 10
    assert count_tokens_approximately([]) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"trigger": ("words", 3)},
        {"trigger": ("tokens", 0)},
        {"trigger": ("messages", 2.5)},
        {"trigger": ("messages", True)},
        {"trigger": {}},
        {"trigger": ("fraction", 1.5)},
        {"trigger": ("fraction", 0.5)},
        {"keep": ("fraction", 0.5)},
        {"keep": ("tokens", -1)},
        {"keep": 20},
        {"summary_prompt": "sum up"},
        {"trim_tokens_to_summarize": 0},
    ],
    ids=str,
)
def test_bad_arguments(wrong: Any) -> None:
    with pytest.raises(GraphValidationError):
        SummarizationMiddleware(Script(""), **wrong)


def test_bad_models() -> None:
    for wrong in ({"model": 3}, {"model": Script(""), "summarizer": 3}):
        with pytest.raises(InvalidModelError):
            SummarizationMiddleware(**wrong)


@pytest.mark.one_loop
@pytest.mark.skipif(importlib.util.find_spec("langchain_core") is None, reason="needs langchain-core")
async def test_messages_of_langchain() -> None:
    """The summary is a message of langchain-core if the conversation's messages are."""
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

    calls: Any = [call("find", "1", q="a")]
    chat = [
        HumanMessage("a"),
        AIMessage("b"),
        HumanMessage("c"),
        AIMessage("", tool_calls=calls),
        ToolMessage("r", tool_call_id="1"),
    ]

    async def model(messages: list[Any], tools: list[Any]) -> Any:
        return AIMessage("done")

    middleware = SummarizationMiddleware(model, trigger=("messages", 5), keep=("messages", 1))
    done = await create_agent(model, [find], middleware=[middleware], checkpointer=InMemorySaver()).ainvoke(
        {"messages": chat}, "t"
    )
    kinds = [HumanMessage, AIMessage, ToolMessage, AIMessage]
    assert [type(message) for message in done["messages"]] == kinds
    assert done["messages"][0].additional_kwargs == {"lc_source": "summarization"}
