"""What a caller asks to be shown, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeAlias, TypedDict, cast, get_args

from .._runtime.observing.observer import Observer
from .._runtime.streaming.modes import MODES
from .._runtime.tasks.control import RunControl
from ..errors import ConfigError
from ..policies import Budget, OnFailure
from ..types import All, Durability, Names, OnConflict, OverflowPolicy, StreamMode

Modes: TypeAlias = StreamMode | Sequence[StreamMode]
"""One mode, or several."""

ChunkModes: TypeAlias = (
    Literal["updates", "messages", "custom", "tasks", "checkpoints", "debug"]
    | list[StreamMode]
    | tuple[StreamMode, ...]
)
"""What makes `ainvoke` return chunks, and not the output."""

Overflow: TypeAlias = OverflowPolicy | Mapping[StreamMode, OverflowPolicy]
"""One policy for all modes, or one by mode; the others block."""


class CallOptions(TypedDict, total=False):
    """What every overload of `ainvoke` and `invoke` takes besides; explained there."""

    context: Any
    output_keys: Names | None
    interrupt_before: All | Sequence[str] | None
    interrupt_after: All | Sequence[str] | None
    durability: Durability | None
    on_conflict: OnConflict
    on_failure: OnFailure | None
    budgets: Mapping[str, Budget] | None
    time_limit: float | timedelta | None
    control: RunControl | None
    observer: Observer | Sequence[Observer] | None


class StreamOptions(CallOptions, total=False):
    """What every overload of `astream` and `stream` takes besides; explained there."""

    stream_mode: Modes | None
    subgraphs: bool
    capacity: int
    overflow: Overflow
    keep_events: bool
    after: str | None


def names_of_modes(modes: Modes) -> tuple[str, ...]:
    """The modes' names. Raises `ConfigError`."""
    given: object = modes
    names: tuple[Any, ...] = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else ()
    for name in names:
        if not isinstance(name, str) or name not in MODES:
            raise ConfigError(f"stream_mode {name!r} is not known; known are {', '.join(sorted(MODES))}")
    if not names or len(set(names)) < len(names):
        raise ConfigError("stream_mode names each mode once, and at least one")
    return names


def policies_of(overflow: Overflow, modes: Sequence[str]) -> dict[str, OverflowPolicy]:
    """The policy of each mode that does not block. Raises `ConfigError`."""
    if overflow == "block":
        return {}
    known = get_args(OverflowPolicy)
    if isinstance(overflow, str):
        by_mode: Mapping[Any, Any] = dict.fromkeys(modes, overflow)
    elif isinstance(cast("object", overflow), Mapping):
        by_mode = overflow
    else:
        raise ConfigError(f"overflow is a policy, or a policy by mode, not {overflow!r}")
    for mode, policy in by_mode.items():
        if policy not in known:
            raise ConfigError(f"overflow {policy!r} is not known; known are {', '.join(known)}")
        if mode not in modes:
            raise ConfigError(f"overflow names mode {mode!r}, and stream_mode asks for {', '.join(modes)}")
    return {mode: policy for mode, policy in by_mode.items() if policy != "block"}


def check_observer(observer: object, error: type[Exception] = ConfigError) -> tuple[Observer, ...]:
    """One observer, several, or none. Raises `error`."""
    if observer is None:
        return ()
    if isinstance(observer, Observer):
        return (observer,)
    if isinstance(observer, (list, tuple)):
        return tuple(each for one in cast("Sequence[object]", observer) for each in check_observer(one, error))
    what = f"the class {observer.__name__}: make one" if isinstance(observer, type) else f"a {type(observer).__name__}"
    raise error(f"an observer is a subclass's instance of pregel_async.observing.Observer, not {what}")


def check_capacity(capacity: int) -> int:
    """Raises `ConfigError`."""
    if not isinstance(cast("object", capacity), int) or isinstance(capacity, bool) or capacity < 1:
        raise ConfigError(f"capacity is how many chunks may wait for the reader, at least 1, not {capacity!r}")
    return capacity


def check_version(version: str) -> None:
    """Raises `ConfigError`."""
    if version not in ("v1", "v2"):
        raise ConfigError(f"version is 'v1' or 'v2', not {version!r}")
