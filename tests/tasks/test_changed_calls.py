"""Recorded calls and questions are compared with those of a node that runs again."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict, cast

import msgspec
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import (
    END,
    START,
    Command,
    NodeBuilder,
    NodeError,
    Pregel,
    RetryPolicy,
    RunnableConfig,
    StateGraph,
    TaskFuture,
    entrypoint,
    interrupt,
    set_defaults,
    task,
)
from pregel_async._checks.options import validates_input
from pregel_async.channels import EphemeralValue, LastValue
from pregel_async.errors import (
    CallsChangedError,
    GraphValidationError,
    InvalidUpdateError,
    QuestionChangedError,
    QuestionChangedWarning,
)

pytestmark = pytest.mark.anyio

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


class Interruption(Exception):
    """Raised in place of anything that ends a run in the middle of a node."""


def graph_of(node: Callable[..., Any], saver: BaseCheckpointSaver | None, **options: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node("pay", node, **options)
    builder.add_edge(START, "pay")
    builder.add_edge("pay", END)
    return builder.compile(saver)


class Folder:
    """Files that a workflow charges, one by one, with a record of the charges."""

    def __init__(self, *names: str, dies_after: int | None = None) -> None:
        self.names = list(names)
        self.charged: list[str] = []
        self.dies_after = dies_after

    def node(self, **options: Any) -> Callable[[State], Any]:
        @task(**options)
        async def charge(name: str) -> str:
            self.charged.append(name)
            return f"paid {name}"

        async def pay(state: State) -> State:
            paid: list[str] = []
            for name in sorted(self.names):
                paid.append(await self.call(charge, name))
                if self.dies_after == len(paid):
                    raise Interruption
            return {"log": paid}

        return pay

    def call(self, charge: Any, name: str) -> TaskFuture[str]:
        future: TaskFuture[str] = charge(name)
        return future


class NamedCalls(Folder):
    def call(self, charge: Any, name: str) -> TaskFuture[str]:
        future: TaskFuture[str] = charge.named(name)(name)
        return future


async def interrupted(folder: Folder, saver: BaseCheckpointSaver, **options: Any) -> Any:
    """Return a graph whose node was interrupted after two calls; another file has been added since."""
    graph = graph_of(folder.node(**options), saver)
    folder.dies_after = 2
    with pytest.raises(Interruption):
        await graph.ainvoke({"log": []}, CONFIG)
    folder.dies_after = None
    return graph


async def test_a_result_is_not_given_to_another_call(saver: BaseCheckpointSaver) -> None:
    """P2: the recorded call had other arguments: nothing is called, and the error names the call."""
    folder = Folder("b.txt", "c.txt")
    graph = await interrupted(folder, saver)
    folder.names.append("a.txt")
    with pytest.raises(
        CallsChangedError, match=r"node 'pay', superstep 1: call 1 .* other arguments.*charge\.named"
    ) as failed:
        await graph.ainvoke(None, CONFIG)
    error = failed.value
    assert (error.node, error.superstep, error.number, error.recorded, error.asked) == ("pay", 1, 1, "charge", "charge")
    assert folder.charged == ["b.txt", "c.txt"]
    folder.names.remove("a.txt")
    assert (await graph.ainvoke(None, CONFIG))["log"] == ["paid b.txt", "paid c.txt"]
    assert folder.charged == ["b.txt", "c.txt"]  # P5


async def test_a_new_input_discards_recorded_calls(saver: BaseCheckpointSaver) -> None:
    """A new input resolves the conflict: the superstep is discarded with its records."""
    folder = Folder("b.txt", "c.txt")
    graph = await interrupted(folder, saver)
    folder.names = ["a.txt"]
    assert (await graph.ainvoke({"log": ["again"]}, CONFIG))["log"] == ["again", "paid a.txt"]


async def test_another_task_in_the_place_of_a_call(saver: BaseCheckpointSaver) -> None:
    """P2: when another task is called in place of a recorded one, neither runs."""
    ran: list[str] = []
    order = ["charge", "mail"]

    def made(name: str) -> Any:
        @task(name=name)
        async def call(item: str) -> str:
            ran.append(name)
            return name

        return call

    tasks = {name: made(name) for name in ("charge", "mail", "audit")}
    dies = [True]

    async def pay(state: State) -> State:
        log = [await tasks[name]("x") for name in order]
        if dies:
            raise Interruption
        return {"log": log}

    graph = graph_of(pay, saver)
    with pytest.raises(Interruption):
        await graph.ainvoke({"log": []}, CONFIG)
    order.insert(0, "audit")
    with pytest.raises(
        CallsChangedError, match="call 1 was recorded as a call of task 'charge', and now calls task 'audit'"
    ):
        await graph.ainvoke(None, CONFIG)
    assert ran == ["charge", "mail"]
    dies.clear()
    order.remove("audit")
    assert (await graph.ainvoke(None, CONFIG))["log"] == ["charge", "mail"]
    assert ran == ["charge", "mail"]


async def test_named_calls_may_come_in_any_order(saver: BaseCheckpointSaver) -> None:
    """P5: calls with names are found by name, whatever comes before them."""
    folder = NamedCalls("b.txt", "c.txt")
    graph = await interrupted(folder, saver)
    folder.names.append("a.txt")
    assert (await graph.ainvoke(None, CONFIG))["log"] == ["paid a.txt", "paid b.txt", "paid c.txt"]
    assert folder.charged == ["b.txt", "c.txt", "a.txt"]


async def test_a_named_call_with_other_arguments(saver: BaseCheckpointSaver) -> None:
    """P2: a name stands for one call, with its arguments."""
    folder = NamedCalls("b.txt", "c.txt")
    graph = await interrupted(folder, saver)
    folder.call = lambda charge, name: charge.named("b.txt")(f"new {name}")
    with pytest.raises(CallsChangedError, match="the call named 'b.txt'") as failed:
        await graph.ainvoke(None, CONFIG)
    assert failed.value.number == "b.txt"
    assert folder.charged == ["b.txt", "c.txt"]


async def test_a_name_is_given_once(saver: BaseCheckpointSaver) -> None:
    """Two calls of one name would be ambiguous and are refused; a name is a string."""
    folder = Folder("a", "b")
    folder.call = lambda charge, name: charge.named("same")(name)
    with pytest.raises(InvalidUpdateError, match="two calls of task 'charge' with the name 'same'"):
        await graph_of(folder.node(), saver).ainvoke({"log": []}, CONFIG)
    folder.call = lambda charge, name: charge.named(1)(name)
    with pytest.raises(TypeError, match="named by a string"):
        await graph_of(folder.node(), saver).ainvoke({"log": []}, CONFIG)


async def test_a_task_may_run_changed_calls(saver: BaseCheckpointSaver) -> None:
    """on_change="run": new calls run once, and the records of the others are kept in case these are called again."""
    folder = Folder("b.txt", "c.txt")
    graph = await interrupted(folder, saver, on_change="run")
    folder.names.append("a.txt")
    folder.dies_after = 2
    with pytest.raises(Interruption):
        await graph.ainvoke(None, CONFIG)
    assert folder.charged == ["b.txt", "c.txt", "a.txt", "b.txt"]  # a.txt and b.txt at positions 1 and 2
    with pytest.raises(Interruption):
        await graph.ainvoke(None, CONFIG)
    assert folder.charged == ["b.txt", "c.txt", "a.txt", "b.txt"]
    folder.names.remove("a.txt")
    folder.dies_after = None
    assert (await graph.ainvoke(None, CONFIG))["log"] == ["paid b.txt", "paid c.txt"]
    assert folder.charged == ["b.txt", "c.txt", "a.txt", "b.txt"]


async def test_only_two_ways_of_change() -> None:
    with pytest.raises(GraphValidationError, match="on_change is 'error' or 'run', not 'ignore'"):
        task(on_change="ignore")


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "not stored"])
async def test_a_retry_is_compared_too(stored: bool) -> None:
    """P2: an attempt that calls with other arguments than the one before does not get its result, with or without
    saver."""
    charged: list[int] = []
    attempts: list[int] = []

    @task
    async def charge(amount: int) -> int:
        charged.append(amount)
        return amount

    async def pay(state: State) -> State:
        attempts.append(len(attempts))
        got = await charge(len(attempts))
        if len(attempts) == 1:
            raise ConnectionError
        return {"log": [got]}

    policy = RetryPolicy(max_attempts=5, initial_interval=0, jitter=False, retry_on=Exception)
    graph = graph_of(pay, InMemorySaver() if stored else None, retry_policy=policy)
    with pytest.raises(CallsChangedError):
        await graph.ainvoke({"log": []}, CONFIG if stored else None)
    assert charged == [1]
    assert attempts == [0, 1]  # it is not retried, because the outcome would be the same


async def test_code_that_catches_everything_does_not_hide_the_error(saver: BaseCheckpointSaver) -> None:
    """P9: a node that catches the error as if it were the failure of a call fails all the same."""
    names = ["a"]
    dies = [True]

    @task
    async def charge(name: str) -> str:
        return name

    async def pay(state: State) -> State:
        log: list[str] = []
        for name in names:
            try:
                log.append(await charge(name))
            except Exception:
                log.append(f"{name} failed")
        if dies:
            raise Interruption
        return {"log": log}

    graph = graph_of(pay, saver)
    with pytest.raises(Interruption):
        await graph.ainvoke({"log": []}, CONFIG)
    dies.clear()
    names[:] = ["b"]
    with pytest.raises(CallsChangedError):
        await graph.ainvoke(None, CONFIG)
    assert (await graph.aget_state(CONFIG)).next == ("pay",)


@pytest.mark.parametrize("how", ["call", "graph", "question"])
async def test_nothing_more_is_done_after_a_refusal(how: str, saver: BaseCheckpointSaver) -> None:
    """P5: code that catches the error can neither call, run nor ask anything else: recorded work of other positions
    would run twice."""
    names = ["b"]
    dies = [True]
    charged: list[str] = []

    @task
    async def charge(name: str) -> str:
        charged.append(name)
        return name

    async def charges(state: State) -> State:
        return {"log": [await charge(state["log"][0])]}

    inside = StateGraph(State).add_node(charges).add_edge(START, "charges").compile()

    async def do(name: str) -> object:
        if how == "question":
            return [interrupt(name), await charge("paid")]
        return await (charge(name) if how == "call" else inside.ainvoke({"log": [name]}))

    async def pay(state: State) -> State:
        for name in names:
            with contextlib.suppress(Exception):
                await do(name)
        if how == "question":
            await charge("more")
        if dies:
            raise Interruption
        return {}

    graph = graph_of(pay, saver)
    given: Any = {"log": []}
    if how == "question":
        await graph.ainvoke(given, CONFIG)
        given = Command(resume="yes")
    with pytest.raises(Interruption):
        await graph.ainvoke(given, CONFIG)
    done = list(charged)
    names.insert(0, "a")
    with pytest.raises(QuestionChangedError if how == "question" else CallsChangedError):
        await graph.ainvoke(None, CONFIG)
    assert charged == done
    dies.clear()
    names.remove("a")
    await graph.ainvoke(None, CONFIG)
    assert charged == done


@pytest.mark.parametrize("how", ["task", "graph"])
async def test_the_caller_cannot_hide_a_refusal(how: str, saver: BaseCheckpointSaver) -> None:
    """P9: the error of a called task, or of a subgraph, fails the node that runs it, also when the node catches it."""
    names = ["a"]
    dies = [True]

    @task
    async def charge(name: str) -> str:
        return name

    async def charge_all(state: State) -> State:
        log = [await charge(name) for name in names]
        if dies:
            raise Interruption
        return {"log": log}

    as_task = task(charge_all)
    inside = StateGraph(State).add_node(charge_all).add_edge(START, "charge_all").compile()

    async def pay(state: State) -> State:
        try:
            await (as_task({"log": []}) if how == "task" else inside.ainvoke({"log": []}))
        except Exception:
            if dies:
                raise
        return {"log": ["paid"]}

    graph = graph_of(pay, saver)
    with pytest.raises(Interruption):
        await graph.ainvoke({"log": []}, CONFIG)
    dies.clear()
    names[:] = ["b"]
    with pytest.raises(CallsChangedError):
        await graph.ainvoke(None, CONFIG)
    assert (await graph.aget_state(CONFIG)).next == ("pay",)


async def test_no_answer_is_given_after_a_refusal(saver: BaseCheckpointSaver) -> None:
    """P8: code that catches QuestionChangedError gets no answer to a later question, which it would act on."""
    names = ["a", "b"]
    acted: list[str] = []

    async def pay(state: State) -> State:
        for name in names:
            with contextlib.suppress(Exception):
                acted.append(interrupt(name))
        raise Interruption

    graph = graph_of(pay, saver)
    await graph.ainvoke({"log": []}, CONFIG)
    await graph.ainvoke(Command(resume="to a"), CONFIG)
    with pytest.raises(Interruption):
        await graph.ainvoke(Command(resume="to b"), CONFIG)
    names[0] = "c"
    acted.clear()
    with pytest.raises(QuestionChangedError):
        await graph.ainvoke(None, CONFIG)
    assert acted == []


class Opaque:
    """A type that cannot be stored."""


class Known(msgspec.Struct):
    name: str


async def test_which_arguments_a_digest_covers(saver: BaseCheckpointSaver) -> None:
    """Arguments that cannot be stored count by their types, and other arguments by their values, in any order of keys
    and members."""
    asked: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((Opaque(), {"a": 1, "b": {2, 3}}), {"x": 1, "y": Known("k")})
    ]
    dies = [True]

    @task
    async def call(client: Any, value: Any, **more: Any) -> int:
        return len(asked)

    async def pay(state: State) -> State:
        args, kwargs = asked[-1]
        got = await call(*args, **kwargs)
        if dies:
            raise Interruption
        return {"log": [got]}

    graph = graph_of(pay, saver)
    with pytest.raises(Interruption):
        await graph.ainvoke({"log": []}, CONFIG)
    for args, kwargs in [
        ((object(), {"a": 1, "b": {2, 3}}), {"x": 1, "y": Known("k")}),
        ((Opaque(), {"a": 1.0, "b": {2, 3}}), {"x": 1, "y": Known("k")}),
        ((Opaque(), {"a": 1, "b": {2, 3}}), {"x": 2, "y": Known("k")}),
        ((Opaque(), {"a": 1, "b": {2, 3}}), {"z": 1, "y": Known("k")}),
    ]:
        asked.append((args, kwargs))
        with pytest.raises(CallsChangedError):
            await graph.ainvoke(None, CONFIG)
    asked.append(((Opaque(), {"b": {3, 2}, "a": 1}), {"y": Known("k"), "x": 1}))
    dies.clear()
    assert (await graph.ainvoke(None, CONFIG))["log"] == [1]


class Asking:
    """A node that asks the questions of its code, one after the other."""

    def __init__(self, *questions: Any) -> None:
        self.questions = list(questions)

    def __call__(self, state: State) -> State:
        return {"log": [interrupt(question) for question in self.questions]}


async def test_an_answer_is_not_given_to_another_question(saver: BaseCheckpointSaver) -> None:
    """P2, P8: a new version of the node asks another question under the id that was answered, and does not get the
    answer."""
    node = Asking("Send the newsletter?")
    graph = graph_of(node, saver)
    (question,) = (await graph.ainvoke({"log": []}, CONFIG))["__interrupt__"]
    node.questions = ["Delete all accounts?", "Send the newsletter?"]
    with pytest.raises(
        QuestionChangedError, match=r"Send the newsletter\?.*Delete all accounts\?.*in a @task"
    ) as failed:
        await graph.ainvoke(Command(resume={question.id: "yes"}), CONFIG)
    error = failed.value
    assert (error.id, error.asked_then, error.asked_now) == (
        question.id,
        "Send the newsletter?",
        "Delete all accounts?",
    )
    node.questions = ["Send the newsletter?"]
    assert (await graph.ainvoke(None, CONFIG))["log"] == ["yes"]


async def test_a_question_is_compared_as_long_as_its_superstep_is_open(saver: BaseCheckpointSaver) -> None:
    """P8: the first question is also compared when the second is answered."""
    node = Asking({"q": 1, "ids": {1, 2}}, "second")
    graph = graph_of(node, saver)
    await graph.ainvoke({"log": []}, CONFIG)
    node.questions[0] = {"ids": {2, 1}, "q": 1}  # equal
    await graph.ainvoke(Command(resume="one"), CONFIG)
    node.questions[0] = {"q": True, "ids": {1, 2}}  # equal to Python only
    with pytest.raises(QuestionChangedError):
        await graph.ainvoke(Command(resume="two"), CONFIG)
    node.questions[0] = {"q": 1, "ids": {1, 2}}
    assert (await graph.ainvoke(None, CONFIG))["log"] == ["one", "two"]


async def test_questions_of_subgraphs_and_called_tasks(saver: BaseCheckpointSaver) -> None:
    """P8: the same holds in a graph that a node runs, and in a task that it calls."""
    text = ["then"]

    def ask(state: State) -> State:
        return {"log": [interrupt(text[0])]}

    inner = StateGraph(State)
    inner.add_node("ask", ask)
    inner.add_edge(START, "ask")
    compiled = inner.compile()

    @task
    async def asks() -> Any:
        return interrupt(text[0])

    async def calls(state: State) -> State:
        return {"log": [await asks()]}

    async def runs(state: State) -> Any:
        return await compiled.ainvoke({"log": []})

    for thread, node in enumerate((compiled, calls, runs)):
        config: Any = {"configurable": {"thread_id": str(thread)}}
        text[0] = "then"
        graph = graph_of(node, saver)
        await graph.ainvoke({"log": []}, config)
        text[0] = "now"
        with pytest.raises(QuestionChangedError):
            await graph.ainvoke(Command(resume="yes"), config)
        text[0] = "then"
        assert (await graph.ainvoke(None, config))["log"] == ["yes"]


async def test_answers_to_changed_questions_may_be_accepted(saver: BaseCheckpointSaver) -> None:
    """changed_questions="accept": a node that drafts and asks gets its answer, with one warning per node."""
    node = Asking("draft 1", "draft 2")
    builder = StateGraph(State)
    builder.add_node("pay", node)
    builder.add_edge(START, "pay")
    graph: Any = builder.compile(saver, changed_questions="accept")
    await graph.ainvoke({"log": []}, CONFIG)
    await graph.ainvoke(Command(resume="one"), CONFIG)
    node.questions = ["draft 3", "draft 4"]
    with pytest.warns(QuestionChangedWarning, match="node 'pay'") as caught:
        assert (await graph.ainvoke(Command(resume="two"), CONFIG))["log"] == ["one", "two"]
    assert len(caught) == 1
    with pytest.raises(GraphValidationError, match="'error' or 'accept', not 'ignore'"):
        builder.compile(saver, changed_questions="ignore")


@pytest.mark.parametrize("kind", ["StateGraph", "entrypoint", "Pregel"])
async def test_a_default_for_changed_questions(kind: str, saver: BaseCheckpointSaver) -> None:
    """`set_defaults(changed_questions="accept")` applies to graphs that are compiled later without their own
    setting."""
    text = ["draft 1"]

    async def asks(state: Any) -> Any:
        answer = interrupt(text[0])
        return {"log": [answer]} if kind == "StateGraph" else answer

    def made(policy: Any = None) -> Any:
        if kind == "entrypoint":
            return entrypoint(saver, changed_questions=policy)(asks)
        if kind == "StateGraph":
            return (
                StateGraph(State).add_node("pay", asks).add_edge(START, "pay").compile(saver, changed_questions=policy)
            )
        nodes: Any = {"pay": NodeBuilder().subscribe_only("in").do(asks).write_to("out")}
        channels: Any = {"in": EphemeralValue(object), "out": LastValue(str)}
        return Pregel(
            nodes=nodes,
            channels=channels,
            input_channels="in",
            output_channels="out",
            checkpointer=saver,
            changed_questions=policy,
        )

    earlier = made()
    set_defaults(changed_questions="accept")
    try:
        with pytest.raises(GraphValidationError, match="'error' or 'accept', not 'ignore'"):
            set_defaults(validate_input=False, changed_questions=cast("Any", "ignore"))
        assert validates_input(None)  # nothing was set
        set_defaults(validate_input=True)  # does not change the other
        graphs = {"earlier": earlier, "strict": made("error"), "later": made()}
    finally:
        set_defaults(changed_questions="error")
    for thread, graph in {**graphs, "reset": made()}.items():
        config: Any = {"configurable": {"thread_id": thread}}
        text[0] = "draft 1"
        await graph.ainvoke({"log": []}, config)
        text[0] = "draft 2"
        if thread == "later":
            with pytest.warns(QuestionChangedWarning):
                assert await graph.ainvoke(Command(resume="yes"), config) in ("yes", {"log": ["yes"]})
        else:
            with pytest.raises(QuestionChangedError):
                await graph.ainvoke(Command(resume="yes"), config)


@pytest.mark.parametrize("saver", ["memory"], indirect=True)
async def test_calls_of_entrypoints_threads_and_routers(saver: BaseCheckpointSaver) -> None:
    """P2: the same holds for an entrypoint, for a plain function, which runs in a worker thread, and for a router."""
    names = ["b"]
    dies = [True]

    @task
    def charge(name: str) -> str:
        return name

    def pay(state: State) -> State:
        log = [charge(name).result() for name in names]
        if dies:
            raise Interruption
        return {"log": log}

    @entrypoint(saver)
    async def workflow(state: State) -> list[str]:
        log = [await charge(name) for name in names]
        if dies:
            raise Interruption
        return log

    async def route(state: State) -> str:
        for name in names:
            await charge(name)
        if dies:
            raise Interruption
        return END

    routed = StateGraph(State)
    routed.add_node("pay", lambda state: {"log": ["b"]})
    routed.add_edge(START, "pay")
    routed.add_conditional_edges("pay", route)
    for thread, graph in enumerate((graph_of(pay, saver), workflow, routed.compile(saver))):
        config: Any = {"configurable": {"thread_id": str(thread)}}
        names[:], dies[:] = ["b"], [True]
        with pytest.raises(Interruption):
            await graph.ainvoke({"log": []}, config)
        names[:], dies[:] = ["a"], []
        with pytest.raises(CallsChangedError) as failed:
            await graph.ainvoke(None, config)
        assert failed.value.number == 1
        names[:] = ["b"]
        result = await graph.ainvoke(None, config)
        assert (result if isinstance(result, list) else result["log"]) == ["b"]


async def test_a_config_counts_by_its_type(saver: BaseCheckpointSaver) -> None:
    """A node that passes its config to a task makes the same call on a resume, whose run has another id."""
    seen: list[Any] = []

    @task
    async def work(config: Any, n: int) -> int:
        seen.append(config["run_id"])
        return n

    async def node(state: State, config: RunnableConfig) -> State:
        got = [await work(config, 1), await work(n=2, config=config)]
        return {"log": [*got, interrupt("go on?")]}

    graph = graph_of(node, saver)
    await graph.ainvoke({"log": []}, CONFIG)
    assert (await graph.ainvoke(Command(resume="yes"), CONFIG))["log"] == [1, 2, "yes"]
    assert len(seen) == 2


async def test_an_error_handler_may_ask_about_the_failure(saver: BaseCheckpointSaver) -> None:
    """P8: a handler gets the exception itself at first and its record on a resume. The two have different texts, and
    count as one failure."""

    @task
    async def notify(text: str) -> str:
        return "notified"

    def node(state: State) -> State:
        raise RuntimeError("overloaded")

    async def handler(state: State, error: NodeError) -> State:
        return {"log": [await notify(f"{error.error}"), interrupt(f"{error.node}: {error.error}")]}

    graph = graph_of(node, saver, error_handler=handler)
    await graph.ainvoke({"log": []}, CONFIG)
    assert (await graph.ainvoke(Command(resume="fine"), CONFIG))["log"] == ["notified", "fine"]
