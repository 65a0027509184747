"""Questions to people: how a node asks, which answer it gets, and what the thread shows meanwhile."""

import operator
from typing import Annotated, Any, TypedDict

import pytest

CONFIG: dict[str, Any] = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    note: str


def parallel(library: Any, **nodes: Any) -> Any:
    builder = library.StateGraph(State)
    for name, node in nodes.items():
        builder.add_node(name, node).add_edge(library.START, name)
    return builder.compile(library.InMemorySaver())


def asks(library: Any, *questions: Any, ran: list[str] | None = None, name: str = "n") -> Any:
    def node(state: State) -> dict[str, Any]:
        if ran is not None:
            ran.append(name)
        return {"log": [library.interrupt(question) for question in questions]}

    return node


def values(result: Any) -> list[Any]:
    return [each.value for each in result["__interrupt__"]]


def test_a_node_runs_again_from_its_start(library: Any) -> None:
    """What comes before a question happens again, and answers are given again in the order of the questions."""
    ran: list[str] = []
    graph = parallel(library, n=asks(library, "1?", "2?", "3?", ran=ran))
    assert values(graph.invoke({"log": []}, CONFIG)) == ["1?"]
    assert values(graph.invoke(library.Command(resume="one"), CONFIG)) == ["2?"]
    assert graph.get_state(CONFIG).next == ("n",)
    assert values(graph.invoke(library.Command(resume="two"), CONFIG)) == ["3?"]
    assert graph.invoke(library.Command(resume="three"), CONFIG)["log"] == ["one", "two", "three"]
    assert ran == ["n"] * 4


def test_each_question_of_a_node_has_its_own_id(library: Any) -> None:
    """Only the open one is listed."""
    graph = parallel(library, n=asks(library, "1?", "2?"))
    (first,) = graph.invoke({"log": []}, CONFIG)["__interrupt__"]
    (second,) = graph.invoke(library.Command(resume={first.id: "one"}), CONFIG)["__interrupt__"]
    assert first.id != second.id
    assert [each.value for each in graph.get_state(CONFIG).interrupts] == ["2?"]


def test_one_answer_for_several_questions_is_refused(library: Any) -> None:
    """A `RuntimeError`, and nothing runs; a map of answers by id is needed."""
    graph = parallel(library, a=asks(library, "a?"), b=asks(library, "b?"))
    asked = graph.invoke({"log": []}, CONFIG)["__interrupt__"]
    with pytest.raises(RuntimeError):
        graph.invoke(library.Command(resume="which of them?"), CONFIG)
    answers = {each.id: each.value.upper() for each in asked}
    assert graph.invoke(library.Command(resume=answers), CONFIG)["log"] == ["A?", "B?"]


def test_some_of_the_answers(library: Any) -> None:
    """The superstep stays open until all are answered; the last one may come without its id."""
    graph = parallel(library, a=asks(library, "a?"), b=asks(library, "b?"))
    first = next(each for each in graph.invoke({"log": []}, CONFIG)["__interrupt__"] if each.value == "a?")
    checkpoint = graph.get_state(CONFIG).config
    assert values(graph.invoke(library.Command(resume={first.id: "A"}), CONFIG)) == ["b?"]
    assert graph.get_state(CONFIG).config == checkpoint
    assert graph.invoke(library.Command(resume="B"), CONFIG)["log"] == ["A", "B"]


def test_finished_siblings_of_a_question_do_not_run_again(library: Any) -> None:
    """They finish while the node waits for its answer."""
    ran: list[str] = []

    def sibling(state: State) -> dict[str, Any]:
        ran.append("sibling")
        return {"log": ["sibling"]}

    graph = parallel(library, asks=asks(library, "a?"), sibling=sibling)
    graph.invoke({"log": []}, CONFIG)
    assert graph.get_state(CONFIG).next == ("asks",)
    assert graph.invoke(library.Command(resume="A"), CONFIG)["log"] == ["A", "sibling"]
    assert ran == ["sibling"]


@pytest.mark.parametrize("answer", [0, False, "", []])
def test_falsy_answers_are_answers(library: Any, answer: Any) -> None:
    """Only None is none."""
    graph = parallel(library, n=asks(library, "?"))
    graph.invoke({"log": []}, CONFIG)
    assert graph.invoke(library.Command(resume=answer), CONFIG)["log"] == [answer]


