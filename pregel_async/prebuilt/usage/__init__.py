"""What calls of models cost: tokens, and money by prices that the caller gives."""

from __future__ import annotations

from .counted_model import CountedModel, PricesInForce, budgets_of_agent, uncounted
from .price import Price, check_prices

__all__ = ["CountedModel", "Price", "PricesInForce", "budgets_of_agent", "check_prices", "uncounted"]
