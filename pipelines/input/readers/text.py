"""Text: files as blocks of whole records, whatever the compression and encoding, with their line numbers."""

from __future__ import annotations

import codecs
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, cast

import pyarrow as pa

from spanwise.orchestrator.errors import ParameterError, UnreadableInput
from spanwise.pipelines.input.files import locate
from spanwise.pipelines.input.readers.descriptor import COMPRESSIONS
from spanwise.pipelines.input.readers.records import count_newlines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spanwise.pipelines.input.readers.descriptor import Descriptor, Dialect

#: A record longer than this is taken for a quote that was never closed.
LONGEST_RECORD_BYTES = 64 << 20

#: What is looked at several times while pieces are cut, so that a core finds it in its cache.
_SCANNED_BYTES = 256 << 10

_FIRST_BYTES = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst", b"BZh": ".bz2", b"\x04\x22\x4d\x18": ".lz4"}


class TextSource(Protocol):
    """What blocks are read from: the decoded bytes of a file."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, or slightly more after transcoding; empty at the end."""


@dataclass(frozen=True, kw_only=True)
class TextBlock:
    """Whole records of one file."""

    data: bytes  #: UTF-8
    start: int  #: the offset of its first byte in the decoded file
    first_line: int  #: the number of its first line, counted from 1


def compression_of(path: str) -> str | None:
    """The compression that a file's name tells."""
    return COMPRESSIONS.get(Path(path).suffix.lower())


def is_plain(path: str, dialect: Dialect) -> bool:
    """Whether a byte of the file is a byte of the text, so that the file can be entered anywhere."""
    return compression_of(path) is None and _is_utf8(dialect)


@contextmanager
def open_text(path: str, dialect: Dialect) -> Iterator[TextSource]:
    """The text of a file as UTF-8.

    Raises:
        UnreadableInput: the file is not there, its compression is damaged, or it is in another encoding.
    """
    try:
        with _open_stream(path) as stream:
            yield stream if _is_utf8(dialect) else TranscodedText(stream, path, dialect)
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, FileNotFoundError):
            raise UnreadableInput(f"{path}: cannot be read, there is no such file.") from error
        if compression_of(path) is not None:
            raise UnreadableInput(
                f"{path}: the {compression_of(path)} compression is damaged or cut short ({error}). "
                "Copy the file again, and check it at its origin."
            ) from error
        raise UnreadableInput(f"{path}: could not be read ({error}).") from error


def size_of(path: str) -> int:
    """The size of a file, or of what is behind a URL."""
    if "://" not in path:
        return Path(path).stat().st_size
    filesystem, name = locate(path)
    return int(filesystem.get_file_info(name).size or 0)


def _open_stream(path: str) -> pa.NativeFile:
    """The bytes of a file or URL, without the compression that its name tells."""
    if "://" not in path:
        return pa.input_stream(path, compression=cast("Literal['gzip', 'zstd']", compression_of(path)))
    filesystem, name = locate(path)
    if compression_of(path) is None:
        return filesystem.open_input_file(name)
    return filesystem.open_input_stream(name, compression=compression_of(path))


def read_blocks(
    descriptor: Descriptor, dialect: Dialect, boundary: Callable[[bytes, bool], int]
) -> Iterator[TextBlock]:
    """The piece of a file as blocks of whole records.

    `boundary(data, final)` says where the last complete record in `data` ends; `data` begins with a record.

    Raises:
        UnreadableInput: also for a record that does not end within `LONGEST_RECORD_BYTES`.
    """
    with open_text(descriptor.path, dialect) as source:
        if is_plain(descriptor.path, dialect):
            source.seek(descriptor.start)  # type: ignore[attr-defined] # a plain file can be entered anywhere
        else:
            skip_bytes(source, descriptor.start)
        start, line, rest = descriptor.start, descriptor.first_line, b""
        left = None if descriptor.stop is None else descriptor.stop - descriptor.start
        while True:
            wanted = max(dialect.block_bytes, len(rest))  # doubling keeps a long record linear
            fresh = source.read(wanted if left is None else min(wanted, left))
            if left is not None:
                left -= len(fresh)
            final = not fresh
            data = rest + fresh
            end = len(data) if final else boundary(data, False)
            if final and data:
                boundary(data, True)
            if end:
                whole = check_utf8(data[:end], descriptor.path, start, line)
                yield TextBlock(data=whole, start=start, first_line=line)
                line += count_newlines(whole)
                start += end
            if final:
                return
            rest = data[end:]
            if len(rest) > LONGEST_RECORD_BYTES:
                raise UnreadableInput(
                    f"{descriptor.path}, line {line}: the record that begins here has not ended after "
                    f"{LONGEST_RECORD_BYTES >> 20} MiB. Most likely a quote is opened and never closed."
                )


