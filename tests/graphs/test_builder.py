"""`StateGraph`: what each method does, and what it refuses."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Annotated, Any, Literal, NotRequired, Required, TypedDict

import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import END, START, Command, CompiledStateGraph, PregelProtocol, Send, StateGraph, StateSnapshot
from pregel_async.channels import (
    AnyValue,
    BinaryOperatorAggregate,
    EphemeralValue,
    LastValue,
    LastValueAfterFinish,
    NamedBarrierValue,
    NamedBarrierValueAfterFinish,
    Topic,
    UntrackedValue,
)
from pregel_async.errors import GraphValidationError, PregelError
from tests.helpers.schema_kinds import KINDS, DataState, DictState, ModelState, StructState

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    note: str


def says(name: str) -> Callable[[Any], dict[str, Any]]:
    def call(state: Any) -> dict[str, Any]:
        return {"log": [name]}

    return call


def builder(*names: str) -> StateGraph[State]:
    made = StateGraph(State)
    for name in names:
        made.add_node(name, says(name))
    return made


async def ran(made: StateGraph[Any], given: Any = None) -> list[str]:
    result: list[str] = (await made.compile(blocking=False).ainvoke({} if given is None else given))["log"]
    return result


class Declared(TypedDict):
    plain: int
    required: Required[int]
    optional: NotRequired[int]
    folded: Annotated[int, operator.add]
    optional_fold: NotRequired[Annotated[list[int], operator.add]]
    channel: Annotated[int, AnyValue]
    instance: Annotated[int, EphemeralValue(int)]
    marked: Annotated[int, "first", UntrackedValue(int), "last"]
    described: Annotated[int, "just words"]
    topic: Annotated[list[int], Topic(int, accumulate=True)]


def test_keys_become_channels() -> None:
    """Plain keys become LastValue channels, reducers aggregate, and channels are used as they are; Required and similar
    qualifiers have no effect."""
    channels = StateGraph(Declared).channels
    assert {name: type(channel) for name, channel in channels.items()} == {
        "plain": LastValue,
        "required": LastValue,
        "optional": LastValue,
        "folded": BinaryOperatorAggregate,
        "optional_fold": BinaryOperatorAggregate,
        "channel": AnyValue,
        "instance": EphemeralValue,
        "marked": UntrackedValue,
        "described": LastValue,
        "topic": Topic,
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_schema(kind: type[Any]) -> None:
    """TypedDict, dataclass, msgspec.Struct and pydantic models are schemas."""
    channels = StateGraph(kind).channels
    assert list(channels) == ["items", "table", "log", "note"]
    assert isinstance(channels["log"], BinaryOperatorAggregate)


class Parent(TypedDict):
    a: int


class Child(Parent):
    b: Annotated[int, operator.add]


def test_inherited_keys() -> None:
    """Keys that a schema inherits are keys."""
    assert list(StateGraph(Child).channels) == ["a", "b"]


def takes_one(value: Any) -> Any:
    return value


def takes_three(a: Any, b: Any, c: Any) -> Any:
    return a


def takes_names(a: Any, *, b: Any) -> Any:
    return a


def takes_any(*values: Any) -> Any:
    return values[-1]


def takes_default(a: Any, b: Any, c: Any = 1) -> Any:
    return b


class OneArgument(TypedDict):
    key: Annotated[int, takes_one]


class ThreeArguments(TypedDict):
    key: Annotated[int, takes_three]


class NamedArguments(TypedDict):
    key: Annotated[int, takes_names]


class AnyArguments(TypedDict):
    key: Annotated[int, takes_any]


class DefaultArgument(TypedDict):
    key: Annotated[int, takes_default]


class Builtin(TypedDict):
    key: Annotated[int, max]


@pytest.mark.parametrize("schema", [OneArgument, ThreeArguments, NamedArguments])
def test_reducers_of_the_wrong_arity(schema: Any) -> None:
    """A reducer takes two arguments; another arity raises an error that names schema and key."""
    with pytest.raises(GraphValidationError, match=f"{schema.__name__}.key"):
        StateGraph(schema)


@pytest.mark.parametrize("schema", [AnyArguments, DefaultArgument, Builtin])
def test_reducers_that_can_take_two(schema: Any) -> None:
    """Any callable that accepts two arguments is a reducer."""
    assert isinstance(StateGraph(schema).channels["key"], BinaryOperatorAggregate)


@pytest.mark.parametrize("schema", ["State", None, 3, State({})])
def test_what_is_no_schema(schema: Any) -> None:
    """Bad input: a schema that is no type is refused by name, and so is a plain type together with keys."""
    with pytest.raises(GraphValidationError, match="state schema"):
        StateGraph(schema)
    with pytest.raises(GraphValidationError, match="input schema"):
        StateGraph(State, input_schema=schema) if schema is not None else StateGraph(State, input_schema=int)
    with pytest.raises(GraphValidationError, match="output schema"):
        StateGraph(State, output_schema=schema) if schema is not None else StateGraph(State, output_schema=int)


def test_a_local_name_in_an_annotation() -> None:
    """An annotation that cannot be resolved raises an error that says what to do."""

    class Local:
        pass

    class LocalState(TypedDict):
        key: Local

    with pytest.raises(GraphValidationError, match=r"LocalState.*cannot be resolved"):
        StateGraph(LocalState)


class Plainly(TypedDict):
    log: list[str]
    extra: int


class Otherwise(TypedDict):
    log: Annotated[list[str], operator.mul]


class Ephemerally(TypedDict):
    log: Annotated[list[str], EphemeralValue]


class Alike(TypedDict):
    log: Annotated[list[str], operator.add]


def test_one_key_declared_twice() -> None:
    """A plain re-declaration never overrides a reducer; two different channels for one key raise an error."""
    for made in (StateGraph(State, input_schema=Plainly), StateGraph(Plainly, output_schema=State)):
        assert isinstance(made.channels["log"], BinaryOperatorAggregate)
    assert isinstance(StateGraph(State, input_schema=Alike).channels["log"], BinaryOperatorAggregate)
    for other in (Otherwise, Ephemerally):
        with pytest.raises(GraphValidationError, match="'log' is declared twice"):
            StateGraph(State, input_schema=other)
        with pytest.raises(GraphValidationError, match="'log' is declared twice"):
            StateGraph(State).add_node("n", says("n"), input_schema=other)


START_KEY = TypedDict("START_KEY", {"__start__": int, "y": int})
END_KEY = TypedDict("END_KEY", {"__end__": int, "y": int})
BRANCH_KEY = TypedDict("BRANCH_KEY", {"branch:to:n": int, "y": int})
JOIN_KEY = TypedDict("JOIN_KEY", {"join:a+b:n": int, "y": int})
SENDS_KEY = TypedDict("SENDS_KEY", {"__pregel_tasks": int, "y": int})


@pytest.mark.parametrize("schema", [START_KEY, END_KEY, BRANCH_KEY, JOIN_KEY, SENDS_KEY])
def test_reserved_keys(schema: Any) -> None:
    """Bad input: a state key with the name of a control channel is refused by name."""
    with pytest.raises(GraphValidationError, match="reserved"):
        StateGraph(schema).add_node("n", lambda state: None).add_edge(START, "n").compile()


def a_function(state: State) -> dict[str, Any]:
    return {"log": ["a_function"]}


async def a_coroutine(state: State) -> dict[str, Any]:
    return {"log": ["a_coroutine"]}


class Callee:
    def __call__(self, state: State) -> dict[str, Any]:
        return {"log": ["Callee"]}

    async def method(self, state: State) -> dict[str, Any]:
        return {"log": ["method"]}


class AsyncCallee:
    async def __call__(self, state: State) -> dict[str, Any]:
        return {"log": ["AsyncCallee"]}


def with_more(more: str, state: State) -> dict[str, Any]:
    return {"log": [more]}


def lazily(state: State) -> Any:
    return a_coroutine(state)


@pytest.mark.parametrize("blocking", [True, False])
async def test_what_a_node_can_be(blocking: bool) -> None:
    """Functions, coroutine functions, callables, methods, partials, and functions that return an awaitable."""
    made = StateGraph(State)
    made.add_node(a_function).add_node(a_coroutine).add_node("named", a_function)
    made.add_node(Callee()).add_node(Callee().method).add_node(AsyncCallee())
    made.add_node(functools.partial(with_more, "partial")).add_node("lazily", lazily)
    made.add_node("lambda", lambda state: {"log": ["lambda"]})
    names = ["a_function", "a_coroutine", "named", "Callee", "method", "AsyncCallee", "with_more", "lazily", "lambda"]
    assert list(made.nodes) == names
    for name in names:
        made.add_edge(START, name)
    result = await made.compile(blocking=blocking).ainvoke({})
    assert sorted(result["log"]) == sorted(
        [
            "a_function",
            "a_coroutine",
            "a_function",
            "Callee",
            "method",
            "AsyncCallee",
            "partial",
            "a_coroutine",
            "lambda",
        ]
    )


def generator(state: State) -> Any:
    yield {"log": ["no"]}


async def async_generator(state: State) -> Any:
    yield {"log": ["no"]}


def no_argument() -> None: ...


def two_arguments(state: State, other: int) -> None: ...


def keyword_argument(state: State, *, other: int) -> None: ...


@pytest.mark.parametrize(
    ("add", "says"),
    [
        (lambda b: b.add_node("n"), "no action"),
        (lambda b: b.add_node("n", None), "no action"),
        (lambda b: b.add_node("n", 1), "not callable"),
        (lambda b: b.add_node(1), "not callable"),
        (lambda b: b.add_node(a_function, a_function), "add_node takes"),
        (lambda b: b.add_node("a", a_function), "'a' already"),
        (lambda b: b.add_node("", a_function), "reserved"),
        (lambda b: b.add_node(START, a_function), "reserved"),
        (lambda b: b.add_node(END, a_function), "reserved"),
        (lambda b: b.add_node("a|b", a_function), "contains"),
        (lambda b: b.add_node("a:b", a_function), "contains"),
        (lambda b: b.add_node(generator), "generator"),
        (lambda b: b.add_node(async_generator), "generator"),
        (lambda b: b.add_node(no_argument), "one argument"),
        (lambda b: b.add_node(two_arguments), "one argument"),
        (lambda b: b.add_node(keyword_argument), "one argument"),
        (lambda b: b.add_node("n", a_function, input_schema=int), "input schema of node 'n'"),
        (lambda b: b.add_sequence([]), "at least one"),
        (lambda b: b.add_sequence([a_function, a_function]), "already"),
        (lambda b: b.add_sequence(["a"]), "callable"),
        (lambda b: b.add_edge(END, "a"), "start at END"),
        (lambda b: b.add_edge(["a", END], "b"), "start at END"),
        (lambda b: b.add_edge("a", START), "end at START"),
        (lambda b: b.add_edge(["a", "b"], START), "end at START"),
        (lambda b: b.add_edge([], "a"), "starts nowhere"),
        (lambda b: b.add_edge([START, "a"], "b"), "START"),
        (lambda b: b.add_conditional_edges(END, a_function), "start at END"),
        (lambda b: b.add_conditional_edges("a", 1), "callable"),
        (lambda b: b.add_conditional_edges("a", generator), "generator"),
        (lambda b: b.add_conditional_edges("a", no_argument), "one argument"),
        (lambda b: b.add_conditional_edges("a", a_function).add_conditional_edges("a", a_function), "already"),
        (lambda b: b.set_finish_point(END), "start at END"),
        (lambda b: b.set_entry_point(START), "end at START"),
    ],
)
def test_what_the_builder_refuses(add: Callable[[Any], Any], says: str) -> None:
    """Bad input: a method refuses arguments that can never work."""
    with pytest.raises(GraphValidationError, match=says) as caught:
        add(builder("a", "b"))
    assert isinstance(caught.value, (PregelError, ValueError))


@pytest.mark.parametrize(
    "add",
    [
        lambda b: b.add_node("a", a_function, input_schema=Plainly),
        lambda b: b.add_node("n", a_function, input_schema=Otherwise),
        lambda b: b.add_node(generator),
        lambda b: b.add_edge(END, "a"),
        lambda b: b.add_conditional_edges("a", 1),
    ],
)
def test_a_refusal_changes_nothing(add: Callable[[Any], Any]) -> None:
    """`StateGraph`: a method that raises leaves the builder unchanged."""
    made = builder("a", "b")
    before = (dict(made.nodes), set(made.edges), set(made.waiting_edges), dict(made.branches), list(made.channels))
    with pytest.raises(GraphValidationError):
        add(made)
    assert before == (made.nodes, made.edges, made.waiting_edges, made.branches, list(made.channels))


@pytest.mark.parametrize(
    ("add", "says"),
    [
        (lambda b: b, "no entry"),
        (lambda b: b.add_edge("a", "b"), "no entry"),
        (lambda b: b.add_edge(START, "zz"), "'zz'"),
        (lambda b: b.add_edge(START, "a").add_edge("zz", "a"), "'zz'"),
        (lambda b: b.add_edge(START, "a").add_edge("a", "zz"), "'zz'"),
        (lambda b: b.add_edge(START, "a").add_edge(["a", "zz"], "b"), "'zz'"),
        (lambda b: b.add_edge(START, "a").add_edge(["a", "b"], "zz"), "'zz'"),
        (lambda b: b.add_edge(START, "a").add_conditional_edges("zz", a_function), "'zz'"),
        (lambda b: b.add_edge(START, "a").add_conditional_edges("a", a_function, ["zz"]), "'zz'"),
        (lambda b: b.add_edge(START, "a").add_conditional_edges("a", a_function, {"x": "zz"}), "'zz'"),
        (lambda b: b.add_edge(START, "a").add_conditional_edges("a", a_function, [START]), "START"),
        (lambda b: b.add_edge(START, "a").add_conditional_edges("a", to_nowhere), "'zz'"),
    ],
)
def test_what_compile_refuses(add: Callable[[Any], Any], says: str) -> None:
    """`compile` checks everything that can be known before a run: no entry, unknown nodes."""
    with pytest.raises(GraphValidationError, match=says):
        add(builder("a", "b")).compile()


def to_nowhere(state: State) -> Literal["a", "zz"]:
    return "a"


def test_more_that_compile_refuses() -> None:
    """`compile` refuses a graph without nodes, an invalid checkpointer, and unknown settings."""
    with pytest.raises(GraphValidationError, match="no nodes"):
        StateGraph(State).add_edge(START, END).compile()
    for wrong in ("runs.db", 1, object(), InMemorySaver):
        with pytest.raises(GraphValidationError, match="checkpointer"):
            builder("a").add_edge(START, "a").compile(wrong)
    with pytest.raises(GraphValidationError, match="unknown_keys"):
        builder("a").add_edge(START, "a").compile(unknown_keys="drop")


async def test_a_chain() -> None:
    """An edge runs its end after its start."""
    made = builder("a", "b", "c").add_edge(START, "a").add_edge("a", "b").add_edge("b", "c").add_edge("c", END)
    assert await ran(made) == ["a", "b", "c"]


async def test_entry_and_finish_points() -> None:
    """`set_entry_point` and `set_finish_point` are edges from START and to END."""
    made = builder("a", "b").set_entry_point("a").add_edge("a", "b").set_finish_point("b")
    assert made.edges == {(START, "a"), ("a", "b"), ("b", END)}
    assert await ran(made) == ["a", "b"]


async def test_two_edges_into_one_node() -> None:
    """Two edges into one node from the same superstep are one run of it."""
    made = builder("a", "b", "j").add_edge(START, "a").add_edge(START, "b").add_edge("a", "j").add_edge("b", "j")
    assert await ran(made) == ["a", "b", "j"]


async def test_edges_of_different_length_run_their_end_twice() -> None:
    """Single edges are an OR: a node runs whenever one of its starts has run."""
    made = builder("a", "b", "c", "j")
    made.add_edge(START, "a").add_edge(START, "b").add_edge("b", "c").add_edge("a", "j").add_edge("c", "j")
    assert await ran(made) == ["a", "b", "c", "j", "j"]


async def test_an_edge_of_several_starts_waits_for_all() -> None:
    """A list of starts waits until all of them have run, in whichever superstep."""
    made = builder("a", "b", "c", "j")
    made.add_edge(START, "a").add_edge(START, "b").add_edge("b", "c").add_edge(["a", "c"], "j")
    assert await ran(made) == ["a", "b", "c", "j"]


def test_what_joins_compile_to() -> None:
    """Mental model 2: an edge of several starts compiles to a barrier, an edge of one start to a plain edge, an edge to
    END to nothing."""
    made = (
        builder("a", "b", "j")
        .add_edge(START, "a")
        .add_edge(["b", "a"], "j")
        .add_edge(["a"], "b")
        .add_edge(["a", "b"], END)
    )
    channels = made.compile().channels
    assert [name for name in channels if name.startswith("join:")] == ["join:b+a:j"]
    barrier = channels["join:b+a:j"]
    assert isinstance(barrier, NamedBarrierValue)
    assert barrier.names == ("a", "b")
    assert made.compile().nodes["j"].trigger_channels == ["branch:to:j", "join:b+a:j"]


async def test_names_with_a_plus() -> None:
    """A name that looks like a join is an ordinary name: two joins never become one channel."""
    made = builder("a", "c", "a+b", "b+c", "d", "e")
    for name in ("a", "c", "a+b", "b+c"):
        made.add_edge(START, name)
    made.add_edge(["a", "b+c"], "d").add_edge(["a+b", "c"], "d").add_edge(["a+b", "c"], "e")
    assert await ran(made) == ["a", "a+b", "b+c", "c", "d", "e"]


async def test_a_join_in_a_loop() -> None:
    """Joins work again in every round."""
    made = builder("a", "b", "j").add_edge(START, "a").add_edge(START, "b").add_edge(["a", "b"], "j")
    made.add_conditional_edges("j", lambda state: ["a", "b"] if state["log"].count("j") < 3 else END)
    assert await ran(made) == ["a", "b", "j"] * 3


async def test_add_sequence() -> None:
    """`add_sequence` adds nodes and the edges between them; names come from the functions, or are passed."""
    made = (
        StateGraph(State).add_sequence([a_function, ("second", a_function), a_coroutine]).add_edge(START, "a_function")
    )
    assert made.edges == {("a_function", "second"), ("second", "a_coroutine"), (START, "a_function")}
    assert await ran(made) == ["a_function", "a_function", "a_coroutine"]


async def test_a_deferred_node_is_last() -> None:
    """`defer=True` runs a node only when no other work is left, once per such moment."""
    made = builder("a", "b", "c").add_node("d", says("d"), defer=True)
    made.add_edge(START, "a").add_edge("a", "b").add_edge("b", "c").add_edge("a", "d").add_edge("b", "d")
    assert await ran(made) == ["a", "b", "c", "d"]


async def test_a_deferred_node_in_a_loop() -> None:
    """Deferred nodes run at every tentative end."""
    made = builder("a", "b").add_node("d", says("d"), defer=True)
    made.add_edge(START, "a").add_edge("a", "b").add_edge("a", "d")
    made.add_conditional_edges("d", lambda state: "a" if state["log"].count("d") < 3 else END)
    assert await ran(made) == ["a", "b", "d"] * 3


async def test_a_deferred_join() -> None:
    """A join into a deferred node waits for all its starts and for the tentative end."""
    made = builder("a", "b", "c").add_node("d", says("d"), defer=True)
    made.add_edge(START, "a").add_edge(START, "b").add_edge("b", "c").add_edge(["a", "b"], "d")
    channels = made.compile().channels
    assert isinstance(channels["join:a+b:d"], NamedBarrierValueAfterFinish)
    assert isinstance(channels["branch:to:d"], LastValueAfterFinish)
    assert await ran(made) == ["a", "b", "c", "d"]


async def test_what_a_deferred_node_starts_runs() -> None:
    """The run continues with the nodes that a deferred node leads to."""
    made = builder("a", "z").add_node("d", says("d"), defer=True)
    assert await ran(made.add_edge(START, "a").add_edge("a", "d").add_edge("d", "z")) == ["a", "d", "z"]


async def test_a_send_to_a_deferred_node_does_not_wait() -> None:
    """A send to a deferred node runs at once; only edges are deferred."""
    made = builder("a", "b", "c").add_node("d", says("d"), defer=True).add_edge(START, "a").add_edge("a", "b")
    made.add_edge("b", "c").add_conditional_edges("a", lambda state: Send("d", {}))
    assert await ran(made) == ["a", "b", "d", "c"]


def literal(state: State) -> Literal["a", "b"]:
    return "b"


async def literal_list(state: State) -> list[Literal["a", "b"] | Send]:
    return ["b", Send("a", {})]


def literal_end(state: State) -> Literal["a", "__end__"]:
    return END


class LiteralCallee:
    def __call__(self, state: State) -> Literal["b"]:
        return "b"


@pytest.mark.parametrize(
    ("path", "path_map", "expected"),
    [
        (lambda state: "b", None, ["s", "b"]),
        (lambda state: ["b", "a"], None, ["s", "a", "b"]),
        (lambda state: ("b",), None, ["s", "b"]),
        (lambda state: [], None, ["s"]),
        (lambda state: END, None, ["s"]),
        (lambda state: [END, "a"], None, ["s", "a"]),
        (lambda state: ["b", "b"], None, ["s", "b"]),
        (lambda state: Send("a", {}), None, ["s", "a"]),
        (lambda state: [Send("a", {}), Send("a", {}), "b"], None, ["s", "b", "a", "a"]),
        (lambda state: True, {True: "a", False: "b"}, ["s", "a"]),
        (lambda state: [1, 2], {1: "a", 2: END}, ["s", "a"]),
        (lambda state: None, {None: "a"}, ["s", "a"]),
        (lambda state: "b", ["a", "b"], ["s", "b"]),
        (lambda state: Send("b", {}), ["a"], ["s", "b"]),
        (literal, None, ["s", "b"]),
        (literal_list, None, ["s", "b", "a"]),
        (literal_end, None, ["s"]),
        (LiteralCallee(), None, ["s", "b"]),
        (functools.partial(literal), None, ["s", "b"]),
    ],
)
async def test_where_routers_lead(path: Any, path_map: Any, expected: list[str]) -> None:
    """A router returns a name, END, a Send, or a list of these; path_map or Literal annotations map its results."""
    made = builder("s", "a", "b").add_edge(START, "s").add_conditional_edges("s", path, path_map)
    assert await ran(made) == expected


def test_what_literals_say() -> None:
    """A router's `Literal` return annotation lists its destinations, as `path_map` does."""
    made = builder("s", "a", "b").add_conditional_edges("s", literal).add_conditional_edges("s", literal_list)
    assert [branch.ends for branch in made.branches["s"].values()] == [{"a": "a", "b": "b"}, {"a": "a", "b": "b"}]


