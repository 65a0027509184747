"""Middleware and strategies of langchain itself: they are refused, and ours have their names and parameters."""

from __future__ import annotations

import importlib.util
import inspect
from typing import Any

import pytest

from pregel_async import prebuilt
from pregel_async.errors import GraphValidationError
from tests.prebuilt.scripted import Script

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("langchain") is None,
    reason="langchain is not installed here: nox -s langchain installs it",
)

NAMES = [
    "ContextEditingMiddleware",
    "HumanInTheLoopMiddleware",
    "ModelCallLimitMiddleware",
    "ModelFallbackMiddleware",
    "ModelRetryMiddleware",
    "PIIMiddleware",
    "SummarizationMiddleware",
    "TodoListMiddleware",
    "ToolCallLimitMiddleware",
    "ToolRetryMiddleware",
]

SPELLINGS = {"deprecated_kwargs"}
"""Deprecated spellings of two parameters of `SummarizationMiddleware`."""


def theirs(name: str) -> Any:
    from langchain.agents import middleware

    return getattr(middleware, name)


@pytest.mark.parametrize("name", NAMES)
def test_the_parameters_are_the_same(name: str) -> None:
    """In the same order, and with the same defaults where these are plain values."""
    own = inspect.signature(getattr(prebuilt, name)).parameters
    for parameter in inspect.signature(theirs(name)).parameters.values():
        if parameter.name in SPELLINGS:
            continue
        mine = own[parameter.name]
        assert mine.kind == parameter.kind
        plain = (bool, int, float, tuple, type(None))
        if isinstance(parameter.default, plain) or (isinstance(parameter.default, str) and len(parameter.default) < 20):
            assert mine.default == parameter.default, parameter.name


def test_the_fields_of_edits_are_the_same() -> None:
    from langchain.agents.middleware import ClearToolUsesEdit

    own, other = prebuilt.ClearToolUsesEdit(), ClearToolUsesEdit()
    fields = ("trigger", "clear_at_least", "keep", "clear_tool_inputs", "exclude_tools", "placeholder")
    assert [getattr(own, field) for field in fields] == [getattr(other, field) for field in fields]


@pytest.mark.parametrize("name", [*NAMES, "LLMToolEmulator"])
def test_instances_are_refused(name: str) -> None:
    """The error names the class of ours, before anything runs; also for a subclass."""
    kind = theirs(name)
    instead = name if name in NAMES else "AgentMiddleware"
    for given in (kind.__new__(kind), type("Own", (kind,), {}).__new__(type("Own", (kind,), {}))):
        with pytest.raises(GraphValidationError, match=f"Use {instead} of pregel_async.prebuilt"):
            prebuilt.create_agent(Script("done"), middleware=[given])


def test_middleware_of_decorators_is_refused() -> None:
    from langchain.agents.middleware import before_model

    @before_model
    def log(state: Any, runtime: Any) -> None:
        return None

    with pytest.raises(GraphValidationError, match="Use AgentMiddleware of pregel_async.prebuilt"):
        prebuilt.create_agent(Script("done"), middleware=[log])


def test_why_they_are_refused() -> None:
    """A hook that asks calls langgraph's `interrupt`, which needs a run of langgraph: an adapter would fail there."""
    from langchain_core.messages import AIMessage

    middleware = theirs("HumanInTheLoopMiddleware")({"find": True})
    call: Any = {"type": "tool_call", "id": "1", "name": "find", "args": {}}
    with pytest.raises(RuntimeError, match="outside of a runnable context"):
        middleware.after_model({"messages": [AIMessage("", tool_calls=[call])]}, None)


@pytest.mark.parametrize("name", ["ToolStrategy", "ProviderStrategy", "AutoStrategy"])
def test_strategies_are_refused(name: str) -> None:
    """The error names ours."""
    from langchain.agents import structured_output

    given = getattr(structured_output, name)({"title": "A", "type": "object", "properties": {}})
    with pytest.raises(GraphValidationError, match=f"Use {name} of pregel_async.prebuilt"):
        prebuilt.create_agent(Script("done"), response_format=given)


@pytest.mark.parametrize("name", ["ToolStrategy", "ProviderStrategy"])
def test_the_parameters_of_strategies_are_the_same(name: str) -> None:
    from langchain.agents import structured_output

    other = inspect.signature(getattr(structured_output, name)).parameters
    own = inspect.signature(getattr(prebuilt, name)).parameters
    assert [(each.name, each.kind, each.default) for each in own.values()] == [
        (each.name, each.kind, each.default) for each in other.values()
    ]
