"""TFRecord files of tf.Example: a piece is a run of whole records, each checked by its CRC-32C. Needs no TensorFlow.

A column is a feature. It is a plain value when no record of the span has more than one (then a record with none is a
missing value), and a list otherwise. Integer features are int64, float features float, bytes features text or binary.
A feature list of a tf.SequenceExample is a column of lists, one a step, of lists of values.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

import google_crc32c
import numpy as np
import pyarrow as pa

from spanwise.orchestrator.errors import UnreadableInput
from spanwise.pipelines.input.files import locate
from spanwise.pipelines.input.readers.column import Misfit, element_type, is_single, join, join_all, single, written
from spanwise.pipelines.input.readers.columns import convert, fit, reads_as
from spanwise.pipelines.input.readers.descriptor import Descriptor, Dialect, FileLayout, Format, Rejected
from spanwise.pipelines.input.readers.stored_types import parse_type
from spanwise.pipelines.input.readers.text import size_of, skip_bytes
from spanwise.pipelines.input.readers.tf_example import ExampleFeature, MixedNumbers, Records, read_features

if TYPE_CHECKING:
    from spanwise.pipelines.input.readers.column import Column

_HEAD = Struct("<QI")  # length of the record, its checksum
_FOOT = Struct("<I")  # checksum of the record
_MASK = 0xA282EAD8
#: The longest record; a longer one is damaged with a checksum that happens to be right, or malicious.
LONGEST_RECORD_BYTES = 2 << 30
#: The part of a record that is stored if it is not a tf.Example.
_EXCERPT_BYTES = 512
#: What is decompressed at once.
_CHUNK_BYTES = 1 << 20
#: zlib or gzip, detected by the first bytes.
_ANY_WINDOW = 47


class RecordSource(Protocol):
    """The decompressed bytes of a file."""

    def read(self, size: int, /) -> bytes:
        """Exactly `size` bytes, fewer only at the end."""


@dataclass(frozen=True, kw_only=True)
class RecordBlock:
    """Whole records."""

    records: Records
    first_row: int  #: counted from 1

    def halves(self) -> Iterator[RecordBlock]:
        records, middle = self.records, self.records.count // 2
        for half in (slice(None, middle), slice(middle, None)):
            part = replace(records, starts=records.starts[half], ends=records.ends[half])
            yield RecordBlock(records=part, first_row=self.first_row + (half.start or 0))


class _UnfitNumbers(Exception):
    """Numbers of two kinds, or whole numbers in lists, of which not all fit the type of their column."""

    def __init__(self, column: Column, values: pa.Array[Any] | MixedNumbers) -> None:
        super().__init__(column.name)
        self.column = column
        self.values = values


def describe(path: str, fmt: Format, dialect: Dialect) -> FileLayout:
    """Pieces of about `part_bytes`, found by the lengths of the records; a compressed file is one piece.

    Raises:
        UnreadableInput: the file is empty, cut short or no TFRecord.
    """
    size = _read_size(path)
    if not size:
        raise UnreadableInput(f"{path}: the file is empty (0 bytes).")
    whole = Descriptor(path=path, format=fmt, start=0, stop=None, first_line=1, size_bytes=size)
    pieces = [whole]
    with _open_file(path) as source:
        if isinstance(source, PlainRecords) and size > dialect.part_bytes:
            pieces = [
                Descriptor(path=path, format=fmt, start=begin, stop=end, first_line=row, size_bytes=end - begin)
                for begin, end, row in _cut_pieces(source, size, dialect.piece_bytes(size), path)
            ]
        else:
            _read_length(source.read(_HEAD.size), path, 1, 0)
    return FileLayout(names=(), types=None, descriptors=tuple(pieces))


def infer(
    descriptor: Descriptor, dialect: Dialect, known: frozenset[str], blocks: int | None
) -> dict[str, pa.DataType]:
    """The type of each feature, also of the known ones; a list that never had more than one value is a `single`.

    Records that cannot be parsed are skipped.

    Raises:
        UnreadableInput: the piece is damaged, or a feature is both text and a number.
    """
    del known
    types: dict[str, pa.DataType] = {}
    for number, block in enumerate(_read_blocks(descriptor, dialect)):
        if number == blocks:
            break
        found = {}
        for feature in _check_names(read_features(block.records)[0], descriptor.path):
            found[feature.name] = _infer_type(feature, dialect)
            if {_is_sequence(found[feature.name]), _is_sequence(types.get(feature.name))} >= {True, False}:
                raise _twice_error(descriptor.path, feature.name)
            kinds = {_is_text(found[feature.name]), _is_text(types.get(feature.name, pa.null()))}
            if {True, False} <= kinds or pa.types.is_string(feature.values.type):
                raise _mixed_error(descriptor.path, feature.name)
        types = join_all(types, found)
    return dict(sorted(types.items()))


def read(
    descriptor: Descriptor, dialect: Dialect, columns: Sequence[Column], reject: Callable[[Rejected], None]
) -> Iterator[pa.RecordBatch]:
    """The rows as `columns`. A record with a valid checksum that is not a tf.Example goes to `reject`.

    Raises:
        Misfit: a value does not fit a type that was inferred, or is the previous span's.
        UnreadableInput: the piece is damaged.
    """
    for block in _read_blocks(descriptor, dialect):
        yield from _read_block(block, descriptor, columns, reject)


def _read_block(
    block: RecordBlock, descriptor: Descriptor, columns: Sequence[Column], reject: Callable[[Rejected], None]
) -> Iterator[pa.RecordBatch]:
    """The rows of a block. One with numbers that do not fit is halved, so that only their own records are refused."""
    found, bad = read_features(block.records)
    named = {feature.name: feature for feature in _check_names(found, descriptor.path)}
    if not named.keys() <= {column.name for column in columns}:
        raise Misfit(None)
    rows = block.records.count
    kept = written(columns)
    try:
        arrays = [
            _build_column(named[column.name], rows, column, descriptor, block.first_row)
            if column.name in named
            else pa.array([None] * rows, column.type)
            for column in kept
        ]
    except _UnfitNumbers as error:
        if rows > 1:
            for half in block.halves():
                yield from _read_block(half, descriptor, columns, reject)
            return
        column, shown = error.column, _shown(error.values)
        if column.source != "pinned":
            raise Misfit(column.name, f"{descriptor.path}, row {block.first_row} ({shown})") from None
        reason = f"column '{column.name}': {shown} is no {column.type}"
        text = str({name: _shown(feature.values) for name, feature in named.items()})
        reject(Rejected(path=descriptor.path, line=block.first_row, reason=reason, text=text))
        return
    batch = pa.RecordBatch.from_arrays(arrays, names=[column.name for column in kept])
    start = 0
    for record in (*bad, rows):
        good = batch.slice(start, record - start)
        if good.num_rows:
            yield fit(good, columns, descriptor, block.first_row + start, reject)
        if record < rows:
            reject(_rejected(block, record, descriptor.path))
        start = record + 1


def settle(found: pa.DataType, previous: str | None) -> pa.DataType:
    """The type of a column, from what a survey found and the type of the previous span, as text.

    A list that happens to have one value everywhere in a span, or only whole numbers, or bytes that happen to be text,
    keep their type.
    """
    plain = element_type(found) if is_single(found) else found
    wider = [plain, pa.list_(plain)]
    if _is_text(plain) is False:
        wider += [_in_doubles(plain), pa.list_(_in_doubles(plain))]
    if pa.types.is_string(plain):
        wider += [pa.binary(), pa.list_(pa.binary())]
    if plain == pa.list_(pa.string()):
        wider.append(pa.list_(pa.binary()))
    if plain == pa.list_(pa.list_(pa.string())):
        wider.append(pa.list_(pa.list_(pa.binary())))
    before = None if previous is None else parse_type(previous)
    return next((type_ for type_ in wider if type_ == before), plain)


def _infer_type(feature: ExampleFeature, dialect: Dialect) -> pa.DataType:
    # an empty list says nothing, also where it is of another kind
    values = feature.values
    inner = values.type if len(values) else pa.null()
    if pa.types.is_binary(inner) and dialect.bytes_as_text and _is_utf8(cast("pa.Array[Any]", values)):
        inner = pa.string()
    if feature.steps is not None:
        return pa.list_(pa.list_(inner))
    return single(inner) if feature.at_most_one else pa.list_(inner)


def _check_names(features: Sequence[ExampleFeature], path: str) -> Sequence[ExampleFeature]:
    names = [feature.name for feature in features]
    if len(set(names)) < len(names):
        raise _twice_error(path, next(name for name in names if names.count(name) > 1))
    return features


def _twice_error(path: str, name: str) -> UnreadableInput:
    return UnreadableInput(
        f"{path}: '{name}' is a feature of some records and a feature list of others, or of the same. Rename one."
    )


def _is_sequence(type_: pa.DataType | None) -> bool | None:
    """Whether it is the type of a feature list; None where nothing is known."""
    if type_ is None:
        return None
    return pa.types.is_list(type_) and pa.types.is_list(element_type(type_))


def _leaf(type_: pa.DataType) -> pa.DataType:
    """The type of the values in lists of any depth."""
    while is_single(type_) or pa.types.is_list(type_):
        type_ = element_type(type_)
    return type_


def _in_doubles(type_: pa.DataType) -> pa.DataType:
    """The type with doubles in lists of any depth."""
    return pa.list_(_in_doubles(element_type(type_))) if pa.types.is_list(type_) else pa.float64()


def _is_text(type_: pa.DataType) -> bool | None:
    """Whether values of this type are bytes; None when there are none."""
    inner = _leaf(type_)
    return None if pa.types.is_null(inner) else pa.types.is_string(inner) or pa.types.is_binary(inner)


def _is_utf8(values: pa.Array[Any]) -> bool:
    try:
        values.view(pa.string()).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _mixed_error(path: str, name: str) -> UnreadableInput:
    return UnreadableInput(
        f"{path}: the feature '{name}' has numbers in some records and bytes in others. "
        "Correct the program that writes it."
    )


def _shown(values: pa.Array[Any] | MixedNumbers) -> str:
    """The values of a record, as an error shows them."""
    if isinstance(values, MixedNumbers):
        return f"[{', '.join(map(str, values.join(lambda part: part.cast(pa.string())).to_pylist()))}]"
    return str(values.to_pylist())


def _rejected(block: RecordBlock, record: int, path: str) -> Rejected:
    raw = block.records.data[block.records.starts[record] : block.records.ends[record]][:_EXCERPT_BYTES]
    return Rejected(
        path=path, line=block.first_row + record, reason="not a tf.Example", text=f"hexadecimal {raw.tobytes().hex()}"
    )


def _build_column(
    feature: ExampleFeature, rows: int, column: Column, descriptor: Descriptor, first_row: int
) -> pa.Array[Any]:
    """The feature as a column: a list for each record if the column has lists, else a value."""
    nested = pa.types.is_list(column.type)
    if (feature.steps is not None) != _is_sequence(column.type):
        if column.source == "previous":
            where = f"{descriptor.path}, record {first_row + int(feature.rows[0])} or after it"
            raise Misfit(column.name, f"{where} ({'no ' if feature.steps is None else ''}feature list)")
        raise _twice_error(descriptor.path, column.name)
    values = _join_numbers(_convert_values(feature, column, _leaf(column.type), descriptor, first_row), column)
    if feature.steps is not None:
        offsets = np.concatenate(([0], np.cumsum(feature.steps))).astype(np.int32)
        steps: pa.Array[Any] = cast("Any", pa.ListArray).from_arrays(pa.array(offsets), values)
        return _build_lists(feature, steps, rows)
    if nested:
        return _build_lists(feature, values, rows)
    if not feature.at_most_one:
        if column.source == "inferred":
            raise Misfit(column.name)
        many = first_row + int(feature.rows[int(np.argmax(feature.counts > 1))])
        raise Misfit(column.name, f"{descriptor.path}, record {many} (more than one value)")
    filled = feature.rows[feature.counts > 0]
    if len(filled) == rows:
        return values
    places = np.zeros(rows, dtype=np.int64)
    missing = np.ones(rows, dtype=bool)
    places[filled] = np.arange(len(filled))
    missing[filled] = False
    return values.take(cast("pa.Int64Array", pa.array(places, mask=missing)))


def _convert_values(
    feature: ExampleFeature, column: Column, wanted: pa.DataType, descriptor: Descriptor, first_row: int
) -> pa.Array[Any] | MixedNumbers:
    """All values of the feature, as text if text is wanted; refuses values that a conversion would change."""
    values = feature.values
    if not len(values):
        return pa.array([], wanted)
    where = None
    if column.source == "previous":
        where = f"{descriptor.path}, record {first_row + int(feature.rows[0])} or after it"
    if not isinstance(values, MixedNumbers) and pa.types.is_binary(values.type):
        if column.source == "pinned":
            return values.view(pa.string()) if wanted != values.type and _is_utf8(values) else values
        if pa.types.is_string(wanted):
            if not _is_utf8(values):
                raise Misfit(column.name, where and f"{where} (bytes that are not UTF-8)")
            return values.view(pa.string())
    elif column.source == "pinned":
        return values
    if pa.types.is_string(values.type) or (where is None and _is_text(wanted) and _is_text(values.type) is False):
        raise _mixed_error(descriptor.path, column.name)
    fits = join(values.type, wanted) == wanted if where is None else reads_as(values.type, wanted)
    if not fits:
        raise Misfit(column.name, where and f"{where} ({values.type})")
    return values


def _join_numbers(values: pa.Array[Any] | MixedNumbers, column: Column) -> pa.Array[Any]:
    """Whole numbers and floats as one array, each converted from its own kind; in lists both may become double.

    Raises:
        _UnfitNumbers: a number does not fit.
    """
    in_lists, wanted = pa.types.is_list(column.type), replace(column, type=_leaf(column.type))
    to_double = in_lists and pa.types.is_float64(wanted.type)
    try:
        if not isinstance(values, MixedNumbers):
            return convert(values, wanted) if to_double and pa.types.is_integer(values.type) else values
        if to_double or not in_lists:
            return values.join(lambda part: convert(part, wanted))
    except (pa.ArrowException, NotImplementedError):
        pass
    raise _UnfitNumbers(column, values)


def _build_lists(feature: ExampleFeature, values: pa.Array[Any], rows: int) -> pa.Array[Any]:
    counts = np.zeros(rows, dtype=np.int64)
    counts[feature.rows] = feature.counts
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    missing = np.ones(rows, dtype=bool)
    missing[feature.rows] = False
    bits = np.packbits(~missing, bitorder="little").tobytes()
    return pa.Array.from_buffers(
        pa.list_(values.type), rows, [pa.py_buffer(bits), pa.py_buffer(offsets.tobytes())], children=[values]
    )


# --- records in a file


def _read_blocks(descriptor: Descriptor, dialect: Dialect) -> Iterator[RecordBlock]:
    """The records of the piece, about `block_bytes` together, each checked."""
    row = descriptor.first_line
    parts: list[bytes] = []
    gathered = 0
    for data, _ in read_records(descriptor.path, descriptor.start, row, descriptor.stop):
        parts.append(data)
        gathered += len(data)
        if gathered >= dialect.block_bytes:
            yield RecordBlock(records=Records.of(parts), first_row=row)
            row, parts, gathered = row + len(parts), [], 0
    if parts:
        yield RecordBlock(records=Records.of(parts), first_row=row)


def read_records(path: str, start: int = 0, row: int = 1, stop: int | None = None) -> Iterator[tuple[bytes, int]]:
    """The records of a file from a byte of the decompressed file on, which is where `row` begins; and their ends.

    Raises:
        UnreadableInput: a record is damaged, or the file is cut short.
    """
    with _open_file(path) as source:
        if isinstance(source, PlainRecords):
            source.seek(start)
        else:
            skip_bytes(source, start)
        at = start
        while stop is None or at < stop:
            head = source.read(_HEAD.size)
            if not head:
                return
            size = _read_length(head, path, row, at)
            body = source.read(size + _FOOT.size)
            if len(body) != size + _FOOT.size:
                raise _cut_short_error(path, row, at)
            data = body[:size]
            if _mask_checksum(data) != _FOOT.unpack_from(body, size)[0]:
                raise UnreadableInput(
                    f"{path}, record {row}, at byte {at}: its checksum is wrong, so its bytes are damaged. "
                    "Copy the file again, and check it at its origin."
                )
            at += _HEAD.size + size + _FOOT.size
            row += 1
            yield data, at


def _cut_pieces(source: RecordSource, size: int, piece_bytes: int, path: str) -> Iterator[tuple[int, int, int]]:
    """Start, end and first record of each piece; only lengths are read."""
    assert isinstance(source, PlainRecords)
    start, first_row, at, row = 0, 1, 0, 1
    while at < size:
        source.seek(at)
        end = at + _HEAD.size + _read_length(source.read(_HEAD.size), path, row, at) + _FOOT.size
        if end > size:
            raise _cut_short_error(path, row, at)
        if at - start >= piece_bytes:
            yield start, at, first_row
            start, first_row = at, row
        at, row = end, row + 1
    yield start, at, first_row


def _read_length(head: bytes, path: str, row: int, at: int) -> int:
    if len(head) != _HEAD.size:
        raise _cut_short_error(path, row, at)
    size, checksum = _HEAD.unpack(head)
    if _mask_checksum(head[:8]) != checksum or size > LONGEST_RECORD_BYTES:
        what = "not a TFRecord file" if row == 1 else f"record {row}, at byte {at}: the checksum of its length is wrong"
        raise UnreadableInput(f"{path}: {what}. Copy the file again, and check it at its origin.")
    return int(size)


def _cut_short_error(path: str, row: int, at: int) -> UnreadableInput:
    return UnreadableInput(
        f"{path}: the file ends inside record {row}, which begins at byte {at}. "
        "Was it copied while still being written? Copy it again."
    )


def _mask_checksum(data: bytes) -> int:
    crc = int(google_crc32c.value(data))
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


class PlainRecords:
    """An uncompressed file, which can be read from any record on."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int, /) -> bytes:
        return self._file.read(size)

    def seek(self, at: int) -> None:
        self._file.seek(at)


