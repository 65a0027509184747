"""Failures as a client is told them: a status, a name, and a sentence from which nothing leaks.

What a client can act on is told in the error's own words. Of all else (a node's exception, a storage's) it gets the
name of the class; the words, and where it happened, are for the service's log.
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
    """A request that is not served.

    Attributes:
        status: of HTTP.
        error: what a program tells it by.
        message: what a person is told.
        headers: of the response.
    """

    def __init__(self, status: int, error: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        self.status = status
        self.error = error
        self.message = message
        self.headers = {} if headers is None else dict(headers)
        super().__init__(message)


class FailureReport(msgspec.Struct, frozen=True):
    """What a client is told of a failure."""

    status: int
    error: str
    message: str
    headers: dict[str, str] = {}
    is_expected: bool = True
    """The client can act on it; else it is the service's own affair, and goes to its log."""


_PUBLIC_MESSAGES: tuple[tuple[type[Exception], int], ...] = (
    (InvalidInputError, 422),
    (ConfigError, 422),
    (InvalidResumeError, 422),
    (EmptyInputError, 422),
    (CheckpointNotFoundError, 404),
    (SubgraphNotFoundError, 404),
    (InvalidCursorError, 410),
    (GraphRecursionError, 500),
    (GraphDrained, 503),
)
"""Errors that are told in their own words, which name nothing but what the client gave and the graph's nodes."""

_REPLACED_MESSAGES: tuple[tuple[type[Exception], int, str], ...] = (
    (ThreadBusyError, 409, "the thread is in use by another run: wait for its end, or come back to it"),
    (GraphChangedError, 409, "the thread was stored by another version of this service: start a new one"),
    (StoredTypeChangedError, 409, "the thread was stored by another version of this service: start a new one"),
    (RunCancelledError, 409, "the run was cancelled"),
    (BudgetExceededError, 500, "the run has spent what it may, and has stopped; it is stored"),
    (StorageError, 503, "what keeps the threads does not answer: try again soon"),
    (PermissionError, 403, "this is not for you"),
)
"""Errors whose own words say too much: hosts, processes, paths."""

_PUBLIC_CLASSES = {f"{kind.__module__}.{kind.__qualname__}" for kind, _ in _PUBLIC_MESSAGES}
"""As a recorded failure names them: where a class comes from counts. A user's may have the name of one of ours."""

HIDDEN_MESSAGE = "the run has failed; the service's log says why"


def describe_failure(error: BaseException, *, expose_errors: bool = False) -> FailureReport:
    """What a client is told of an exception.

    Args:
        expose: tell the words of every error.
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
            return FailureReport(status, name, str(error) if expose_errors else message, headers, status != 503)
    return FailureReport(500, name, _message_of(error) if expose_errors else HIDDEN_MESSAGE, {}, False)


def failure_class_name(failure: str) -> str:
    """The class of a failure that is there as text, `module.Class: words`."""
    return failure.partition(":")[0].rpartition(".")[2]


def failure_response(
    error: BaseException, *, expose_errors: bool = False, is_logged: bool = False, **extra: Any
) -> Response:
    """The response to a request that could not be served; what is not the client's affair is logged.

    Args:
        is_logged: the failure is a run's, and was logged when the run ended.
        more: entries of the document beside `error` and `message`.
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
    try:
        return HTTPStatus(status).phrase.title().replace(" ", "")
    except ValueError:
        return "Refused"


def _message_of(error: BaseException) -> str:
    try:
        return str(error).encode("utf-8", "backslashreplace").decode()
    except Exception:  # a class of the user's that cannot be printed
        return HIDDEN_MESSAGE
