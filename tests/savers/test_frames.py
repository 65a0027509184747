"""A frame is complete, or reading it raises an error that says what is wrong (P11)."""

from __future__ import annotations

import struct
import zlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint_savers import errors
from checkpoint_savers.codec import seal, unseal
from checkpoint_savers.deltas import TaskResult, read_record, write_record
from checkpoint_savers.records import FORMAT, CheckpointId, TaskId, TaskRecord

BODY = b"\x93\x01\xa5hello\xc0"
FRAME = seal(BODY)


def sealed(number: int, body: bytes, magic: bytes = b"\xc1F") -> bytes:
    """A frame of any format number, with the right length and checksum."""
    start = struct.pack(">2sBQ", magic, number, len(body))
    return start + zlib.crc32(start + body).to_bytes(4, "big") + body


def refused(frame: bytes | memoryview) -> errors.CorruptCheckpointError:
    with pytest.raises(errors.CorruptCheckpointError) as caught:
        unseal(frame, "thread 't'")
    assert type(caught.value) is errors.CorruptCheckpointError
    assert caught.value.where == "thread 't'"
    return caught.value


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_a_frame_gives_its_body_back(body: bytes) -> None:
    assert bytes(unseal(seal(body), "here")) == body


def test_a_frame_may_be_any_view_of_bytes() -> None:
    for view in (memoryview(FRAME), memoryview(bytearray(FRAME)), memoryview(b"x" + FRAME + b"x")[1:-1]):
        assert bytes(unseal(view, "here")) == BODY


def test_the_layout_of_each_format_is_forever() -> None:
    """P11: every later version reads what any version has stored."""
    golden = {1: bytes.fromhex("c146010000000000000009214002609301a568656c6c6fc0")}
    assert sorted(golden) == list(range(1, FORMAT + 1))
    for number, frame in golden.items():
        assert frame == sealed(number, BODY)
        assert bytes(unseal(frame, "here")) == BODY
    assert golden[FORMAT] == FRAME


@pytest.mark.parametrize("body", [b"", BODY, bytes(range(256))], ids=["empty", "short", "long"])
def test_every_single_bit_flip_is_found(body: bytes) -> None:
    frame = seal(body)
    for bit in range(len(frame) * 8):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        refused(bytes(damaged))


def test_every_truncation_is_found() -> None:
    for length in range(len(FRAME)):
        refused(FRAME[:length])
        refused(FRAME[len(FRAME) - length :])


def test_bytes_after_the_end_are_found() -> None:
    assert "announces 9 bytes, and 10 follow" in str(refused(FRAME + b"\0"))
    refused(FRAME + FRAME)


def test_bytes_that_never_were_a_frame() -> None:
    before_the_first_release = [sealed(number, BODY, b"\xc1P") for number in range(1, 6)]
    for foreign in (b"", b"\0" * 100, b"SQLite format 3\0" * 4, b'{"v": 1, "id": "x"}', BODY, sealed(1, BODY, b"PK")):
        refused(foreign)
    for frame in before_the_first_release:
        assert "foreign" in str(refused(frame))
    for no_bytes in ("a text column", 7, None):
        refused(no_bytes)


def test_a_newer_format_is_not_read_and_not_reported_as_damage() -> None:
    for number in (FORMAT + 1, 255):
        with pytest.raises(errors.UnsupportedFormatError, match=f"format {number}.*Upgrade") as caught:
            unseal(sealed(number, b"whatever comes then"), "thread 't'")
        error = caught.value
        assert (error.where, error.found, error.supported) == ("thread 't'", number, FORMAT)


def test_a_format_that_never_was_is_damage() -> None:
    refused(sealed(0, BODY))


def test_a_damaged_format_number_is_damage() -> None:
    """A flipped bit must not make a frame look like one of a later version."""
    for number in set(range(256)) - {FORMAT}:
        refused(FRAME[:2] + bytes((number,)) + FRAME[3:])


def test_a_record_takes_no_byte_for_schemas_that_it_does_not_have() -> None:
    """A record without schemas of answers has the twelve fields that version 0.1.0 wrote; both kinds are read."""
    for result, fields in (
        (TaskResult(name="n", writes=(("a", b"1"),), asked=(("q", b"2"),)), 12),
        (TaskResult(name="n", asked=(("q", b"2"),), schemas={"q": b"3"}), 13),
    ):
        frame = write_record(result)
        assert len(msgspec.msgpack.decode(unseal(frame, "here"))) == fields
        stored = TaskRecord(
            ns="", checkpoint_id=CheckpointId("c"), task_id=TaskId("t"), index=0, kind="result", frame=frame
        )
        assert read_record(stored, "t") == result
