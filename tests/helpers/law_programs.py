"""Random programs that use the whole language, as data, and the graphs built from them.

A program is a graph of small nodes: a node performs a list of acts (ask, call tasks, run a graph) and returns an
update, a command, sends or nothing, chosen by a hash of all that it has seen. So a program behaves the same in every
run, and every answer to a question affects the rest. Loops end because routers stop once the state's `count` is above a
bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Annotated, Any, NamedTuple, TypedDict

from hypothesis import strategies as st

from pregel_async import END, START, Command, Overwrite, Send, StateGraph, entrypoint, get_runtime, interrupt, task
from pregel_async.channels import AnyValue

BOUND = 4
"""Above this count routers send no more tasks."""

NODES = ("a", "b", "c", "d")


def digest(*parts: Any) -> int:
    """Return a number that depends only on the parts: the same in every process and for every order of keys."""
    ordered = [sorted(part.items()) if isinstance(part, dict) else part for part in parts]
    return int.from_bytes(sha256(repr(ordered).encode()).digest()[:8], "big")


def kept(current: list[str], update: list[str]) -> list[str]:
    return [*current, *update][-12:]


def added(current: int, update: int) -> int:
    return min(current + update, 99)


class State(TypedDict, total=False):
    log: Annotated[list[str], kept]
    count: Annotated[int, added]
    table: Annotated[dict[str, int], lambda current, update: {**current, **update}]
    last: Annotated[str, AnyValue]


class Ask(NamedTuple):
    """`interrupt()`, always or only if a hash of the earlier results is odd."""

    number: int
    sometimes: bool = False


class Call(NamedTuple):
    """Concurrent calls of tasks, awaited in order; with `late` the node awaits them at its end."""

    tasks: tuple[Job, ...]
    late: bool = False


class Run(NamedTuple):
    """A call of a graph's `ainvoke` inside the function."""

    graph: Graph | Flow
    keeps: bool | None = None


Act = Ask | Call | Run


class Job(NamedTuple):
    """A task."""

    name: str
    acts: tuple[Act, ...] = ()


class Node(NamedTuple):
    """A function node.

    Attributes:
        gives: what it returns: "update", "nothing", "list", "overwrite", "goto", "sends", or "parent", a command for the
            graph around its own.
    """

    name: str
    acts: tuple[Act, ...] = ()
    gives: str = "update"
    deferred: bool = False


class Inner(NamedTuple):
    """A node that is a graph."""

    name: str
    graph: Graph
    keeps: bool | None = None
    deferred: bool = False


class Graph(NamedTuple):
    """A state graph.

    Attributes:
        routers: (source, number, async): go to nodes, or send to them, as a hash says.
    """

    nodes: tuple[Node | Inner, ...]
    edges: tuple[tuple[str, str], ...] = ()
    joins: tuple[tuple[tuple[str, ...], str], ...] = ()
    routers: tuple[tuple[str, int, bool], ...] = ()


class Flow(NamedTuple):
    """An entrypoint."""

    acts: tuple[Act, ...] = ()


Program = Graph | Flow


def story(made: Program | Node | Inner | Act | Job, indent: str = "") -> Iterator[str]:
    """Describe a program as text."""
    if isinstance(made, Graph):
        for node in made.nodes:
            yield from story(node, indent)
        for start, end in made.edges:
            yield f"{indent}edge {start} -> {end}"
        for starts, end in made.joins:
            yield f"{indent}join {' + '.join(starts)} -> {end}"
        for source, number, waits in made.routers:
            yield f"{indent}{'async ' if waits else ''}router {number} after {source}"
    elif isinstance(made, Flow):
        yield f"{indent}entrypoint"
        for act in made.acts:
            yield from story(act, indent + "    ")
    elif isinstance(made, Node):
        yield f"{indent}{'deferred ' if made.deferred else ''}node {made.name}, gives {made.gives}"
        for act in made.acts:
            yield from story(act, indent + "    ")
    elif isinstance(made, Inner):
        yield f"{indent}{'deferred ' if made.deferred else ''}node {made.name}, a graph, checkpointer={made.keeps}"
        yield from story(made.graph, indent + "    ")
    elif isinstance(made, Ask):
        yield f"{indent}asks {made.number}{' if the last answer is odd' if made.sometimes else ''}"
    elif isinstance(made, Call):
        yield f"{indent}calls {' and '.join(job.name for job in made.tasks)}{' and awaits neither' if made.late else ''}"
        for job in made.tasks:
            for act in job.acts:
                yield f"{indent}    {job.name}:"
                yield from story(act, indent + "        ")
    elif isinstance(made, Run):
        yield f"{indent}runs a graph, checkpointer={made.keeps}"
        yield from story(made.graph, indent + "    ")


