"""The errors of services."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import PregelError


class UnknownGraphError(PregelError, LookupError):
    """A service has no graph of this name. Nothing was stored.

    Attributes:
        name: the name that was asked for.
    """

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        super().__init__(f"the service has no graph {name!r}; it has {', '.join(map(repr, sorted(known)))}")


class ServiceBusyError(PregelError):
    """Too many runs wait for a worker. Nothing was stored.

    Attributes:
        pending: the number of waiting runs, as it was counted.
        retry_after: seconds after which another try makes sense.
    """

    def __init__(self, pending: int, retry_after: float) -> None:
        self.pending = pending
        self.retry_after = retry_after
        super().__init__(
            f"{pending} runs wait for a worker, which is the limit (max_pending=): nothing was stored. Try again in "
            f"{retry_after:g} s, or start more workers"
        )


class ServiceDrainingError(PregelError):
    """This process shuts down and refuses new runs. Nothing was stored: ask another process."""

    def __init__(self) -> None:
        super().__init__("this process shuts down and refuses new runs: nothing was stored. Ask another process")
