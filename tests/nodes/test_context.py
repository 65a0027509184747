"""Parameters and accessors of a node besides its input: context, config, writer, store, info."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import operator
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Generic, Optional, TypedDict, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec
import pydantic
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import (
    END,
    START,
    Command,
    IsLastStep,
    NodeBuilder,
    Pregel,
    RemainingSteps,
    RunnableConfig,
    Runtime,
    Send,
    StateGraph,
    StreamWriter,
    entrypoint,
    get_config,
    get_runtime,
    get_store,
    get_stream_writer,
    interrupt,
    task,
)
from pregel_async.channels import LastValue
from pregel_async.errors import GraphRecursionError, GraphValidationError, InvalidContextError, OutsideRunError

if TYPE_CHECKING:
    from nowhere import Unknown  # not there at run time, on purpose

pytestmark = pytest.mark.anyio

T = TypeVar("T")


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


@dataclasses.dataclass
class Context:
    user: str
    limit: int = 3


def graph_of(node: Any, saver: Any = None, **settings: Any) -> Any:
    """A graph of one node."""
    return StateGraph(State).add_node("n", node).add_edge(START, "n").compile(saver, **settings)


async def logged(node: Any, **call: Any) -> Any:
    return (await graph_of(node, store="store").ainvoke({}, **call))["log"]


class Methods:
    def plain(self, state: State, config: RunnableConfig) -> State:
        return {"log": ["configurable" in config]}

    async def __call__(self, state: State, *, rt: Runtime[Context]) -> State:
        return {"log": [rt.context]}

    @classmethod
    async def of_class(cls, state: State, rt: Runtime[Context]) -> State:
        return {"log": [rt.context]}

    @staticmethod
    async def static(state: State, store: Any) -> State:
        return {"log": [store]}


async def by_annotation(state: State, rt: Runtime[Context]) -> State:
    return {"log": [rt.context]}


async def bare(state: State, rt: Runtime) -> State:
    return {"log": [rt.context]}


async def by_name(state, runtime, config, writer, store, previous):  # on purpose
    writer("dropped")
    return {"log": [runtime.context, "configurable" in config, store, previous]}


async def optional(
    state: State,
    rt: Optional[Runtime[Context]] = None,  # noqa: UP045  # users of older code write it
    cfg: RunnableConfig | None = None,
    w: StreamWriter | None = None,
    unknown: Unknown = None,
) -> State:
    return {"log": [rt is not None and rt.context, cfg is not None, w is not None, unknown]}


async def own_defaults(state: State, *, limit: int = 5) -> State:
    return {"log": [limit]}


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (by_annotation, ["ctx"]),
        (bare, ["ctx"]),
        (by_name, ["ctx", True, "store", None]),
        (optional, ["ctx", True, True, None]),
        (own_defaults, [5]),
        (Methods(), ["ctx"]),
        (Methods().plain, [True]),
        (Methods.of_class, ["ctx"]),
        (Methods.static, ["store"]),
        (functools.partial(by_annotation), ["ctx"]),
        (functools.partial(by_name, store="mine", previous="mine"), ["ctx", True, "mine", "mine"]),
        (functools.partial(Methods.static, store="mine"), ["mine"]),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
async def test_injected_parameters(node: Any, expected: list[Any]) -> None:
    """Parameters are injected by annotation or by name, whatever kind of callable the node is; parameters bound by a
    partial are the user's own."""
    assert await logged(node, context="ctx") == expected


def test_annotations_that_only_a_type_checker_sees() -> None:
    """Names that do not exist at run time are read by their text, and do not affect other parameters."""
    space: dict[str, Any] = {"__name__": "elsewhere"}
    exec(
        "from __future__ import annotations\n"
        "async def node(state: Nowhere, a: Runtime[Nowhere], b: Optional[pregel_async.Runtime[X]] = None,\n"
        "    c: 'RunnableConfig | None' = None, d: StreamWriter | None = None, e: Nowhere | None = 4) -> Nowhere:\n"
        "    return {'log': [a is not None, b is not None, c is not None, d is not None, e]}\n",
        space,
    )
    assert anyio.run(functools.partial(logged, space["node"])) == [True, True, True, True, 4]