class Build:
    """Builds graphs from programs.

    Args:
        hooks: called when a body begins and ends; awaited at each suspension point of a body.
    """

    def __init__(self, hooks: Hooks) -> None:
        self.hooks = hooks

    def __call__(self, made: Program, checkpointer: Any, environment: Any = None, **options: Any) -> Any:
        if isinstance(made, Flow):
            return self._flow(made, checkpointer, environment)
        return self._graph(made, checkpointer, environment, **options)

    def options(self, made: Node) -> dict[str, Any]:
        """Return further options of a node."""
        return {}

    def _graph(self, made: Graph, checkpointer: Any, environment: Any, **options: Any) -> Any:
        graph = StateGraph(State)
        names = [node.name for node in made.nodes]
        for node in made.nodes:
            if isinstance(node, Inner):
                graph.add_node(node.name, self._graph(node.graph, node.keeps, environment), defer=node.deferred)
            else:
                call = self._node(node, names, environment)
                graph.add_node(node.name, call, defer=node.deferred, **self.options(node))
        for start, end in made.edges:
            graph.add_edge(start, end)
        for starts, end in made.joins:
            graph.add_edge(list(starts), end)
        for source, number, waits in made.routers:
            graph.add_conditional_edges(source, self._router(made, source, number, waits))
        return graph.compile(checkpointer=checkpointer, environment=environment, **options)

    def _flow(self, made: Flow, checkpointer: Any, environment: Any) -> Any:
        acts = self._acts(made.acts, environment)

        async def flow(given: Any, *, previous: Any) -> Any:
            self.hooks.body("flow")
            said = [given, previous]
            await self._perform(acts, said)
            await self.hooks.turn()
            return self.hooks.gave({"said": digest(said) % 1000})

        return entrypoint(checkpointer=checkpointer, environment=environment)(flow)

    def _node(self, made: Node, names: list[str], environment: Any) -> Callable[[Any], Any]:
        acts = self._acts(made.acts, environment)
        sendable = made.gives == "sends" and not keeps(made)

        async def node(state: Any) -> Any:
            self.hooks.body(made.name)
            said: list[Any] = [made.name, dict(state)]
            await self._perform(acts, said)
            await self.hooks.turn()
            return self.hooks.gave(_given(made, names if not sendable else [], state, digest(said)))

        return node

    def _job(self, made: Job, environment: Any) -> Callable[[Any], Any]:
        acts = self._acts(made.acts, environment)

        async def job(given: Any) -> Any:
            self.hooks.body(made.name)
            said = [made.name, given]
            await self._perform(acts, said)
            await self.hooks.turn()
            return digest(said) % 1000

        return task(name=made.name)(job)

    def _acts(self, acts: tuple[Act, ...], environment: Any) -> list[tuple[Act, Any]]:
        """Pair each act with its graph or task. (Lists of pairs, as subgraphs are found by searching a function's
        closure.)"""
        made: list[tuple[Act, Any]] = []
        for act in acts:
            if isinstance(act, Call):
                made.append((act, [self._job(job, environment) for job in act.tasks]))
            elif isinstance(act, Run):
                made.append((act, self(act.graph, act.keeps, environment)))
            else:
                made.append((act, None))
        return made

    async def _perform(self, acts: list[tuple[Act, Any]], said: list[Any]) -> None:
        for act, made in acts:
            await self.hooks.turn()
            if isinstance(act, Ask):
                if not act.sometimes or digest(said) & 1:
                    said.append(self.hooks.ask(f"{act.number} of {said[0]}: {digest(said) % 1000}"))
            elif isinstance(act, Call):
                futures = [each(digest(said, place) % 1000) for place, each in enumerate(made)]
                if not act.late:
                    said.extend([await future for future in futures])
            elif isinstance(act.graph, Flow):
                said.append(await made.ainvoke(digest(said) % 1000))
            else:
                said.append(digest(await made.ainvoke({"log": [f"{said[0]} runs"], "count": 2 + digest(said) % 4})))

    def _router(self, made: Graph, source: str, number: int, waits: bool) -> Callable[[Any], Any]:
        names = [node.name for node in made.nodes]
        sendable = _sendable(made)

        def decide(state: Any) -> Any:
            luck = digest(source, number, dict(state))
            if state.get("count", 0) > BOUND:
                return END
            ends: list[Any] = []
            for place, name in enumerate(names):
                if luck >> (3 * place) & 3 > 1:
                    send = luck >> (3 * place + 2) & 1 and name in sendable
                    arg = {"count": state.get("count", 0) + 1, "log": [f"sent by {source}"]}
                    ends.append(Send(name, arg) if send else name)
            return ends

        async def wait(state: Any) -> Any:
            await self.hooks.turn()
            return decide(state)

        route: Any = wait if waits else decide
        route.__name__ = f"route{number}"
        return route


