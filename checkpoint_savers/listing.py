"""Listings, newest first or by id: pages of headers, and what a filter lets through.

A filter is applied here and not in a query: by the one definition that all savers share (SQL and jsonb have other ideas
of numbers and bools, and of NUL), and no text of a filter can ever become text of a query.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from .metadata import metadata_matches
from .records import CheckpointId, Header, ThreadHeader

_Listed = TypeVar("_Listed", Header, ThreadHeader)
_Place = TypeVar("_Place")

SLICE = 1024
"""Rows that a filtered listing looks at in one go. Commits of others come in between."""

Place = tuple[str, str, str]
"""Where a listing of checkpoints stands: checkpoint id, thread id, namespace."""


def place_before(before: CheckpointId | None) -> Place | None:
    """Where a listing begins that shows what is older than a checkpoint."""
    return None if before is None else (str(before), "", "")


def place_of(header: Header) -> Place:
    return str(header.checkpoint_id), header.thread_id, header.ns


async def listed(
    page: Callable[[_Place | None, int], Awaitable[Sequence[_Listed]]],
    place: _Place | None,
    place_of: Callable[[_Listed], _Place],
    limit: int,
    filter: Mapping[str, Any] | None,
) -> tuple[_Listed, ...]:
    """The first headers after a place that a filter lets through.

    Args:
        page: the next so many after a place; fewer when there are no more.
        place: where to begin; None for the beginning.
    """
    found: list[_Listed] = []
    while len(found) < limit:
        size = SLICE if filter else limit - len(found)
        headers = await page(place, size)
        found += [header for header in headers if metadata_matches(header.metadata, filter)]
        if len(headers) < size:
            break
        place = place_of(headers[-1])
    return tuple(found[: max(limit, 0)])
