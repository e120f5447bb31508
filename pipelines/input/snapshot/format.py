"""Chunk files: how a run of elements lies in a file, and how it is known that not a byte of it has changed.

A chunk is an Arrow IPC stream, which any Arrow tool opens, and behind the stream's end what we know of it:

    IPC stream | JSON | length of the JSON, 8 bytes | checksum of all before it, 16 bytes | magic, 8 bytes

A chunk is made in memory and written at once, and checked as a whole before anything of it is given out.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from spanwise.orchestrator.errors import SnapshotDamaged
from spanwise.pipelines.input.op import State
from spanwise.pipelines.input.snapshot.plain import plain_json, read_plain_json

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIX: Final = ".snapshot"

_END: Final = struct.Struct("<Q16s8s")
_MAGIC: Final = b"SPANCHK1"
_CHECKSUM_BYTES: Final = 24  # and magic: what stands behind the bytes that the checksum covers

Codec: TypeAlias = Literal["none", "lz4", "zstd"]

_WORTH_LZ4: Final = 0.75
_WORTH_ZSTD: Final = 0.9


def codec_for(blocks: Sequence[pa.RecordBatch], *, remote: bool) -> Codec:
    """The codec for elements like these, found by compressing some of them.

    On a local disk what counts is that the page cache serves what is not compressed two to three times as fast as
    LZ4 unpacks it, so it must save a quarter of the space. Over a network bytes are what is dear: there ZSTD, as soon
    as it saves a tenth.
    """
    sample = [block.slice(0, 16_384) for block in blocks[:4]]
    if not sample:
        return "none"
    codec: Codec = "zstd" if remote else "lz4"
    plain, packed = (sum(map(len, _stream(sample[0].schema, sample, each))) for each in ("none", codec))
    return codec if packed <= plain * (_WORTH_ZSTD if remote else _WORTH_LZ4) else "none"


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a chunk file says of itself."""

    fingerprint: str  #: of the graph whose elements these are
    kind: str  #: how they are encoded, as in `encoding`
    split: int
    first: int  #: how many elements of the split are before it
    elements: int
    start: State | None  #: of the input before the very first element; None if the writing cannot be taken up
    before: State | None  #: where the input stood before the first of these
    after: State | None  #: and behind the last
    layout: str = ""  #: what `encoding` needs to know to make elements of the blocks


def file_name(split: int, number: int, mark: str = "") -> str:
    """Of a split's chunk. One split numbers its files as the RFC does; of several, each has its own numbers.

    A mark makes it a name of one writer's, whoever else writes the split.
    """
    if mark:
        return f"{split:03}-{number:08}-{mark}{SUFFIX}"
    return f"{number:08}{SUFFIX}" if split == 0 else f"{split:03}-{number:08}{SUFFIX}"


def pack(header: Header, blocks: Sequence[pa.RecordBatch], schema: pa.Schema, codec: Codec) -> tuple[list[Any], str]:
    """The parts of a chunk file, in their order, and its checksum. What is not compressed is not copied either."""
    import xxhash

    parts = _stream(schema, blocks, codec)
    words = plain_json(header.__dict__).encode()
    parts += [words, len(words).to_bytes(8, "little")]
    state = xxhash.xxh3_128()
    for part in parts:
        state.update(part)
    return [*parts, state.digest(), _MAGIC], state.hexdigest()


def _stream(schema: pa.Schema, blocks: Sequence[pa.RecordBatch], codec: Codec) -> list[Any]:
    """An IPC stream in parts: bytes, and the blocks' own buffers."""
    import pyarrow as pa

    sink = _Parts()
    options = pa.ipc.IpcWriteOptions(compression=None if codec == "none" else codec)
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), schema, options=options) as writer:
        for block in blocks:
            writer.write_batch(block)
    return sink.parts


class _Parts(io.RawIOBase):
    """A file for Arrow to write to, which keeps what it is given as it is."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self._size = 0

    def write(self, part: Any) -> int:
        self.parts.append(part)
        self._size += len(part)
        return len(part)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size


def checksum_of(content: pa.Buffer, where: str) -> str:
    """The checksum of a chunk file's content.

    Raises:
        SnapshotDamaged: it has no end, or is not what was written.
    """
    import xxhash

    view = memoryview(content)
    if len(view) < _END.size or bytes(view[-8:]) != _MAGIC:
        raise SnapshotDamaged(f"{where} has been cut short: it does not end as a chunk does ({len(view)} bytes).")
    found = xxhash.xxh3_128(view[:-_CHECKSUM_BYTES])
    if found.digest() != bytes(view[-_CHECKSUM_BYTES:-8]):
        raise SnapshotDamaged(f"{where} is not what was written: its checksum is another.")
    return found.hexdigest()


def header_of(content: pa.Buffer) -> Header:
    """What a chunk says of itself, after `checksum_of` has found it whole."""
    view = memoryview(content)
    length, _, _ = _END.unpack(view[-_END.size :])
    words = bytes(view[-_END.size - length : -_END.size])
    return Header(**read_plain_json(words))


def blocks_of(content: pa.Buffer) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """The blocks of a chunk, after `checksum_of` has found it whole. They are views unless they were compressed."""
    import pyarrow as pa

    with pa.ipc.open_stream(pa.BufferReader(content)) as reader:
        return reader.schema, list(reader)
