"""Fingerprints: what makes two values, functions, components, files or executions the same. Every recipe is here.

A fingerprint is a tagged BLAKE2b digest. Values count by content; code counts by its bytecode and by everything that
bytecode names, as far as that is the user's; libraries count by distribution and version, so nothing is imported to be
fingerprinted. Renaming things locally, comments, docstrings, annotations and line numbers do not count.

What no recipe can see: names made at run time (`getattr(module, text)`, `eval`), files and services that a function
reads by itself, and the environment. A global that a function changes as it runs counts with the content it has now.
"""

from __future__ import annotations

import copyreg
import enum
import functools
import hashlib
import inspect
import io
import logging
import math
import opcode
import os
import re
import stat
import struct
import sys
import types
import zoneinfo
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from importlib.machinery import ModuleSpec
from pathlib import Path, PurePath
from typing import Self, TypeAlias, TypeGuard

from spanwise.orchestrator import durable
from spanwise.orchestrator.errors import Unfingerprintable
from spanwise.version import __version__

Scalar: TypeAlias = "None | bool | int | float | complex | str | bytes"
"""What a digest can be made of directly."""

# 128 bits: two of 10**12 entries of a cache collide with a probability of 10**-15, and a key stays short in a log.
_SIZE_BYTES = 16
# A change to any recipe below that lets old and new digests disagree about the same thing raises this number.
_EDITION = b"spanwise-1"
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def digest(tag: str, *parts: Scalar) -> str:
    """The digest of `parts` under `tag`: 32 hexadecimal digits.

    Each part carries its type and its length, so neither `("ab", "c")` and `("a", "bc")` nor 1, True and "1" agree.
    """
    return _hash(tag, map(_scalar, parts)).hex()


def _hash(tag: str, encoded: Iterable[bytes]) -> bytes:
    state = hashlib.blake2b(_frame(b"T", tag.encode()), digest_size=_SIZE_BYTES, person=_EDITION)
    for part in encoded:
        state.update(part)
    return state.digest()


def _frame(kind: bytes, payload: bytes) -> bytes:
    return kind + len(payload).to_bytes(8, "little") + payload


def _text(text: str) -> bytes:
    return _frame(b"s", text.encode("utf-8", "surrogatepass"))


def _scalar(value: Scalar) -> bytes:  # noqa: PLR0911  one line per type
    """Encodes one plain value.

    A float counts by its bits, so 0.0 and -0.0 differ; every NaN counts as the same one, since Python cannot
    tell them apart and processors disagree about their sign.
    """
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool):
        return _frame(b"b", b"1" if value else b"0")
    if isinstance(value, int):
        return _frame(b"i", format(value, "x").encode())
    if isinstance(value, float):
        return _frame(b"f", b"nan" if math.isnan(value) else struct.pack("<d", value))
    if isinstance(value, bytes):
        return _frame(b"y", value)
    if isinstance(value, complex):
        return _frame(b"c", _scalar(value.real) + _scalar(value.imag))
    if value is None:
        return _frame(b"n", b"")
    raise TypeError(f"a digest is made of plain values, not of {type(value).__qualname__}; use of_value for that")


_SCALARS = frozenset({str, bool, int, float, bytes, complex, types.NoneType})


def _is_scalar(value: object) -> TypeGuard[Scalar]:
    return type(value) in _SCALARS  # not a subclass of one: that may hold more


def of_value(value: object, *, who: str = "the value") -> str:
    """The digest of a value by its content, the same in every process.

    Dicts count without their order, sets by their elements' digests, instances by their class and state (or by the text
    that their `__fingerprint__()` gives), arrays and tables by their bytes, paths by their text, functions and classes
    as in `of_function` and `of_class`.
    Equal values of different types (1, 1.0, True) differ. `who` opens the message of an error.

    Raises:
        Unfingerprintable: it is, or holds, something whose content cannot be known; the message says where.
    """
    return _hash("value", [_resolve(value, who)]).hex()


def of_function(function: Callable[..., object], *, who: str | None = None) -> str:
    """The digest of a callable: its code, defaults, closure, and, recursively, each global that the code names.

    Functions of the project count by their own code, libraries by distribution and version, the standard library by
    the version of Python (which is always part of it, since bytecode changes with it). A function's own name does not
    count. An argument's name counts only where a string or keyword of that name can be met in the code reached: a
    rename is free, while swapping the names of two arguments that are passed by keyword is not.

    Raises:
        Unfingerprintable: it depends on a lock, an open file or the like; the message says by which way.
    """
    name = who or f"function {getattr(function, '__qualname__', None) or type(function).__qualname__!r}"
    return _hash("function", [_text(_PYTHON), _resolve(function, name)]).hex()


def of_class(cls: type, *, who: str | None = None) -> str:
    """The digest of a component's code: its methods, attributes and those of its bases in the user's own code.

    The signature of `run` is a component's specification, so there names and annotations of arguments count.

    Raises:
        Unfingerprintable: a method or an attribute depends on a lock, an open file or the like.
    """
    name = who or f"class {cls.__qualname__!r}"
    run = getattr(cls, "run", None)
    run = inspect.unwrap(run) if callable(run) else None
    specification = _signature(run) if isinstance(run, types.FunctionType) else b""
    return _hash("class", [_text(_PYTHON), specification, _resolve(cls, name)]).hex()