async def test_injected_parameters_of_routers() -> None:
    """Routers get injected parameters like nodes."""

    async def route(state: State, rt: Runtime[Context], config: RunnableConfig) -> str:
        return rt.context.user if config["configurable"]["k"] == 1 else END

    def first(state: State, runtime: Runtime[Context]) -> str:
        return runtime.context.user

    made = StateGraph(State, Context)
    for name in "ab":
        made.add_node(name, lambda state, name=name: {"log": [name]})
    made.add_conditional_edges(START, first).add_conditional_edges("a", route)
    with pytest.raises(GraphRecursionError):
        await made.compile().ainvoke({}, {"configurable": {"k": 1}, "recursion_limit": 3}, context={"user": "a"})
    assert await made.compile().ainvoke({}, {"configurable": {"k": 2}}, context={"user": "a"}) == {"log": ["a"]}


async def test_injected_parameters_of_low_level_nodes() -> None:
    """Nodes made by NodeBuilder get injected parameters."""

    async def act(value: int, runtime: Runtime[Any]) -> Any:
        return [value, runtime.context]

    graph = Pregel(
        nodes={"n": NodeBuilder().subscribe_only("a").do(act).write_to("b").build()},
        channels={"a": LastValue(int), "b": LastValue(list)},
        input_channels="a",
        output_channels="b",
    )
    assert await graph.ainvoke(1, context="ctx") == [1, "ctx"]


async def test_parameters_that_cannot_be_filled() -> None:
    """Bad input: a parameter that cannot be filled is refused when the graph is built, and the error lists the
    available ones."""

    async def node(state: State, client: Any) -> None: ...

    with pytest.raises(GraphValidationError, match="functools.partial; the runtime fills in parameters named config"):
        StateGraph(State).add_node(node)
    with pytest.raises(GraphValidationError, match="client"):
        StateGraph(State).add_node("n", lambda state: {}).add_conditional_edges("n", node)


async def test_store_and_previous_are_none_elsewhere() -> None:
    """A graph without a store, and a node that is no entrypoint, get None."""

    async def node(state: State, runtime: Runtime[Any], store: Any, previous: Any) -> State:
        return {"log": [runtime.store, store, runtime.previous, previous, runtime.context]}

    assert await graph_of(node).ainvoke({}) == {"log": [None] * 5}


async def test_the_runtime_is_frozen() -> None:
    """A node cannot change the runtime that other nodes get."""

    async def node(state: State, runtime: Runtime[Any]) -> None:
        with pytest.raises(AttributeError):
            runtime.context = 1
        with pytest.raises(AttributeError):
            runtime.execution_info.task_id = "x"

    await graph_of(node).ainvoke({})


async def test_the_config_is_each_nodes_own() -> None:
    """P1: a node's changes to its config reach neither a sibling nor the caller."""

    async def node(state: State, config: Any) -> State:
        shown = [
            config["configurable"].get("mine"),
            {key: config["metadata"][key] for key in config["metadata"] if "_" not in key},
            list(config["tags"]),
        ]
        shown.append(list(config["configurable"]["own"]["deep"]))
        config["configurable"]["mine"] = config["metadata"]["mine"] = 1
        config["tags"].append("mine")
        config["configurable"]["own"]["deep"].append("mine")
        return {"log": [shown]}

    given = {"configurable": {"thread_id": "t", "own": {"deep": []}}, "metadata": {"a": 1}, "tags": ["tag"]}
    graph = (
        StateGraph(State)
        .add_node("a", node)
        .add_node("b", node)
        .add_edge(START, "a")
        .add_edge("a", "b")
        .compile(InMemorySaver())
    )
    result = await graph.ainvoke({}, given)
    assert result == {"log": [[None, {"a": 1}, ["tag"], []]] * 2}
    assert given == {"configurable": {"thread_id": "t", "own": {"deep": []}}, "metadata": {"a": 1}, "tags": ["tag"]}


