"""Tracers that work by langchain-core's callbacks see the same nesting of runs with both libraries."""

import importlib.util
import json
import operator
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Annotated, Any, TypedDict

import pytest

NEEDED = ("langchain_core", "langsmith", "langfuse")

pytestmark = [
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in NEEDED),
        reason="langchain-core, langsmith or langfuse is not installed here: nox -s langgraph installs them",
    ),
    pytest.mark.filterwarnings("ignore"),  # theirs
]


class State(TypedDict, total=False):
    question: str
    found: Annotated[list[str], operator.add]
    answer: str


def build(library: Any) -> Any:
    """Build an agent that calls a model and a tool, and has a subgraph that calls a model."""
    from langchain_core.language_models.fake_chat_models import FakeListChatModel
    from langchain_core.tools import tool

    model = FakeListChatModel(responses=["look it up"])

    @tool
    def search(query: str) -> str:
        """Search for a text."""
        return f"owls, by {query}"

    def agent(state: State) -> dict[str, Any]:
        return {"question": str(model.invoke(state["question"]).content)}

    def tools(state: State) -> dict[str, Any]:
        return {"found": [search.invoke({"query": state["question"]})]}

    def write(state: State) -> dict[str, Any]:
        return {"answer": str(model.invoke(state["found"][0]).content)}

    inner = library.StateGraph(State).add_node(write).add_edge(library.START, "write").compile(name="writer")
    builder = library.StateGraph(State).add_node(agent).add_node(tools).add_node("report", inner)
    builder.add_edge(library.START, "agent").add_edge("agent", "tools").add_edge("tools", "report")
    return builder.compile(name="assistant")


TREE = {
    "assistant": {
        "agent": {"FakeListChatModel": {}},
        "tools": {"search": {}},
        "report": {"writer": {"write": {"FakeListChatModel": {}}}},
    }
}


def as_tree(runs: list[tuple[Any, Any, str]]) -> dict[str, Any]:
    """Return runs, given as (id, id of the parent or None, name) in the order of their starts, as nested dicts of names."""
    ids = {id for id, _, _ in runs}

    def below(parent: Any) -> dict[str, Any]:
        inside = [(id, name) for id, above, name in runs if (above if above in ids else None) == parent]
        return {name: below(id) for id, name in inside}

    return below(None)


class Collector(ThreadingHTTPServer):
    """A server that takes runs as LangSmith's does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.runs: list[dict[str, Any]] = []


class _Requests(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/runs" and isinstance(self.server, Collector):
            self.server.runs.append(json.loads(body))
        self._answer({})

    def do_PATCH(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer({})

    def _answer(self, data: Any) -> None:
        body = json.dumps(data).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Run a collector while the test runs."""
    with Collector() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_langsmith(library: Any, collector: Collector) -> None:
    """Its tracer sends a run for the graph, one for each node inside, and the nodes' models and tools inside those."""
    from langchain_core.tracers.langchain import LangChainTracer
    from langsmith import Client

    client = Client(
        api_url=f"http://127.0.0.1:{collector.server_port}", api_key="none", auto_batch_tracing=False, info={}
    )
    tracer = LangChainTracer(client=client, project_name="owls")
    build(library).invoke({"question": "what is that?", "found": []}, {"callbacks": [tracer]})
    tracer.wait_for_futures()
    runs = sorted(collector.runs, key=lambda run: str(run["dotted_order"]))
    assert as_tree([(run["id"], run.get("parent_run_id"), run["name"]) for run in runs]) == TREE
    kinds = {run["name"]: run["run_type"] for run in runs}
    assert (kinds["agent"], kinds["FakeListChatModel"], kinds["search"]) == ("chain", "llm", "tool")


def test_langfuse(library: Any) -> None:
    """Its handler opens a span for each of them, nested in the same way, and sends nothing over a network here."""
    from langfuse import Langfuse
    from langfuse.langchain import CallbackHandler
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans, key = InMemorySpanExporter(), f"pk-{library.name}"
    client = Langfuse(
        public_key=key,
        secret_key="none",
        base_url="http://127.0.0.1:9",
        span_exporter=spans,
        tracer_provider=TracerProvider(),
    )
    handler = CallbackHandler(public_key=key)
    build(library).invoke({"question": "what is that?", "found": []}, {"callbacks": [handler]})
    client.flush()
    found = sorted(spans.get_finished_spans(), key=lambda span: span.start_time or 0)
    assert as_tree([(s.context.span_id, s.parent.span_id if s.parent else None, s.name) for s in found]) == TREE