async def test_a_router_sees_its_nodes_writes() -> None:
    """A router sees the state with its own node's writes, and not those of siblings in the same superstep."""
    seen: dict[str, Any] = {}
    made = builder("a", "b").add_edge(START, "a").add_edge(START, "b")
    made.add_conditional_edges("a", lambda state: seen.update(a=state["log"]) or END)
    made.add_conditional_edges("b", lambda state: seen.update(b=state["log"]) or END)
    await ran(made, {"log": ["in"]})
    assert seen == {"a": ["in", "a"], "b": ["in", "b"]}


async def test_an_async_router() -> None:
    """A router may be a coroutine function."""

    async def later(state: Any) -> str:
        return "b"

    assert await ran(builder("a", "b").add_edge(START, "a").add_conditional_edges("a", later)) == ["a", "b"]


async def test_several_routers_of_one_node() -> None:
    """A node has one branch per function name; all of them run in order of name, in addition to static edges."""
    asked: list[str] = []

    def first(state: Any) -> str:
        asked.append("first")
        return "a"

    def second(state: Any) -> str:
        asked.append("second")
        return "b"

    made = builder("s", "a", "b", "c").add_edge(START, "s").add_edge("s", "c")
    made.add_conditional_edges("s", second).add_conditional_edges("s", first)
    assert await ran(made) == ["s", "a", "b", "c"]
    assert asked == ["first", "second"]