class CompressedRecords:
    """The content of a gzip or zlib file, or of several that were concatenated."""

    def __init__(self, file: IO[bytes], path: str) -> None:
        self._file = file
        self._path = path
        self._inflate = zlib.decompressobj(_ANY_WINDOW)
        self._rest = b""
        self._at = 0
        self._begun = False

    def read(self, size: int, /) -> bytes:
        found = [self._rest[self._at : self._at + size]]
        self._at += len(found[0])
        have = len(found[0])
        while have < size and (more := self._inflate_more()):
            found.append(more[: size - have])
            self._rest, self._at = more, len(found[-1])
            have += len(found[-1])
        return b"".join(found)

    def _inflate_more(self) -> bytes:
        """The next bytes; empty at the end."""
        while True:
            raw = self._inflate.unconsumed_tail or self._inflate.unused_data or self._file.read(_CHUNK_BYTES)
            if self._inflate.eof and raw:
                self._inflate = zlib.decompressobj(_ANY_WINDOW)
                self._begun = False
            if not raw:
                if self._begun and not self._inflate.eof:
                    raise UnreadableInput(
                        f"{self._path}: the compression is cut short. Was it copied while still being written? "
                        "Copy it again."
                    )
                return b""
            self._begun = True
            if more := self._inflate.decompress(raw, 4 * _CHUNK_BYTES):
                return more