def _sendable(made: Graph) -> list[str]:
    """Return the nodes that may run twice in one superstep: those that neither overwrite nor run a stateful
    subgraph."""
    overwrites = [node.name for node in made.nodes if isinstance(node, Node) and node.gives == "overwrite"]
    return [node.name for node in made.nodes if node.name not in overwrites and not keeps(node)]


def keeps(made: Program | Node | Inner | Act) -> bool:
    """Return True if the node's subgraph keeps its state across calls."""
    if isinstance(made, (Run, Inner)):
        return made.keeps is True or keeps(made.graph)
    if isinstance(made, Graph):
        return any(keeps(node) for node in made.nodes)
    return isinstance(made, (Node, Flow)) and any(keeps(act) for act in made.acts)


def _given(made: Node, names: list[str], state: Any, luck: int) -> Any:
    count = state.get("count", 0)
    update = {"log": [f"{made.name}{luck % 100}"], "count": 1, "table": {made.name: luck % 5}}
    if luck & 1:
        update["last"] = made.name
    if made.gives == "nothing" or (made.gives == "sometimes" and luck & 2):
        return None
    if made.gives == "list":
        return [update, {"log": ["and more"]}, Command(update=[("log", ["first"]), ("log", ["second"])])]
    if made.gives == "overwrite":
        return {**update, "log": Overwrite([f"all new by {made.name}"])}
    if made.gives in ("goto", "sends") and count <= BOUND:
        if names:
            return Command(update=update, goto=names[luck % len(names)])
        name = made.name  # to itself: nodes that overwrite get no sends
        return Command(update=update, goto=[Send(name, {"count": count + 2, "log": [f"{i}"]}) for i in range(luck % 3)])
    if made.gives == "parent" and luck & 4:
        goto = "a" if luck & 8 and count <= BOUND else ()  # every graph has one of that name
        return Command(graph=Command.PARENT, update={"log": [f"up from {made.name}"], "count": 1}, goto=goto)
    return update


class Hooks:
    """Callbacks of running programs, and the points at which tests delay them. Tests override them."""

    def __init__(self) -> None:
        self.began: list[tuple[str, str]] = []
        self.given: dict[str, Any] = {}

    def body(self, name: str) -> None:
        self.began.append((name, get_runtime().execution_info.task_id))

    def gave(self, result: Any) -> Any:
        self.given[get_runtime().execution_info.task_id] = result
        return result

    def ask(self, question: str) -> Any:
        return interrupt(question)

    async def turn(self) -> None:
        pass


def asks() -> st.SearchStrategy[Ask]:
    return st.builds(Ask, st.integers(0, 3), st.booleans())


def jobs(depth: int) -> st.SearchStrategy[Job]:
    inside: st.SearchStrategy[Act] = asks()
    if depth > 0:
        inside = st.one_of(inside, calls(depth - 1))
    return st.builds(Job, st.sampled_from(("s", "t", "u")), st.lists(inside, max_size=2).map(tuple))