def test_an_empty_dict_is_an_answer(library: Any) -> None:
    """LangGraph: it is a map of no answers, and the node asks again."""
    graph = parallel(library, n=asks(library, "?"))
    graph.invoke({"log": []}, CONFIG)
    result = graph.invoke(library.Command(resume={}), CONFIG)
    if library.is_langgraph:
        assert values(result) == ["?"]
    else:
        assert result["log"] == [{}]


def test_an_answer_and_an_update(library: Any) -> None:
    """The node reads the update when it runs again."""

    def node(state: State) -> dict[str, Any]:
        return {"log": [library.interrupt("?"), state.get("note")]}

    graph = parallel(library, n=node)
    graph.invoke({"log": []}, CONFIG)
    assert graph.invoke(library.Command(resume="A", update={"note": "new"}), CONFIG)["log"] == ["A", "new"]


def test_a_call_without_an_answer_asks_again(library: Any) -> None:
    """Input None, or a command that has only an update."""
    graph = parallel(library, n=asks(library, "?"))
    (asked,) = graph.invoke({"log": []}, CONFIG)["__interrupt__"]
    (again,) = graph.invoke(None, CONFIG)["__interrupt__"]
    assert again.id == asked.id
    assert values(graph.invoke(library.Command(update={"note": "x"}), CONFIG)) == ["?"]


def test_an_update_of_a_thread_that_asks(library: Any) -> None:
    """The question disappears from the state with the new checkpoint; the node asks it again, and can be answered."""
    builder = library.StateGraph(State).add_node("first", lambda state: {"log": ["first"]})
    builder.add_node("n", asks(library, "?")).add_edge(library.START, "first").add_edge("first", "n")
    graph = builder.compile(library.InMemorySaver())
    graph.invoke({"log": []}, CONFIG)
    graph.update_state(CONFIG, {"note": "edited"}, as_node="first")
    state = graph.get_state(CONFIG)
    assert state.interrupts == () and state.next == ("n",)
    assert values(graph.invoke(None, CONFIG)) == ["?"]
    assert graph.invoke(library.Command(resume="A"), CONFIG)["log"] == ["first", "A"]


def test_a_question_that_cannot_be_stored(library: Any) -> None:
    """Without a checkpointer it is an error. LangGraph: the run stops with a question that cannot be answered."""
    graph = library.StateGraph(State).add_node("n", asks(library, "?")).add_edge(library.START, "n").compile()
    if library.is_langgraph:
        assert values(graph.invoke({"log": []})) == ["?"]
    else:
        with pytest.raises(RuntimeError, match="checkpointer"):
            graph.invoke({"log": []})


def test_a_question_outside_of_a_run(library: Any) -> None:
    """It is a `RuntimeError`."""
    with pytest.raises(RuntimeError):
        library.interrupt("?")


def chain(library: Any, *names: str, **options: Any) -> Any:
    builder = library.StateGraph(State)
    for name in names:
        builder.add_node(name, lambda state, name=name: {"log": [name]})
    for left, right in zip((library.START, *names), names):
        builder.add_edge(left, right)
    return builder.compile(library.InMemorySaver(), **options)


def test_a_breakpoint_holds_once(library: Any) -> None:
    """A call with None goes on, and the breakpoint holds again when its node comes up again."""
    graph = chain(library, "a", "b", interrupt_before=["b"])
    assert graph.invoke({"log": []}, CONFIG)["log"] == ["a"]
    assert graph.invoke(None, CONFIG)["log"] == ["a", "b"]
    assert graph.invoke({"log": []}, CONFIG)["log"] == ["a", "b", "a"]


def test_a_breakpoint_after_the_last_node(library: Any) -> None:
    """The run has stopped, and nothing is left: going on does nothing."""
    graph = chain(library, "a", interrupt_after=["a"])
    assert list(graph.stream({"log": []}, CONFIG, stream_mode="updates"))[-1] == {"__interrupt__": ()}
    assert graph.get_state(CONFIG).next == ()
    assert graph.invoke(None, CONFIG)["log"] == ["a"]


def test_breakpoints_at_all_nodes(library: Any) -> None:
    """`"*"` stops before each node, and not before the hidden start."""
    graph = chain(library, "a", "b")
    lengths = [len(graph.invoke(given, CONFIG, interrupt_before="*")["log"]) for given in ({"log": []}, None, None)]
    assert lengths == [0, 1, 2]


def test_a_breakpoint_without_a_checkpointer(library: Any) -> None:
    """The run stops there for good."""
    builder = library.StateGraph(State).add_node("a", lambda state: {"log": ["a"]}).add_edge(library.START, "a")
    assert builder.compile(interrupt_before=["a"]).invoke({"log": ["in"]}) == {"log": ["in"]}


