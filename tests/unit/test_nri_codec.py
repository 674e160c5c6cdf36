"""The bytes of NRI: whatever comes, in whatever pieces, makes frames, and never more memory than one of them takes."""

import random
import struct
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.nri.mux import MAX_PAYLOAD, MAX_WRITE, Demultiplexer, MuxError, frames
from dradriver.nri.ttrpc import MAX_MESSAGE, Code, Frame, FrameReader, Kind, failure, frame, request, success
from dradriver_protos import ttrpc_pb2

CHUNK = 1 << 16
FRAME_LIMIT = MAX_MESSAGE + CHUNK
"""Bytes that one whole frame, and what was just read, take."""


def demultiplexed(pieces: Iterable[bytes]) -> dict[int, bytes]:
    """Return the bytes of each stream."""
    found: dict[int, bytes] = {}
    demultiplexer = Demultiplexer()
    for piece in pieces:
        for stream, part in demultiplexer.feed(piece):
            found[stream] = found.get(stream, b"") + bytes(part)
    return found


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """Return the data in pieces of these sizes, and the rest."""
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


sizes = st.lists(st.integers(0, 30))
payloads = st.binary(max_size=100)


@given(st.lists(st.tuples(st.integers(0, 3), payloads)), sizes)
def test_streams_come_through_in_any_pieces(parts: list[tuple[int, bytes]], sizes: list[int]) -> None:
    sent: dict[int, bytes] = {}
    data = b""
    for stream, payload in parts:
        data += frames(stream, payload)
        if payload:
            sent[stream] = sent.get(stream, b"") + payload
    assert demultiplexed(cut(data, sizes)) == sent


def test_what_is_sent_fits_into_the_other_side_s_buffer() -> None:
    data = bytes(range(256)) * 64
    sent = frames(2, data)
    lengths = []
    rest = sent
    while rest:
        stream, length = struct.unpack(">II", rest[:8])
        assert stream == 2
        lengths.append(length)
        rest = rest[8 + length :]
    assert lengths == [MAX_WRITE] * 4
    assert demultiplexed([sent]) == {2: data}


def test_a_frame_of_the_runtime_may_be_as_long_as_a_message() -> None:
    payload = bytes(MAX_PAYLOAD)
    assert demultiplexed([struct.pack(">II", 1, MAX_PAYLOAD) + payload]) == {1: payload}


def test_a_length_that_no_runtime_sends_ends_the_connection() -> None:
    with pytest.raises(MuxError, match="4194315 bytes"):
        demultiplexed([struct.pack(">II", 1, MAX_PAYLOAD + 1)])


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.sampled_from(Kind), payloads)), sizes)
def test_frames_come_through_in_any_pieces(sent: list[tuple[int, Kind, bytes]], sizes: list[int]) -> None:
    reader = FrameReader()
    data = b"".join(frame(*one) for one in sent)
    found = [got for piece in cut(data, sizes) for got in reader.feed(memoryview(piece))]
    assert [(got.stream, got.kind, got.payload) for got in found] == sent


def test_a_message_that_is_too_long_is_passed_over_and_the_next_one_read() -> None:
    reader = FrameReader()
    header = struct.pack(">IIBB", MAX_MESSAGE + 1, 7, 1, 0)
    found = list(reader.feed(memoryview(header + bytes(MAX_MESSAGE + 1) + frame(9, Kind.REQUEST, b"next"))))
    assert found == [Frame(7, 1, b"", MAX_MESSAGE + 1), Frame(9, 1, b"next")]


def test_a_message_of_ours_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(ValueError, match="at most 4194304"):
        success(1, bytes(MAX_MESSAGE))


@given(st.lists(st.binary(max_size=200)))
def test_any_bytes_are_frames_or_the_end(pieces: list[bytes]) -> None:
    demultiplexer = Demultiplexer()
    readers = [FrameReader() for _ in range(4)]
    try:
        for piece in pieces:
            for stream, part in demultiplexer.feed(piece):
                for got in readers[stream % 4].feed(part):
                    assert len(got.payload) <= MAX_MESSAGE
    except MuxError:
        pass


@given(st.binary(max_size=40), st.integers(0, 2**32 - 1), st.integers(0, 255), st.integers(0, 255))
@settings(max_examples=50)
def test_a_header_of_any_kind_is_a_frame(payload: bytes, stream: int, kind: int, flags: int) -> None:
    reader = FrameReader()
    data = struct.pack(">IIBB", len(payload), stream, kind, flags) + payload
    assert list(reader.feed(memoryview(data))) == [Frame(stream, kind, payload)]


def peak(pieces: Iterable[bytes]) -> int:
    """Return the bytes that decoding takes at most, beside the pieces themselves."""
    demultiplexer, reader = Demultiplexer(), FrameReader()
    tracemalloc.start()
    try:
        for piece in pieces:
            for _, part in demultiplexer.feed(piece):
                for _ in reader.feed(part):
                    pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_length_that_is_announced_takes_no_memory() -> None:
    header = struct.pack(">II", 1, 10) + struct.pack(">IIBB", 0xFFFFFFFF, 1, 1, 0)
    chunk = struct.pack(">II", 1, CHUNK) + bytes(CHUNK)
    assert peak([header, *[chunk] * 256]) < 4 * CHUNK, "16 MiB of a frame of 4 GiB went through"


def test_a_message_takes_memory_as_it_comes_and_no_more_than_its_size() -> None:
    header = struct.pack(">II", 1, 10) + struct.pack(">IIBB", MAX_MESSAGE, 1, 1, 0)
    chunk = struct.pack(">II", 1, CHUNK) + bytes(CHUNK)
    assert peak([header, *[chunk] * 4]) < 8 * CHUNK
    # Growing in steps takes an eighth more, and the whole is copied once.
    assert peak([header, *[chunk] * 64] * 3) < 2.5 * FRAME_LIMIT


def test_random_bytes_take_no_more_memory_than_a_message() -> None:
    source = random.Random(7)

    def pieces() -> Iterable[bytes]:
        for _ in range(300):
            data = source.randbytes(source.randrange(1, 4096))
            # Now and then a header that the multiplexer believes, so that there is something behind it.
            yield struct.pack(">II", source.randrange(4), len(data)) + data

    assert peak(pieces()) < 2.5 * FRAME_LIMIT


def test_a_call_and_its_outcomes_as_bytes() -> None:
    called = request(1, "s", "m", b"p", 2.0)
    assert called[:10] == struct.pack(">IIBB", len(called) - 10, 1, 1, 0)
    assert called[10:] == b"\x0a\x01s\x12\x01m\x1a\x01p\x20\x80\xa8\xd6\xb9\x07"
    assert success(3, b"p") == struct.pack(">IIBB", 3, 3, 2, 0) + b"\x12\x01p"
    assert (
        failure(5, Code.UNIMPLEMENTED, "no")
        == struct.pack(">IIBB", 8, 5, 2, 0) + b"\x0a\x06\x08\x0c\x12\x02no"
    )


def test_a_failure_may_have_any_text() -> None:
    status = ttrpc_pb2.Response.FromString(failure(1, Code.INTERNAL, "\ud800" + "x" * 5000)[10:]).status
    assert status.message.startswith("\\ud800xxx")
    assert len(status.message) < 1100
