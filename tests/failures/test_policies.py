"""Policies are checked when they are made; and the default predicate decides which failures are retried."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, TypedDict

import httpx
import pytest

from pregel_async import START, NodeBuilder, Pregel, Send, StateGraph, entrypoint, task
from pregel_async.channels import LastValue
from pregel_async.errors import ConfigError, GraphValidationError, NodeError, NodeTimeoutError, StepTimeoutError
from pregel_async.types import CachePolicy, Collect, RetryPolicy, TimeoutPolicy, default_retry_on


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    failures: Annotated[list[NodeError], operator.add]
    note: str


async def node(state: State) -> None: ...


def plain(state: State) -> None: ...


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("initial_interval", -0.1, ValueError),
        ("initial_interval", math.nan, ValueError),
        ("initial_interval", math.inf, ValueError),
        ("initial_interval", 10**400, ValueError),
        ("backoff_factor", 10**400, ValueError),
        ("max_interval", 10**500, ValueError),
        ("initial_interval", "1", TypeError),
        ("initial_interval", True, TypeError),
        ("backoff_factor", 0.5, ValueError),
        ("backoff_factor", None, TypeError),
        ("max_interval", -1, ValueError),
        ("max_interval", timedelta(1), TypeError),
        ("max_attempts", 0, ValueError),
        ("max_attempts", -3, ValueError),
        ("max_attempts", 2.0, TypeError),
        ("max_attempts", True, TypeError),
        ("jitter", 1, TypeError),
        ("jitter", "yes", TypeError),
        ("retry_on", 5, TypeError),
        ("retry_on", None, TypeError),
        ("retry_on", "ValueError", TypeError),
        ("retry_on", int, TypeError),
        ("retry_on", BaseException, TypeError),
        ("retry_on", (ValueError, KeyboardInterrupt), TypeError),
        ("retry_on", [ValueError()], TypeError),
        ("retry_on", iter([ValueError]), TypeError),
    ],
)
def test_a_retry_policy_is_checked_when_it_is_made(field: str, value: Any, error: type[Exception]) -> None:
    """Bad input: a value out of range is a `ValueError`, of the wrong type a `TypeError`; both name the
    field."""
    with pytest.raises(error) as caught:
        RetryPolicy(**{field: value})
    assert type(caught.value) is error
    assert field in str(caught.value)
    if error is TypeError and field.endswith("_interval"):
        assert "number of seconds" in str(caught.value)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({}, ValueError),
        ({"refresh_on": "heartbeat"}, ValueError),
        ({"run_timeout": 0}, ValueError),
        ({"run_timeout": -1}, ValueError),
        ({"idle_timeout": math.inf}, ValueError),
        ({"idle_timeout": math.nan}, ValueError),
        ({"run_timeout": timedelta(0)}, ValueError),
        ({"run_timeout": timedelta(seconds=-1)}, ValueError),
        ({"run_timeout": 10**400}, ValueError),
        ({"idle_timeout": 10**500}, ValueError),
        ({"run_timeout": "1"}, TypeError),
        ({"idle_timeout": True}, TypeError),
        ({"run_timeout": 1, "refresh_on": "never"}, ValueError),
    ],
)
def test_a_timeout_policy_is_checked_when_it_is_made(values: dict[str, Any], error: type[Exception]) -> None:
    """Bad input: times are positive and finite; at least one is given."""
    with pytest.raises(error) as caught:
        TimeoutPolicy(**values)
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("ttl", "error"),
    [
        *((wrong, ValueError) for wrong in (0, -1, math.nan, math.inf, 10**400, timedelta(0), timedelta(-1))),
        *((wrong, TypeError) for wrong in ("soon", True, [1])),
    ],
)
def test_a_cache_policy_is_checked_when_it_is_made(ttl: Any, error: type[Exception]) -> None:
    """A ttl that no cache can use is refused before a node has run."""
    with pytest.raises(error, match=r"^ttl is") as caught:
        CachePolicy(ttl=ttl)
    assert type(caught.value) is error


def test_policies_of_equal_times_are_equal() -> None:
    """A timedelta is converted to seconds when the policy is made."""
    assert CachePolicy(ttl=timedelta(minutes=1)) == CachePolicy(ttl=60)
    assert CachePolicy(ttl=timedelta(minutes=1)).ttl_seconds == 60.0
    assert TimeoutPolicy(run_timeout=timedelta(minutes=1)) == TimeoutPolicy(run_timeout=60)
    assert TimeoutPolicy(idle_timeout=timedelta(minutes=1)).idle_seconds == 60.0


WRONG_TIMES = [10**400, math.nan, math.inf, True, -1, 0, "1"]


@pytest.mark.anyio
@pytest.mark.parametrize("wrong", WRONG_TIMES, ids=lambda wrong: repr(wrong)[:9])
async def test_times_are_refused_before_anything_runs(wrong: Any) -> None:
    """Bad times of nodes, sends, supersteps, graphs and calls are refused, and the error names the argument."""
    runs: list[int] = []

    async def counted(state: State) -> None:
        runs.append(1)

    builder = StateGraph(State).add_node("n", counted).add_edge(START, "n")
    for made in (lambda: builder.compile(step_timeout=wrong), lambda: builder.compile(time_limit=wrong)):
        with pytest.raises(GraphValidationError, match=r"^(step_timeout|time_limit) is "):
            made()
    with pytest.raises(GraphValidationError, match="node 'm': "):
        StateGraph(State).add_node("m", counted, timeout=wrong)
    with pytest.raises((TypeError, ValueError), match="timeout"):
        Send("n", {}, timeout=wrong)
    with pytest.raises(ConfigError, match=r"^time_limit is "):
        await builder.compile().ainvoke({"note": ""}, time_limit=wrong)
    assert runs == []


@pytest.mark.anyio
async def test_times_that_no_run_reaches() -> None:
    """Every time that passes the check can be counted by event loops: 10 ** 292 years, too."""
    builder = StateGraph(State).add_node("n", node, timeout=TimeoutPolicy(run_timeout=1e300, idle_timeout=1e300))
    graph = builder.add_edge(START, "n").compile(step_timeout=1e300, time_limit=1e300)
    assert await graph.ainvoke({"note": "x"}) == {"log": [], "failures": [], "note": "x"}


def test_defaults_are_those_of_langgraph() -> None:
    """The defaults are LangGraph's: 0.5 s, twice as long each time, at most 128 s, three attempts, jitter."""
    policy = RetryPolicy()
    assert (policy.initial_interval, policy.backoff_factor, policy.max_interval) == (0.5, 2.0, 128.0)
    assert (policy.max_attempts, policy.jitter, policy.retry_on) == (3, True, default_retry_on)
    assert [policy.wait(failed) for failed in (1, 2, 3, 8, 9, 10, 100_000)] == [0.5, 1, 2, 64, 128, 128, 128]
    assert TimeoutPolicy(run_timeout=timedelta(minutes=1)).run_seconds == 60


