"""An agent lists tables, reads schemas, has its query reviewed, and runs it in a database."""

import operator
import sqlite3
from typing import Annotated, Any, Literal, TypedDict

from tests.langgraph_programs.libraries import ScriptedModel

CONFIG: dict[str, Any] = {"configurable": {"thread_id": "sql"}}


class State(TypedDict, total=False):
    question: str
    tables: list[str]
    schemas: Annotated[list[str], operator.add]
    query: str
    rows: list[Any]
    errors: Annotated[list[str], operator.add]
    answer: str


def database() -> sqlite3.Connection:
    # Plain nodes run in worker threads, one at a time here.
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.executescript(
        "CREATE TABLE genre (id INTEGER, name TEXT); CREATE TABLE track (genre INTEGER, minutes INTEGER);"
        "INSERT INTO genre VALUES (1, 'rock'), (2, 'sertanejo'); INSERT INTO track VALUES (1, 3), (2, 9), (2, 8);"
    )
    return connection


FIRST = "SELECT name FROM genres LIMIT 1"
GOOD = "SELECT name FROM genre JOIN track ON genre.id = genre GROUP BY name ORDER BY avg(minutes) DESC LIMIT 1"


def build(library: Any, db: sqlite3.Connection) -> Any:
    interrupt = library.interrupt
    model = ScriptedModel({"no such table": GOOD, "longest tracks": FIRST})

    def list_tables(state: State) -> dict[str, Any]:
        return {"tables": [name for (name,) in db.execute("SELECT name FROM sqlite_master ORDER BY name")]}

    def call_get_schema(state: State) -> list[Any]:
        return [library.Send("get_schema", {"table": table}) for table in state["tables"]]

    def get_schema(state: dict[str, str]) -> dict[str, Any]:
        found = db.execute("SELECT sql FROM sqlite_master WHERE name = ?", (state["table"],)).fetchone()
        return {"schemas": [found[0]]}

    def generate_query(state: State) -> dict[str, Any]:
        return {"query": model.invoke(state["errors"][-1] if state.get("errors") else state["question"])}

    def check_query(state: State) -> Any:
        review = interrupt({"query": state["query"], "options": ["accept", "edit", "respond"]})
        if review["type"] == "accept":
            return library.Command(goto="run_query")
        if review["type"] == "edit":
            return library.Command(goto="run_query", update={"query": review["query"]})
        return library.Command(goto=library.END, update={"answer": review["text"]})

    def run_query(state: State) -> library.Command[Literal["generate_query", "answer"]]:
        try:
            return library.Command(goto="answer", update={"rows": db.execute(state["query"]).fetchall()})
        except sqlite3.Error as error:
            return library.Command(goto="generate_query", update={"errors": [str(error)]})

    def answer(state: State) -> dict[str, Any]:
        return {"answer": f"the longest are of {state['rows'][0][0]}"}

    builder = library.StateGraph(State)
    for node in (list_tables, get_schema, generate_query, answer):
        builder.add_node(node)
    builder.add_node("check_query", check_query, destinations=("run_query", library.END))
    builder.add_node("run_query", run_query)
    builder.add_edge(library.START, "list_tables")
    builder.add_conditional_edges("list_tables", call_get_schema, ["get_schema"])
    builder.add_edge("get_schema", "generate_query")
    builder.add_edge("generate_query", "check_query")
    return builder.compile(checkpointer=library.InMemorySaver())


QUESTION = {"question": "which genre has the longest tracks?"}


def test_a_query_is_reviewed_fails_and_is_written_again(library: Any) -> None:
    """Each query is a question of its own; a failed query's error is the next prompt."""
    graph = build(library, database())
    first = graph.invoke(QUESTION, CONFIG)
    assert first["schemas"] == [
        "CREATE TABLE genre (id INTEGER, name TEXT)",
        "CREATE TABLE track (genre INTEGER, minutes INTEGER)",
    ]
    assert first["__interrupt__"][0].value["query"] == FIRST
    second = graph.invoke(library.Command(resume={"type": "accept"}), CONFIG)
    assert second["errors"] == ["no such table: genres"]
    assert second["__interrupt__"][0].value["query"] == GOOD
    last = graph.invoke(library.Command(resume={"type": "accept"}), CONFIG)
    assert last["answer"] == "the longest are of sertanejo" and "__interrupt__" not in last


def test_its_chunks(library: Any) -> None:
    """One chunk for each node and send, and one for the question; the resumed run begins with the node that asked."""
    graph = build(library, database())
    chunks = list(graph.stream(QUESTION, CONFIG, stream_mode="updates"))
    assert [next(iter(chunk)) for chunk in chunks] == [
        "list_tables",
        "get_schema",
        "get_schema",
        "generate_query",
        "__interrupt__",
    ]
    assert list(graph.stream(library.Command(resume={"type": "edit", "query": GOOD}), CONFIG)) == [
        {"check_query": {"query": GOOD}},
        {"run_query": {"rows": [("sertanejo",)]}},
        {"answer": {"answer": "the longest are of sertanejo"}},
    ]


def test_a_response_ends_the_run(library: Any) -> None:
    """A command to the end takes its update along."""
    graph = build(library, database())
    graph.invoke(QUESTION, CONFIG)
    result = graph.invoke(library.Command(resume={"type": "respond", "text": "not now"}), CONFIG)
    assert result["answer"] == "not now" and "rows" not in result
    assert graph.get_state(CONFIG).next == ()
