"""Value digests: how each kind of value is described by its content, for `orchestrator.digest`.

Code among the values is described by `orchestrator.code_digest`.
"""

from __future__ import annotations

import copyreg
import enum
import functools
import gc
import hashlib
import io
import logging
import pickle
import re
import sys
import types
import zoneinfo
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from pathlib import PurePath
from typing import Any

from spanwise.orchestrator.code_digest import describe_by_name, describe_code, is_model, order_of
from spanwise.orchestrator.digest import (
    NoRecipe,
    ValueChild,
    ValueNode,
    attribute_children,
    encode,
    encode_text,
    frame,
    is_scalar,
    named_children,
    new_hash,
)


def describe(value: object) -> ValueNode:
    """Describes a value by its content.

    Raises:
        NoRecipe: its content cannot be known.
    """
    return _describe_container(value) or describe_code(value) or _describe_plain(value) or _instance(value)


def _describe_container(value: object) -> ValueNode | None:
    kind = type(value)
    if isinstance(value, list | tuple) and kind in {list, tuple}:
        return _sequence(value)
    if isinstance(value, dict | types.MappingProxyType) and kind in {dict, types.MappingProxyType}:
        return _mapping(value)
    if isinstance(value, set | frozenset) and kind in {set, frozenset}:
        return ValueNode(kind.__name__, [ValueChild("an element", item) for item in value], ordered=False)
    if isinstance(value, ValuePair):
        return ValueNode("pair", [ValueChild("a key", value.key), ValueChild(f"key {value.key!r:.40}", value.value)])
    return None


@dataclass(frozen=True)
class ValuePair:
    """A key of a dict and its value."""

    key: object
    value: object


def _describe_plain(value: object) -> ValueNode | None:  # noqa: PLR0911  a table of kinds
    kind = type(value)
    if isinstance(value, enum.Enum):
        return ValueNode("enum", named_children(**{"class": kind, "name": value.name, "value": value.value}))
    if isinstance(value, PurePath):
        return ValueNode("path", [encode_text(value.as_posix())], texts=[str(value)])
    if isinstance(value, date | time | timedelta) and kind in {date, time, datetime, timedelta}:
        return _moment(value)
    if isinstance(value, zoneinfo.ZoneInfo) and value.key:
        return ValueNode("zone", [encode_text(value.key)])
    if isinstance(value, re.Pattern):
        return ValueNode("regex", [ValueChild("its pattern", value.pattern), encode(value.flags)])
    if isinstance(value, logging.Logger):  # writes, and decides nothing
        return ValueNode("logger", [])
    own = getattr(kind, "__fingerprint__", None)
    if own is not None:
        return ValueNode("own", [encode_text(own(value))])
    return _describe_array(value) or _describe_polars(value) or _describe_model(value)


def _sequence(value: Sequence[object]) -> ValueNode:
    """Encodes scalars at once: a list of a million numbers needs no million nodes."""
    parts = [encode(item) if is_scalar(item) else ValueChild(f"item {at}", item) for at, item in enumerate(value)]
    return ValueNode(type(value).__name__, parts, texts=[item for item in value if isinstance(item, str)])


def _mapping(value: Mapping[object, object]) -> ValueNode:
    parts: list[bytes | ValueChild] = []
    for key, item in value.items():
        if is_scalar(key) and is_scalar(item):
            parts.append(frame(b"P", encode(key) + encode(item)))
        else:
            parts.append(ValueChild("", ValuePair(key, item)))
    texts = [each for pair in value.items() for each in pair if isinstance(each, str)]
    return ValueNode("dict", parts, texts=texts)


def _moment(value: date | time | timedelta) -> ValueNode:
    if isinstance(value, timedelta):
        return ValueNode("timedelta", [encode(value.days), encode(value.seconds), encode(value.microseconds)])
    if isinstance(value, datetime | time):
        naive = encode_text(value.replace(tzinfo=None).isoformat())
        kind = "datetime" if isinstance(value, datetime) else "time"
        return ValueNode(kind, [naive, encode(value.fold), ValueChild("its time zone", value.tzinfo)])
    return ValueNode("date", [encode_text(value.isoformat())])