Declare = Callable[[dict[str, Any]], Any]


def _pregel(options: dict[str, Any]) -> Any:
    nodes = {"n": NodeBuilder().subscribe_only("a").do(node)}
    return Pregel(nodes=nodes, channels={"a": LastValue(int)}, input_channels="a", output_channels="a", **options)


declarations = pytest.mark.parametrize(
    ("declare", "names"),
    [
        pytest.param(lambda options: StateGraph(State).add_node("n", node, **options), "node 'n'", id="add_node"),
        pytest.param(lambda options: StateGraph(State).set_node_defaults(**options), "default", id="defaults"),
        pytest.param(lambda options: task(**options), "task", id="task"),
        pytest.param(lambda options: entrypoint(**options), "entrypoint", id="entrypoint"),
        pytest.param(_pregel, "", id="pregel"),
    ],
)


@declarations
@pytest.mark.parametrize(
    "options",
    [
        {"retry_policy": 3},
        {"retry_policy": "often"},
        {"retry_policy": [RetryPolicy(), 3]},
        {"retry_policy": {"max_attempts": 3}},
        {"timeout": 0},
        {"timeout": -1.5},
        {"timeout": math.nan},
        {"timeout": "1"},
        {"timeout": True},
        {"timeout": timedelta(0)},
        {"on_timeout": "kill", "timeout": 1},
        {"cache_policy": 5},
    ],
    ids="-".join,
)
def test_bad_policies_are_refused_where_they_are_declared(
    declare: Declare, names: str, options: dict[str, Any]
) -> None:
    """Bad input: an object that is no policy is a `GraphValidationError` at its declaration, which names the node."""
    if options.keys() & {"on_timeout"} and declare is _pregel:
        options = {"timeout": "1"}  # a graph's own functions set on_timeout at the node
    with pytest.raises(GraphValidationError) as caught:
        declare(options)
    assert names in str(caught.value)