def test_a_replay_asks_again(library: Any) -> None:
    """The old answer does not count on the new branch."""
    graph = parallel(library, n=asks(library, "?"))
    graph.invoke({"log": []}, CONFIG)
    asked = graph.get_state(CONFIG).config
    graph.invoke(library.Command(resume="first"), CONFIG)
    assert values(graph.invoke(None, asked)) == ["?"]
    assert graph.invoke(library.Command(resume="second"), CONFIG)["log"] == ["second"]


def test_a_tasks_question_is_its_workflows(library: Any) -> None:
    """It is shown once, at the workflow, and answered there."""

    @library.task
    def ask(question: str) -> str:
        return library.interrupt(question)

    @library.entrypoint(checkpointer=library.InMemorySaver())
    def workflow(given: str) -> list[str]:
        return [ask("1?").result(), ask("2?").result()]

    assert values(workflow.invoke("x", CONFIG)) == ["1?"]
    assert [task.name for task in workflow.get_state(CONFIG).tasks] == ["workflow"]
    assert values(workflow.invoke(library.Command(resume="one"), CONFIG)) == ["2?"]
    assert workflow.invoke(library.Command(resume="two"), CONFIG) == ["one", "two"]


def test_a_second_answer_is_refused(library: Any) -> None:
    """A question that has its answer, or is unknown, is a `RuntimeError`. LangGraph: the nodes run, and ask again."""
    graph = parallel(library, n=asks(library, "1?", "2?"))
    (first,) = graph.invoke({"log": []}, CONFIG)["__interrupt__"]
    graph.invoke(library.Command(resume={first.id: "one"}), CONFIG)
    if not library.is_langgraph:
        for id in (first.id, "0" * 32):
            with pytest.raises(RuntimeError):
                graph.invoke(library.Command(resume={id: "again"}), CONFIG)
    assert graph.invoke(library.Command(resume="two"), CONFIG)["log"] == ["one", "two"]


def test_a_retry_does_not_ask_again(library: Any) -> None:
    """An attempt that failed behind an answer is followed by one that gets the same answer."""
    ran = []

    def node(state: State) -> dict[str, Any]:
        answer = library.interrupt("?")
        ran.append(answer)
        if len(ran) == 1:
            raise ConnectionError("again")
        return {"log": [answer]}

    policy = library.RetryPolicy(initial_interval=0.001, jitter=False)
    builder = library.StateGraph(State).add_node("n", node, retry_policy=policy).add_edge(library.START, "n")
    graph = builder.compile(library.InMemorySaver())
    graph.invoke({"log": []}, CONFIG)
    assert graph.invoke(library.Command(resume="A"), CONFIG)["log"] == ["A"]
    assert ran == ["A", "A"]


def test_an_answer_is_for_the_question_that_was_asked(library: Any) -> None:
    """A node that runs again and asks something else fails. LangGraph: the answer goes to the changed question."""
    questions = ["now?", "later?"]
    graph = parallel(library, n=lambda state: {"log": [library.interrupt(questions.pop(0))]})
    graph.invoke({"log": []}, CONFIG)
    if library.is_langgraph:
        assert graph.invoke(library.Command(resume="yes"), CONFIG)["log"] == ["yes"]
    else:
        with pytest.raises(Exception, match="now\\?"):
            graph.invoke(library.Command(resume="yes"), CONFIG)


def test_a_replays_question_has_the_same_id(library: Any) -> None:
    """It depends on where it is asked. LangGraph: each branch has new ids."""
    graph = parallel(library, n=asks(library, "?"))
    (asked,) = graph.invoke({"log": []}, CONFIG)["__interrupt__"]
    start = next(state for state in graph.get_state_history(CONFIG) if state.next == ("n",)).config
    graph.invoke(library.Command(resume="first"), CONFIG)
    (again,) = graph.invoke(None, start)["__interrupt__"]
    assert (again.id == asked.id) is not library.is_langgraph


def test_the_unanswered_do_not_run(library: Any) -> None:
    """An answer by id runs the nodes that it is for. LangGraph: the others run too, and ask again."""
    ran: list[str] = []
    graph = parallel(library, a=asks(library, "a?", ran=ran, name="a"), b=asks(library, "b?", ran=ran, name="b"))
    first = next(each for each in graph.invoke({"log": []}, CONFIG)["__interrupt__"] if each.value == "a?")
    ran.clear()
    graph.invoke(library.Command(resume={first.id: "A"}), CONFIG)
    assert sorted(ran) == (["a", "b"] if library.is_langgraph else ["a"])