def _describe_array(value: object) -> ValueNode | None:  # noqa: PLR0911  a table of kinds
    """NumPy and Arrow by their bytes. Whoever holds such a value has imported the library already."""
    library = type(value).__module__.partition(".")[0]
    if library == "pyarrow":
        return _arrow(value)
    if (numpy := sys.modules.get("numpy")) is None:
        return None
    if isinstance(value, numpy.ufunc):
        return _ufunc(value)
    if isinstance(value, numpy.dtype):
        return ValueNode("numpy dtype", [encode_text(repr(value))])
    if isinstance(value, numpy.ndarray | numpy.generic) and type(value).__module__ == "numpy":
        array = numpy.asarray(value)
        shape = encode_text(f"{type(value).__name__ if isinstance(value, numpy.ndarray) else 'scalar'} {array.shape}")
        if array.dtype.hasobject:
            items = ValueChild("its items", array.tolist())
            return ValueNode("numpy objects", [shape, encode_text(repr(array.dtype)), items])
        content = new_hash()
        content.update(numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8).data if array.nbytes else b"")
        return ValueNode("numpy array", [shape, encode_text(repr(array.dtype)), frame(b"D", content.digest())])
    return None


def _ufunc(value: Any) -> ValueNode:
    """NumPy's own and those of compiled modules by name; one that `frompyfunc` made by the function in it.

    Raises:
        NoRecipe: it has neither.
    """
    name: str = value.__name__
    for home in ("numpy", getattr(value, "__module__", None) or "", "scipy.special"):
        if getattr(sys.modules.get(home), name, None) is value:
            return ValueNode("ufunc", [encode_text(name), ValueChild("its module", sys.modules[home])])
    functions = [each for each in gc.get_referents(value) if callable(each)]
    if not functions:
        raise NoRecipe(f"the ufunc {name!r}, of which no module says what it does")
    shape = encode_text(f"{value.nin} {value.nout} {value.identity!r}")
    return ValueNode(
        "ufunc of functions", [shape, *(ValueChild("the function in a ufunc", each) for each in functions)]
    )


def _describe_polars(value: object) -> ValueNode | None:
    """An expression or a query by its serialized form, in which pickled functions are replaced by their own digests."""
    polars: Any = sys.modules.get("polars")
    if polars is None or not isinstance(value, polars.Expr | polars.LazyFrame):
        return None
    content: bytes = value.meta.serialize() if isinstance(value, polars.Expr) else value.serialize()
    parts: list[bytes | ValueChild] = []
    while (found := _POLARS_FUNCTION.search(content)) is not None:
        pickled = io.BytesIO(content[found.start("pickle") :])
        try:
            function = pickle.load(pickled)  # noqa: S301  what this process has just pickled
        except Exception as error:
            raise NoRecipe("a Polars expression with a function that cannot be read") from error
        parts += [frame(b"y", content[: found.start()]), frame(b"y", found["head"])]
        parts.append(ValueChild("the function in a Polars expression", function))
        content = content[found.start("pickle") + pickled.tell() :]
    if b"PLPY" in content:
        raise NoRecipe("a Polars expression with a function that cannot be read")
    return ValueNode("polars expression", [*parts, frame(b"y", content)])


# A length, Polars' mark with what the function returns, the release of Python (two bytes), and the pickle.
_POLARS_FUNCTION = re.compile(
    rb"(?:\xc4.|\xc5..|\xc6.{4})?(?P<head>PLPY.{0,4096}?)..(?P<pickle>\x80[\x04\x05]\x95)", re.DOTALL
)


