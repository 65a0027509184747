"""`ModelRetryMiddleware`, `ToolRetryMiddleware` and `ModelFallbackMiddleware`: call again, or call another model."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeAlias

import anyio

from ...errors import GraphValidationError
from ...policies import RetryOn
from ..any_model import as_model
from ..conversation import make_message, make_tool_message, uses_langchain
from ..tool_call import ToolCallRequest
from ..tool_errors import is_of_the_run
from ..tools import as_tool
from .base import AgentMiddleware, ModelRequest, ModelResponse

__all__ = ["ModelFallbackMiddleware", "ModelRetryMiddleware", "ToolRetryMiddleware"]


AfterRetries: TypeAlias = Literal["continue", "error"] | Callable[[Exception], str]


def default_retry_on(error: Exception) -> bool:
    """Return False for errors that say of themselves that another attempt is useless; True for all others."""
    return getattr(error, "is_retryable", True) is not False


class _RetryMiddleware(AgentMiddleware):
    """The base of both middleware that retry."""

    def __init__(
        self,
        *,
        max_retries: int = 2,
        retry_on: RetryOn = default_retry_on,
        on_failure: AfterRetries = "continue",
        backoff_factor: float = 2.0,
        initial_delay: float = 1.0,
        max_delay: float = 60.0,
        jitter: bool = True,
        wait: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        numbers = {
            "max_retries": max_retries,
            "backoff_factor": backoff_factor,
            "initial_delay": initial_delay,
            "max_delay": max_delay,
        }
        for name, value in numbers.items():
            if value < 0:
                raise GraphValidationError(f"{name} is not negative, and {value} is")
        if not (callable(on_failure) or on_failure in ("continue", "error")):
            raise GraphValidationError(f"on_failure is 'continue', 'error' or a function, not {on_failure!r}")
        self.max_retries = max_retries
        self.retry_on = retry_on
        self.on_failure = on_failure
        self.backoff_factor = backoff_factor
        self.initial_delay = initial_delay
        self.max_delay = max_delay
        self.jitter = jitter
        self._wait = wait

    async def _attempts(self, call: Callable[[], Awaitable[Any]], failed: Callable[[str], Any], what: str) -> Any:
        """Call until a call succeeds, or return what `failed` makes of the last error."""
        attempt = 0
        while True:
            try:
                return await call()
            except Exception as error:
                # Questions and other signals are no Exception, so none of them is retried.
                if is_of_the_run(error) or not self._retries(error):
                    raise
                if attempt == self.max_retries:
                    if self.on_failure == "error":
                        raise
                    return failed(self._text(error, what))
                delay = self._delay(attempt)
            attempt += 1
            if delay > 0:
                await self._wait(delay)

    def _retries(self, error: Exception) -> bool:
        rule = self.retry_on
        if isinstance(rule, type):
            return isinstance(error, rule)
        return rule(error) if callable(rule) else isinstance(error, tuple(rule))

    def _text(self, error: Exception, what: str) -> str:
        if callable(self.on_failure):
            return self.on_failure(error)
        attempts = f"{self.max_retries + 1} attempt{'s' if self.max_retries else ''}"
        return f"{what} failed after {attempts} with {type(error).__name__}: {error}"

    def _delay(self, attempt: int) -> float:
        delay = self.initial_delay
        # Kept below the limit at each step: a power of a large number of attempts overflows.
        for _ in range(attempt if self.backoff_factor else 0):
            delay = min(delay * self.backoff_factor, self.max_delay)
        delay = min(delay, self.max_delay)
        return delay * random.uniform(0.75, 1.25) if self.jitter else delay


class ModelRetryMiddleware(_RetryMiddleware):
    """Call the model again if the call fails.

    Args:
        max_retries: the number of further attempts.
        retry_on: exception classes, or a function that returns True for errors that are retried; by default all that
            do not have `is_retryable = False`. Other errors are raised at once.
        on_failure: "continue" answers with the last error as the model's message, "error" raises it; a function of the
            error returns the text of the message.
        backoff_factor: multiplies the delay after each attempt; 0 for a constant delay.
        initial_delay: seconds before the first retry.
        max_delay: the most seconds between two attempts.
        jitter: True to change each delay at random by up to a quarter.
        wait: waits for a number of seconds.

    Raises:
        GraphValidationError: a number is negative, or `on_failure` is unknown.
    """

    async def awrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], Awaitable[ModelResponse]]
    ) -> Any:
        """Call the model, and again if the call fails.

        Args:
            request: the call.
            handler: calls the model.

        Returns:
            The response, or the message of the last error.
        """

        def failed(text: str) -> Any:
            return make_message("assistant", text, langchain=uses_langchain(request.messages))

        return await self._attempts(lambda: handler(request), failed, "The call of the model")


class ToolRetryMiddleware(_RetryMiddleware):
    """Run a tool again if it fails. A question that the tool asks is no failure.

    Args:
        max_retries: the number of further attempts.
        tools: the tools to retry, or their names; None for all.
        retry_on: exception classes, or a function that returns True for errors that are retried; by default all that
            do not have `is_retryable = False`. Other errors are raised at once.
        on_failure: "continue" answers the call with the last error, "error" raises it; a function of the error returns
            the text of the answer.
        backoff_factor: multiplies the delay after each attempt; 0 for a constant delay.
        initial_delay: seconds before the first retry.
        max_delay: the most seconds between two attempts.
        jitter: True to change each delay at random by up to a quarter.
        wait: waits for a number of seconds.

    Raises:
        GraphValidationError: a number is negative, or `on_failure` is unknown.
        InvalidToolError: one of `tools` cannot be a tool.
    """

    def __init__(
        self,
        *,
        max_retries: int = 2,
        tools: Sequence[Any] | None = None,
        retry_on: RetryOn = default_retry_on,
        on_failure: AfterRetries = "continue",
        backoff_factor: float = 2.0,
        initial_delay: float = 1.0,
        max_delay: float = 60.0,
        jitter: bool = True,
        wait: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        super().__init__(
            max_retries=max_retries,
            retry_on=retry_on,
            on_failure=on_failure,
            backoff_factor=backoff_factor,
            initial_delay=initial_delay,
            max_delay=max_delay,
            jitter=jitter,
            wait=wait,
        )
        self._names = None if tools is None else {_name_of(each) for each in tools}

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """Run the tool, and again if it fails.

        Args:
            request: the call.
            handler: runs the tool.

        Returns:
            The result, or the message of the last error.
        """
        call = request.tool_call
        if self._names is not None and call["name"] not in self._names:
            return await handler(request)

        def failed(text: str) -> Any:
            return make_tool_message(call, text, langchain=False, failed=True)

        return await self._attempts(lambda: handler(request), failed, f"The tool {call['name']!r}")


class ModelFallbackMiddleware(AgentMiddleware):
    """Call other models, in their order, if the call of the agent's model fails.

    Args:
        first_model: anything that `as_model` takes.
        *additional_models: further models.

    Raises:
        InvalidModelError: one of them cannot be a model.
    """

    def __init__(self, first_model: Any, *additional_models: Any) -> None:
        self.models = [as_model(each) for each in (first_model, *additional_models)]

    async def awrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], Awaitable[ModelResponse]]
    ) -> Any:
        """Call the model, and the others if the call fails.

        Args:
            request: the call.
            handler: calls the model.

        Returns:
            The response of the first model that answers.

        Raises:
            Exception: the error of the last model, if none answers.
        """
        for model in (request.model, *self.models[:-1]):
            try:
                return await handler(request.override(model=model))
            except Exception as error:
                if is_of_the_run(error):
                    raise
        return await handler(request.override(model=self.models[-1]))


def _name_of(given: Any) -> str:
    return given if isinstance(given, str) else as_tool(given).name
