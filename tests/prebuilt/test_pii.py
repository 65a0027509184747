"""`PIIMiddleware`: personal data is blocked, removed or masked."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async.errors import GraphValidationError
from pregel_async.messages import RemoveMessage
from pregel_async.prebuilt import (
    PIIDetectionError,
    PIIMiddleware,
    create_agent,
    detect_credit_card,
    detect_email,
    detect_ip,
    detect_mac_address,
    detect_url,
)
from tests.prebuilt.calls import asking, call, contents
from tests.prebuilt.scripted import Script

pytestmark = pytest.mark.anyio

CARD = "4111 1111 1111 1111"


def values(matches: Any) -> list[str]:
    return [match["value"] for match in matches]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ada@example.com", ["ada@example.com"]),
        ("to <Ada.L+x@mail.example.co.uk>, or bob@b.io.", ["Ada.L+x@mail.example.co.uk", "bob@b.io"]),
        ("josé@bücher.example", ["josé@bücher.example"]),
        ("a@xn--80ak6aa92e.xn--p1ai!", ["a@xn--80ak6aa92e.xn--p1ai"]),
        ("请联系ada@example.com谢谢", ["ada@example.com"]),
        ("ada@localhost, @ada, a @ b.c", []),
    ],
    ids=str,
)
def test_emails(text: str, found: list[str]) -> None:
    assert values(detect_email(text)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (CARD, [CARD]),
        ("4111111111111111", ["4111111111111111"]),
        ("4111-1111-1111-1111.", ["4111-1111-1111-1111"]),
        ("3782 822463 10005", ["3782 822463 10005"]),  # 15 digits
        ("30569309025904", ["30569309025904"]),  # 14 digits
        ("6304000000000000000", ["6304000000000000000"]),  # 19 digits
        (f"{CARD} 12 28 {CARD}", [CARD, CARD]),
        ("01 4111 1111 1111 1111 123", [CARD]),
        ("4111 1111 1111 1112", []),  # the check digit is wrong
        ("1732665600000 and 0000000000000000", []),  # a time, and zeros
        ("x4111 11111", []),
        ("41111111111111114111111111111111", []),  # a longer number
    ],
    ids=str,
)
def test_cards(text: str, found: list[str]) -> None:
    assert values(detect_credit_card(text)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10.0.0.1, 192.168.001.254.", ["10.0.0.1", "192.168.001.254"]),
        ("256.1.1.1 1.2.3 1.2.3.4.5", []),
        ("fe80::1: 2001:db8:0:0:8:800:200c:417a, ::1", ["fe80::1", "2001:db8:0:0:8:800:200c:417a", "::1"]),
        ("[2001:db8::1]:80 ::ffff:10.0.0.1", ["2001:db8::1", "::ffff:10.0.0.1"]),
        ("std::vector at 12:30:45 a :: b aa:bb:cc:dd:ee:ff", []),
    ],
    ids=str,
)
def test_ips(text: str, found: list[str]) -> None:
    assert values(detect_ip(text)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "aa:BB:cc:00:11:22, aa-bb-cc-00-11-22 aabb.cc00.1122",
            ["aa:BB:cc:00:11:22", "aa-bb-cc-00-11-22", "aabb.cc00.1122"],
        ),
        ("aa:bb:cc:00:11 aa:bb:cc:00:11:22:33", []),
    ],
    ids=str,
)
def test_macs(text: str, found: list[str]) -> None:
    assert values(detect_mac_address(text)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("See https://example.com/a?b=c#d.", ["https://example.com/a?b=c#d"]),
        ("(HTTP://example.com/a_(b)), or <ftp://x.y>", ["HTTP://example.com/a_(b)", "ftp://x.y"]),
        ("www.example.com, example.com/path; example.com and 1.5/2", ["www.example.com", "example.com/path"]),
        ("http://[::1]:80/x [a](https://b.c/d)", ["http://[::1]:80/x", "https://b.c/d"]),
        ("https://a.b/?u=www.example.com/x", ["https://a.b/?u=www.example.com/x"]),
        ("ada@www.example.com/x and/or e.g./i.e.", []),
    ],
    ids=str,
)
def test_urls(text: str, found: list[str]) -> None:
    assert values(detect_url(text)) == found


@pytest.mark.parametrize(
    "unit", ["a", "a.", "a@", "1", "1 ", "4-", "a:", ":", "www.", "a/", "http://", "1.", "aa:", "@a."]
)
@pytest.mark.parametrize("detect", [detect_email, detect_credit_card, detect_ip, detect_mac_address, detect_url])
def test_long_texts_take_time_in_proportion(detect: Any, unit: str) -> None:
    """A search in quadratic time would not end within the time limit of a test."""
    for end in ("", "!", "@"):
        assert detect(unit * 20_000 + end) is not None


@pytest.mark.parametrize(
    ("pii_type", "text", "redacted", "masked"),
    [
        ("email", "ada@example.com", "[REDACTED_EMAIL]", "ada@****.com"),
        ("credit_card", CARD, "[REDACTED_CREDIT_CARD]", "**** **** **** 1111"),
        ("credit_card", "378282246310005", "[REDACTED_CREDIT_CARD]", "************0005"),
        ("ip", "10.0.0.1", "[REDACTED_IP]", "*.*.*.1"),
        ("ip", "fe80::1", "[REDACTED_IP]", "****"),
        ("mac_address", "aa-bb-cc-00-11-22", "[REDACTED_MAC_ADDRESS]", "**-**-**-**-**-22"),
        ("url", "https://a.b/c", "[REDACTED_URL]", "[MASKED_URL]"),
        ("key", "sk-12345", "[REDACTED_KEY]", "****2345"),
        ("key", "sk-1", "[REDACTED_KEY]", "****"),
    ],
    ids=str,
)
async def test_strategies(pii_type: str, text: str, redacted: str, masked: str) -> None:
    given = {"messages": [{"role": "user", "content": f"I: {text}, {text}", "id": "a"}]}
    for strategy, expected in (("redact", redacted), ("mask", masked), ("hash", None)):
        detector = r"sk-\d+" if pii_type == "key" else None
        middleware = PIIMiddleware(pii_type, strategy=strategy, detector=detector)
        ((message,),) = (await middleware.abefore_model(given, None)).values()
        if expected is None:
            expected = re.match("I: (.*), ", message["content"])[1]
            assert re.fullmatch(rf"<{pii_type}_hash:[0-9a-f]{{8}}>", expected)
        assert message == {"role": "user", "content": f"I: {expected}, {expected}", "id": "a"}
        assert await middleware.abefore_model({"messages": [message]}, None) is None


async def test_input_is_replaced_in_the_state(saver: BaseCheckpointSaver) -> None:
    """Of all messages of the user, in texts and blocks. The model and the thread do not have the data any more."""
    model = Script("done")
    agent = create_agent(
        model, middleware=[PIIMiddleware("email"), PIIMiddleware("url", strategy="hash")], checkpointer=saver
    )
    picture = {"type": "image_url", "image_url": {"url": "https://a.b/c.png"}}
    chat = [
        {"role": "user", "content": "I am ada@example.com", "id": "1"},
        {"role": "assistant", "content": "hello ada@example.com", "id": "2"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "or bob@example.com"}, "eve@example.com", picture],
            "id": "3",
        },
    ]
    done = await agent.ainvoke({"messages": chat}, "t")
    expected = [
        "I am [REDACTED_EMAIL]",
        "hello ada@example.com",
        [{"type": "text", "text": "or [REDACTED_EMAIL]"}, "[REDACTED_EMAIL]", picture],
    ]
    assert contents({"messages": model.seen[0]}) == expected
    assert contents(done) == [*expected, "done"]
    assert [message["id"] for message in done["messages"][:3]] == ["1", "2", "3"]


async def test_tool_results_and_answers(saver: BaseCheckpointSaver) -> None:
    """Only where asked; the arguments of calls are what the model wrote, because the tool needs them."""
    got: list[str] = []

    def find(q: str) -> Any:
        got.append(q)
        return f"{q} is at 10.0.0.1"

    answers = (asking(call("find", q="10.0.0.2"), content="I ask 10.0.0.2"), "It is 10.0.0.1.")
    own = PIIMiddleware("ip", apply_to_input=False, apply_to_output=True, apply_to_tool_results=True)
    done = await create_agent(Script(*answers), [find], middleware=[own], checkpointer=saver).ainvoke(
        {"messages": ["where is 10.0.0.2?"]}, "t"
    )
    assert contents(done) == [
        "where is 10.0.0.2?",
        "I ask [REDACTED_IP]",
        "[REDACTED_IP] is at [REDACTED_IP]",
        "It is [REDACTED_IP].",
    ]
    assert got == ["10.0.0.2"]
    default = PIIMiddleware("ip")
    done = await create_agent(Script(*answers), [find], middleware=[default]).ainvoke({"messages": ["where?"]})
    assert contents(done)[1:] == ["I ask 10.0.0.2", "10.0.0.2 is at 10.0.0.1", "It is 10.0.0.1."]


async def test_blocked_messages(saver: BaseCheckpointSaver) -> None:
    """The model is not called, the error says nothing of the data, and the thread continues without the message."""
    model = Script("done")
    agent = create_agent(model, middleware=[PIIMiddleware("credit_card", strategy="block")], checkpointer=saver)
    with pytest.raises(PIIDetectionError, match="RemoveMessage") as caught:
        await agent.ainvoke({"messages": [{"role": "user", "content": CARD, "id": "bad"}]}, "t")
    assert "4111" not in str(caught.value)
    assert values(caught.value.matches) == [CARD]
    assert (caught.value.pii_type, caught.value.message_id, model.seen) == ("credit_card", "bad", [])
    with pytest.raises(PIIDetectionError):  # a later message does not let the earlier one pass
        await agent.ainvoke({"messages": ["hi"]}, "t")
    done = await agent.ainvoke({"messages": [RemoveMessage("bad")]}, "t")
    assert contents(done) == ["hi", "done"]


async def test_blocked_answers() -> None:
    own = PIIMiddleware("email", strategy="block", apply_to_input=False, apply_to_output=True)
    agent = create_agent(Script("ask ada@example.com"), middleware=[own], checkpointer=InMemorySaver())
    with pytest.raises(PIIDetectionError):
        await agent.ainvoke({"messages": ["who?"]}, "t")


@pytest.mark.one_loop
async def test_detectors_of_users() -> None:
    """A function or an expression; places that overlap are one; what has replaced data is not replaced again."""

    def overlapping(text: str) -> list[dict[str, Any]]:
        return [{"start": 4, "end": 6}, {"start": 0, "end": 3}, {"start": 2, "end": 5}, {"start": 7, "end": 7}]

    async def after(detector: Any, text: str, strategy: Any = "redact") -> Any:
        middleware = PIIMiddleware("id", strategy=strategy, detector=detector)
        update = await middleware.abefore_model({"messages": [{"role": "user", "content": text}]}, None)
        return None if update is None else update["messages"][0]["content"]

    assert await after(overlapping, "abcdefghij") == "[REDACTED_ID]ghij"
    assert await after(re.compile("[a-f0-9]{4,}", re.I), "x DEAD beef") == "x [REDACTED_ID] [REDACTED_ID]"
    hashed = await after("[a-z0-9]{4,}", "deadbeef", "hash")
    assert await after("[a-z0-9]{4,}", hashed, "hash") is None
    assert await after(r"\d{4}", "****1234", "mask") is None
    assert await after(r"x*", "abc") is None
    with pytest.raises(PIIDetectionError):
        await after(r"\d{4}", "****1234", "block")
    with pytest.raises(ValueError, match="outside of the text"):
        await after(lambda text: [{"start": 0, "end": 99}], "abc")


def test_bad_arguments() -> None:
    for wrong in ({"pii_type": "name"}, {"pii_type": "x", "detector": "("}, {"pii_type": "x", "detector": 3}):
        with pytest.raises(GraphValidationError, match="detector"):
            PIIMiddleware(**wrong)
    with pytest.raises(GraphValidationError, match="strategy"):
        PIIMiddleware("email", strategy="hide")


@pytest.mark.one_loop
@pytest.mark.skipif(importlib.util.find_spec("langchain_core") is None, reason="needs langchain-core")
async def test_messages_of_langchain() -> None:
    from langchain_core.messages import AIMessage, HumanMessage

    async def model(messages: Any, tools: Any) -> Any:
        return AIMessage("write to bob@example.com")

    own = PIIMiddleware("email", apply_to_output=True)
    blocks: Any = [{"type": "text", "text": "I am ada@example.com"}]
    done = await create_agent(model, middleware=[own]).ainvoke({"messages": [HumanMessage(blocks, id="a")]})
    asked, answer = done["messages"]
    assert (asked.content[0]["text"], asked.id) == ("I am [REDACTED_EMAIL]", "a")
    assert (answer.content, type(answer)) == ("write to [REDACTED_EMAIL]", AIMessage)
