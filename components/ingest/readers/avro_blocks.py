"""Blocks of Avro files: how long they are, what their checksums say, and the rows in them.

Compression is undone here, so that it needs no more packages and the checksum of snappy is looked at; fastavro decodes.
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, cast

import fastavro
import pyarrow as pa

from spanwise.orchestrator.errors import UnreadableInput

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAGIC = b"Obj\x01"
_MARKER_BYTES = 16
#: The longest block; a longer one is a damaged length.
_LONGEST_BLOCK_BYTES = 2 << 30


@dataclass(frozen=True, kw_only=True)
class AvroHeader:
    """What a file says before its first block."""

    schema: object
    fields: list[dict[str, Any]]
    codec: str
    marker: bytes  #: between blocks
    size: int  #: where the first block begins
    plain: bytes  #: the header of the same file without compression and logical types


def read_header(file: IO[bytes], path: str) -> AvroHeader:
    """What the file says of itself; the file then stands at its first block or before.

    Raises:
        UnreadableInput: it is empty, no Avro, not of records, or compressed in a way that is not known.
    """
    magic = file.read(len(_MAGIC))
    if magic != _MAGIC:
        what = "the file is empty (0 bytes)" if not magic else f"not an Avro file: it begins with {magic!r}"
        raise UnreadableInput(f"{path}: {what}.")
    file.seek(0)
    reader = fastavro.block_reader(file)
    size = file.tell()
    file.seek(size - _MARKER_BYTES)
    marker = file.read(_MARKER_BYTES)
    schema = reader.writer_schema
    if not (isinstance(schema, dict) and schema.get("type") == "record"):
        raise UnreadableInput(f"{path}: its rows are {json.dumps(schema)}, not records with named fields.")
    codec = reader.metadata.get("avro.codec", "null")
    if codec not in _CODECS:
        raise UnreadableInput(
            f"{path}: its blocks are compressed by '{codec}'; what can be read is {', '.join(sorted(_CODECS))}."
        )
    plain = io.BytesIO()
    fastavro.writer(plain, cast("dict[str, Any]", _without_logical_types(schema)), [], sync_marker=marker)
    return AvroHeader(
        schema=schema,
        fields=cast("list[dict[str, Any]]", schema["fields"]),
        codec=codec,
        marker=marker,
        size=size,
        plain=plain.getvalue(),
    )


def _without_logical_types(schema: object) -> object:
    """The schema by which dates, times and UUIDs stay what they are encoded as: Python has not all of them."""
    if isinstance(schema, list):
        return [_without_logical_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key != "logicalType" or value == "decimal"}
    inner = {key: _without_logical_types(kept[key]) for key in ("type", "items", "values") if key in kept}
    fields = [field | {"type": _without_logical_types(field["type"])} for field in kept.get("fields", ())]
    return kept | inner | ({"fields": fields} if "fields" in kept else {})


def block_ends(file: IO[bytes], header: AvroHeader) -> Iterator[tuple[int, int]]:
    """Rows and end of each block; the marker after a block proves that its size is right."""
    size = os.fstat(file.fileno()).st_size
    while (at := file.tell()) < size:
        try:
            rows, length = _read_lengths(file)
            file.seek(length, os.SEEK_CUR)
            _check_marker(file, header)
        except (EOFError, ValueError) as error:
            raise ValueError(f"the block at byte {at} is cut short or damaged: {error}") from error
        yield rows, file.tell()


def read_block(file: IO[bytes], header: AvroHeader) -> list[dict[str, object]]:
    """The rows of the block that begins here.

    Raises:
        EOFError, ValueError: it is cut short or damaged.
    """
    count, length = _read_lengths(file)
    packed = file.read(length)
    if len(packed) != length:
        raise EOFError("it ends early")
    _check_marker(file, header)
    raw = _CODECS[header.codec](packed)
    block = _write_long(count) + _write_long(len(raw)) + raw + header.marker
    rows = next(fastavro.block_reader(io.BytesIO(header.plain + block)))
    found = cast("list[dict[str, object]]", list(rows))
    if cast("Any", rows).bytes_.read(1):
        raise ValueError(f"it has more than {count} rows")
    return found


def _read_lengths(file: IO[bytes]) -> tuple[int, int]:
    """Rows and bytes of the block that begins here."""
    count, length = _read_long(file), _read_long(file)
    if count < 0 or not 0 <= length <= _LONGEST_BLOCK_BYTES:
        raise ValueError("its length is wrong")
    return count, length


def _check_marker(file: IO[bytes], header: AvroHeader) -> None:
    if file.read(_MARKER_BYTES) != header.marker:
        raise ValueError("the marker after it is wrong")


def _read_long(file: IO[bytes]) -> int:
    """A whole number of Avro: seven bits a byte, the lowest first, the sign in the last bit."""
    number = 0
    for place in range(10):
        byte = file.read(1)
        if not byte:
            raise EOFError("it ends early")
        number |= (byte[0] & 0x7F) << (7 * place)
        if byte[0] < 0x80:  # noqa: PLR2004 -- the bit that says that the number goes on
            return (number >> 1) ^ -(number & 1)
    raise ValueError("a number in it does not end")


def _write_long(number: int) -> bytes:
    number <<= 1
    found = bytearray()
    while number > 0x7F:  # noqa: PLR2004 -- seven bits
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _unpack_snappy(packed: bytes) -> bytes:
    """Avro adds a CRC-32 of the content to what snappy makes of it, which begins with the length of the content."""
    body, checksum = packed[:-4], int.from_bytes(packed[-4:], "big")
    size = at = 0
    while True:
        size |= (body[at] & 0x7F) << (7 * at)
        at += 1
        if body[at - 1] < 0x80:  # noqa: PLR2004 -- as above
            break
    if size > _LONGEST_BLOCK_BYTES:
        raise ValueError("its length is wrong")
    raw: bytes = pa.decompress(body, decompressed_size=size, codec="snappy", asbytes=True)
    if zlib.crc32(raw) != checksum:
        raise ValueError("its checksum is wrong")
    return raw


def _unpack_zstandard(packed: bytes) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
        return bytes(stream.read())


_CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": lambda packed: zlib.decompress(packed, -15),
    "bzip2": bz2.decompress,
    "xz": lzma.decompress,
    "snappy": _unpack_snappy,
    "zstandard": _unpack_zstandard,
}
