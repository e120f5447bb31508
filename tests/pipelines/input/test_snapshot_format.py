"""Chunk files: what is in them is found again, or nothing is."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.orchestrator.errors import SnapshotDamaged
from spanwise.pipelines.input.snapshot.format import (
    ChunkHeader,
    blocks_of,
    checksum_of,
    choose_codec,
    file_name,
    header_of,
    pack,
)

TABLE = pa.table({"fare": np.arange(1000.0), "zone": ["a", None] * 500})
HEADER = ChunkHeader(
    fingerprint="f",
    kind="rows",
    split=0,
    first=7,
    elements=1000,
    start={"seed": 1},
    before={"at": 7, "buffer": b"\0\xff"},
    after=None,
)


def packed(codec="none"):
    parts, checksum = pack(HEADER, TABLE.to_batches(max_chunksize=300), TABLE.schema, codec)
    return b"".join(parts), checksum


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd", "gzip", "snappy"])
def test_a_chunk_comes_back_as_it_was(codec):
    """Blocks, schema and header, bytes in a state included."""
    content, checksum = packed(codec)
    buffer = pa.py_buffer(content)

    schema, blocks = blocks_of(buffer)

    assert checksum_of(buffer, "chunk") == checksum
    assert header_of(buffer) == HEADER
    assert pa.Table.from_batches(blocks, schema).equals(TABLE)


def test_any_arrow_tool_opens_a_chunk():
    """It is an IPC stream; what follows the stream's end disturbs nobody."""
    content, _ = packed("lz4")

    assert pa.ipc.open_stream(content).read_all().equals(TABLE)


def test_blocks_that_are_not_compressed_are_views():
    """Nothing is copied on the way from the disk."""
    buffer = pa.py_buffer(packed()[0])

    _, blocks = blocks_of(buffer)

    fares = blocks[1].column("fare").buffers()[1]
    assert buffer.address <= fares.address < buffer.address + buffer.size


@given(st.data())
def test_no_byte_can_change_unseen(data):
    """Wherever it is: in the blocks, between them, in the header, in the checksum."""
    content = bytearray(CONTENT)
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))

    with pytest.raises(SnapshotDamaged, match="the file"):
        checksum_of(pa.py_buffer(bytes(content)), "the file")


@given(st.data())
def test_no_byte_can_be_missing_unseen(data):
    """A file that was cut short anywhere is no chunk."""
    length = data.draw(st.integers(0, len(CONTENT) - 1))

    with pytest.raises(SnapshotDamaged, match="the file"):
        checksum_of(pa.py_buffer(CONTENT[:length]), "the file")


CONTENT = packed()[0]


def test_the_format_is_what_it_was():
    """A chunk that an older program wrote is read: a change of the format raises its number."""
    content, checksum = packed()

    assert content[-8:] == b"SPANCHK1"
    assert checksum == content[-24:-8].hex()
    assert file_name(0, 3) == "00000003.snapshot"
    assert file_name(2, 3) == "002-00000003.snapshot"


def test_the_codec_follows_from_the_data():
    """What does not shrink is not compressed; behind a network it pays sooner."""
    noise = pa.record_batch({"x": np.random.default_rng(1).random(10_000)})
    counts = pa.record_batch({"x": np.arange(10_000) % 7})
    prices = pa.record_batch({"x": np.random.default_rng(1).integers(0, 1 << 50, 10_000)})

    assert choose_codec([noise], remote=False) == "none"
    assert choose_codec([counts], remote=False) == "lz4"
    assert choose_codec([counts], remote=True) == "zstd"
    assert (choose_codec([prices], remote=False), choose_codec([prices], remote=True)) == ("none", "zstd")
    assert choose_codec([], remote=True) == "none"


@pytest.mark.parametrize("codec", ["gzip", "snappy"])
def test_a_stream_is_compressed_as_a_whole_where_arrow_compresses_no_buffers(codec):
    """It is smaller for it, and each changed byte is found all the same."""
    content, _ = packed(codec)
    plain, _ = packed()

    assert len(content) < len(plain) / 2
    for at in range(0, len(content), 97):
        damaged = bytearray(content)
        damaged[at] ^= 1
        with pytest.raises(SnapshotDamaged):
            checksum_of(pa.py_buffer(damaged), "chunk")