async def test_a_conditional_entry() -> None:
    """The router of `set_conditional_entry_point` chooses the first node; it sees the input."""
    made = builder("a", "b").set_conditional_entry_point(lambda state: state["note"])
    assert await ran(made, {"note": "b"}) == ["b"]
    sent = builder("a").add_conditional_edges(START, lambda state: [Send("a", {}), Send("a", {})])
    assert await ran(sent) == ["a", "a"]


async def test_sends_keep_their_order_and_their_own_input() -> None:
    """Each send is a task of its own and gets its argument verbatim: neither merged with the state nor checked by a
    schema."""
    got: list[Any] = []

    def worker(arg: Any) -> dict[str, Any]:
        got.append(arg)
        return {"log": [str(arg)]}

    made = builder("s").add_node("worker", worker).add_edge(START, "s")
    made.add_conditional_edges("s", lambda state: [Send("worker", arg) for arg in (3, "x", None, [1], {"any": "keys"})])
    assert await ran(made) == ["s", "3", "x", "None", "[1]", "{'any': 'keys'}"]
    assert sorted(got, key=repr) == sorted([3, "x", None, [1], {"any": "keys"}], key=repr)


async def test_a_node_may_return_a_send() -> None:
    """A single bare Send that a node returns is executed."""
    made = StateGraph(State).add_node("s", lambda state: Send("a", {})).add_node("a", says("a")).add_edge(START, "s")
    assert await ran(made) == ["a"]