def _arrow(value: object) -> ValueNode | None:
    """By the bytes of the IPC format, in one chunk: how a table was cut into batches does not count."""
    import pyarrow as pa

    if type(value).__name__ == "Expression":  # by its serialized form: its text leaves out types and long lists
        value = value.__reduce__()[1][0]  # as it is pickled
    if isinstance(value, pa.Buffer):
        return ValueNode("arrow buffer", [frame(b"y", value.to_pybytes())])
    if isinstance(value, pa.DataType):
        value = pa.schema([pa.field("", value)])
    if isinstance(value, pa.Field):
        value = pa.schema([value])
    if isinstance(value, pa.Schema):
        return ValueNode("arrow schema", [frame(b"y", value.serialize().to_pybytes())])
    if isinstance(value, pa.Array | pa.ChunkedArray):
        value = pa.table({"": value})
    if isinstance(value, pa.RecordBatch):
        value = pa.Table.from_batches([value])
    if not isinstance(value, pa.Table):
        return None
    content = new_hash()
    with pa.PythonFile(DigestSink(content), mode="w") as sink, pa.ipc.new_stream(sink, value.schema) as writer:
        writer.write_table(value.combine_chunks())
    return ValueNode("arrow table", [frame(b"D", content.digest())])


class DigestSink(io.RawIOBase):
    """A file that keeps only the digest of what is written to it."""

    def __init__(self, state: hashlib.blake2b) -> None:
        super().__init__()
        self._state = state

    def writable(self) -> bool:
        return True

    def write(self, data: bytes, /) -> int:  # type: ignore[override]  # any buffer, which has no name before 3.12
        self._state.update(data)
        return len(data)


def _describe_model(value: object) -> ValueNode | None:
    """A pydantic model by its fields, without the memory of which of them were set."""
    if not is_model(type(value)):
        return None
    extra = getattr(value, "__pydantic_extra__", None)
    private = getattr(value, "__pydantic_private__", None)
    state = {**vars(value), " extra": extra, " private": private}  # no field has a blank in its name
    parts = [ValueChild("its class", type(value)), *attribute_children(state)]
    return ValueNode("object", parts, named=order_of(state))


def _instance(value: object) -> ValueNode:
    """Anything else by its class and state, as its class gives them to be copied or pickled."""
    if isinstance(value, functools._lru_cache_wrapper):  # noqa: SLF001  the type has no other name
        return ValueNode("lru_cache", [ValueChild("", value.__wrapped__)])
    try:
        registered = copyreg.dispatch_table.get(type(value))
        reduced = registered(value) if registered else value.__reduce_ex__(4)
    except Exception as error:
        raise NoRecipe(_what(value)) from error
    if isinstance(reduced, str):
        return describe_by_name("global", value, reduced)
    make, arguments, state, items, pairs = (*reduced, None, None, None, None)[:5]
    parts = [ValueChild("its maker", make), ValueChild("", arguments)]
    if type(state) is dict and all(isinstance(name, str) for name in state):
        contents = [*attribute_children(state), *_contents(value, items, pairs)]
        return ValueNode("object", [*parts, *contents], named=order_of(state))
    return ValueNode("object", [*parts, ValueChild("its state", state), *_contents(value, items, pairs)])


def _contents(
    value: object, items: Iterable[object] | None, pairs: Iterable[tuple[object, object]] | None
) -> list[bytes | ValueChild]:
    parts: list[bytes | ValueChild] = []
    if items is not None:
        parts.append(ValueChild("", list(items)))
    if pairs is not None:
        parts.append(ValueChild("", list(pairs) if isinstance(value, OrderedDict) else dict(pairs)))
    return parts


def _what(value: object) -> str:
    kind = type(value)
    known = {
        "lock": "a thread lock",
        "RLock": "a thread lock",
        "_local": "a thread-local",
        "TextIOWrapper": "an open file",
        "BufferedReader": "an open file",
        "BufferedWriter": "an open file",
        "BufferedRandom": "an open file",
        "FileIO": "an open file",
        "socket": "a socket",
        "generator": "a generator",
        "coroutine": "a coroutine",
    }
    return known.get(kind.__name__, f"an object of {kind.__module__}.{kind.__qualname__}")