def seen() -> list[Any]:
    """Return what nested code reaches."""
    runtime, config = get_runtime(Context), get_config()
    assert runtime.execution_info.checkpoint_ns == config["configurable"]["checkpoint_ns"]
    return [runtime.context, get_store(), config["configurable"]["checkpoint_ns"].partition(":")[0], runtime.store]


async def in_place(name: str) -> list[Any]:
    return seen()


async def in_a_task_group(name: str) -> list[Any]:
    found: list[Any] = []

    async def deeper() -> None:
        await anyio.lowlevel.checkpoint()
        found.append(seen())

    async with anyio.create_task_group() as group:
        group.start_soon(deeper)
    return found[0]  # a list


async def in_a_thread(name: str) -> list[Any]:
    return await anyio.to_thread.run_sync(seen)


async def in_a_thread_and_back(name: str) -> list[Any]:
    return await anyio.to_thread.run_sync(lambda: anyio.from_thread.run_sync(seen))


async def in_a_thread_of_its_own(name: str) -> list[Any]:
    found: list[Any] = []
    thread = threading.Thread(target=contextvars.copy_context().run, args=(lambda: found.append(seen()),))
    thread.start()
    await anyio.to_thread.run_sync(thread.join)
    return found[0]  # a list


@pytest.mark.parametrize(
    "where", [in_place, in_a_task_group, in_a_thread, in_a_thread_and_back, in_a_thread_of_its_own]
)
async def test_nested_code_reaches_its_own_node(where: Any) -> None:
    """The accessors return the values of the node they were called under, however deep and whatever runs
    concurrently."""

    def node(name: str) -> Callable[[State], Any]:
        async def call(state: State) -> State:
            return {"log": [await where(name)]}

        return call

    made = StateGraph(State)
    for name in ("a", "b", "c"):
        made.add_node(name, node(name)).add_edge(START, name)
    result = await made.compile(store="store").ainvoke({}, context="ctx")
    assert result == {"log": [["ctx", "store", name, "store"] for name in "abc"]}


async def test_plain_nodes_reach_it_in_their_threads() -> None:
    """Plain functions in worker threads reach their run."""
    assert await logged(lambda state: {"log": [seen()]}, context="ctx") == [["ctx", "store", "n", "store"]]


async def test_a_task_is_a_node_of_its_own() -> None:
    """In a task the accessors return the task's values; in the caller afterwards, the caller's."""

    @task
    async def step() -> Any:
        return get_config()["configurable"]["checkpoint_ns"].partition(":")[0]

    @entrypoint()
    async def flow(given: Any) -> Any:
        return [await step(), await in_place(""), await step()]

    result = await flow.ainvoke(1)
    assert [result[0], result[1][2], result[2]] == ["step", "flow", "step"]


async def test_outside_of_a_run() -> None:
    """Each accessor raises an error outside a run, after one too."""
    await graph_of(lambda state: {}).ainvoke({})
    for call in (get_runtime, get_config, get_store, get_stream_writer, lambda: interrupt("?")):
        with pytest.raises(OutsideRunError, match="outside of a run"):
            call()


class StructContext(msgspec.Struct):
    user: str
    limit: int = 3


class ModelContext(pydantic.BaseModel):
    user: str
    limit: int = 3


class DictContext(TypedDict, total=False):
    user: str
    limit: int