@pytest.mark.parametrize(
    "declare",
    [
        lambda builder: builder.add_retry_policies(3),
        lambda builder: builder.add_cache_policy("c"),
        lambda builder: builder.set_timeout(-1),
        lambda builder: builder.set_timeout("1"),
        lambda builder: builder.set_timeout(1, on_timeout="kill"),
    ],
)
def test_bad_policies_of_the_low_level(declare: Callable[[NodeBuilder], Any]) -> None:
    """Bad input: `NodeBuilder` refuses bad policies too."""
    with pytest.raises(GraphValidationError):
        declare(NodeBuilder().subscribe_only("a").do(node))


def test_a_bad_policy_is_named_once() -> None:
    wrong: Any = 3
    with pytest.raises(
        GraphValidationError, match="^node 'n': a retry policy is a RetryPolicy, or a list of them, not 3$"
    ):
        StateGraph(State).add_node("n", node, retry_policy=wrong)


def test_a_timeout_on_a_plain_function() -> None:
    """A timeout on a plain function is an error that names the node, unless it sets `on_timeout`, wherever the timeout
    comes from."""
    with pytest.raises(GraphValidationError, match=r"node 'n' has a timeout and .* is killed\)$"):
        StateGraph(State).add_node("n", plain, timeout=1).add_edge(START, "n").compile()
    with pytest.raises(GraphValidationError, match="node 'n'"):
        StateGraph(State).add_node("n", plain, timeout=1).add_edge(START, "n").compile(blocking=False)
    by_default = r"has a timeout \(that of set_node_defaults\) .*; or give timeouts to the nodes"
    with pytest.raises(GraphValidationError, match=f"node 'n' {by_default}"):
        StateGraph(State).add_node("n", plain).add_edge(START, "n").set_node_defaults(timeout=1).compile()
    with pytest.raises(GraphValidationError, match="task 'plain'"):
        task(timeout=1)(plain)
    with pytest.raises(GraphValidationError, match="entrypoint 'plain'"):
        entrypoint(timeout=1)(plain)
    with pytest.raises(GraphValidationError, match="node 'n'"):
        made = NodeBuilder().subscribe_only("a").do(lambda value: None).set_timeout(1)
        Pregel(nodes={"n": made}, channels={"a": LastValue(int)}, input_channels="a", output_channels="a")
    made_graph = StateGraph(State).add_node("n", node, error_handler=plain).set_node_defaults(timeout=1)
    with pytest.raises(GraphValidationError, match=f"__error_handler__n {by_default}"):
        made_graph.add_edge(START, "n").compile()