class Private(TypedDict, total=False):
    secret: str
    note: str


class Given(TypedDict):
    question: str


class Answered(TypedDict):
    answer: str


class Whole(TypedDict, total=False):
    question: str
    answer: str
    scratch: Annotated[list[str], operator.add]


async def test_private_schemas() -> None:
    """Keys of a node's private input schema become channels: nodes that name them see them, results and inputs do
    not."""
    seen: dict[str, Any] = {}

    def writes(state: State) -> dict[str, Any]:
        return {"secret": "s", "note": "n"}

    def reads(state: Private) -> dict[str, Any]:
        seen["private"] = dict(state)
        return {"log": [state["secret"]]}

    def others(state: State) -> None:
        seen["state"] = dict(state)

    made = StateGraph(State).add_sequence([writes, reads, others]).add_edge(START, "writes")
    assert "secret" in made.channels
    graph = made.compile(blocking=False)
    assert await graph.ainvoke({}) == {"log": ["s"], "note": "n"}
    assert seen == {"private": {"secret": "s", "note": "n"}, "state": {"log": ["s"], "note": "n"}}


async def test_an_input_schema_that_is_given() -> None:
    """`input_schema=` determines a node's input and overrides its annotation."""
    seen: list[Any] = []
    made = (
        StateGraph(Whole).add_node("n", lambda state: seen.append(dict(state)), input_schema=Given).add_edge(START, "n")
    )
    await made.compile(blocking=False).ainvoke({"question": "q", "answer": "a"})
    assert seen == [{"question": "q"}]


