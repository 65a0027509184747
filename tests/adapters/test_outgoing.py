"""Conversations in the forms of providers' APIs, and whole answers as messages."""

from __future__ import annotations

from typing import Any

import pytest

from pregel_async.adapters import InvalidSourceError, as_anthropic, as_openai, as_openai_responses, read_message

CALL: dict[str, Any] = {"type": "tool_call", "id": "c1", "name": "find", "args": {"q": "a"}}
BAD: dict[str, Any] = {"type": "invalid_tool_call", "id": "c2", "name": "find", "args": '{"q', "error": "cut off"}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}

CHAT: list[Any] = [
    {"role": "system", "content": "Be short."},
    "hi",
    ("user", ["look", PICTURE]),
    {"role": "assistant", "content": "", "tool_calls": [CALL], "invalid_tool_calls": [BAD]},
    {"role": "tool", "tool_call_id": "c1", "name": "find", "content": "found"},
    {"role": "tool", "tool_call_id": "c2", "name": "find", "content": "no", "status": "error"},
    {"role": "assistant", "content": "done", "id": "m"},
]


def test_chat_completions() -> None:
    """Calls that could not be parsed keep their text: the tool message after them must belong to a call."""
    function = {"name": "find", "arguments": '{"q": "a"}'}
    assert as_openai(CHAT) == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "hi"},
        {"role": "user", "content": [{"type": "text", "text": "look"}, PICTURE]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": function},
                {"id": "c2", "type": "function", "function": {"name": "find", "arguments": '{"q'}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
        {"role": "tool", "tool_call_id": "c2", "content": "no"},
        {"role": "assistant", "content": "done"},
    ]


def test_responses() -> None:
    assert as_openai_responses(CHAT) == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "hi"},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "look"},
                {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
            ],
        },
        {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"q": "a"}'},
        {"type": "function_call", "call_id": "c2", "name": "find", "arguments": '{"q'},
        {"type": "function_call_output", "call_id": "c1", "output": "found"},
        {"type": "function_call_output", "call_id": "c2", "output": "no"},
        {"role": "assistant", "content": "done"},
    ]


def test_anthropic() -> None:
    """System texts are an argument, results of tools belong to a user, and messages of one role are joined."""
    assert as_anthropic(CHAT) == {
        "system": "Be short.",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "hi"},
                    {"type": "text", "text": "look"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "id": "c1", "name": "find", "input": {"q": "a"}},
                    {"type": "tool_use", "id": "c2", "name": "find", "input": {"invalid_arguments": '{"q'}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "found"},
                    {"type": "tool_result", "tool_use_id": "c2", "content": "no", "is_error": True},
                ],
            },
            {"role": "assistant", "content": [{"type": "text", "text": "done"}]},
        ],
    }
    assert "system" not in as_anthropic(["hi"])


def test_a_providers_own_blocks_go_back_to_that_provider_alone() -> None:
    """Reasoning with a signature returns as it came; another provider gets the text."""
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    of_anthropic = {"role": "assistant", "content": "yes", "blocks": [thinking, {"type": "text", "text": "yes"}]}
    item = {"type": "reasoning", "id": "r", "summary": []}
    of_openai = {"role": "assistant", "content": "yes", "blocks": [item, {"type": "message", "content": []}]}
    assert as_anthropic([of_anthropic])["messages"][0]["content"] == of_anthropic["blocks"]
    assert as_openai_responses([of_openai]) == of_openai["blocks"]
    assert as_anthropic([of_openai])["messages"][0]["content"] == [{"type": "text", "text": "yes"}]
    assert as_openai_responses([of_anthropic]) == [{"role": "assistant", "content": "yes"}]
    assert as_openai([of_anthropic]) == [{"role": "assistant", "content": "yes"}]


@pytest.mark.parametrize("convert", [as_openai, as_openai_responses, as_anthropic])
def test_an_unknown_role_is_refused(convert: Any) -> None:
    with pytest.raises(InvalidSourceError, match="role 'chorus'"):
        convert([{"role": "chorus", "content": "la"}])


COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": "well",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": "a"}'}},
                    {"id": "c2", "type": "function", "function": {"name": "find", "arguments": '{"q": "b"}'}},
                ],
            },
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
}
RESPONSE = {
    "id": "resp-1",
    "object": "response",
    "status": "completed",
    "model": "m",
    "output": [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "well"}]},
        {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"q": "a"}'},
        {"type": "function_call", "call_id": "c2", "name": "find", "arguments": '{"q": "b"}'},
    ],
    "usage": {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7},
}
ANTHROPIC = {
    "id": "msg-1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [
        {"type": "text", "text": "well"},
        {"type": "tool_use", "id": "c1", "name": "find", "input": {"q": "a"}},
        {"type": "tool_use", "id": "c2", "name": "find", "input": {"q": "b"}},
    ],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 3, "output_tokens": 4},
}


@pytest.mark.parametrize("answer", [COMPLETION, RESPONSE, ANTHROPIC], ids=["chat", "responses", "anthropic"])
def test_a_whole_answer(answer: dict[str, Any]) -> None:
    """It gives the same message as its stream would."""
    message = read_message(answer)
    assert (message["id"], message["content"]) == (answer["id"], "well")
    assert message["tool_calls"] == [CALL, {**CALL, "id": "c2", "args": {"q": "b"}}]
    assert message["usage"] == {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    assert message["finish_reason"] in ("tool_calls", "completed", "tool_use")


def test_what_is_no_answer() -> None:
    with pytest.raises(InvalidSourceError, match="is no answer of a model"):
        read_message({"role": "user", "content": "hi"})


def test_images_in_results_of_tools() -> None:
    """Chat completions take only text in results, which must follow the calls: images come in a message after them."""
    calls = [{"type": "tool_call", "id": id, "name": "look", "args": dict[str, Any]()} for id in ("a", "b")]
    chat: list[Any] = [
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "this"}, PICTURE]},
        {"role": "tool", "tool_call_id": "b", "content": "nothing"},
        {"role": "user", "content": "well?"},
    ]
    first, second, images, last = as_openai(chat)[1:]
    assert (first["content"], second["content"]) == ("this", "nothing")
    assert images == {"role": "user", "content": [PICTURE]} and last["content"] == "well?"
    assert as_openai(chat[:2])[-1] == images
    assert as_openai_responses(chat)[2]["output"] == [
        {"type": "input_text", "text": "this"},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
    ]
    (result, _, _) = as_anthropic(chat)["messages"][1]["content"]
    assert result["content"][1] == {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
    }


def test_names_of_speakers() -> None:
    """An agent may have any name, and the API refuses white space in names."""
    spoken = {"role": "assistant", "content": "hi", "name": "weather man <1>"}
    assert as_openai([spoken])[0]["name"] == "weather_man_1_"