@pytest.mark.parametrize("on_timeout", ["abandon", "process"])
def test_on_timeout_is_for_plain_functions(on_timeout: Any) -> None:
    """An async function is cancelled at its awaits and needs no `on_timeout`: it is refused."""
    with pytest.raises(GraphValidationError, match="node 'n' is async"):
        StateGraph(State).add_node("n", node, timeout=1, on_timeout=on_timeout)
    inner = StateGraph(State).add_node("n", node).add_edge(START, "n").compile(name="inner")
    with pytest.raises(GraphValidationError, match="node 'inner' is async"):
        StateGraph(State).add_node(inner, timeout=1, on_timeout=on_timeout)
    with pytest.raises(GraphValidationError, match="async"):
        task(timeout=1, on_timeout=on_timeout)(node)
    with pytest.raises(GraphValidationError, match="async"):
        entrypoint(timeout=1, on_timeout=on_timeout)(node)
    made = NodeBuilder().subscribe_only("a").do(node).set_timeout(1, on_timeout=on_timeout)
    with pytest.raises(GraphValidationError, match="async"):
        Pregel(nodes={"n": made}, channels={"a": LastValue(int)}, input_channels="a", output_channels="a")


@pytest.mark.parametrize("handler", [3, "handler", lambda: None, lambda a, b, c: None])
def test_a_handler_that_is_no_function_of_a_state(handler: Any) -> None:
    """Bad input: a callable that cannot be called with the node's input is no error handler; the message names the
    node."""
    with pytest.raises(GraphValidationError, match="error handler of node 'n'"):
        StateGraph(State).add_node("n", node, error_handler=handler)
    with pytest.raises(GraphValidationError, match="default error handler"):
        StateGraph(State).set_node_defaults(error_handler=handler)


def test_a_handlers_parameter_with_another_name() -> None:
    """The error says how a handler gets the failure: by name, or by annotation."""
    expected = "'err'. .* named error, config, .*, and one annotated NodeError$"
    with pytest.raises(GraphValidationError, match=expected):
        StateGraph(State).add_node("n", node, error_handler=lambda state, err: None)
    with pytest.raises(GraphValidationError, match="previous$"):
        StateGraph(State).add_node("n", lambda state, err: None)


def test_a_handler_that_is_a_generator_or_a_graph() -> None:
    """Bad input: a generator and a graph are refused too, with the remedy."""

    def yields(state: State) -> Any:
        yield 1

    inner = StateGraph(State).add_node("n", node).add_edge(START, "n").compile()
    for handler in (yields, inner):
        with pytest.raises(GraphValidationError, match="error handler of node 'n'"):
            StateGraph(State).add_node("n", node, error_handler=handler)


@pytest.mark.parametrize(
    "options",
    [
        {"step_timeout": 0},
        {"step_timeout": "1"},
        {"step_timeout": True},
        {"on_failure": "ignore"},
        {"on_failure": None},
        {"on_failure": Collect("nowhere")},
        {"on_failure": Collect("note")},
        {"on_failure": Collect},
        {"time_limit": -1},
        {"budgets": {"x": 3}},
        {"budgets": 3},
    ],
    ids="-".join,
)
def test_bad_options_of_compile(options: dict[str, Any]) -> None:
    """Bad input: a graph's own policies are refused by `compile`."""
    with pytest.raises(GraphValidationError):
        StateGraph(State).add_node("n", node).add_edge(START, "n").compile(**options)


@pytest.mark.anyio
@pytest.mark.parametrize("on_failure", ["ignore", Collect("nowhere"), Collect("note"), 5])
async def test_a_bad_failure_policy_of_a_call(on_failure: Any) -> None:
    """Bad input: a bad policy of a call is refused before anything runs."""
    ran: list[str] = []

    async def first(state: State) -> None:
        ran.append("first")

    graph = StateGraph(State).add_node(first).add_edge(START, "first").compile()
    with pytest.raises(ConfigError):
        await graph.ainvoke({}, on_failure=on_failure)
    with pytest.raises(ConfigError):
        graph.astream({}, on_failure=on_failure)
    assert ran == []


