"""Prices of models, and the cost of a call."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from decimal import Context, Decimal
from typing import Any, Final

from ...adapters.usage import TokenUsage
from ...errors import GraphValidationError
from ...policies import check_amount

_MILLION: Final = 1_000_000
_EXACT: Final = Context(prec=100)


@dataclasses.dataclass(frozen=True)
class Price:
    """The price of a model, in US dollars per million tokens, as providers' price lists have it.

    Reasoning is output, as all providers bill it.

    Attributes:
        input: the price of input tokens.
        output: the price of output tokens.
        cache_read: the price of input tokens that the provider reads from its cache; None for that of `input`.
        cache_write: the price of input tokens that the provider writes to its cache; None for that of `input`.

    Raises:
        ValueError: a price is negative or not finite.
        TypeError: a price is not a number.
    """

    input: int | float | Decimal
    output: int | float | Decimal
    cache_read: int | float | Decimal | None = None
    cache_write: int | float | Decimal | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            given = getattr(self, field.name)
            if given is not None:
                check_amount(f"the price of {field.name}", _exact(given))

    def cost(self, usage: TokenUsage) -> Decimal:
        """Return the cost of a call in US dollars, exactly.

        Args:
            usage: the tokens of the call.
        """
        cached = usage.cache_read + usage.cache_write
        parts = (
            (self.input, max(usage.input - cached, 0)),
            (self.input if self.cache_read is None else self.cache_read, usage.cache_read),
            (self.input if self.cache_write is None else self.cache_write, usage.cache_write),
            (self.output, usage.output),
        )
        total = Decimal(0)
        for price, tokens in parts:
            total = _EXACT.add(total, _EXACT.multiply(Decimal(_exact(price)), Decimal(tokens)))
        return _EXACT.divide(total, Decimal(_MILLION))


def _exact(price: Any) -> Any:
    """Return a float as the Decimal that it is written as: 0.1 is a tenth."""
    return Decimal(repr(price)) if isinstance(price, float) else price


def check_prices(prices: Any) -> Mapping[str, Price]:
    """Check what was given as prices.

    Args:
        prices: prices by the name of the model; None for none.

    Returns:
        The prices.

    Raises:
        GraphValidationError: they are no such mapping.
    """
    if prices is None:
        return {}
    if not isinstance(prices, Mapping) or not all(
        isinstance(name, str) and isinstance(price, Price) for name, price in prices.items()
    ):
        raise GraphValidationError(f"prices are a mapping of names of models to Price(input, output), not {prices!r}")
    return dict(prices)