async def test_input_and_output_schemas() -> None:
    """A run accepts the keys of the input schema and returns those of the output schema; the state has the rest."""
    made = StateGraph(Whole, input_schema=Given, output_schema=Answered)
    made.add_node("n", lambda state: {"answer": state["question"] + "!", "scratch": ["thinking"]}).add_edge(START, "n")
    graph = made.compile(InMemorySaver(), blocking=False)
    assert await graph.ainvoke({"question": "why"}, "t") == {"answer": "why!"}
    assert (await graph.aget_state("t")).values == {
        "question": "why",
        "answer": "why!",
        "scratch": ["thinking"],
    }
    chunks = [chunk async for chunk in graph.astream({"question": "why"}, "t2", stream_mode="values")]
    assert chunks[-1] == {"question": "why", "answer": "why!", "scratch": ["thinking"]}


@pytest.mark.parametrize(
    ("kind", "shown"), [(DataState, True), (StructState, True), (ModelState, True), (DictState, False)]
)
async def test_a_node_gets_its_schemas_class(kind: Any, shown: bool) -> None:
    """TypedDict keys that were never written are absent; other classes use their defaults, and are created anew for
    each node."""
    seen: list[Any] = []
    made = StateGraph(kind).add_node("n", lambda state: seen.append(state)).add_edge(START, "n")
    await made.compile(blocking=False).ainvoke({"note": "x"})
    (state,) = seen
    if shown:
        assert type(state) is kind
        assert (state.items, state.table, state.log, state.note) == ([], {}, [], "x")
    else:
        assert state == {"log": [], "note": "x"}