def _read_size(path: str) -> int:
    try:
        return size_of(path)
    except OSError as error:
        raise UnreadableInput(f"{path}: could not be read ({error.strerror or error}).") from error


def _open_bytes(path: str) -> IO[bytes]:
    """A file, or what is behind a URL."""
    if "://" not in path:
        return Path(path).open("rb")
    filesystem, name = locate(path)
    return cast("IO[bytes]", filesystem.open_input_file(name))


@contextmanager
def _open_file(path: str) -> Iterator[RecordSource]:
    """The records of a file. Its first bytes, not its name, say whether it is compressed."""
    try:
        with _open_bytes(path) as file:
            head = file.read(_HEAD.size)
            file.seek(0)
            plain = len(head) == _HEAD.size and _mask_checksum(head[:8]) == _HEAD.unpack(head)[1]
            zipped = head[:2] == b"\x1f\x8b" or (head[:1] == b"\x78" and int.from_bytes(head[:2], "big") % 31 == 0)
            yield CompressedRecords(file, path) if zipped and not plain else PlainRecords(file)
    except OSError as error:
        raise UnreadableInput(f"{path}: could not be read ({error.strerror or error}).") from error
    except zlib.error as error:
        raise UnreadableInput(
            f"{path}: the compression is damaged ({error}). Copy the file again, and check it at its origin."
        ) from error
