"""tf.Example: many serialized records at once become one column of values for each feature, by NumPy alone.

The messages, field numbers in brackets: Example is features [1]; Features is a map, that is entries [1] of key [1]
and value [2]; Feature is one of bytes_list [1], float_list [2], int64_list [3]; each list has value [1], the numbers
packed. A record is read here in the one form that every library writes. One in another form that the wire format allows
(fields in another order, unpacked, in several pieces, or unknown) is read on its own by `tf_example_message`, and so is
a SequenceExample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import pyarrow as pa

from spanwise.pipelines.input.bit_mixing import splitmix64
from spanwise.pipelines.input.readers.tf_example_message import (
    BYTES,
    FLOATS,
    INTS,
    MORE,
    VARINT_BYTES,
    NotAnExample,
    Value,
    parse_example,
    parse_sequences,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bytes = NDArray[np.uint8]
    Flags = NDArray[np.bool_]

_ONE, _TWO = 0x0A, 0x12  # field 1 or 2, of a length that follows
_KINDS: dict[int, pa.DataType] = {BYTES: pa.binary(), FLOATS: pa.float32(), INTS: pa.int64()}
_NUMBERS = {FLOATS, INTS}
_PAD = 16  # bytes after the last record, so that looking ahead needs no check
#: By number: the mask that keeps this many bytes of a word.
_KEEP = np.array([(1 << 8 * count) - 1 for count in range(9)], dtype=np.uint64)
#: Longer values are copied one by one: gathering takes eight bytes of index for each byte.
_LONG_BYTES = 96


@dataclass(frozen=True, kw_only=True)
class Records:
    """Serialized records in one buffer."""

    data: Bytes  #: padded at the end
    starts: Ints
    ends: Ints

    @classmethod
    def of(cls, records: Sequence[bytes]) -> Self:
        """Puts records after one another."""
        ends = np.cumsum([len(record) for record in records], dtype=np.int64)
        starts = np.concatenate(([0], ends[:-1])).astype(np.int64)
        data = np.frombuffer(b"".join((*records, bytes(_PAD))), dtype=np.uint8)
        return cls(data=data, starts=starts, ends=ends)

    @property
    def count(self) -> int:
        return len(self.starts)


@dataclass(frozen=True, kw_only=True)
class MixedNumbers:
    """Values of a feature that has whole numbers in some records and floats in others; not every one is a double."""

    whole: pa.Array[Any]
    floats: pa.Array[Any]
    place: Ints  #: of each value, among the whole numbers and the floats behind them

    @classmethod
    def of(cls, whole: pa.Array[Any], floats: pa.Array[Any], is_whole: Flags) -> Self:
        """Values of which each is the next of its kind."""
        place = np.where(is_whole, np.cumsum(is_whole), len(whole) + np.cumsum(~is_whole)) - 1
        return cls(whole=whole, floats=floats, place=place)

    @property
    def type(self) -> pa.DataType:
        """What they are if they all fit."""
        return pa.float64()

    def __len__(self) -> int:
        return len(self.place)

    def take(self, places: Ints) -> MixedNumbers:
        return replace(self, place=self.place[places])

    def join(self, convert: Callable[[pa.Array[Any]], pa.Array[Any]]) -> pa.Array[Any]:
        """All values as one array; `convert` makes one type of both kinds."""
        return pa.concat_arrays([convert(self.whole), convert(self.floats)]).take(self.place)


@dataclass(frozen=True, kw_only=True)
class ExampleFeature:
    """One feature in those records that have it."""

    name: str
    rows: Ints  #: the records that have it, ascending
    counts: Ints  #: how many values in each, or steps of a feature list
    values: pa.Array[Any] | MixedNumbers  #: of all of them: binary, float or int64
    steps: Ints | None = None  #: of a feature list: how many values in each step

    @property
    def at_most_one(self) -> bool:
        return self.steps is None and bool((self.counts <= 1).all())


def read_features(records: Records) -> tuple[list[ExampleFeature], list[int]]:
    """The features of the records by name, and the records that are not a tf.Example, ascending.

    A feature list is a feature too, and may have the name of one.

    A feature without any value is a feature of nulls. One of int64 and float has `MixedNumbers`; of one of bytes and
    numbers they become text, which no other feature is.
    """
    odd = np.zeros(records.count, dtype=bool)
    entries = _find_entries(records, odd)
    found: dict[str, list[FeatureRun]] = {}
    for name, run in _group_by_name(records.data, entries, odd):
        found.setdefault(name, []).append(run)
    found = {name: [left for run in runs if (left := run.without(odd))] for name, runs in found.items()}
    sequences: dict[str, list[tuple[int, list[Value]]]] = {}
    bad = _read_slowly(records, odd, found, sequences)
    whole = [_join_runs(name, runs) for name, runs in sorted(found.items()) if runs]
    return [*whole, *(_join_steps(name, rows) for name, rows in sorted(sequences.items()))], bad


@dataclass(frozen=True, kw_only=True)
class FeatureEntries:
    """Where the names and the values of features are."""

    row: Ints
    key: Ints  #: where the name begins
    key_size: Ints
    kind: Ints  #: the field of Feature; 0: none
    start: Ints  #: of the list
    end: Ints

    def select(self, which: Flags | Ints) -> FeatureEntries:
        return FeatureEntries(
            row=self.row[which],
            key=self.key[which],
            key_size=self.key_size[which],
            kind=self.kind[which],
            start=self.start[which],
            end=self.end[which],
        )


@dataclass(frozen=True, kw_only=True)
class FeatureRun:
    """Values of one feature and kind."""

    kind: int
    rows: Ints
    counts: Ints
    values: pa.Array[Any]

    def without(self, odd: Flags) -> FeatureRun | None:
        """The run without the odd records; None if nothing is left."""
        drop = odd[self.rows]
        if not drop.any():
            return self
        if drop.all():
            return None
        left = pa.array(np.repeat(~drop, self.counts))
        return FeatureRun(
            kind=self.kind, rows=self.rows[~drop], counts=self.counts[~drop], values=self.values.filter(left)
        )


def _find_entries(records: Records, odd: Flags) -> FeatureEntries:
    """All entries of all maps, for all records at once; marks the records in other forms."""
    data = records.data
    active = np.flatnonzero(records.starts < records.ends)
    at, end = records.starts[active], records.ends[active]
    size, at, right = _read_header(data, at, _ONE)
    right &= at + size == end
    odd[active[~right]] = True
    active, at, end = active[right], at[right], end[right]
    rows, starts, ends = [], [], []
    while active.size:
        going = at < end
        active, at, end = active[going], at[going], end[going]
        size, begin, right = _read_header(data, at, _ONE)
        stop = begin + size
        right &= stop <= end
        odd[active[~right]] = True
        active, end, begin, stop = active[right], end[right], begin[right], stop[right]
        rows.append(active)
        starts.append(begin)
        ends.append(stop)
        at = stop
    none = np.zeros(0, dtype=np.int64)
    return _split_entries(
        data, np.concatenate([none, *rows]), np.concatenate([none, *starts]), np.concatenate([none, *ends]), odd
    )


def _split_entries(data: Bytes, row: Ints, start: Ints, end: Ints, odd: Flags) -> FeatureEntries:
    """Splits entries into names and lists."""
    key_size, key, right = _read_header(data, start, _ONE)
    after = np.minimum(key + key_size, end)
    size, value, tagged = _read_header(data, after, _TWO)
    right &= tagged & (value + size == end)
    value = np.minimum(value, end)
    tag = data[value].astype(np.int64)
    kind = np.where(size > 0, tag >> 3, 0)
    list_size, begin, _ = _read_header(data, value, None)
    right &= (size == 0) | ((tag & 7 == 2) & (kind >= BYTES) & (kind <= INTS) & (begin + list_size == end))  # noqa: PLR2004
    begin = np.where(size > 0, np.minimum(begin, end), end)
    odd[row[~right]] = True
    return FeatureEntries(row=row, key=key, key_size=key_size, kind=kind, start=begin, end=end).select(right)


def _read_header(data: Bytes, at: Ints, tag: int | None) -> tuple[Ints, Ints, Flags]:
    """Size and start of the field at each place, and whether it has this tag and a possible size."""
    right = np.ones(len(at), dtype=bool) if tag is None else data[at] == tag
    first = data[at + 1].astype(np.int64)
    size, begin = first & 0x7F, at + 2
    longer = np.flatnonzero(first & MORE)
    place = 1
    while longer.size:
        byte = data[np.minimum(begin[longer], len(data) - 1)].astype(np.int64)
        size[longer] |= (byte & 0x7F) << (7 * place)
        begin[longer] += 1
        longer = longer[byte & MORE != 0]
        place += 1
        if place > 4:  # noqa: PLR2004 -- 2**35 bytes are more than any record has
            right[longer] = False
            break
    begin = np.minimum(begin, len(data) - _PAD + 1)  # which is behind the last record
    return size, begin, right


# --- by name


def _group_by_name(data: Bytes, entries: FeatureEntries, odd: Flags) -> list[tuple[str, FeatureRun]]:
    if not entries.row.size:
        return []
    names, ids = _read_names(data, entries, odd)
    # by name, then by record: a radix sort, as the numbers are small
    order = np.lexsort((entries.row, ids))
    entries, ids = entries.select(order), ids[order]
    twice = (ids[1:] == ids[:-1]) & (entries.row[1:] == entries.row[:-1])
    odd[entries.row[1:][twice]] = True  # of a repeated key the last counts
    bounds = np.searchsorted(ids, np.arange(len(names) + 1))
    runs = []
    for number, name in enumerate(names):
        mine = entries.select(np.arange(bounds[number], bounds[number + 1]))
        kinds = np.unique(mine.kind).tolist()
        runs += [(name, _read_run(data, mine.select(mine.kind == kind), kind, odd)) for kind in kinds]
    return runs


def _read_names(data: Bytes, entries: FeatureEntries, odd: Flags) -> tuple[list[str], Ints]:
    """The names, and the number of the name of each entry. Names are compared eight bytes at a time."""
    words = np.ndarray(shape=(len(data) - 7,), dtype="<u8", buffer=data.data, strides=(1,))
    mixed = entries.key_size.astype(np.uint64)
    rest = entries.key_size.copy()
    at = entries.key.copy()
    for _ in range(int(-(-entries.key_size.max() // 8))):
        word = words[np.minimum(at, len(words) - 1)]
        keep = np.clip(rest, 0, 8)
        mixed = np.where(keep > 0, splitmix64(mixed ^ (word & _KEEP[keep])), mixed)
        rest, at = rest - 8, at + 8
    _, first, ids = np.unique(mixed, return_index=True, return_inverse=True)
    names = []
    for index in first:
        raw = data[entries.key[index] : entries.key[index] + entries.key_size[index]].tobytes()
        try:
            names.append(raw.decode())
        except UnicodeDecodeError:  # proto3 has no such text: these are no tf.Examples
            names.append("")
            odd[entries.row[ids == len(names) - 1]] = True
    return names, ids.astype(np.int64)


# --- values


def _read_run(data: Bytes, entries: FeatureEntries, kind: int, odd: Flags) -> FeatureRun:
    if kind == 0:
        none = np.zeros(len(entries.row), dtype=np.int64)
        return FeatureRun(kind=kind, rows=entries.row, counts=none, values=pa.array([], pa.null()))
    counts, values = {BYTES: _read_bytes, FLOATS: _read_floats, INTS: _read_ints}[kind](data, entries, odd)
    return FeatureRun(kind=kind, rows=entries.row, counts=counts, values=values)


def _find_packed(data: Bytes, entries: FeatureEntries, odd: Flags) -> tuple[Ints, Ints]:
    """Start and size of the packed numbers of each list."""
    filled = entries.start < entries.end
    size, start, right = _read_header(data, entries.start, _ONE)
    right = ~filled | (right & (start + size == entries.end))
    odd[entries.row[~right]] = True
    good = filled & right
    return np.where(good, start, 0), np.where(good, size, 0)


def _read_floats(data: Bytes, entries: FeatureEntries, odd: Flags) -> tuple[Ints, pa.Array[Any]]:
    start, size = _find_packed(data, entries, odd)
    odd[entries.row[size % 4 != 0]] = True
    counts = size // 4
    floats = np.ndarray(shape=(len(data) - 3,), dtype="<f4", buffer=data.data, strides=(1,))
    return counts, pa.array(floats[_expand_ranges(start, counts, step=4)])


def _read_ints(data: Bytes, entries: FeatureEntries, odd: Flags) -> tuple[Ints, pa.Array[Any]]:
    start, size = _find_packed(data, entries, odd)
    unfinished = (size > 0) & (data[start + size - 1] >= MORE)  # it would run into the next list
    odd[entries.row[unfinished]] = True
    size = np.where(unfinished, 0, size)
    raw = data[_expand_ranges(start, size)]
    last = raw < MORE
    stops = np.cumsum(size)
    done = np.concatenate(([0], np.cumsum(last)))
    counts = done[stops] - done[stops - size]
    ends = np.flatnonzero(last)
    begins = np.concatenate(([0], ends + 1))[: len(ends)]
    lengths = ends - begins + 1
    values = raw[begins].astype(np.uint64) & np.uint64(0x7F)
    which = np.flatnonzero(lengths > 1)
    for place in range(1, VARINT_BYTES):
        values[which] |= (raw[begins[which] + place].astype(np.uint64) & np.uint64(0x7F)) << np.uint64(7 * place)
        which = which[lengths[which] > place + 1]
        if not which.size:
            break
    odd[entries.row[np.searchsorted(stops, begins[which], side="right")]] = True  # longer than a number can be
    return counts, pa.array(values.view(np.int64))


def _read_bytes(data: Bytes, entries: FeatureEntries, odd: Flags) -> tuple[Ints, pa.Array[Any]]:
    counts = np.zeros(len(entries.row), dtype=np.int64)
    active = np.arange(len(entries.row))
    at = entries.start
    owners, starts, sizes = [], [], []
    while True:
        going = at < entries.end[active]
        active, at = active[going], at[going]
        if not active.size:
            break
        size, begin, right = _read_header(data, at, _ONE)
        right &= begin + size <= entries.end[active]
        odd[entries.row[active[~right]]] = True
        active, begin, size = active[right], begin[right], size[right]
        counts[active] += 1
        owners.append(active)
        starts.append(begin)
        sizes.append(size)
        at = begin + size
    none = np.zeros(0, dtype=np.int64)
    owner, start, size = (np.concatenate([none, *each]) for each in (owners, starts, sizes))
    if len(owners) > 1:
        order = np.argsort(owner, kind="stable")
        start, size = start[order], size[order]
    return counts, _gather_bytes(data, start, size)


def _gather_bytes(data: Bytes, start: Ints, size: Ints) -> pa.Array[Any]:
    total = int(size.sum())
    if total > _LONG_BYTES * len(size):
        view = data.data
        return pa.array([bytes(view[s : s + n]) for s, n in zip(start, size, strict=True)], pa.binary())
    offsets = np.concatenate(([0], np.cumsum(size))).astype(np.int32)
    content = data[_expand_ranges(start, size)]
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(content.tobytes())]
    return pa.Array.from_buffers(pa.binary(), len(size), buffers)


def _expand_ranges(start: Ints, count: Ints, step: int = 1) -> Ints:
    """`start`, `start + step`, ... , `count` of them, for each."""
    if len(count) and (count == 1).all():
        return start
    within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    return cast("Ints", np.repeat(start, count) + within * step)


# --- records in other forms


def _read_slowly(
    records: Records,
    odd: Flags,
    found: dict[str, list[FeatureRun]],
    sequences: dict[str, list[tuple[int, list[Value]]]],
) -> list[int]:
    """Adds the records in other forms to the runs and sequences; returns those that are not a tf.Example."""
    bad = []
    slow: dict[tuple[str, int], list[tuple[int, list[Any]]]] = {}
    for row in np.flatnonzero(odd).tolist():
        try:
            record = records.data[records.starts[row] : records.ends[row]].tobytes()
            example, lists = parse_example(record), parse_sequences(record)
        except (NotAnExample, UnicodeDecodeError, IndexError):
            bad.append(row)
            continue
        for name, (kind, values) in example.items():
            slow.setdefault((name, kind), []).append((row, list(values)))
        for name, steps in lists.items():
            sequences.setdefault(name, []).append((row, steps))
    for (name, kind), rows in slow.items():
        type_ = _KINDS.get(kind, pa.null())
        run = FeatureRun(
            kind=kind,
            rows=np.array([row for row, _ in rows], dtype=np.int64),
            counts=np.array([len(values) for _, values in rows], dtype=np.int64),
            values=pa.array([value for _, values in rows for value in values], type=type_),
        )
        found.setdefault(name, []).append(run)
    return bad


# --- together


def _join_runs(name: str, runs: Sequence[FeatureRun]) -> ExampleFeature:
    """The runs of a feature as one, in the order of the records."""
    rows = np.concatenate([run.rows for run in runs])
    counts = np.concatenate([run.counts for run in runs])
    values = _join_values(runs)
    if len(runs) > 1:
        begins = np.cumsum(counts) - counts
        order = np.argsort(rows, kind="stable")
        rows, counts = rows[order], counts[order]
        values = values.take(_expand_ranges(begins[order], counts))
    return ExampleFeature(name=name, rows=rows, counts=counts, values=values)


def _join_steps(name: str, rows: Sequence[tuple[int, list[Value]]]) -> ExampleFeature:
    """A feature list in those records that have it."""
    steps = [step for _, each in rows for step in each]
    return ExampleFeature(
        name=name,
        rows=np.array([row for row, _ in rows], dtype=np.int64),
        counts=np.array([len(each) for _, each in rows], dtype=np.int64),
        values=_join_step_values(steps),
        steps=np.array([len(values) for _, values in steps], dtype=np.int64),
    )


def _join_values(runs: Sequence[FeatureRun]) -> pa.Array[Any] | MixedNumbers:
    """The values of the runs, one run after another."""
    parts = [run.values for run in runs]
    kinds = {run.kind for run in runs if len(run.values)}
    if kinds == _NUMBERS:
        is_whole = np.repeat([run.kind == INTS for run in runs], [len(part) for part in parts])
        whole, floats = ([run.values for run in runs if run.kind == kind] for kind in (INTS, FLOATS))
        return MixedNumbers.of(pa.concat_arrays(whole), pa.concat_arrays(floats), is_whole)
    type_ = _common_type(kinds) if kinds else next((part.type for part in parts if part.type != pa.null()), pa.null())
    joined = [_cast(part, type_) for part in parts]
    return joined[0] if len(joined) == 1 else pa.concat_arrays(joined)


def _join_step_values(steps: Sequence[Value]) -> pa.Array[Any] | MixedNumbers:
    """The values of the steps, one step after another."""
    kinds = {kind for kind, values in steps if values}
    flat = [(kind, value) for kind, values in steps for value in values]
    if kinds == _NUMBERS:
        whole, floats = (
            pa.array([value for each, value in flat if each == kind], type=_KINDS[kind]) for kind in (INTS, FLOATS)
        )
        return MixedNumbers.of(whole, floats, np.array([kind == INTS for kind, _ in flat]))
    type_ = _common_type(kinds) if kinds else pa.null()
    return pa.array([str(v) if pa.types.is_string(type_) else v for _, v in flat], type=type_)


def _common_type(kinds: set[int]) -> pa.DataType:
    """The type of values of one kind; text for bytes and numbers."""
    return _KINDS[next(iter(kinds))] if len(kinds) == 1 else pa.string()


def _cast(values: pa.Array[Any], type_: pa.DataType) -> pa.Array[Any]:
    if not len(values):
        return pa.array([], type_)
    return pa.array([str(value) for value in values.to_pylist()], type_) if values.type != type_ else values