def test_a_bad_timeout_of_a_send() -> None:
    """Bad input: a Send's timeout is checked when it is made."""
    for timeout, error in ((0, ValueError), (-1, ValueError), ("1", TypeError)):
        with pytest.raises(error):
            Send("n", {}, timeout=timeout)


@pytest.mark.parametrize("channel", ["", 3, None])
def test_collect_takes_a_name(channel: Any) -> None:
    """Bad input: Collect is checked when it is made."""
    with pytest.raises(TypeError):
        Collect(channel)


class OwnError(Exception):
    """An exception class of the user's own."""


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ConnectionError(), True),
        (ConnectionResetError(), True),
        (BrokenPipeError(), True),
        (OwnError(), True),
        (Exception(), True),
        (NodeTimeoutError("n", kind="run", elapsed=1, run_timeout=1, idle_timeout=None), True),
        (StepTimeoutError(1, 1, ("n",)), False),
        (ValueError(), False),
        (UnicodeDecodeError("utf-8", b"", 0, 1, ""), False),
        (TypeError(), False),
        (ZeroDivisionError(), False),
        (OverflowError(), False),
        (ImportError(), False),
        (KeyError(), False),
        (IndexError(), False),
        (NameError(), False),
        (SyntaxError(), False),
        (RuntimeError(), False),
        (RecursionError(), False),
        (NotImplementedError(), False),
        (ReferenceError(), False),
        (StopIteration(), False),
        (StopAsyncIteration(), False),
        (OSError(), False),
        (FileNotFoundError(), False),
        (TimeoutError(), False),
        (GraphValidationError("x"), False),
        (ExceptionGroup("", [ConnectionError(), OwnError()]), True),
        (ExceptionGroup("", [ConnectionError(), ValueError()]), False),
        (ExceptionGroup("", [OwnError(), ExceptionGroup("", [OwnError(), KeyError()])]), False),
    ],
    ids=repr,
)
def test_the_default_predicate(error: Exception, passes: bool) -> None:
    """Programming mistakes and the runtime's own errors are not retried; a group is retried if each member is."""
    assert default_retry_on(error) is passes


def httpx_error(status: int, headers: dict[str, str] | None = None) -> Exception:
    request = httpx.Request("GET", "https://service.example/")
    response = httpx.Response(status, request=request, headers=headers)
    with pytest.raises(httpx.HTTPStatusError) as caught:
        response.raise_for_status()
    return caught.value


def requests_error(status: int, headers: dict[str, str] | None = None) -> Exception:
    requests = pytest.importorskip("requests", reason="requests is not installed here: nox -s adapters")
    response = requests.Response()
    response.status_code = status
    response.headers.update(headers or {})
    assert not response  # this is the special case: an `if response` would miss it
    with pytest.raises(requests.HTTPError) as caught:
        response.raise_for_status()
    return caught.value


class SdkError(Exception):
    """An exception as SDKs have them: with a status of its own, and a response."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(status)
        self.status_code = status
        self.response = httpx.Response(status, headers=headers)


class AiohttpError(Exception):
    """An exception as aiohttp has it: with a status and headers of its own, and no response."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(status)
        self.status = status
        self.headers = headers


def openai_error(status: int, headers: dict[str, str] | None = None) -> Exception:
    openai = pytest.importorskip("openai", reason="openai is not installed here: nox -s adapters")
    request = httpx.Request("GET", "https://service.example/")
    response = httpx.Response(status, request=request, headers=headers)
    kind = {429: openai.RateLimitError, 404: openai.NotFoundError}.get(status, openai.APIStatusError)
    made: Exception = kind("no", response=response, body=None)
    return made


def anthropic_error(status: int, headers: dict[str, str] | None = None) -> Exception:
    anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed here: nox -s adapters")
    request = httpx.Request("GET", "https://service.example/")
    response = httpx.Response(status, request=request, headers=headers)
    made: Exception = anthropic.APIStatusError("no", response=response, body=None)
    return made