async def test_compile_never_changes_the_builder() -> None:
    """`compile()` never changes the builder, which can be extended and compiled again."""
    made = builder("a", "b").add_edge(START, "a").add_edge("a", "b").add_edge(["a", "b"], END)
    made.add_conditional_edges("b", lambda state: END)
    made.add_node("d", says("d"), defer=True)
    before = (
        dict(made.nodes),
        set(made.edges),
        set(made.waiting_edges),
        {source: dict(branches) for source, branches in made.branches.items()},
        dict(made.channels),
    )
    first = made.compile(blocking=False)
    assert before == (made.nodes, made.edges, made.waiting_edges, made.branches, made.channels)
    await first.ainvoke({})
    assert before == (made.nodes, made.edges, made.waiting_edges, made.branches, made.channels)
    assert not any(channel.is_available() for name, channel in made.channels.items() if name != "log")
    made.add_edge("b", "d")
    second = made.compile(blocking=False)
    assert (await first.ainvoke({}))["log"] == ["a", "b"]
    assert (await second.ainvoke({}))["log"] == ["a", "b", "d"]


def test_two_compilations_share_nothing() -> None:
    """P13: two graphs compiled from one builder are equal and share no parts."""
    made = builder("a").add_edge(START, "a")
    one, other = made.compile(), made.compile(InMemorySaver(), name="other")
    assert (one.name, other.name, one.checkpointer) == ("StateGraph", "other", None)
    assert isinstance(one, CompiledStateGraph)
    assert list(one.channels) == list(other.channels)
    assert not any(
        one._definition.program.channels[name] is other._definition.program.channels[name]
        for name in one._definition.program.channels
    )


