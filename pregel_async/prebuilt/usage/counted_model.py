"""Count what calls of models cost: tokens, and money if the caller has given prices.

Each call counts when it ends, so a call whose node is not run again on a resume counts once, and a retried call counts
each time. The counts go to the budgets of the graph, which are stored, and to its observers.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar, Token
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

from ..._runtime.observing.observer import ModelCalled
from ..._runtime.tasks.context import CURRENT, AttemptContext
from ...adapters.usage import UsageCollector, UsageReport, report_counted, report_of
from ...policies import Budget
from ..models import ChatModel, ModelCall
from .price import Price

INPUT_TOKENS, OUTPUT_TOKENS, COST_USD = "input_tokens", "output_tokens", "cost_usd"


def budgets_of_agent(budgets: Mapping[str, Budget] | None) -> dict[str, Budget]:
    """Return the budgets of an agent: those that were given, and those that models count, without limits.

    Args:
        budgets: budgets by name; None for none.
    """
    # Without these, a call could not set a limit, and the state would not have the amounts.
    return {**{name: Budget() for name in (INPUT_TOKENS, OUTPUT_TOKENS, COST_USD)}, **(budgets or {})}


_NO_PRICES: Final[Mapping[str, Price]] = MappingProxyType({})

_PRICES: Final[ContextVar[Mapping[str, Price]]] = ContextVar("pregel_async.prebuilt.prices", default=_NO_PRICES)
"""The prices of the agent that the running code belongs to."""


class PricesInForce:
    """Prices the models that the body of its `with` calls, also those that a middleware calls.

    Args:
        prices: prices by the name of the model. Prices of `as_model` take precedence.
    """

    __slots__ = ("_prices", "_tokens")

    def __init__(self, prices: Mapping[str, Price]) -> None:
        self._prices = prices
        self._tokens: tuple[Token[Mapping[str, Price]], ...] = ()

    def __enter__(self) -> None:
        if self._prices:
            self._tokens = (_PRICES.set({**_PRICES.get(), **self._prices}),)

    def __exit__(self, *raised: object) -> None:
        for token in self._tokens:
            _PRICES.reset(token)


def uncounted(model: ChatModel) -> ChatModel:
    """Return the model whose calls a `CountedModel` counts; another model as it is."""
    return model.model if isinstance(model, CountedModel) else model


class CountedModel:
    """A model whose calls are counted.

    Args:
        model: the model.
        prices: prices by the name of the model.

    Attributes:
        name, follows_schemas: as in `ChatModel`.
        model, prices: as the arguments.
    """

    def __init__(self, model: ChatModel, prices: Mapping[str, Price]) -> None:
        self.model = model
        self.prices = prices
        self.name = model.name
        self.follows_schemas = model.follows_schemas

    async def answer(self, call: ModelCall) -> Any:
        attempt = CURRENT.get()
        if attempt is None:
            return await self.model.answer(call)
        monotonic = attempt.graph.run.environment.monotonic
        began = monotonic()
        failure: Exception | None = None
        collector = UsageCollector()
        reports = collector.reports
        try:
            with collector:
                answer = await self.model.answer(call)
            found = report_of(answer)
            # A message of a stream, or of a model that a function has called, is reported already.
            if found is not None and not any(map(found.may_be_of_same_message, reports)):
                reports.append(found)
            return answer
        except Exception as error:  # neither a cancellation nor a question is an error of the model
            failure = error
            raise
        finally:
            report_counted(reports)
            # A task or thread that outlives the attempt has no place to count in: its attempt has ended.
            if (reports or attempt.observed.started is not None) and not attempt.ended:
                self._count(attempt, call, collector, failure, monotonic() - began)

    def _count(
        self,
        attempt: AttemptContext,
        call: ModelCall,
        collector: UsageCollector,
        error: Exception | None,
        seconds: float,
    ) -> None:
        """Add the tokens and the cost of a call to the budgets that the graph has, and notify the observers."""
        asked = str(call.settings.get("model") or self.name)
        own = [each for each in collector.reports if not each.is_counted]
        costs = [cost for each in own if (cost := self._cost(each, asked)) is not None]
        amounts: dict[str, int | Decimal] = {
            INPUT_TOKENS: sum(each.usage.input for each in own),
            OUTPUT_TOKENS: sum(each.usage.output for each in own),
            COST_USD: sum(costs, Decimal(0)),
        }
        known, spending = attempt.graph.options.limits.budgets, attempt.graph.run.spending
        for name, amount in amounts.items():
            if amount and spending.has_budget(name, known):
                attempt.spend(name, amount)
        observation, started = attempt.graph.observation, attempt.observed.started
        if started is None or (collector.is_nested and not own):
            return  # a model that only calls another one, which has been reported
        provider = next((each.provider for each in own if each.provider), None)
        observation.report(
            ModelCalled(
                run=started.run,
                attempt=started,
                model=asked,
                response_model=next((each.model for each in own if each.model), None),
                provider=provider or getattr(self.model, "provider", None),
                input_tokens=sum(each.usage.input for each in own) if own else None,
                output_tokens=sum(each.usage.output for each in own) if own else None,
                cache_read_tokens=sum(each.usage.cache_read for each in own),
                cache_write_tokens=sum(each.usage.cache_write for each in own),
                reasoning_tokens=sum(each.usage.reasoning for each in own),
                cost_usd=sum(costs, Decimal(0)) if costs else None,
                error=error,
                seconds=seconds,
            )
        )

    def _cost(self, report: UsageReport, asked: str) -> Decimal | None:
        """Return the cost of one message; None if its model has no price."""
        # The model that has answered first: it is the one that the provider bills. Its name is often longer than the
        # one that was asked for ("gpt-5-2025-08-07"), and then not in the prices.
        for prices in (self.prices, _PRICES.get()):
            for name in (report.model, asked):
                if name is not None and name in prices:
                    return prices[name].cost(report.usage)
        return None
