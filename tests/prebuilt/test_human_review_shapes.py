"""Approval in the shapes of `langgraph.prebuilt.interrupt`."""

from __future__ import annotations

from typing import Any

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import Command
from pregel_async.errors import GraphValidationError
from pregel_async.prebuilt import HumanInTheLoopMiddleware, HumanResponse, create_agent
from tests.prebuilt.calls import asking, call, contents
from tests.prebuilt.scripted import Script

pytestmark = pytest.mark.anyio

HI = {"messages": [{"role": "user", "content": "hi"}]}
EVERY = {"allow_ignore": True, "allow_respond": True, "allow_edit": True, "allow_accept": True}
EDIT: HumanResponse = {"type": "edit", "args": {"action": "send_email", "args": {"to": "bobby"}}}
ANSWERS: list[HumanResponse] = [
    {"type": "accept", "args": None},
    EDIT,
    {"type": "ignore", "args": None},
    {"type": "response", "args": "he knows"},
]
PEOPLE = ["ada", "bob", "eve", "joe"]
IGNORED = "The user refused the call of 'send_email', and it has not run. Do not repeat it unless the user asks for it."
RESULTS = ["sent to ada", "sent to bobby", IGNORED, "he knows"]


def send_email(to: str) -> str:
    return f"sent to {to}"


def turn() -> Script:
    return Script(asking(*(call("send_email", to, to=to) for to in PEOPLE)), "done")


def results(done: Any) -> list[str]:
    found = {each["tool_call_id"]: each["content"] for each in done["messages"] if each["role"] == "tool"}
    return [found[to] for to in PEOPLE]


async def test_approve(saver: BaseCheckpointSaver) -> None:
    """Each call asks with a list of one; answers are lists of one, or the answer itself, and survive a restart."""
    options: Any = {"approve": {"send_email": True}, "approve_shape": "human_interrupt", "checkpointer": saver}
    asked = await create_agent(turn(), [send_email], **options).ainvoke(HI, "t")
    questions = asked["__interrupt__"]
    assert questions[0].value == [
        {
            "action_request": {"action": "send_email", "args": {"to": "ada"}},
            "config": EVERY,
            "description": "May the tool 'send_email' run?",
        }
    ]
    first: Any = {each.id: [answer] for each, answer in zip(questions[:2], ANSWERS[:2], strict=True)}
    await create_agent(turn(), [send_email], **options).ainvoke(Command(resume=first), "t")
    rest = {each.id: answer for each, answer in zip(questions[2:], ANSWERS[2:], strict=True)}
    done = await create_agent(turn(), [send_email], **options).ainvoke(Command(resume=rest), "t")
    assert results(done) == RESULTS
    assert contents(done)[-1] == "done"


async def test_one_question_for_a_turn(saver: BaseCheckpointSaver) -> None:
    """The question lists the calls, and the answer has a response for each."""
    middleware = HumanInTheLoopMiddleware({"send_email": True}, shape="human_interrupt", edit_notice=None)
    agent = create_agent(turn(), [send_email], middleware=[middleware], checkpointer=saver)
    (question,) = (await agent.ainvoke(HI, "t"))["__interrupt__"]
    assert [each["action_request"]["args"]["to"] for each in question.value] == PEOPLE
    assert question.value[0]["description"].startswith("Tool execution requires approval")
    done = await agent.ainvoke(Command(resume=ANSWERS), "t")
    assert results(done) == RESULTS


@pytest.mark.one_loop
@pytest.mark.parametrize("mode", ["batched", "per_call"])
async def test_answers_that_are_not_allowed_are_asked_again(mode: Any) -> None:
    allowed: Any = {"send_email": {"allowed_decisions": ["approve", "edit"]}}
    middleware = HumanInTheLoopMiddleware(allowed, shape="human_interrupt", interrupt_mode=mode, edit_notice=None)
    model = Script(asking(call("send_email", to="ada")), "done")
    agent = create_agent(model, [send_email], middleware=[middleware], checkpointer=InMemorySaver())
    (question,) = (await agent.ainvoke(HI, "t"))["__interrupt__"]
    assert question.value[0]["config"] == {**EVERY, "allow_ignore": False, "allow_respond": False}
    wrong: list[Any] = [
        [{"type": "ignore", "args": None}],
        [{"type": "edit", "args": "bobby"}],
        [{"type": "response", "args": None}],
        [{"type": ["accept"]}],
        [ANSWERS[0], ANSWERS[0]],
        [],
        "yes",
    ]
    for answer in wrong:
        (question,) = (await agent.ainvoke(Command(resume=answer), "t"))["__interrupt__"]
        assert question.value[0]["description"].startswith(("The answer needs 1", "That was no decision."))
    assert contents(await agent.ainvoke(Command(resume=[EDIT]), "t"))[2] == "sent to bobby"


def test_bad_shapes() -> None:
    with pytest.raises(GraphValidationError, match="approve_shape is"):
        create_agent(turn(), [send_email], approve={"send_email": True}, approve_shape="other")
    with pytest.raises(GraphValidationError, match="approve is not given"):
        create_agent(turn(), [send_email], approve_shape="human_interrupt")
    with pytest.raises(GraphValidationError, match="shape is"):
        HumanInTheLoopMiddleware({}, shape="other")
