"""`@entrypoint`: a workflow that is one function, lowered to a graph of one node.

the input                    channel `__start__`, which triggers the node
what the function returns    channel `__end__`, the graph's output
what it saves                channel `__previous__`, which the thread's next run reads
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Unpack, cast, get_args, get_origin, overload

import msgspec

from checkpoint_savers.abc import BaseCheckpointSaver

from .._api.compiled import Graph
from .._api.definition import Definition, define
from .._api.drawing import Drawing, Edge, drawing
from .._checks.context_schema import context_reader
from .._checks.node_policies import abandons, check_on_timeout
from .._checks.options import (
    EntrypointOptions,
    StepOptions,
    checked_options,
    given_policies,
    name_of,
    takes,
    validates_input,
)
from .._checks.values import compile_check, path_of
from .._core.program import Node, Write, build_program
from .._runtime.tasks.context import PREVIOUS
from .._runtime.tasks.injection import check_signature, hints_of, injections_of, is_generator, name_of_call
from ..channels import EphemeralValue, LastValue
from ..errors import GeneratorNotSupportedError, GraphValidationError, InvalidInputError, InvalidUpdateError
from ..types import END, START, Command
from .importable import call_with_input, picklable_call

__all__ = ["CompiledEntrypoint", "entrypoint"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    ContextT = TypeVar("ContextT", default=Any)
else:
    from typing import TypeVar

    ContextT = TypeVar("ContextT")

InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")
R = TypeVar("R")
SavedT = TypeVar("SavedT")


class CompiledEntrypoint(Graph[OutputT | None, ContextT, InputT, OutputT], Generic[InputT, OutputT, ContextT]):
    """A runnable workflow, with the methods of `Graph`. Made by `entrypoint`.

    The state of its threads is the last result; None before the first.

    Attributes:
        func: the decorated function.
    """

    func: Callable[..., Any]

    def __init__(self, definition: Definition, func: Callable[..., Any]) -> None:
        super().__init__(definition)
        # `Graph` refuses to set attributes other than those that replace its definition.
        object.__setattr__(self, "func", func)

    def _drawing(self) -> Drawing:
        name = next(iter(self._definition.program.nodes))
        return drawing([name], [Edge(source=START, target=name), Edge(source=name, target=END)])


class entrypoint(Generic[ContextT]):  # noqa: N801  # a decorator, which reads as the word does
    """Make a function a workflow: `ainvoke(input)` runs the function, which calls tasks.

    The function takes the input, and the keyword arguments that its signature names: `previous` (the value that the
    thread's last run returned or saved; None in the first run), `runtime`, `config`, `writer`, `store`. It returns the
    result, or `entrypoint.final(value=..., save=...)`.

    Args:
        checkpointer: the saver that stores threads; None stores nothing.
        store: long-term memory, which the function and its tasks get as `store`.
        context_schema: validates a call's `context=`.
        name: the name in messages; the function's name by default.
        blocking: False promises that a plain function never blocks: it runs on the event loop instead of in a worker
            thread.
        debug: True to print the updates and states of each run, and to warn (`InPlaceChangeWarning`) if
            the function changes its input in place.
        environment: clock, ids and randomness; the system's by default.
        retry_policy: for the function, as for a node; see `StateGraph.add_node`.
        timeout: for the function, as for a node.
        on_timeout: for the function, as for a node.
        cache_policy: for the function, as for a node.
        cache: stores the results of the function and of its tasks, if they have a cache policy.
        validate_input: as in `StateGraph.compile`.
        budgets: as in `StateGraph.compile`.
        time_limit: as in `StateGraph.compile`.
        retention: as in `StateGraph.compile`.
        observer: as in `StateGraph.compile`.
        changed_questions: as in `StateGraph.compile`.
        version: as in `StateGraph.compile`.

    Raises:
        GraphValidationError: the function is a generator or takes no input, a policy does not fit the function, or the
            decorator is used without parentheses.
        TypeError: an option is unknown.
    """

    class final(msgspec.Struct, Generic[R, SavedT], frozen=True, kw_only=True):  # noqa: N801  # `entrypoint.final` reads as a word too
        """The result of an entrypoint that saves another value than it returns.

        Attributes:
            value: the call returns it.
            save: the thread's next run gets it as `previous`.
        """

        value: R
        save: SavedT

    @takes(EntrypointOptions)
    def __init__(
        self, checkpointer: BaseCheckpointSaver | bool | None = None, **options: Unpack[EntrypointOptions[ContextT]]
    ) -> None:
        if callable(checkpointer) and not isinstance(checkpointer, BaseCheckpointSaver):
            raise GraphValidationError("entrypoint is called: @entrypoint(), or @entrypoint(checkpointer=saver)")
        self._checkpointer = checkpointer
        self._options = checked_options("entrypoint", EntrypointOptions, options)
        context_schema = self._options.get("context_schema")
        self._read_context = None if context_schema is None else context_reader(context_schema)
        self._policies = given_policies("the entrypoint", self._options)

    @overload
    def __call__(
        self, call: Callable[Concatenate[InputT, ...], Awaitable[final[R, Any]]]
    ) -> CompiledEntrypoint[InputT, R, ContextT]: ...
    @overload
    def __call__(
        self, call: Callable[Concatenate[InputT, ...], final[R, Any]]
    ) -> CompiledEntrypoint[InputT, R, ContextT]: ...
    @overload
    def __call__(
        self, call: Callable[Concatenate[InputT, ...], Awaitable[R]]
    ) -> CompiledEntrypoint[InputT, R, ContextT]: ...
    @overload
    def __call__(self, call: Callable[Concatenate[InputT, ...], R]) -> CompiledEntrypoint[InputT, R, ContextT]: ...
    def __call__(self, call: Callable[..., Any]) -> CompiledEntrypoint[Any, Any, Any]:
        name = name_of(self._options, name_of_call(call))
        if is_generator(call):
            raise GeneratorNotSupportedError(f"entrypoint {name!r} is a generator: return a value instead of yielding")
        injects = injections_of(call, after=1)
        check_signature(
            call, object(), what=f"entrypoint {name!r} is called with one argument, the input", injected=injects
        )
        hints = hints_of(call)
        returned = hints.get("return", Any)
        returned, saved = get_args(returned) if get_origin(returned) is entrypoint.final else (returned, returned)
        first = next(iter(inspect.signature(call).parameters))
        validate = validates_input(self._options.get("validate_input"))
        policies = self._policies
        check_on_timeout(call, policies.on_timeout, f"entrypoint {name!r}")
        flavour = policies.flavour(call, blocking=self._options.get("blocking", True))
        policies.check(call, flavour, f"entrypoint {name!r}", injects=injects, abandons=False, decorated=True)
        node = Node(
            name=name,
            triggers=(START,),
            reads=START,
            call=picklable_call(call_with_input, call) if flavour == "process" else call,
            flavour=flavour,
            writes=_result_writes,
            injects=injects,
            abandons=abandons(flavour, policies, False),
            retry=policies.retry,
            timeout=policies.timeout,
            cache=policies.cache,
        )
        program = build_program(
            name=name,
            nodes=[node],
            channels={
                START: EphemeralValue(hints.get(first, Any)),
                END: LastValue(returned),
                PREVIOUS: LastValue(saved),
            },
            keys=(END, PREVIOUS),
            inputs=START,
            outputs=END,
            shown=END,
            # The node consumes START when it finishes. While START holds the input, END holds an earlier run's result,
            # which a run that pauses must not return.
            input_mark=START,
            read_input=_input_reader(hints.get(first, Any), name) if validate else _read_input,
            read_command=_read_command,
        )
        definition = define(
            program,
            self._checkpointer,
            cast("StepOptions", self._options),  # a graph of one node has no options about several nodes
            hints=list(hints.values()),
            stream_channels=END,
            stream_mode="updates",
            read_context=self._read_context,
            context_schema=self._options.get("context_schema"),
            policies=self._policies,
        )
        return CompiledEntrypoint(definition, call)


def _input_reader(hint: Any, name: str) -> Callable[[Any], list[Write]]:
    """Make the function that checks an input against the annotation of the first parameter, without converting it."""
    check = compile_check(hint)
    if check is None:
        return _read_input

    def read(given: Any) -> list[Write]:
        wrong = check(given)
        if wrong is not None:
            path = path_of(wrong.path)
            where = f", at {path!r}," if path else ""
            raise InvalidInputError(f"the input of {name!r}{where} {wrong.reason}", path=path)
        return _read_input(given)

    return read


def _read_input(given: Any) -> list[Write]:
    return [(START, given)]


def _read_command(command: Command) -> list[Write]:
    if command.update is not None or command.goto:
        raise InvalidUpdateError(
            "an entrypoint is one function: there is nowhere to go to and no state to update. Answer its questions "
            "with Command(resume=...), or use aupdate_state to change what it saved"
        )
    return []


def _result_writes(result: Any) -> list[Write]:
    """Convert the function's result to writes of output and saved value, also if they are None: None is a result."""
    if isinstance(result, entrypoint.final):
        return [(END, result.value), (PREVIOUS, result.save)]
    return [(END, result), (PREVIOUS, result)]
