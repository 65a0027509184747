"""Read the input of a call: a graph's input, or a command that answers and edits. Checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..._core.ownership import NO_CLASSES, REGISTERED, own
from ..._core.program import Program, Write
from ...errors import EmptyInputError, InvalidInputError, InvalidResumeError, UnknownInterruptError
from ...types import Command
from ..persistence.namespace_writer import NamespaceWriter


# `gc=False`: every waiting run holds one, which Python's collector would visit again and again.
class CallInput(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The input of a call.

    Attributes:
        is_input: it is a graph's input, which discards pending tasks.
        is_command: it is a command.
        writes: the writes of the graph's input, or of the command's `update` and `goto`.
        answers: the command has an answer.
        resume: the answer: the command's `resume`.
    """

    is_input: bool = False
    is_command: bool = False
    writes: list[Write] = []
    answers: bool = False
    resume: Any = None

    def require_input(self, program: Program, thread_id: str | None) -> None:
        """Check that a run can start although nothing is stored.

        Args:
            program: the graph.
            thread_id: the thread; None for a run without a thread.

        Raises:
            InvalidResumeError: the call has an answer.
            EmptyInputError: the call has neither input nor an update.
        """
        where = "" if thread_id is None else f" of thread {thread_id!r}"
        if self.answers:
            raise InvalidResumeError(
                f"graph {program.name!r} was given an answer, and nothing is stored{where} that asked: compile it with "
                "a checkpointer, and pass the thread_id of the run that asked",
                thread_id=thread_id,
            )
        if not self.is_input and not self.writes:
            raise EmptyInputError(
                f"no input for graph {program.name!r}, and nothing is stored{where} to continue from: pass an input"
            )


NO_INPUT = CallInput()
"""The input of a call that continues from the stored state."""


def read_call_input(program: Program, value: Any, registered: frozenset[type] = NO_CLASSES) -> CallInput:
    """Read and copy the input of a call.

    Args:
        program: the graph.
        value: what the caller passed: an input, a `Command`, or None.
        registered: subclasses of plain scalars that stay as they are.

    Raises:
        InvalidInputError: the input does not fit the graph, or the command is for another graph.
        EmptyInputError: the command is empty.
    """
    # Setting the context variable costs each call, and few graphs have such classes.
    if not registered:
        return _read_call_input(program, value)
    token = REGISTERED.set(registered)
    try:
        return _read_call_input(program, value)
    finally:
        REGISTERED.reset(token)


def _read_call_input(program: Program, value: Any) -> CallInput:
    if value is None:
        return NO_INPUT
    if not isinstance(value, Command):
        writes = [(name, own(item)) for name, item in program.read_input(value)]
        return CallInput(is_input=True, writes=writes)
    if value.graph is not None:
        raise InvalidInputError(
            f"a command for graph {value.graph!r} was given as input: leave out graph=, it is for the graph called"
        )
    edits = [(name, own(item)) for name, item in program.check_update(program.read_command(value))]
    if value.resume is None and not edits:
        raise EmptyInputError(
            f"the command given to graph {program.name!r} is empty: it has no resume=, update= or goto="
        )
    return CallInput(is_command=True, writes=edits, answers=value.resume is not None, resume=value.resume)


_DIGITS = frozenset("0123456789abcdefABCDEF")


def _is_id(key: object) -> bool:
    return isinstance(key, str) and len(key) == 32 and _DIGITS.issuperset(key)


def answers_to(resume: Any, namespace: NamespaceWriter) -> dict[str, Any]:
    """Match a command's answers with the open questions.

    Args:
        resume: one answer, or a mapping of question ids to answers.
        namespace: the loaded thread.

    Returns:
        The answers by question id; empty for one answer at a breakpoint, which only lets the run continue.

    Raises:
        InvalidResumeError: an answer fits no open question, or one answer could be for several.
    """
    # A mapping is taken for answers by id only if all of its keys look like ids: a single answer may be a mapping, too.
    thread_id, ids = namespace.thread_id, tuple(question.id for question in namespace.questions())
    retired = namespace.task_records.retired_questions()
    if isinstance(resume, Mapping) and resume and all(map(_is_id, resume)):
        for key in resume:
            if key not in ids:
                why = (
                    _retired(retired[key])
                    if key in retired
                    else "it was answered already, or never asked on this branch"
                )
                raise UnknownInterruptError(
                    f"thread {thread_id!r} has no open question {key!r}: {why}. Open are: {', '.join(ids) or 'none'}",
                    reason="not_pending",
                    interrupt_ids=[each for each in resume if each not in ids],
                    pending_ids=ids,
                    thread_id=thread_id,
                )
        return {key: own(value) for key, value in resume.items()}
    if len(ids) == 1:
        return {ids[0]: own(resume)}
    for node in retired.values() if not ids else ():
        raise UnknownInterruptError(
            f"thread {thread_id!r} was given an answer, and no question is open: {_retired(node)}",
            reason="not_pending",
            thread_id=thread_id,
        )
    if not ids and namespace.is_untouched():
        return {}
    if not ids:
        raise InvalidResumeError(
            f"thread {thread_id!r} was given an answer, and no question is open: it was answered already, or the "
            "thread never asked. Call with input None to continue",
            thread_id=thread_id,
        )
    raise UnknownInterruptError(
        f"thread {thread_id!r} was given one answer, and {len(ids)} questions are open: pass "
        f"Command(resume={{id: answer}}) for some or all of {', '.join(ids)}",
        reason="ambiguous",
        pending_ids=ids,
        thread_id=thread_id,
    )


def _retired(node: str) -> str:
    return f"its node {node!r} was retired by compile(retired=). Call with input None to continue without an answer"