def calls(depth: int) -> st.SearchStrategy[Call]:
    return st.builds(Call, st.lists(jobs(depth), min_size=1, max_size=3).map(tuple), st.booleans())


def acts(depth: int, commands: bool = True) -> st.SearchStrategy[tuple[Act, ...]]:
    """Draw the acts of a function; with `commands` its graphs may send commands to their parent."""
    each: list[st.SearchStrategy[Any]] = [asks(), calls(min(depth, 1))]
    if depth > 0:
        inner = st.one_of(graphs(depth - 1, commands), flows(depth - 1))
        # A function may run one graph: those that keep their state are found by the node's name.
        run = st.builds(Run, inner, st.sampled_from((None, True)))
        one = st.tuples(st.lists(st.one_of(*each), max_size=1), run, st.lists(st.one_of(*each), max_size=1))
        return st.one_of(
            st.lists(st.one_of(*each), max_size=3).map(tuple),
            st.lists(st.one_of(*each), max_size=3).map(tuple),
            one.map(lambda parts: (*parts[0], parts[1], *parts[2])),
        )
    return st.lists(st.one_of(*each), max_size=2).map(tuple)


def flows(depth: int) -> st.SearchStrategy[Flow]:
    return st.builds(Flow, acts(depth, commands=False))  # a workflow is no graph that could go anywhere


@st.composite
def graphs(draw: st.DrawFn, depth: int, inside: bool = True) -> Graph:
    names = NODES[: draw(st.sampled_from((3, 4, 2) if depth > 0 else (2, 3, 1)))]
    gives = ["update", "update", "nothing", "sometimes", "list", "goto", "sends", *(["parent"] if inside else [])]
    overwriter = draw(st.sampled_from((None, *names)))
    nodes: list[Node | Inner] = []
    for name in names:
        deferred = draw(st.integers(0, 5)) == 5
        if depth > 0 and draw(st.integers(0, 2)) == 2:
            nodes.append(Inner(name, draw(graphs(depth - 1)), draw(st.sampled_from((None, True))), deferred))
        else:
            gift = "overwrite" if name == overwriter else draw(st.sampled_from(gives))
            nodes.append(Node(name, draw(acts(depth)), gift, deferred))
    one = st.sampled_from(names)
    edges = [(START, name) for name in sorted(draw(st.sets(one, min_size=min(2, len(names)))))]
    joins: list[tuple[tuple[str, ...], str]] = []
    if len(names) > 1:
        later = st.tuples(one, one).filter(lambda edge: edge[0] < edge[1])  # forward: only routers make loops
        edges += sorted(draw(st.sets(later, max_size=3)))
    if len(names) > 2:
        starts = st.lists(one, min_size=2, max_size=3, unique=True).map(lambda given: tuple(sorted(given)))
        both = st.tuples(starts, one).filter(lambda join: join[1] > max(join[0]))
        joins = sorted(draw(st.sets(both, max_size=1)))
    # A router of a node that counts nothing might route for ever.
    counting = [node.name for node in nodes if isinstance(node, Inner) or node.gives not in ("nothing", "sometimes")]
    sources = st.tuples(st.sampled_from((START, *counting)), st.integers(0, 1))
    routers = [(source, number, draw(st.booleans())) for source, number in sorted(draw(st.sets(sources, max_size=2)))]
    return Graph(tuple(nodes), tuple(edges), tuple(joins), tuple(routers))


def programs(depth: int = 2) -> st.SearchStrategy[Program]:
    """Draw programs, mostly graphs, with subgraphs up to `depth` levels deep."""
    return st.one_of(
        graphs(min(depth, 1), False),
        graphs(depth, False),
        graphs(depth, False),
        graphs(min(depth, 1), False),
        graphs(0, False),
        flows(1),
    )


def inputs_of(made: Program) -> list[Any]:
    """Return a thread's inputs: the second one when all work of the first is done."""
    return ["begin", "again"] if isinstance(made, Flow) else [{"log": ["in"], "count": 0}, {"log": ["in again"]}]


def answer_to(question: Any) -> Any:
    """Return the answer, a function of the question; some answers are falsy."""
    luck = digest("answer", question)
    return (None, 0, False, "", luck % 100, f"yes {luck % 10}", {"a" * 32: luck % 7})[luck % 7]