@pytest.mark.parametrize(
    "made",
    [httpx_error, requests_error, SdkError, AiohttpError, openai_error, anthropic_error],
    ids=lambda f: f.__name__,
)
def test_responses_of_http_servers(made: Any) -> None:
    """A server's own failure is retried; a 4xx is not, except a 429 that says when to retry; tested with the real
    responses of clients, which are falsy when they are errors."""
    for status in (500, 502, 503, 599):
        assert default_retry_on(made(status)) is True, status
    for status in (400, 401, 403, 404, 408, 409, 422, 429):
        assert default_retry_on(made(status)) is False, status
    assert default_retry_on(made(429, {"Retry-After": "3"})) is True
    assert default_retry_on(made(429, {"retry-after": "3"})) is True
    assert default_retry_on(made(404, {"Retry-After": "3"})) is False


@pytest.mark.parametrize("kind", [httpx.ConnectError, httpx.ReadTimeout, httpx.RemoteProtocolError])
def test_connections_that_fail_in_httpx(kind: Any) -> None:
    """A missing response is retried; also when the exception has no request, and raises when it is asked for it."""
    assert default_retry_on(kind("no")) is True
    assert default_retry_on(kind("no", request=httpx.Request("GET", "https://service.example/"))) is True


def test_connections_that_fail_in_requests() -> None:
    """Requests' exceptions are `OSError`s; without a response they are retried."""
    requests = pytest.importorskip("requests", reason="requests is not installed here: nox -s adapters")
    assert default_retry_on(requests.ConnectionError()) is True
    assert default_retry_on(requests.Timeout()) is True


class Strange(Exception):
    """An exception with attributes that raise."""

    @property
    def response(self) -> Any:
        raise RuntimeError("there is none")

    @property
    def headers(self) -> Any:
        raise RuntimeError("there are none")

    @property
    def status_code(self) -> Any:
        raise RuntimeError("there is none")


def test_an_exception_with_traps() -> None:
    """P9: inspecting a failure never becomes a failure of its own."""
    assert default_retry_on(Strange()) is True


@pytest.mark.parametrize(
    ("retry_on", "error", "applies"),
    [
        (ValueError, ValueError(), True),
        (ValueError, UnicodeError(), True),
        (ValueError, TypeError(), False),
        ([ValueError, TypeError], TypeError(), True),
        ((ValueError, TypeError), KeyError(), False),
        ((), KeyError(), False),
        (lambda error: "again" in str(error), ValueError("again"), True),
        (lambda error: "again" in str(error), ValueError("no"), False),
        (ValueError, ExceptionGroup("", [ValueError(), UnicodeError()]), True),
        (ValueError, ExceptionGroup("", [ValueError(), TypeError()]), False),
        (lambda error: isinstance(error, KeyError), ExceptionGroup("", [KeyError(), KeyError()]), True),
        (lambda error: isinstance(error, KeyError), ExceptionGroup("", [KeyError(), ValueError()]), False),
        (lambda error: isinstance(error, ExceptionGroup), ExceptionGroup("", [KeyError()]), True),
    ],
)
def test_which_failures_a_policy_matches(retry_on: Any, error: Exception, applies: bool) -> None:
    """`retry_on` is a class, several, or a predicate; of a group (a node's own task group), each counts."""
    assert RetryPolicy(retry_on=retry_on).applies_to(error) is applies


def test_a_retry_policy_may_be_given_by_position() -> None:
    """In LangGraph's order of fields, so that a graph moves over by its imports."""
    assert RetryPolicy(0.1, 3.0, 60.0, 5, False) == RetryPolicy(
        initial_interval=0.1, backoff_factor=3.0, max_interval=60.0, max_attempts=5, jitter=False
    )
