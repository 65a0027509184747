"""Subgraphs that a node reaches through attributes, nested functions and wrappers, and where `nodes` shows them."""

from __future__ import annotations

import functools
import types
from typing import Any, TypedDict

import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, StateGraph, interrupt
from pregel_async._runtime.tasks.subgraphs import reachable


class State(TypedDict, total=False):
    text: str


def asks(state: State) -> dict[str, Any]:
    return {"text": interrupt("Go on?")}


def inner(name: str = "inner", **options: Any) -> Any:
    return StateGraph(State).add_node("ask", asks).add_edge(START, "ask").compile(name=name, **options)


def outer(node: Any) -> Any:
    return StateGraph(State).add_node("n", node).add_edge(START, "n").compile(InMemorySaver())


def found_in(node: Any) -> list[str]:
    graph = outer(node)
    shown = [each.name for each in graph.nodes["n"].subgraphs]
    assert shown == [each.name for _, each in graph.get_subgraphs()]
    return shown


class Services:
    """Holds a graph in the ways in which programs hold their objects."""

    shared = inner("shared")

    def __init__(self) -> None:
        self.team = types.SimpleNamespace(lead=types.SimpleNamespace(graph=inner("lead")), graph=inner("team"))

    @property
    def writer(self) -> Any:
        raise AssertionError("a property must not run while subgraphs are looked for")

    @property
    def leader(self) -> Any:
        return self.team.lead.graph

    def run_lead(self, state: Any) -> Any:
        team = self.team
        return team.lead.graph.invoke(state)

    @staticmethod
    def run_shared(state: Any) -> Any:
        return Services.shared.invoke(state)

    def delegate(self, state: Any) -> Any:
        return self.run_lead(state)


class Slotted:
    """Holds a graph in a slot."""

    __slots__ = ("graph",)

    def __init__(self) -> None:
        self.graph = inner("slot")


services, slotted = Services(), Slotted()
module = types.ModuleType("flows")
vars(module)["agents"] = types.SimpleNamespace(main=inner("main"))


def by_path(state: State) -> Any:
    return services.team.lead.graph.invoke(state)


def by_shorter_path(state: State) -> Any:
    return services.team.graph.invoke(state)


def by_class(state: State) -> Any:
    return Services.shared.invoke(state)


def by_class_attribute(state: State) -> Any:
    return services.shared.invoke(state)


def by_module(state: State) -> Any:
    return module.agents.main.invoke(state)


def by_slot(state: State) -> Any:
    return slotted.graph.invoke(state)


def by_property(state: State) -> Any:
    assert services.writer is not None
    return services.leader.invoke(state)


def by_method_of_an_object(state: State) -> Any:
    return services.delegate(state)


def by_static_method(state: State) -> Any:
    return Services.run_shared(state)


@pytest.mark.parametrize(
    ("node", "name"),
    [
        (by_path, "lead"),
        (by_shorter_path, "team"),
        (by_class, "shared"),
        (by_class_attribute, "shared"),
        (by_module, "main"),
        (by_slot, "slot"),
        (by_property, "lead"),
        (services.run_lead, "lead"),
        (by_method_of_an_object, "lead"),
        (by_static_method, "shared"),
    ],
)
def test_by_attributes(node: Any, name: str) -> None:
    """A graph is found at the end of a path of attributes, of objects, classes and modules, and no property runs."""
    assert found_in(node) == [name]


def test_by_closures_of_nested_functions() -> None:
    """Functions that a node defines use variables of the functions around the node, at any depth."""
    graph, holder = inner("closure"), types.SimpleNamespace(deep=types.SimpleNamespace(graph=inner("deep")))

    def by_inner(state: State) -> Any:
        def run() -> Any:
            return [lambda: graph.invoke(state)][0]()

        return run()

    def by_inner_path(state: State) -> Any:
        def run() -> Any:
            def innermost() -> Any:
                return holder.deep.graph.invoke(state)

            return innermost()

        return run()

    def by_inner_global(state: State) -> Any:
        def run() -> Any:
            return (lambda: services.team.graph.invoke(state))()

        return run()

    assert found_in(by_inner) == ["closure"]
    assert found_in(by_inner_path) == ["deep"]
    assert found_in(by_inner_global) == ["team"]


class Counted:
    """A decorator that is a class, as those of libraries are: its own code is not searched."""

    def __init__(self, function: Any) -> None:
        functools.update_wrapper(self, function)

    def __call__(self, state: Any) -> Any:
        return vars(self)["__wrapped__"](state)


def of_a_library(function: Any) -> Any:
    """A decorator of another module, whose wrapper reaches the function only by `__wrapped__`."""
    made: dict[str, Any] = {}

    @functools.wraps(function)
    def wrapper(state: Any) -> Any:
        return made["wrapper"].__wrapped__(state)

    wrapper.__module__ = "a_library"
    made["wrapper"] = wrapper
    return wrapper


def test_by_wrappers() -> None:
    """A decorated function is searched, and so are decorated functions that a node calls, whoever wrote the decorator."""

    def plain(state: State) -> Any:
        return services.team.lead.graph.invoke(state)

    cached = functools.lru_cache(plain)

    def calls(state: State) -> Any:
        return cached(state)

    assert found_in(Counted(plain)) == ["lead"]
    assert found_in(of_a_library(plain)) == ["lead"]
    assert found_in(of_a_library(of_a_library(plain))) == ["lead"]
    assert found_in(functools.partial(of_a_library(plain))) == ["lead"]
    assert found_in(calls) == ["lead"]


def test_objects_that_refer_to_themselves() -> None:
    """The search ends, whatever refers to what."""
    loop = types.SimpleNamespace(graph=None)
    loop.graph = loop

    def circular(state: State) -> Any:
        return loop.graph.graph

    def wrapper(state: State) -> Any:
        return state

    vars(wrapper)["__wrapped__"] = wrapper
    assert found_in(circular) == []
    assert list(reachable(wrapper, StateGraph)) == []  # not in a graph: typing's own search would not end


def test_nodes_show_stored_subgraphs_only() -> None:
    """`nodes["n"].subgraphs` has the graph whose state is stored with the thread, as `get_subgraphs` has."""
    unstored = inner("unstored", checkpointer=False)

    def both(state: State) -> Any:
        unstored.invoke(state)
        return services.team.graph.invoke(state)

    def one(state: State) -> Any:
        return unstored.invoke(state)

    assert found_in(both) == ["team"]
    assert found_in(one) == []
    graph = outer(inner())
    assert [each.name for each in graph.nodes["n"].subgraphs] == ["inner"]
    assert graph.nodes[START].subgraphs == ()


@pytest.mark.anyio
async def test_the_state_of_a_subgraph_found_by_a_path() -> None:
    """A graph that a path of attributes leads to has a state in the parent's snapshot, also for a reader that has not
    run the node."""
    graph = outer(by_path)
    await graph.ainvoke({}, "t")
    reader = outer(by_path).with_checkpointer(graph.checkpointer)
    state = await reader.aget_state("t", subgraphs=True)
    assert state.tasks[0].state.next == ("ask",)
    assert [question.value for question in state.interrupts] == ["Go on?"]