def _signature(run: types.FunctionType) -> bytes:
    code = run.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    notes = [(name, _annotation(run.__annotations__.get(name, ""))) for name in (*names, "return")]
    return b"".join(_text(text) for pair in notes for text in pair)


@dataclass(frozen=True, kw_only=True)
class Tree:
    """What was found at a path."""

    digest: str  #: of the files' names and bytes; the folder's own name and place do not count
    files: int  #: how many regular files
    size_bytes: int  #: theirs together


def of_tree(path: str | os.PathLike[str], *, sync: bool = False) -> Tree:
    """The digest of a file, or of a folder by the names and bytes of all that is in it, empty folders included.

    Times, owners and permissions do not count. A symbolic link inside a folder counts by its text if it stays within
    the folder; one that leaves it is refused, since what it shows can change after the digest was taken.
    `sync` has each file and folder written through to the disk on the way, the inner ones first.

    Raises:
        Unfingerprintable: nothing is there, it cannot be read, or it holds a socket, a device or a link to outside.
    """
    root = Path(path)
    buffer = bytearray(1 << 20)
    counts = [0, 0]

    def contents(file: str) -> bytes:
        content, size_bytes = _read(file, buffer, sync=sync)
        counts[0] += 1
        counts[1] += size_bytes
        return content

    try:
        if root.is_dir():
            entries = sorted(_walk(root.resolve(), contents, sync=sync))
            total = _hash("folder", [_frame(b"p", name) + kind + content for name, kind, content in entries])
        elif root.exists() and not root.is_file():
            raise Unfingerprintable(f"{root} is neither a file nor a folder, so it has no content to fingerprint.")
        else:
            total = _hash("file", [contents(str(root))])
    except FileNotFoundError as error:
        raise Unfingerprintable(f"{root} was to be fingerprinted, but there is nothing at {error.filename}.") from error
    except OSError as error:
        raise Unfingerprintable(f"{root} was to be fingerprinted, but cannot be read: {error}.") from error
    return Tree(digest=total.hex(), files=counts[0], size_bytes=counts[1])


def _walk(root: Path, contents: Callable[[str], bytes], *, sync: bool) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yields name below the root, kind and content of each entry, in no promised order."""
    for here, folders, files in os.walk(root, topdown=False, onerror=_raise):
        for name in (*folders, *files):
            full = os.path.join(here, name)  # noqa: PTH118  a Path costs more than the hash of a small file
            below = os.fsencode(os.path.relpath(full, root))
            mode = os.lstat(full).st_mode
            if stat.S_ISLNK(mode):
                yield below, b"L", _frame(b"y", _link(root, full))
            elif stat.S_ISDIR(mode):
                yield below, b"D", b""
            elif stat.S_ISREG(mode):
                yield below, b"F", contents(full)
            else:
                raise Unfingerprintable(
                    f"{full} is a socket, a pipe or a device; only files and folders have a fingerprint. Remove it."
                )
        if sync:
            durable.sync_folder(here)


def _raise(error: OSError) -> None:
    raise error


def _link(root: Path, full: str) -> bytes:
    target = os.readlink(full)  # noqa: PTH115  the text, not the place
    if os.path.isabs(target) or not Path(full).resolve().is_relative_to(root):  # noqa: PTH117  text again
        raise Unfingerprintable(
            f"{full} is a link to {target}, outside of {root}, so its content could change unseen. "
            f"Put a copy of the file there."
        )
    return os.fsencode(target)


def _read(file: str, buffer: bytearray, *, sync: bool) -> tuple[bytes, int]:
    """The encoded digest of a file's bytes, and their number."""
    state = hashlib.blake2b(digest_size=_SIZE_BYTES, person=_EDITION)
    view = memoryview(buffer)
    size_bytes = 0
    with open(file, "rb", buffering=0) as stream:  # noqa: PTH123  a Path costs more than the hash of a small file
        while count := stream.readinto(buffer):
            state.update(view[:count])
            size_bytes += count
        if sync:
            os.fsync(stream.fileno())
    return _frame(b"D", state.digest()), size_bytes


@dataclass(frozen=True, kw_only=True)
class CacheKey:
    """What an execution's result depends on; two executions with equal keys have the same result."""

    digest: str  #: of all parts; the name under which a result is found again
    parts: Mapping[str, str] = field(compare=False)  #: `code`, `parameter size`, `input examples`, …; never changed

    @classmethod
    def of_parts(cls, parts: Mapping[str, str]) -> Self:
        """The key with these named parts, as they were recorded."""
        flat = [text for name in sorted(parts) for text in (name, parts[name])]
        return cls(digest=digest("cache key", *flat), parts=dict(parts))

    def difference(self, other: CacheKey) -> tuple[str, ...]:
        """The names of the parts that changed, came or went, sorted; empty if the keys are equal."""
        names = self.parts.keys() | other.parts.keys()
        return tuple(sorted(name for name in names if self.parts.get(name) != other.parts.get(name)))


