"""Cells: a leaf of an element as its kind, its shape and bytes, and exactly the same leaf again. Nothing is pickled."""

from __future__ import annotations

import datetime as dt
import json
import struct
import zoneinfo
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.snapshot.plain import plain_json, read_plain_json

if TYPE_CHECKING:
    import pyarrow as pa

Cell: TypeAlias = "tuple[str, tuple[int, ...], bytes]"
"""Kind, shape and bytes."""

LeafReader: TypeAlias = "Callable[[bytes, Sequence[int]], Any]"

_PLAIN: Final = frozenset({bool, int, float, str, bytes, type(None)})
_INT64: Final = range(-(1 << 63), 1 << 63)
_DTYPES: Final = "?bBhHiIlLqQefdgFDGmMSU"  #: of which the bytes say everything


def write_leaf(leaf: Any, pack: Callable[[Sequence[Any]], bytes]) -> Cell:
    """The cell of a leaf; `pack` encodes the items of lists and of arrays of objects.

    Raises:
        DatasetError: it cannot be stored.
    """
    import numpy as np
    import pyarrow as pa

    kind = type(leaf)
    if (write := _WRITERS.get(kind)) is not None:
        name, data = write(leaf)
        return name, (), data
    plain = not isinstance(leaf, np.ndarray) or kind in {np.ndarray, np.memmap}  # others mean more than their values
    if plain and isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.char in _DTYPES:
        return f"{'array' if isinstance(leaf, np.ndarray) else 'scalar'} {leaf.dtype.str}", leaf.shape, leaf.tobytes()
    if plain and isinstance(leaf, np.ndarray) and leaf.dtype.kind == "O":
        items = leaf.ravel().tolist()
        if all(type(item) in _PLAIN for item in items):
            return "objects", leaf.shape, plain_json(items).encode()
        return "items", leaf.shape, pack(items)
    if kind is list:
        return "list", (len(leaf),), pack(leaf) if leaf else b""
    if isinstance(leaf, pa.RecordBatch):
        return "batch", (), batch_bytes(leaf)
    raise DatasetError(
        f"snapshot: an element holds a {kind.__qualname__}, which cannot be stored. It may hold NumPy arrays, numbers, "
        f"strings, bytes, dates, times, decimals, None and RecordBatches, in dicts, lists, tuples, named tuples and "
        f"dataclasses."
    )


def leaf_reader(kind: str, unpack: Callable[[bytes], list[Any]]) -> LeafReader:
    """A function that makes a leaf of a cell's bytes and shape."""
    import numpy as np

    name, _, dtype = kind.partition(" ")
    readers: dict[str, LeafReader] = {
        # Copied, so that they are writable like those of the pass that wrote the snapshot.
        "array": lambda data, shape: np.frombuffer(data, dtype).reshape(shape).copy(),
        "scalar": lambda data, _: np.frombuffer(data, dtype)[0],
        "objects": lambda data, shape: _objects(read_plain_json(data), shape),
        "items": lambda data, shape: _objects(unpack(data), shape),
        "list": lambda data, _: unpack(data) if data else [],
        "batch": lambda data, _: read_batch(data),
    }
    plain = _READERS.get(name)
    return readers[name] if plain is None else lambda data, _: plain(data)


def batch_bytes(batch: pa.RecordBatch) -> bytes:
    """A batch with its schema."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def read_batch(data: bytes) -> pa.RecordBatch:
    """The batch of such bytes."""
    import pyarrow as pa

    return pa.ipc.open_stream(data).read_next_batch()


def _objects(values: Sequence[Any], shape: Sequence[int]) -> Any:
    import numpy as np

    array = np.empty(len(values), object)
    for at, value in enumerate(values):  # NumPy would look into lists
        array[at] = value
    return array.reshape(shape)


def _write_int(number: int) -> tuple[str, bytes]:
    return ("int", number.to_bytes(8, "little", signed=True)) if number in _INT64 else ("long", b"%d" % number)


def _write_moment(moment: dt.datetime | dt.time) -> tuple[str, bytes]:
    text = moment.replace(tzinfo=None).isoformat()
    return type(moment).__name__, json.dumps([text, moment.fold, _zone_parts(moment.tzinfo)]).encode()


def _zone_parts(zone: dt.tzinfo | None) -> object:
    if zone is None:
        return None
    if type(zone) is dt.timezone:
        offset = zone.utcoffset(None)
        return ["offset", offset.days, offset.seconds, offset.microseconds, *_zone_name(zone, offset)]
    if isinstance(zone, zoneinfo.ZoneInfo) and zone.key:
        return ["zone", zone.key]
    raise DatasetError(
        f"snapshot: an element holds a time in a zone of the type {type(zone).__qualname__}, which cannot be stored. "
        f"Use datetime.timezone or zoneinfo.ZoneInfo."
    )


def _zone_name(zone: dt.timezone, offset: dt.timedelta) -> list[str]:
    """Its name, if it has one of its own."""
    name = zone.tzname(None)
    return [] if name == dt.timezone(offset).tzname(None) else [name]


def _read_zone(parts: Any) -> dt.tzinfo | None:
    if parts is None:
        return None
    kind, *rest = parts
    if kind == "zone":
        return zoneinfo.ZoneInfo(*rest)
    days, seconds, microseconds, *name = rest
    return dt.timezone(dt.timedelta(days, seconds, microseconds), *name)


def _read_datetime(data: bytes) -> dt.datetime:
    text, fold, zone = json.loads(data)
    return dt.datetime.fromisoformat(text).replace(fold=fold, tzinfo=_read_zone(zone))


def _read_time(data: bytes) -> dt.time:
    text, fold, zone = json.loads(data)
    return dt.time.fromisoformat(text).replace(fold=fold, tzinfo=_read_zone(zone))


_WRITERS: Final[dict[type, Callable[[Any], tuple[str, bytes]]]] = {
    bool: lambda value: ("bool", b"\1" if value else b"\0"),
    int: _write_int,
    float: lambda value: ("float", struct.pack("<d", value)),
    complex: lambda value: ("complex", struct.pack("<2d", value.real, value.imag)),
    str: lambda value: ("str", value.encode("utf-8", "surrogatepass")),
    bytes: lambda value: ("bytes", value),
    type(None): lambda _: ("none", b""),
    dt.datetime: _write_moment,
    dt.time: _write_moment,
    dt.date: lambda value: ("date", value.isoformat().encode()),
    dt.timedelta: lambda value: ("timedelta", json.dumps([value.days, value.seconds, value.microseconds]).encode()),
    Decimal: lambda value: ("decimal", str(value).encode()),
}

_READERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "bool": lambda data: data == b"\1",
    "int": lambda data: int.from_bytes(data, "little", signed=True),
    "long": int,
    "float": lambda data: struct.unpack("<d", data)[0],
    "complex": lambda data: complex(*struct.unpack("<2d", data)),
    "str": lambda data: data.decode("utf-8", "surrogatepass"),
    "bytes": lambda data: data,
    "none": lambda _: None,
    "datetime": _read_datetime,
    "time": _read_time,
    "date": lambda data: dt.date.fromisoformat(data.decode()),
    "timedelta": lambda data: dt.timedelta(*json.loads(data)),
    "decimal": lambda data: Decimal(data.decode()),
}
