"""Chunk files: how consecutive elements are stored in a file, and how every changed byte is detected.

A chunk is an Arrow IPC stream, which any Arrow tool opens, followed by our metadata:

    IPC stream | JSON | length of the JSON, 8 bytes | checksum of all before it, 16 bytes | magic, 8 bytes

LZ4 and ZSTD compress the buffers in the stream, as Arrow does; GZIP and SNAPPY, which Arrow does not have there, the
stream as a whole.

A chunk is built in memory and written at once, and verified as a whole before anything of it is used.
"""

from __future__ import annotations

import io
import struct
import zlib
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
_CHECKSUM_BYTES: Final = 24  # with magic: what follows the bytes that the checksum covers

Codec: TypeAlias = Literal["none", "lz4", "zstd", "gzip", "snappy"]

_GZIP: Final = b"\x1f\x8b"
_SNAPPY: Final = struct.Struct("<8sQ")  # before a compressed stream: a mark, and its size without compression
_SNAPPY_MARK: Final = b"sNaPpY\0\0"
_GZIP_WINDOW: Final = 31  # the gzip format
_GZIP_LEVEL: Final = 1  # higher ones take times as long to save a twentieth

_WORTH_LZ4: Final = 0.75
_WORTH_ZSTD: Final = 0.9


def choose_codec(blocks: Sequence[pa.RecordBatch], *, remote: bool) -> Codec:
    """The codec for elements like these, chosen by compressing a sample.

    On a local disk the page cache serves uncompressed data two to three times as fast as LZ4 decompresses it, so LZ4
    must save a quarter of the space. Over a network bytes are expensive: ZSTD, if it saves a tenth.
    """
    sample = [block.slice(0, 16_384) for block in blocks[:4]]
    if not sample:
        return "none"
    codec: Codec = "zstd" if remote else "lz4"
    plain, packed = (sum(map(len, _stream(sample[0].schema, sample, each))) for each in ("none", codec))
    return codec if packed <= plain * (_WORTH_ZSTD if remote else _WORTH_LZ4) else "none"


@dataclass(frozen=True, kw_only=True)
class ChunkHeader:
    """The metadata of a chunk file."""

    fingerprint: str  #: of the graph whose elements these are
    kind: str  #: their encoding, as in `encoding`
    split: int
    first: int  #: how many elements of the split are before it
    elements: int
    start: State | None  #: of the input before the very first element; None if the writing cannot be resumed
    before: State | None  #: the state of the input before the first of these
    after: State | None  #: and behind the last
    layout: str = ""  #: what `encoding` needs to decode the blocks


def file_name(split: int, number: int, mark: str = "") -> str:
    """The name of a chunk of a split. A single split numbers its files as the RFC does; several count for themselves.

    A mark makes the name unique to one writer of the split.
    """
    if mark:
        return f"{split:03}-{number:08}-{mark}{SUFFIX}"
    return f"{number:08}{SUFFIX}" if split == 0 else f"{split:03}-{number:08}{SUFFIX}"


def pack(
    header: ChunkHeader, blocks: Sequence[pa.RecordBatch], schema: pa.Schema, codec: Codec
) -> tuple[list[Any], str]:
    """The parts of a chunk file, in order, and its checksum. Uncompressed buffers are not copied."""
    import xxhash

    parts = _stream(schema, blocks, codec)
    text = plain_json(header.__dict__).encode()
    parts += [text, len(text).to_bytes(8, "little")]
    state = xxhash.xxh3_128()
    for part in parts:
        state.update(part)
    return [*parts, state.digest(), _MAGIC], state.hexdigest()


def _stream(schema: pa.Schema, blocks: Sequence[pa.RecordBatch], codec: Codec) -> list[Any]:
    """An IPC stream in parts: bytes, and the blocks' own buffers."""
    import pyarrow as pa

    if codec == "gzip" or codec == "snappy":  # noqa: PLR1714  so that mypy knows the others
        return _compress(_stream(schema, blocks, "none"), codec)
    sink = _PartsSink()
    options = pa.ipc.IpcWriteOptions(compression=None if codec == "none" else codec)
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), schema, options=options) as writer:
        for block in blocks:
            writer.write_batch(block)
    return sink.parts


def _compress(parts: Sequence[Any], codec: Codec) -> list[Any]:
    """A whole stream in a compression that Arrow does not have for its buffers."""
    import pyarrow as pa

    if codec == "gzip":
        packer = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_WINDOW)
        return [*map(packer.compress, parts), packer.flush()]
    whole = b"".join(parts)
    return [_SNAPPY.pack(_SNAPPY_MARK, len(whole)), pa.Codec("snappy").compress(whole, asbytes=True)]


def _decompressed(content: pa.Buffer) -> pa.Buffer:
    """The IPC stream of a chunk; the content itself if only its buffers are compressed, or nothing is."""
    import pyarrow as pa

    view = memoryview(content)
    length, _, _ = _END.unpack(view[-_END.size :])
    stream = view[: len(view) - _END.size - length]
    if bytes(stream[:2]) == _GZIP:
        return pa.py_buffer(zlib.decompress(stream, wbits=_GZIP_WINDOW))
    if bytes(stream[:8]) == _SNAPPY_MARK:
        _, size = _SNAPPY.unpack(stream[: _SNAPPY.size])
        return pa.Codec("snappy").decompress(pa.py_buffer(stream[_SNAPPY.size :]), size)
    return content


class _PartsSink(io.RawIOBase):
    """A file that Arrow writes to, which stores the parts uncopied."""

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
        SnapshotDamaged: it is truncated, or not what was written.
    """
    import xxhash

    view = memoryview(content)
    if len(view) < _END.size or bytes(view[-8:]) != _MAGIC:
        raise SnapshotDamaged(f"{where} is truncated: it does not end like a chunk ({len(view)} bytes).")
    found = xxhash.xxh3_128(view[:-_CHECKSUM_BYTES])
    if found.digest() != bytes(view[-_CHECKSUM_BYTES:-8]):
        raise SnapshotDamaged(f"{where} is not what was written: its checksum differs.")
    return found.hexdigest()


def header_of(content: pa.Buffer) -> ChunkHeader:
    """The metadata of a chunk that `checksum_of` has verified."""
    view = memoryview(content)
    length, _, _ = _END.unpack(view[-_END.size :])
    text = bytes(view[-_END.size - length : -_END.size])
    return ChunkHeader(**read_plain_json(text))


def blocks_of(content: pa.Buffer) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """The blocks of a chunk that `checksum_of` has verified; views, unless they were compressed."""
    import pyarrow as pa

    with pa.ipc.open_stream(pa.BufferReader(_decompressed(content))) as reader:
        return reader.schema, list(reader)
