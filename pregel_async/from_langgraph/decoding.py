"""Decode the values of LangGraph's databases with LangGraph's own serializer, and convert LangGraph's classes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, cast

import msgspec

from ..types import Interrupt, Overwrite, Send
from .stored import EncodedValue, LangGraphCheckpoint, LangGraphNotInstalledError, UndecodableThreadError


class DecodedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of LangGraph's with decoded values.

    Attributes:
        format: the number of LangGraph's format.
        ts: when it was made, in ISO 8601.
        values: the value of each channel that holds one.
        versions: the version of each channel that was ever written.
        seen: node -> channel -> the version that the node has seen.
    """

    format: int
    ts: str
    values: Mapping[str, Any]
    versions: Mapping[str, int]
    seen: Mapping[str, Mapping[str, int]]


class Decoder:
    """Decodes values with LangGraph's serializer.

    Raises:
        LangGraphNotInstalledError: LangGraph is not installed.
    """

    def __init__(self) -> None:
        # Imported by name, and so untyped: type-checking this package must not require LangGraph.
        serde = _required("langgraph.checkpoint.serde.jsonplus")
        self._types = _required("langgraph.types")
        self._unpack = _required("ormsgpack")
        try:
            self._serializer = serde.JsonPlusSerializer(allowed_msgpack_modules=True)
        except TypeError:  # an older version, which allows all classes
            self._serializer = serde.JsonPlusSerializer()
        # It warns of each class of the application. Here they are what is asked for, and missing ones are an error.
        logger = logging.getLogger(serde.__name__)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.ERROR)

    def value(self, encoded: EncodedValue) -> Any:
        """Return a value, with LangGraph's classes converted to those of this package.

        Raises:
            UndecodableThreadError: its class cannot be imported, or LangGraph's serializer fails.
        """
        try:
            if encoded.type == "msgpack":
                self._check_classes(encoded.data)
            return self.converted(self._serializer.loads_typed(tuple(encoded)))
        except UndecodableThreadError:
            raise
        except Exception as error:  # the serializer raises anything: so do classes of the application
            raise UndecodableThreadError(
                f"LangGraph's serializer cannot decode a value ({type(error).__name__}: {error})"
            ) from error

    def converted(self, value: Any) -> Any:
        """Return a value with LangGraph's `Send`, `Overwrite` and `Interrupt` converted, in containers too."""
        types, kind = self._types, type(value)
        if kind is list:
            return [self.converted(each) for each in value]
        if kind is tuple:
            return tuple([self.converted(each) for each in value])
        if kind is dict:
            return {key: self.converted(each) for key, each in value.items()}
        if kind is types.Send:
            return Send(value.node, self.converted(value.arg), timeout=getattr(value, "timeout", None))
        if kind is types.Interrupt:
            return Interrupt(self.converted(value.value), value.id)
        if kind is types.Overwrite:
            return Overwrite(self.converted(value.value))
        return value

    def question_ids(self, namespace: str, count: int) -> list[frozenset[str]]:
        """Return the ids that LangGraph may have given to the first questions of a task, in order.

        Args:
            namespace: the task's checkpoint namespace.
            count: the number of questions.
        """
        # Versions before 1.2 give all questions of a task one id; later ones count them, in a function of their own.
        shared = str(self._types.Interrupt.from_ns(None, namespace).id)
        numbered = getattr(self._types, "_interrupt_id", None)
        return [
            frozenset((shared,) if numbered is None or number == 0 else (shared, str(numbered(namespace, number))))
            for number in range(count)
        ]

    def checkpoint(self, stored: LangGraphCheckpoint) -> DecodedCheckpoint:
        """Decode a checkpoint.

        Raises:
            UndecodableThreadError: a value cannot be decoded, or is only a part of the channel's value.
        """
        fields: Any = stored.document if stored.body is None else self.value(stored.body)
        values = {**(fields.get("channel_values") or {})}
        for channel, blob in stored.blobs.items():
            values[channel] = self.value(blob)
        if stored.metadata.get("counters_since_delta_snapshot"):
            raise UndecodableThreadError(
                "it uses LangGraph's DeltaChannel, which spreads a value over many checkpoints: copy its values with "
                "aupdate_state"
            )
        versions = {channel: _number(version) for channel, version in fields["channel_versions"].items()}
        return DecodedCheckpoint(
            format=int(fields["v"]),
            ts=str(fields["ts"]),
            values={channel: value for channel, value in values.items() if channel in versions},
            versions=versions,
            seen={
                node: {channel: _number(version) for channel, version in seen.items()}
                for node, seen in fields["versions_seen"].items()
            },
        )

    def _check_classes(self, data: bytes) -> None:
        """Raise `UndecodableThreadError` if a class that the data names cannot be imported."""
        # LangGraph logs a warning then, and returns the object's data in its place: nodes would get a dict.
        for module, name in _classes_in(data, self._unpack):
            try:
                getattr(import_module(module), name)
            except (ImportError, AttributeError) as error:
                raise UndecodableThreadError(
                    f"it holds a {module}.{name}, which cannot be imported here ({error}): import where the "
                    "application is installed"
                ) from error


def _classes_in(data: bytes, unpack: Any) -> Iterator[tuple[str, str]]:
    found: dict[tuple[str, str], None] = {}

    def visit(code: int, inner: bytes) -> None:
        if code <= 7:  # 6 is an array, 7 a snapshot of a channel; the others begin with a module and a name
            parts = cast("Callable[..., Any]", unpack.unpackb)(inner, ext_hook=visit, option=unpack.OPT_NON_STR_KEYS)
            if code <= 5:
                found[parts[0], parts[1]] = None

    unpack.unpackb(data, ext_hook=visit, option=unpack.OPT_NON_STR_KEYS)
    yield from found


def _number(version: Any) -> int:
    """Return LangGraph's version of a channel, a text such as "00000003.0.4711" or a number, as a number."""
    return int(version.partition(".")[0]) if isinstance(version, str) else int(version)


def _required(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if missing.partition(".")[0] not in ("langgraph", "ormsgpack"):
            raise  # LangGraph is installed, and one of its own dependencies is missing
        raise LangGraphNotInstalledError(missing) from error