KINDS: list[Any] = [Context, StructContext, ModelContext]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_context_becomes_its_schemas_object(kind: Any) -> None:
    """A dict is coerced, defaults are filled in, an object is passed as it is."""

    async def node(state: State, runtime: Runtime[Any]) -> State:
        seen.append(runtime.context)
        return {}

    seen: list[Any] = []
    graph = StateGraph(State, kind).add_node(node).add_edge(START, "node").compile()
    flow = entrypoint(context_schema=kind)(node)
    given = kind(user="o")
    for runs in (graph, flow):
        await runs.ainvoke({}, context={"user": "u"})
        await runs.ainvoke({}, context=given)
        with pytest.raises(InvalidContextError, match=r"(?s)no context was given.*user"):
            await runs.ainvoke({})
    assert seen == [kind(user="u", limit=3), given] * 2
    assert seen[1] is given


class Limits(pydantic.BaseModel):
    limit: int = 3


@dataclasses.dataclass
class Asked:
    limits: Limits = dataclasses.field(default_factory=Limits)


@pytest.mark.parametrize(
    ("kind", "made"),
    [(Limits, Limits()), (Asked, Asked()), (DictContext, {}), (dict[str, Any], {}), (int | None, None), (Any, None)],
)
async def test_a_call_without_context_gets_the_schemas_defaults(kind: Any, made: Any) -> None:
    """`context=None` builds the schema's defaults, anew for each call, in a subgraph too if the parent has none."""
    seen: list[Any] = []

    async def node(state: State, runtime: Runtime[Any]) -> None:
        seen.append(runtime.context)

    graph = StateGraph(State, kind).add_node(node).add_edge(START, "node").compile()
    outer = StateGraph(State).add_node("inner", graph).add_edge(START, "inner").compile()
    for runs in (graph, graph, outer):
        await runs.ainvoke({})
    assert seen == [made] * 3
    assert made is None or seen[0] is not seen[1]


@pytest.mark.parametrize("kind", [str, list[int], int | str])
async def test_a_schema_without_defaults_needs_a_context(kind: Any, saver: BaseCheckpointSaver) -> None:
    """A schema that has no default is an InvalidContextError, before anything is stored."""
    graph = StateGraph(State, kind).add_node("n", lambda state: None).add_edge(START, "n").compile(saver)
    with pytest.raises(InvalidContextError, match="no context was given"):
        await graph.ainvoke({}, "t")
    assert await saver.read("t") is None


@pytest.mark.parametrize("kind", [*KINDS, DictContext])
@pytest.mark.parametrize("wrong", [{"user": 1}, {"limit": "many", "user": "u"}, "text", 3])
async def test_a_wrong_context_is_refused_before_anything(kind: Any, wrong: Any, saver: BaseCheckpointSaver) -> None:
    """Before anything runs or is stored, in every verb."""
    ran: list[Any] = []
    graph = StateGraph(State, kind).add_node("n", ran.append).add_edge(START, "n").compile(saver)
    with pytest.raises(InvalidContextError):
        await graph.ainvoke({}, "t", context=wrong)
    with pytest.raises(InvalidContextError):
        async with graph.astream({}, "t", context=wrong) as chunks:
            await anext(chunks)
    with pytest.raises(InvalidContextError):
        await graph.abatch([{}], "t", context=wrong)
    assert ran == []
    assert await saver.read("t") is None


async def test_wrong_keys() -> None:
    """The error names an unknown key and a missing one."""
    graph = StateGraph(State, Context).add_node("n", lambda state: {}).add_edge(START, "n").compile()
    with pytest.raises(InvalidContextError, match="colour"):
        await graph.ainvoke({}, context={"user": "u", "colour": "red"})
    with pytest.raises(InvalidContextError, match="lacks 'user'"):
        await graph.ainvoke({}, context={})