def test_methods_chain() -> None:
    """Every method without a result returns the builder."""
    made = StateGraph(State)
    assert made.add_node("a", a_function) is made
    assert made.add_edge(START, "a") is made
    assert made.add_conditional_edges("a", a_function) is made
    assert made.add_sequence([("b", a_function)]) is made
    assert made.set_entry_point("a") is made
    assert made.set_finish_point("a") is made
    assert made.set_conditional_entry_point(a_function) is made


def test_the_builder_is_generic() -> None:
    """`StateGraph[State]`, `StateGraph[State, Context]` and the classes of compiled graphs and snapshots work at run time
    with any number of type arguments, although type variables of Python 3.11 have no defaults."""
    assert StateGraph[State](State).channels.keys() == {"log", "note"}
    assert StateGraph[State, int](State, int).channels.keys() == {"log", "note"}
    assert CompiledStateGraph[State, int, State, State] and PregelProtocol[State] and StateSnapshot[State]

    class Mine(CompiledStateGraph[State]):
        pass

    assert issubclass(Mine, CompiledStateGraph)
    assert CompiledStateGraph[State]


def commanding(destination: str) -> Callable[[Any], Command[Any]]:
    def decide(state: Any) -> Command[Any]:
        return Command(goto=destination)

    decide.__annotations__["return"] = Command[Literal["a", "__end__"]]
    return decide


