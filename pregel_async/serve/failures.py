"""Map exceptions to what a client may see: a status, a name, and a message that reveals nothing about the service.

Errors that a client can act on keep their own message. Of all others (a node's exception, a storage error) the client
gets the class's name only; message and traceback are written to the service's log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ..errors import (
    BudgetExceededError,
    CheckpointNotFoundError,
    ConfigError,
    EmptyInputError,
    GraphChangedError,
    GraphDrained,
    GraphRecursionError,
    InvalidAnswerError,
    InvalidCursorError,
    InvalidInputError,
    InvalidResumeError,
    RecordedFailureError,
    RunCancelledError,
    StorageError,
    StoredTypeChangedError,
    SubgraphNotFoundError,
    ThreadBusyError,
)

log = logging.getLogger("pregel_async.serve")


class Refusal(Exception):
    """A request is refused.

    Attributes:
        status: the HTTP status.
        error: the error's name, for programs.
        message: the reason, for people.
        headers: additional headers of the response.
    """

    def __init__(self, status: int, error: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        self.status = status
        self.error = error
        self.message = message
        self.headers = {} if headers is None else dict(headers)
        super().__init__(message)


class FailureReport(msgspec.Struct, frozen=True):
    """What a client may see of a failure.

    Attributes:
        status: the HTTP status.
        error: the error's name, for programs.
        message: the reason, for people.
        headers: additional headers of the response.
        is_expected: True if the client can act on the failure. False if it is the service's own: then it must be
            logged.
    """

    status: int
    error: str
    message: str
    headers: dict[str, str] = {}
    is_expected: bool = True


_PUBLIC_MESSAGES: tuple[tuple[type[Exception], int], ...] = (
    (InvalidInputError, 422),
    (ConfigError, 422),
    (InvalidResumeError, 422),
    (InvalidAnswerError, 422),
    (EmptyInputError, 422),
    (CheckpointNotFoundError, 404),
    (SubgraphNotFoundError, 404),
    (InvalidCursorError, 410),
    (GraphRecursionError, 500),
    (GraphDrained, 503),
)
"""Errors whose own messages a client may see, with their status. They name only what the client sent, and nodes."""

_REPLACED_MESSAGES: tuple[tuple[type[Exception], int, str], ...] = (
    (ThreadBusyError, 409, "the thread is in use by another run: wait for its end, or reconnect to it"),
    (GraphChangedError, 409, "the thread was stored by another version of this service: start a new one"),
    (StoredTypeChangedError, 409, "the thread was stored by another version of this service: start a new one"),
    (RunCancelledError, 409, "the run was cancelled"),
    (BudgetExceededError, 500, "the run has spent its budget and has stopped; its state is stored"),
    (StorageError, 503, "the storage of threads does not answer: try again soon"),
    (PermissionError, 403, "access is denied"),
)
"""Errors whose own messages name hosts, processes or paths, with a status and a message to send instead."""

_PUBLIC_CLASSES = {f"{kind.__module__}.{kind.__qualname__}" for kind, _ in _PUBLIC_MESSAGES}
"""The classes of `_PUBLIC_MESSAGES`, as recorded failures name them. With their modules: a class of the user's may have
the same name as one of ours, and its message may say anything."""

HIDDEN_MESSAGE = "the run has failed; the service's log says why"


def describe_failure(error: BaseException, *, expose_errors: bool = False) -> FailureReport:
    """Describe an exception for the client.

    Args:
        error: the exception.
        expose_errors: give every error's own message, also those that may name hosts, paths or data. For development.

    Returns:
        Status, name, message and headers for the client.
    """
    if isinstance(error, Refusal):
        return FailureReport(error.status, error.error, error.message, error.headers)
    if isinstance(error, HTTPException):
        detail: Any = error.detail
        return FailureReport(error.status_code, _reason_name(error.status_code), str(detail), dict(error.headers or {}))
    if isinstance(error, RecordedFailureError):
        message = error.message if expose_errors or error.type in _PUBLIC_CLASSES else HIDDEN_MESSAGE
        return FailureReport(500, error.type.rpartition(".")[2], message)
    name = type(error).__name__
    for kind, status in _PUBLIC_MESSAGES:
        if isinstance(error, kind):
            return FailureReport(status, name, str(error), {"retry-after": "1"} if status == 503 else {})
    for kind, status, message in _REPLACED_MESSAGES:
        if isinstance(error, kind):
            headers = {"retry-after": "1"} if status in (409, 503) else {}
            # 503 here is a storage error, which the client cannot act on beyond trying again: it is logged.
            return FailureReport(status, name, str(error) if expose_errors else message, headers, status != 503)
    return FailureReport(500, name, _message_of(error) if expose_errors else HIDDEN_MESSAGE, {}, False)


def failure_class_name(failure: str) -> str:
    """Return the class name in a failure that is given as text.

    Args:
        failure: `module.Class: message`, or `Class: message`.

    Returns:
        The class's name, without its module.
    """
    return failure.partition(":")[0].rpartition(".")[2]


def failure_response(
    error: BaseException, *, expose_errors: bool = False, is_logged: bool = False, **extra: Any
) -> Response:
    """Make the response to a request that cannot be served, and log the error if it is the service's own.

    Args:
        error: the exception.
        expose_errors: see `describe_failure`.
        is_logged: the exception ended a run, and was logged then.
        extra: entries of the JSON document besides `error` and `message`.

    Returns:
        A JSON response.
    """
    report = describe_failure(error, expose_errors=expose_errors)
    if not report.is_expected and not is_logged:
        log.error("a request could not be served", exc_info=error)
    return Response(
        msgspec.json.encode({"error": report.error, "message": report.message, **extra}),
        report.status,
        headers={**report.headers, "cache-control": "no-store"},
        media_type="application/json",
    )


def _reason_name(status: int) -> str:
    """Return the name of an HTTP status, in the form that `Refusal.error` has: "NotFound"."""
    try:
        return HTTPStatus(status).phrase.title().replace(" ", "")
    except ValueError:
        return "Refused"


def _message_of(error: BaseException) -> str:
    """Return an exception's message as text that can be encoded as UTF-8."""
    try:
        return str(error).encode("utf-8", "backslashreplace").decode()
    except Exception:  # the `__str__` of a user's class may raise
        return HIDDEN_MESSAGE