async def test_subgraphs_inherit_the_context(saver: BaseCheckpointSaver) -> None:
    """Subgraphs inherit the context as nodes, when called in nodes and in tasks, and with a saver of their own; a
    context given to the call takes precedence. The same holds for the store."""

    async def inner(state: State, runtime: Runtime[Any]) -> State:
        return {"log": [(runtime.context, runtime.store)]}

    sub, stored = graph_of(inner), graph_of(inner, saver)
    other = graph_of(inner, store="other")

    @task
    async def calls(graph: int) -> Any:
        return (await [sub, stored][graph].ainvoke({}, "own" if graph else None))["log"]

    async def node(state: State) -> State:
        given = (await sub.ainvoke({}, context="given"))["log"]
        return {"log": [*await calls(0), *await calls(1), *given, *(await other.ainvoke({}))["log"]]}

    graph = (
        StateGraph(State)
        .add_node("sub", sub)
        .add_node(node)
        .add_edge(START, "sub")
        .add_edge("sub", "node")
        .compile(store="store")
    )
    here = ("ctx", "store")
    result = await graph.ainvoke({}, context="ctx")
    assert result == {"log": [here, here, here, ("given", "store"), ("ctx", "other")]}


class Box(Generic[T]):
    def __init__(self, value: T) -> None:
        self.value = value


async def test_the_context_is_the_callers_object() -> None:
    """Without a schema it is passed as it is, connections and all."""
    given = Box(threading.Lock())
    seen: list[Any] = []
    await graph_of(lambda state, runtime: seen.append(runtime.context)).ainvoke({}, context=given)
    assert seen == [given]


async def test_execution_info(saver: BaseCheckpointSaver) -> None:
    """Task id and checkpoint equal those that the state shows while the task is pending, on every attempt."""
    infos: list[Any] = []
    broken = True

    async def node(state: State, runtime: Runtime[Any]) -> State:
        infos.append(runtime.execution_info)
        if broken:
            raise LookupError
        return {}

    graph = graph_of(node, saver)
    for given in ({}, None):
        with pytest.raises(LookupError):
            await graph.ainvoke(given, {"configurable": {"thread_id": "t"}, "run_id": f"run {given}"})
    state = await graph.aget_state("t")
    for info in infos:
        assert info.task_id == state.tasks[0].id
        assert info.checkpoint_id == state.config["configurable"]["checkpoint_id"]
        assert (info.thread_id, info.node_attempt) == ("t", 1)
        assert info.checkpoint_ns == f"n:{info.task_id}"
    assert [info.run_id for info in infos] == ["run {}", "run None"]
    broken = False
    await graph_of(node).ainvoke({})
    assert (infos[-1].thread_id, infos[-1].checkpoint_id) == (None, None)


async def test_execution_info_of_sends_and_subgraphs(saver: BaseCheckpointSaver) -> None:
    """P2: each send has an id of its own; in a subgraph, namespace and checkpoint are the subgraph's."""
    infos: dict[str, Any] = {}

    async def inner(state: State, runtime: Runtime[Any]) -> None:
        infos["inner"] = runtime.execution_info
        interrupt("?")

    async def sent(name: str) -> None:
        infos[name] = get_runtime().execution_info
        interrupt(name)

    sub = graph_of(inner)
    graph = (
        StateGraph(State)
        .add_node("sub", sub)
        .add_node("sent", sent)
        .add_edge(START, "sub")
        .add_conditional_edges(START, lambda state: [Send("sent", "a"), Send("sent", "b")])
        .compile(saver)
    )
    await graph.ainvoke({}, "t")
    state = await graph.aget_state("t", subgraphs=True)
    assert [infos["a"].task_id, infos["b"].task_id] == [task.id for task in state.tasks[:2]]
    inside = state.tasks[2].state
    assert infos["inner"].task_id == inside.tasks[0].id
    assert infos["inner"].checkpoint_id == inside.config["configurable"]["checkpoint_id"]
    assert infos["inner"].checkpoint_ns == f"sub:{state.tasks[2].id}|n:{infos['inner'].task_id}"


async def chunks_of(graph: Any, **call: Any) -> list[Any]:
    return [chunk async for chunk in graph.astream({}, stream_mode="custom", **call)]