def cache_key(
    *,
    component: str,
    code: str,
    parameters: Mapping[str, str],
    inputs: Mapping[str, Sequence[str]],
    libraries: Mapping[str, str],
    extra: Mapping[str, str] | None = None,
) -> CacheKey:
    """The key of one execution.

    Args:
        component: its name.
        code: digest of its code, from `of_class` or `of_function`.
        parameters: digest of each value, from `of_value`.
        inputs: content digests of the artifacts of each input, in the order in which they are read.
        libraries: version of each distribution whose results change with it.
        extra: whatever else the result depends on, by name.
    """
    parts = {"component": component, "code": code}
    parts.update({f"parameter {name}": content for name, content in parameters.items()})
    parts.update({f"input {name}": digest("inputs", *contents) for name, contents in inputs.items()})
    parts.update({f"library {name}": version for name, version in libraries.items()})
    parts.update({f"extra {name}": text for name, text in (extra or {}).items()})
    return CacheKey.of_parts(parts)


def versions(libraries: Iterable[str]) -> dict[str, str]:
    """The installed version of each distribution; empty for one that is not installed."""
    from importlib import metadata

    found = {}
    for name in libraries:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    return found


# Values refer to each other in circles (a method names its class, the class holds the method), so they are first
# laid out as a graph, each value described by itself, and digested afterwards, circle by circle. That gives a value
# the same digest wherever the walk came in, and needs no recursion.


@dataclass(slots=True)  # made by the million for a long list: freezing one costs as much as digesting it
class _Child:
    """A value that another one is made of."""

    label: str  #: how an error names the way to it
    value: object


@dataclass
class _Node:
    """One value, described by its own content and its children."""

    tag: str
    parts: list[bytes | _Child]
    ordered: bool = True
    arguments: Sequence[str] = ()  #: names by which a caller could pass something to this code
    words: Sequence[str] = ()  #: texts in it that could be such names, besides its children
    links: list[bytes | int] = field(default_factory=list)  #: `parts` with each child encoded or numbered


@dataclass(frozen=True)
class _Pair:
    key: object
    value: object


@dataclass(frozen=True)
class _Code:
    code: types.CodeType
    names: Mapping[str, object] | None  #: the globals it runs with; None if it has not run yet
    package: str


@dataclass(frozen=True)
class _Source:
    """A module of the user's, by its file: it need not have been imported."""

    file: str
    package: str


@dataclass(frozen=True)
class _Distribution:
    """Where a module comes from that is not the user's."""

    name: str
    version: str


def _resolve(root: object, who: str) -> bytes:
    """The encoded value, or the encoded digest of it."""
    if _is_scalar(root):
        return _scalar(root)
    values: list[object] = [root]
    whence: list[tuple[int, str]] = [(-1, who)]
    numbers = {_identity(root): 0}
    spoken: set[str] = set()
    nodes: list[_Node] = []
    for number, value in enumerate(values):  # grows as it goes
        try:
            node = _describe(value)
        except _Refused as refused:
            raise Unfingerprintable(_refusal(whence, number, refused)) from refused.__cause__
        for part in node.parts:
            if isinstance(part, bytes):
                node.links.append(part)
            elif _is_scalar(part.value):
                if isinstance(part.value, str):
                    spoken.add(part.value)
                node.links.append(_scalar(part.value))
            else:
                child = numbers.setdefault(_identity(part.value), len(values))
                if child == len(values):
                    values.append(part.value)  # which also keeps it alive, so that its id is not given away
                    whence.append((number, part.label))
                node.links.append(child)
        spoken.update(node.words)
        nodes.append(node)
    for node in nodes:
        node.links += [_text(f"{at} {name}") for at, name in enumerate(node.arguments) if name in spoken]
    return _digest_graph(nodes)[0]


def _identity(value: object) -> object:
    return value if isinstance(value, _Source | _Distribution) else id(value)


def _refusal(whence: Sequence[tuple[int, str]], number: int, refused: _Refused) -> str:
    way = []
    while number >= 0:
        number, label = whence[number]
        if label:
            way.append(label)
    return (
        f"{' -> '.join(reversed(way))} -> {refused.found}: the cache key must cover everything that can change the "
        f"result, and this has no content to compare. Make it inside the function that uses it, or pass what it is "
        f"made from (a path, a name, numbers) instead."
    )


class _Refused(Exception):
    """A value without recipe."""

    def __init__(self, found: str) -> None:
        super().__init__(found)
        self.found = found


def _digest_graph(nodes: Sequence[_Node]) -> list[bytes]:
    """The encoded digest of each node, from those that refer to nothing upwards."""
    done = [b""] * len(nodes)
    for circle in _circles([[link for link in node.links if isinstance(link, int)] for node in nodes]):
        if len(circle) == 1 and circle[0] not in nodes[circle[0]].links:
            done[circle[0]] = _digest_node(nodes[circle[0]], done)
            continue
        # Colour refinement: each member is told apart by its surroundings, one step further each round, until that
        # tells no more of them apart; then all colours together make each member depend on the whole circle.
        for member in circle:
            done[member] = _frame(b"D", b"circle")
        colours = 0
        while colours < (colours := len({done[member] for member in circle})):
            fresh = [_digest_node(nodes[member], done) for member in circle]
            for member, colour in zip(circle, fresh, strict=True):
                done[member] = colour
        whole = sorted({done[member] for member in circle})
        for member in circle:
            done[member] = _frame(b"D", _hash("circle", [done[member], *whole]))
    return done