async def test_a_return_annotation_says_where_commands_go() -> None:
    """`Command[Literal[...]]` works at run time and for type checkers, and drawings show its destinations."""
    made = builder("a", "b").add_node("decide", commanding("a")).add_edge(START, "decide")
    drawn = [(edge.source, edge.target, edge.conditional) for edge in made.compile().get_graph().edges]
    assert drawn == [(START, "decide", False), ("decide", "a", True), ("decide", END, True)]
    assert await ran(made) == ["a"]


@pytest.mark.parametrize("destinations", [["nobody"], {"nobody": "label"}, [START]])
def test_compile_refuses_unknown_destinations(destinations: Any) -> None:
    """`compile` refuses unknown destinations of a node, as it refuses unknown ends of edges.

    An annotation may name nodes of the parent graph, for a parent command: names that this graph does not have are not
    drawn. A graph as a node has destinations too.
    """
    made = builder("a").add_node("decide", says("decide"), destinations=destinations).add_edge(START, "decide")
    with pytest.raises(GraphValidationError, match="the destinations of 'decide'"):
        made.compile()
    annotated = builder("b").add_node("decide", commanding("b")).add_edge(START, "decide")
    edges = annotated.compile().get_graph().edges
    assert [(edge.source, edge.target) for edge in edges] == [(START, "decide"), ("decide", END)]
    outer = builder("b").add_node("inner", annotated.compile(), destinations=["b"]).add_edge(START, "inner")
    assert ("inner", "b") in [(edge.source, edge.target) for edge in outer.compile().get_graph().edges]
    with pytest.raises(GraphValidationError, match="the destinations of 'inner'"):
        builder("b").add_node("inner", annotated.compile(), destinations=destinations).add_edge(
            START, "inner"
        ).compile()