async def test_chunks_of_nodes() -> None:
    """Chunks come from async and plain nodes, by parameter, runtime and accessor, in the order of each writer; isolated
    (P1), None too."""
    shared = [1]

    async def anode(state: State, writer: StreamWriter, runtime: Runtime[Any]) -> State:
        writer(shared)
        shared.append(2)
        runtime.stream_writer(None)
        get_stream_writer()({"from": "accessor"})
        return {}

    def plain(state: State, writer: StreamWriter) -> State:
        for number in range(200):  # more than a stream holds: a thread waits for the reader
            writer(number)
        return {}

    graph = (
        StateGraph(State).add_node(anode).add_node(plain).add_edge(START, "anode").add_edge("anode", "plain").compile()
    )
    assert await chunks_of(graph) == [[1], None, {"from": "accessor"}, *range(200)]
    assert await graph.ainvoke({}) == {"log": []}


async def test_chunks_of_nested_code() -> None:
    """Tasks, task groups, worker threads and subgraphs write to the stream of the run."""

    @task
    def step() -> None:
        get_stream_writer()("task")

    sub = graph_of(lambda state, writer: writer("graph"))
    flow = entrypoint()(functools.partial(_writes, "entrypoint"))

    async def node(state: State) -> None:
        await step()
        await sub.ainvoke({})
        await flow.ainvoke(1)
        async with anyio.create_task_group() as group:
            group.start_soon(_writes, "group", None)
        await anyio.to_thread.run_sync(lambda: get_stream_writer()("thread"))
        assert await chunks_of(sub) == ["graph"]  # read here: the chunks go to this reader

    graph = (
        StateGraph(State).add_node("sub", sub).add_node(node).add_edge(START, "sub").add_edge("sub", "node").compile()
    )
    assert await chunks_of(graph) == ["task", "group", "thread"]
    # Chunks of subgraphs go to readers with subgraphs=True.
    shown = [chunk async for _, chunk in graph.astream({}, stream_mode="custom", subgraphs=True)]
    assert shown == ["graph", "task", "graph", "entrypoint", "group", "thread", "graph"]


async def _writes(what: str, given: Any) -> None:
    get_stream_writer()(what)


async def test_a_thread_of_the_nodes_own_cannot_write() -> None:
    """Bad input: a typed error, as the run cannot be reached from there."""
    errors: list[BaseException] = []

    def write() -> None:
        try:
            get_stream_writer()("x")
        except Exception as error:
            errors.append(error)

    async def node(state: State) -> None:
        thread = threading.Thread(target=contextvars.copy_context().run, args=(write,))
        thread.start()
        await anyio.to_thread.run_sync(thread.join)

    assert await chunks_of(graph_of(node)) == []
    assert [type(error) for error in errors] == [OutsideRunError]


class Managed(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    last: IsLastStep
    left: RemainingSteps


async def test_managed_values_of_a_subgraph(saver: BaseCheckpointSaver) -> None:
    """P14: 1 and True in the last superstep that the limit allows; a subgraph counts its own; so does a resumed run."""

    def show(state: Managed) -> Any:
        return {"log": [(state["left"], state["last"])]}

    def chain(**nodes: Any) -> Any:
        names = list(nodes)
        made = StateGraph(Managed).add_edge(START, names[0])
        for name, node in nodes.items():
            made.add_node(name, node)
        for before, after in zip(names, names[1:], strict=False):
            made.add_edge(before, after)
        return made

    async def asks(state: Managed) -> Any:
        interrupt("?")
        return show(state)

    inside = chain(a=show, b=show).compile(blocking=False)

    async def runs(state: Managed) -> Any:
        return {"log": [(await inside.ainvoke({}))["log"]]}

    graph = chain(a=show, b=runs, c=asks, d=show).compile(saver)
    config = {"configurable": {"thread_id": "t"}, "recursion_limit": 4}
    await graph.ainvoke({}, config)
    result = await graph.ainvoke(Command(resume=1), {**config, "recursion_limit": 2})
    assert result == {"log": [(4, False), [(4, False), (3, False)], (2, False), (1, True)]}