def cut_pieces(
    descriptor: Descriptor, dialect: Dialect, boundary: Callable[[bytes, bool], int]
) -> Iterator[tuple[int, int, int]]:
    """Cuts a plain file into even pieces of whole records: start, stop, first line of each.

    The file is read through once, from its start, so each cut is known to lie between two records, also where
    quoted values hold newlines.
    """
    start, line, stop = descriptor.start, descriptor.first_line, descriptor.start
    wanted = dialect.piece_bytes(descriptor.size_bytes)
    for block in read_blocks(descriptor, _scanning(dialect), boundary):
        if stop - start >= wanted:
            yield start, stop, line
            start, line = block.start, block.first_line
        stop = block.start + len(block.data)
    if stop > start:
        yield start, stop, line


def _scanning(dialect: Dialect) -> Dialect:
    return replace(dialect, block_bytes=min(dialect.block_bytes, _SCANNED_BYTES))


def check_utf8(data: bytes, path: str, start: int, line: int) -> bytes:
    """The same bytes, which are valid UTF-8.

    Raises:
        UnreadableInput: they are not; says at which byte.
    """
    if data.isascii():
        return data
    try:
        data.decode()
    except UnicodeDecodeError as error:
        suffix = next((s for first, s in _FIRST_BYTES.items() if start == 0 and data.startswith(first)), None)
        if suffix is not None:
            raise UnreadableInput(
                f"{path} is compressed by {COMPRESSIONS[suffix]}, which its name does not say. Name it "
                f"{path}{suffix}, in the pattern too."
            ) from error
        bad_line = line + count_newlines(data[: error.start])
        guess = "utf-16" if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "latin-1"
        raise UnreadableInput(
            f"{path}, line {bad_line}: byte {start + error.start} "
            f"(0x{data[error.start]:02x}) is not UTF-8. If the file is in another encoding, name it, for example "
            f"dialect=Dialect(encoding='{guess}')."
        ) from error
    return data


class TranscodedText:
    """A stream in another encoding, read as UTF-8."""

    def __init__(self, stream: TextSource, path: str, dialect: Dialect) -> None:
        self._stream = stream
        self._path = path
        self._encoding = dialect.encoding
        try:
            self._decoder = codecs.getincrementaldecoder(dialect.encoding)()
        except LookupError as error:
            raise ParameterError(f"encoding: Python knows none called '{dialect.encoding}'.") from error
        self._taken = 0
        self._rest = b""

    def read(self, size: int, /) -> bytes:
        while len(self._rest) < size:
            raw = self._stream.read(size)
            if not self._taken and raw.startswith(codecs.BOM_UTF8):
                raise UnreadableInput(
                    f"{self._path}: begins with the mark of UTF-8, and its encoding was said to be {self._encoding}. "
                    "Leave encoding= out; or remove the first three bytes, if the rest is no UTF-8."
                )
            try:
                self._rest += self._decoder.decode(raw, final=not raw).encode()
            except UnicodeError as error:
                # a missing mark of the order of bytes has no place of its own
                start, why = (error.start, error.reason) if isinstance(error, UnicodeDecodeError) else (0, error)
                raise UnreadableInput(
                    f"{self._path}: byte {self._taken + start} is not {self._encoding} ({why}). "
                    "Name the encoding of the file: dialect=Dialect(encoding=...)."
                ) from error
            self._taken += len(raw)
            if not raw:
                break
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken


def _is_utf8(dialect: Dialect) -> bool:
    try:
        return codecs.lookup(dialect.encoding).name in ("utf-8", "utf-8-sig", "ascii")
    except LookupError:
        return False


def skip_bytes(source: TextSource, size: int) -> None:
    """Reads to a place in what cannot be entered there."""
    while size > 0:
        taken = source.read(min(size, 1 << 20))
        if not taken:
            return
        size -= len(taken)