def _digest_node(node: _Node, done: Sequence[bytes]) -> bytes:
    parts = [link if isinstance(link, bytes) else done[link] for link in node.links]
    return _frame(b"D", _hash(node.tag, parts if node.ordered else sorted(parts)))


def _circles(links: Sequence[Sequence[int]]) -> Iterator[list[int]]:  # noqa: C901  one algorithm, as in its paper
    """The strongly connected parts of a graph, those that are referred to first (Tarjan 1972, without recursion)."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    waiting: list[int] = []
    is_waiting = [False] * len(links)
    for root in range(len(links)):
        work = [(root, iter(links[root]))] if root not in order else []
        while work:
            node, rest = work[-1]
            if node not in order:
                order[node] = low[node] = len(order)
                waiting.append(node)
                is_waiting[node] = True
            for child in rest:
                if child not in order:
                    work.append((child, iter(links[child])))
                    break
                if is_waiting[child]:
                    low[node] = min(low[node], order[child])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    circle = [waiting.pop()]
                    while circle[-1] != node:
                        circle.append(waiting.pop())
                    for member in circle:
                        is_waiting[member] = False
                    yield circle


# Recipes: one value, described by itself.


def _describe(value: object) -> _Node:  # noqa: C901, PLR0911, PLR0912  a table of kinds, read from top to bottom
    kind = type(value)
    if isinstance(value, list | tuple) and kind in {list, tuple}:
        return _sequence(value)
    if isinstance(value, dict | types.MappingProxyType) and kind in {dict, types.MappingProxyType}:
        return _mapping(value)
    if isinstance(value, set | frozenset) and kind in {set, frozenset}:
        return _Node(kind.__name__, [_Child("an element", item) for item in value], ordered=False)
    if isinstance(value, _Pair):
        return _Node("pair", [_Child("a key", value.key), _Child(f"key {value.key!r:.40}", value.value)])
    if isinstance(value, _Code):
        return _code(value)
    if isinstance(value, _Source):
        return _source(value)
    if isinstance(value, _Distribution):
        return _Node("distribution", [_text(value.name), _text(value.version)])
    if isinstance(value, types.FunctionType):
        return _function(value)
    if isinstance(value, type):
        return _class(value)
    if isinstance(value, types.ModuleType):
        return _module(value)
    if isinstance(value, types.CodeType):
        return _code(_Code(value, None, ""))
    if isinstance(value, types.MethodType):
        return _Node("method", [_Child("its function", value.__func__), _Child("its object", value.__self__)])
    if isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, types.ModuleType | None):
        return _named("builtin", value, value.__qualname__)
    if isinstance(value, functools.partial):
        return _Node("partial", _children(function=value.func, arguments=value.args, keywords=value.keywords))
    if isinstance(value, classmethod | staticmethod):
        return _Node(kind.__name__, [_Child("", value.__func__)])
    if isinstance(value, property):
        return _Node("property", _children(getter=value.fget, setter=value.fset, deleter=value.fdel))
    if isinstance(value, functools.cached_property):  # it holds a lock until Python 3.12
        return _Node("cached property", [_Child("", value.func)])
    if isinstance(value, types.CellType):
        return _cell(value)
    if isinstance(value, enum.Enum):
        return _Node("enum", _children(**{"class": kind, "name": value.name, "value": value.value}))
    if isinstance(value, PurePath):
        return _Node("path", [_text(value.as_posix())])
    if isinstance(value, date | time | timedelta) and kind in {date, time, datetime, timedelta}:
        return _moment(value)
    if isinstance(value, zoneinfo.ZoneInfo) and value.key:
        return _Node("zone", [_text(value.key)])
    if isinstance(value, re.Pattern):
        return _Node("regex", [_Child("its pattern", value.pattern), _scalar(value.flags)])
    if isinstance(value, logging.Logger):  # writes, and decides nothing
        return _Node("logger", [])
    own = getattr(kind, "__fingerprint__", None)
    if own is not None:
        return _Node("own", [_text(own(value))])
    return _describe_array(value) or _describe_model(value) or _instance(value)


def _sequence(value: Sequence[object]) -> _Node:
    """Encodes scalars at once: a list of a million numbers needs no million nodes."""
    parts = [_scalar(item) if _is_scalar(item) else _Child(f"item {at}", item) for at, item in enumerate(value)]
    return _Node(type(value).__name__, parts, words=[item for item in value if isinstance(item, str)])


def _mapping(value: Mapping[object, object]) -> _Node:
    parts: list[bytes | _Child] = []
    for key, item in value.items():
        if _is_scalar(key) and _is_scalar(item):
            parts.append(_frame(b"P", _scalar(key) + _scalar(item)))
        else:
            parts.append(_Child("", _Pair(key, item)))
    words = [each for pair in value.items() for each in pair if isinstance(each, str)]
    return _Node("dict", parts, ordered=False, words=words)


def _children(**values: object) -> list[bytes | _Child]:
    return [_Child(f"its {name}", value) for name, value in values.items()]


def _cell(cell: types.CellType) -> _Node:
    try:
        return _Node("cell", [_Child("", cell.cell_contents)])
    except ValueError:  # not bound yet, or deleted
        return _Node("empty cell", [])


def _moment(value: date | time | timedelta) -> _Node:
    if isinstance(value, timedelta):
        return _Node("timedelta", [_scalar(value.days), _scalar(value.seconds), _scalar(value.microseconds)])
    if isinstance(value, datetime | time):
        naive = _text(value.replace(tzinfo=None).isoformat())
        kind = "datetime" if isinstance(value, datetime) else "time"
        return _Node(kind, [naive, _scalar(value.fold), _Child("its time zone", value.tzinfo)])
    return _Node("date", [_text(value.isoformat())])


def _describe_array(value: object) -> _Node | None:
    """NumPy and Arrow by their bytes. Whoever holds such a value has imported the library already."""
    home = type(value).__module__.partition(".")[0]
    if home == "pyarrow":
        return _arrow(value)
    if (numpy := sys.modules.get("numpy")) is None:
        return None
    if isinstance(value, numpy.dtype):
        return _Node("numpy dtype", [_text(repr(value))])
    if isinstance(value, numpy.ndarray | numpy.generic) and type(value).__module__ == "numpy":
        array = numpy.asarray(value)
        shape = _text(f"{type(value).__name__ if isinstance(value, numpy.ndarray) else 'scalar'} {array.shape}")
        if array.dtype.hasobject:
            return _Node("numpy objects", [shape, _text(repr(array.dtype)), _Child("its items", array.tolist())])
        content = hashlib.blake2b(digest_size=_SIZE_BYTES, person=_EDITION)
        content.update(numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8).data if array.nbytes else b"")
        return _Node("numpy array", [shape, _text(repr(array.dtype)), _frame(b"D", content.digest())])
    return None


def _arrow(value: object) -> _Node | None:
    """By the bytes of the IPC format, in one chunk: how a table was cut into batches does not count."""
    import pyarrow as pa

    if isinstance(value, pa.DataType):
        value = pa.schema([pa.field("", value)])
    if isinstance(value, pa.Field):
        value = pa.schema([value])
    if isinstance(value, pa.Schema):
        return _Node("arrow schema", [_frame(b"y", value.serialize().to_pybytes())])
    if isinstance(value, pa.Array | pa.ChunkedArray):
        value = pa.table({"": value})
    if isinstance(value, pa.RecordBatch):
        value = pa.Table.from_batches([value])
    if not isinstance(value, pa.Table):
        return None
    content = hashlib.blake2b(digest_size=_SIZE_BYTES, person=_EDITION)
    with pa.PythonFile(_Sink(content), mode="w") as sink, pa.ipc.new_stream(sink, value.schema) as writer:
        writer.write_table(value.combine_chunks())
    return _Node("arrow table", [_frame(b"D", content.digest())])


class _Sink(io.RawIOBase):
    """A file that keeps only the digest of what is written to it."""

    def __init__(self, state: hashlib.blake2b) -> None:
        super().__init__()
        self._state = state

    def writable(self) -> bool:
        return True

    def write(self, data: bytes, /) -> int:  # type: ignore[override]  # any buffer, which has no name before 3.12
        self._state.update(data)
        return len(data)


def _describe_model(value: object) -> _Node | None:
    """A pydantic model by its fields, without the memory of which of them were set."""
    if not _is_model(type(value)):
        return None
    extra = getattr(value, "__pydantic_extra__", None)
    private = getattr(value, "__pydantic_private__", None)
    kept = {**vars(value), " extra": extra, " private": private}  # no field has a blank in its name
    return _Node("object", [_Child("its class", type(value)), *_attributes(kept)])


def _is_model(cls: type) -> bool:
    return "pydantic" in sys.modules and issubclass(cls, sys.modules["pydantic"].BaseModel)


def _attributes(state: Mapping[str, object]) -> list[bytes | _Child]:
    parts: list[bytes | _Child] = []
    for name in sorted(state):
        parts += [_text(name), _Child(f"attribute {name!r}", state[name])]
    return parts


def _instance(value: object) -> _Node:
    """Anything else by its class and state, as its class gives them to be copied or pickled."""
    if isinstance(value, functools._lru_cache_wrapper):  # noqa: SLF001  the type has no other name
        return _Node("lru_cache", [_Child("", value.__wrapped__)])
    try:
        registered = copyreg.dispatch_table.get(type(value))
        reduced = registered(value) if registered else value.__reduce_ex__(4)
    except Exception as error:
        raise _Refused(_what(value)) from error
    if isinstance(reduced, str):
        return _named("global", value, reduced)
    make, arguments, state, items, pairs = (*reduced, None, None, None, None)[:5]
    parts = [_Child("its maker", make), _Child("", arguments)]
    if type(state) is dict and all(isinstance(name, str) for name in state):
        return _Node("object", [*parts, *_attributes(state), *_contents(value, items, pairs)])
    return _Node("object", [*parts, _Child("its state", state), *_contents(value, items, pairs)])


def _contents(
    value: object, items: Iterable[object] | None, pairs: Iterable[tuple[object, object]] | None
) -> list[bytes | _Child]:
    parts: list[bytes | _Child] = []
    if items is not None:
        parts.append(_Child("", list(items)))
    if pairs is not None:
        parts.append(_Child("", list(pairs) if isinstance(value, OrderedDict) else dict(pairs)))
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


def _named(tag: str, value: object, name: str) -> _Node:
    """Something that only its module and name tell apart, with the version of where it comes from."""
    module = getattr(value, "__module__", None) or type(value).__module__
    parts: list[bytes | _Child] = [_text(module), _text(name)]
    if (home := _home_of(module)) is not None:
        parts.append(_Child("", home))
    wrapped = getattr(value, "__wrapped__", None)
    return _Node(tag, [*parts, _Child("what it wraps", wrapped)] if wrapped is not None else parts)


def _module(module: types.ModuleType) -> _Node:
    file = getattr(module, "__file__", None)
    if (home := _home(module.__name__, file)) is not None:
        return _Node("module", [_text(module.__name__), _Child("", home)])
    if not file:
        return _Node("module", [_text(module.__name__)])
    return _Node("module", [_Child("", _Source(file, module.__package__ or ""))])


def _source(source: _Source) -> _Node:
    """A file by its compiled code, so that comments do not count, and by the modules of the user's it imports."""
    try:
        content = Path(source.file).read_bytes()
    except OSError as error:
        raise _Refused(f"the module {source.file}, which cannot be read") from error
    if not source.file.endswith(".py"):
        return _Node("file", [_frame(b"y", content)])
    try:
        code = compile(content, source.file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise _Refused(f"the module {source.file}, which is not valid Python ({error})") from error
    return _Node("source", [_Child("", _Code(code, None, source.package))])


def _function(function: types.FunctionType) -> _Node:
    names = function.__globals__
    home = _home(str(names.get("__name__", "")), names.get("__file__"))
    free = function.__code__.co_freevars
    cells = [_Child(f"closure {name!r}", cell) for name, cell in zip(free, function.__closure__ or (), strict=True)]
    given = [_Child(f"default {at}", value) for at, value in enumerate(function.__defaults__ or ())]
    surroundings = [*cells, *given, *_attributes(function.__kwdefaults__ or {})]
    if home is None:
        return _Node("function", [_Child("", _Code(function.__code__, names, _package(names))), *surroundings])
    if _is_public(function) or not surroundings:
        return _named("function", function, function.__qualname__)
    if names.get("__name__") == "functools" and hasattr(function, "registry"):  # it closes over a cache
        return _Node("singledispatch", [_Child("its registry", dict(function.registry))])
    # Made at run time, such as by a library's decorator around a function of the user's.
    return _Node("closure", [_text(function.__code__.co_qualname), _Child("", home), *surroundings])


def _is_public(function: types.FunctionType) -> bool:
    """Whether its module gives it out under its name, so that the version says all about it."""
    found: object = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function and _home_of(function.__module__) is not None


def _home_of(module: str) -> _Distribution | None:
    return _home(module, getattr(sys.modules.get(module), "__file__", None))


def _package(names: Mapping[str, object]) -> str:
    package = names.get("__package__")
    return package if isinstance(package, str) else str(names.get("__name__", "")).rpartition(".")[0]


# What a class holds that no method reads, that is kept per process, or that repeats what is taken from elsewhere.
_NOT_CODE = frozenset(
    {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__"}
    | {"__annotations__", "__type_params__", "__parameters__", "__orig_bases__", "__slotnames__", "__signature__"}
    | {"__abstractmethods__", "_abc_impl", "__dataclass_fields__", "__dataclass_params__"}
    | {"__class_vars__", "__private_attributes__"}
)
_WRITTEN = (types.FunctionType, classmethod, staticmethod, property)


def _class(cls: type) -> _Node:
    if _home_of(cls.__module__) is not None:
        return _named("class", cls, cls.__qualname__)
    space = {name: value for name, value in vars(cls).items() if name not in _NOT_CODE and not _is_slot(value)}
    parts: list[bytes | _Child] = [_text(cls.__qualname__)]
    parts += [_Child(f"base {base.__qualname__!r}", base) for base in cls.__bases__]
    if type(cls) is not type:
        parts.append(_Child("its metaclass", type(cls)))
    if issubclass(cls, enum.Enum):
        members = [(name, member.value) for name, member in cls.__members__.items()]
        # The rest was put there by the machinery of enums, differs between versions and follows from the members.
        space = {name: each for name, each in space.items() if isinstance(each, _WRITTEN) and not name.startswith("_")}
        parts.append(_Child("its members", members))
    elif _is_model(cls):
        space = {name: value for name, value in space.items() if not name.startswith("__pydantic_")}
        parts += _fields(cls)
    notes = vars(cls).get("__annotations__", {})
    parts += [_text(f"{name}: {_annotation(notes[name])}") for name in sorted(notes)]
    return _Node("class", parts + _attributes(space))


def _is_slot(value: object) -> bool:
    return isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType)


def _fields(model: type) -> list[bytes | _Child]:
    parts: list[bytes | _Child] = []
    for name, info in sorted(getattr(model, "__pydantic_fields__", {}).items()):
        parts += [_text(name), _text(_address.sub("", repr(info.metadata)))]
        if not info.is_required():
            parts.append(_Child(f"default of {name!r}", info.default_factory or info.default))
    return parts


_address = re.compile(r" at 0x[0-9a-fA-F]+")


def _annotation(note: object) -> str:
    return note if isinstance(note, str) else _address.sub("", repr(note))


# Code: bytecode, with its constants and names told by what they are instead of by their numbers.

_EXTENDED_ARG = opcode.opmap["EXTENDED_ARG"]
_CACHE = opcode.opmap["CACHE"]
_CONSTANT_OPS = frozenset(opcode.hasconst)
# Some operations keep flags in the lowest bits of a name's number (Python 3.11 to 3.13).
_FLAG_BITS = {"LOAD_GLOBAL": 1, "LOAD_ATTR": 1 if sys.version_info >= (3, 12) else 0, "LOAD_SUPER_ATTR": 2}
_NAME_OPS = {op: _FLAG_BITS.get(opcode.opname[op], 0) for op in opcode.hasname}
_GLOBAL_OP = opcode.opmap["LOAD_GLOBAL"]
_GLOBAL_OPS = {_GLOBAL_OP, opcode.opmap["LOAD_NAME"], opcode.opmap.get("LOAD_FROM_DICT_OR_GLOBALS", -1)}
_ATTRIBUTE_OPS = frozenset(opcode.opmap.get(name, -1) for name in ("LOAD_ATTR", "LOAD_METHOD"))
_IMPORT_OP = opcode.opmap["IMPORT_NAME"]
_STORE_OP = opcode.opmap["STORE_NAME"]
# varargs, varkeywords, generator, coroutine, iterable coroutine, async generator: the rest says nothing of behaviour
_FLAGS = 0x04 | 0x08 | 0x20 | 0x80 | 0x100 | 0x200
# Set by the compiler in a class body or module; the last one even in an order that differs between processes.
_UNREAD = frozenset({"__doc__", "__qualname__", "__firstlineno__", "__static_attributes__"})
# A module's own place and name: they change with the machine and the way it was loaded.
_PLACES = {"__name__", "__file__", "__spec__", "__loader__", "__package__", "__path__", "__cached__", "__builtins__"}


def _code(scope: _Code) -> _Node:
    code = scope.code
    arguments = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    shape = (*arguments, code.co_flags & _FLAGS, len(code.co_freevars))
    stream = [_text(_PYTHON), _text(repr(shape)), _frame(b"y", code.co_exceptiontable)]
    constants: list[bytes | _Child] = []
    outside = _Outside(scope)
    for op, number in _operations(code):
        if op in _CONSTANT_OPS:
            stream.append(bytes((op,)))
            constants.append(_constant(code.co_consts[number], scope))
            outside.constant(code.co_consts[number])
        elif op in _NAME_OPS:
            bits = _NAME_OPS[op]
            name = code.co_names[number >> bits]
            stream.append(bytes((op, number & ((1 << bits) - 1))) + _text(name))
            outside.name(op, name)
        else:
            stream.append(op.to_bytes(2, "little") + number.to_bytes(4, "little"))
            outside.other()
    outside.other()
    keywords = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    return _Node("code", [_frame(b"y", b"".join(stream)), *constants, *outside.found()], arguments=keywords)


def _operations(code: types.CodeType) -> list[tuple[int, int]]:
    """Operations with their whole numbers; `co_code` has none of what the interpreter specialised meanwhile."""
    raw = code.co_code
    operations: list[tuple[int, int]] = []
    high = 0
    for at in range(0, len(raw), 2):
        op, low = raw[at], raw[at + 1]
        if op == _EXTENDED_ARG:
            high = (high | low) << 8
        elif op != _CACHE:
            number, high = high | low, 0
            if op == _STORE_OP and code.co_names[number] in _UNREAD and operations[-1][0] in _CONSTANT_OPS:
                operations.pop()
            else:
                operations.append((op, number))
    return operations


def _constant(value: object, scope: _Code) -> _Child:
    if isinstance(value, types.CodeType):
        return _Child("", _Code(value, scope.names, scope.package))
    return _Child("a constant", value)


class _Outside:
    """What a piece of code takes from outside of itself, collected in the order of its operations."""

    def __init__(self, scope: _Code) -> None:
        self._scope = scope
        self._chain: tuple[str, object] | None = None
        self._constants: list[object] = [0, None]
        self._found: dict[str, object] = {}
        self._imports: dict[object, None] = {}

    def constant(self, value: object) -> None:
        self._end()
        self._constants = [self._constants[-1], value]

    def other(self) -> None:
        self._end()

    def name(self, op: int, name: str) -> None:
        if op in _ATTRIBUTE_OPS and self._chain is not None:
            text, value = self._chain
            # A module of the user's is followed to what is taken from it; so is a function's attribute.
            if isinstance(value, types.ModuleType | types.FunctionType) and name in vars(value) and _is_followed(value):
                if isinstance(value, types.FunctionType):
                    self._found[text] = value
                self._chain = (f"{text}.{name}", vars(value)[name])
                return
        self._end()
        if op == _IMPORT_OP:
            level, wanted = self._constants
            self._import(name, level if isinstance(level, int) else 0, wanted if isinstance(wanted, tuple) else ())
        elif op in _GLOBAL_OPS and self._scope.names is not None and name not in _PLACES:
            if name in self._scope.names:
                self._chain = (name, self._scope.names[name])
            elif op == _GLOBAL_OP and not _is_builtin(name):
                self._found[name] = _UNBOUND

    def _end(self) -> None:
        if self._chain is not None:
            text, value = self._chain
            self._found[text] = value
            self._chain = None

    def _import(self, name: str, level: int, wanted: tuple[object, ...]) -> None:
        if level:
            above = self._scope.package.rsplit(".", level - 1)[0]
            name = f"{above}.{name}" if name else above
        for source in _imported(name, tuple(str(each) for each in wanted)):
            self._imports[source] = None

    def found(self) -> list[bytes | _Child]:
        parts: list[bytes | _Child] = []
        for text in sorted(self._found):
            parts += [_text(text), _Child(f"global {text!r}", self._found[text])]
        return parts + [_Child("an import", source) for source in self._imports]


_UNBOUND = _Distribution("", "")


def _is_builtin(name: str) -> bool:
    return name in vars(sys.modules["builtins"])


def _is_followed(value: types.ModuleType | types.FunctionType) -> bool:
    names = vars(value) if isinstance(value, types.ModuleType) else value.__globals__
    return _home(str(names.get("__name__", "")), names.get("__file__")) is None


# Homes: whose a module is.

_STDLIB = os.path.dirname(os.path.realpath(os.__file__)) + os.sep  # noqa: PTH120  compared as text below
_FRAME = os.path.dirname(os.path.realpath(__file__)) + os.sep  # noqa: PTH120  compared as text below
_OURS = os.path.dirname(_FRAME.rstrip(os.sep)) + os.sep  # noqa: PTH120  as above
_SITE = re.compile(r"^(.*[/\\](?:site|dist)-packages)[/\\](.+)$")
_COMPONENTS = ("components", "resolvers", os.path.join("pipelines", "input"))  # noqa: PTH118  compared as text


@functools.lru_cache(maxsize=4096)
def _home(name: str, file: object) -> _Distribution | None:
    """The distribution that a module belongs to; None if it is the user's.

    The standard library is a distribution of its own, without version: that is in every digest of code. What runs the
    components (this folder) counts by version, and the components count as a whole, by their files: to follow each
    of them by its code took a quarter of a second a node.
    """
    if not isinstance(file, str):
        return _PYTHON_ITSELF if name.partition(".")[0] in sys.stdlib_module_names and name != "__main__" else None
    file = os.path.realpath(file)
    if name == "spanwise" or (file.startswith(_FRAME) and name != "__main__"):
        return _Distribution("spanwise", __version__)
    if file.startswith(tuple(f"{_OURS}{folder}{os.sep}" for folder in _COMPONENTS)):
        return _Distribution("spanwise components", _components())
    if file.startswith(f"{_OURS}pipelines{os.sep}"):
        return None
    if site := _SITE.match(file):
        return _distribution(site[1], site[2].replace("\\", "/"))
    return _PYTHON_ITSELF if file.startswith(_STDLIB) else None


_PYTHON_ITSELF = _Distribution("python", "")


@functools.cache
def _components() -> str:
    """The edition of all of our components together."""
    files = sorted(path for folder in _COMPONENTS for path in Path(_OURS, folder).rglob("*.py"))
    return digest("components", *(part for path in files for part in (str(path)[len(_OURS) :], path.read_bytes())))


@functools.lru_cache(maxsize=4096)
def _distribution(site: str, below: str) -> _Distribution:
    """The distribution whose list of files names this one. Asks the lists directly: parsing them all takes 100 ms."""
    top = below.partition("/")[0]
    package = f"{top}/__init__.py"
    if below != package and Path(site, package).is_file():
        return _distribution(site, package)
    wanted = b"\n" + below.encode() + b","
    lists = sorted(Path(site).glob("*.dist-info/RECORD"))
    lists.sort(key=lambda each: not each.parent.name.lower().startswith(top.lower()))  # the likeliest first
    for each in lists:
        if wanted in b"\n" + each.read_bytes():
            name, _, version = each.parent.name.removesuffix(".dist-info").partition("-")
            return _Distribution(re.sub(r"[-_.]+", "-", name).lower(), version)
    # Copied there by hand, or by a tool that keeps no list: then this one file stands for it.
    return _Distribution(below, of_tree(Path(site, below)).digest)


def _imported(name: str, wanted: tuple[str, ...]) -> list[_Source | _Distribution]:
    """What `import name`, or `from name import wanted`, would run, found without running any of it."""
    found: list[_Source | _Distribution] = []
    parts = name.split(".")
    paths: Sequence[str] | None = None
    for length in range(1, len(parts) + 1):
        spec = _find(".".join(parts[:length]), paths)
        if spec is None:
            return found
        found += _of_spec(spec)
        if (paths := spec.submodule_search_locations) is None:
            return found
    for each in wanted:
        if spec := _find(f"{name}.{each}", paths):
            found += _of_spec(spec)
    return found


def _find(name: str, paths: Sequence[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, paths) if hasattr(finder, "find_spec") else None
        except (KeyError, ImportError):  # a namespace package inside one that is not imported yet
            continue
        if spec is not None:
            return spec
    return None


def _of_spec(spec: ModuleSpec) -> list[_Source | _Distribution]:
    if not spec.has_location or not spec.origin:
        home = _home(spec.name, None)
        return [] if home is None else [home]
    home = _home(spec.name, spec.origin)
    if home is not None:
        return [home]
    return [_Source(spec.origin, spec.name if spec.submodule_search_locations is not None else spec.parent or "")]
