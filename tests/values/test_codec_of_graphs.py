"""The codec of a graph: the saver's, extended by the runtime's types and by those of the graph's annotations."""

from __future__ import annotations

from typing import TypedDict

from checkpoint_savers import InMemorySaver
from checkpoint_savers.codec import Codec
from pregel_async._api.stored_types import codec_of


class State(TypedDict):
    x: int


def test_a_codec_is_extended_once() -> None:
    """Graphs whose annotations name no types of their own share one codec, also with different savers, so that
    compiling a graph does not extend a codec each time. A saver's own codec stays apart."""
    codec = codec_of(InMemorySaver(), [State])
    assert codec is codec_of(InMemorySaver(), [State])
    own = Codec()
    assert codec_of(InMemorySaver(codec=own), [State]) is codec_of(InMemorySaver(codec=own), []) is not codec
