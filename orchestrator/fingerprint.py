"""Fingerprints: what makes two values, functions, components, files or executions the same.

A fingerprint is a tagged BLAKE2b digest. Values count by content; code counts by its bytecode and by everything that
bytecode names, as far as that is the user's; libraries count by distribution and version, so nothing is imported to be
fingerprinted. Renaming things locally and line numbers do not count; comments, docstrings, annotations of functions,
and the subclasses of a class only where the code reached reads such. The recipe for each kind of value is in
`value_digest`, for code in `code_digest`, and how they become one digest in `digest`.

Where code comes to globals by texts (`globals()`, `eval`, `sys.modules[__name__]`), the whole source of the module
counts, and so does what pandas or SQL read by a text such as "fare > @limit", wherever that is. What no recipe can
see: modules imported by names computed at run time, files and services that a function reads by itself, and the
environment. A global that a function changes as it runs counts with the content it has now.
"""

from __future__ import annotations

import inspect
import os
import stat
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from spanwise.orchestrator import durable
from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.bindings import Bindings, noticed_bindings
from spanwise.orchestrator.code_digest import PYTHON, annotation_text, names_file, outside_key
from spanwise.orchestrator.digest import ValueGraph, digest, digest_graph, encode_text, frame, hash_parts, new_hash
from spanwise.orchestrator.errors import Unfingerprintable
from spanwise.orchestrator.value_digest import describe

__all__ = [
    "Bindings",
    "CacheKey",
    "Tree",
    "cache_key",
    "digest",
    "noticing_bindings",
    "of_artifact",
    "of_class",
    "of_function",
    "of_parameters",
    "of_tree",
    "of_value",
    "versions",
]


def of_value(value: object, *, who: str = "the value") -> str:
    """The digest of a value by its content, the same in every process.

    Dicts count in their order, which code may go by, sets by their elements' digests, instances by their class and
    state (or by the text that their `__fingerprint__()` gives), arrays and tables by their bytes, paths by their text,
    functions and classes as in `of_function` and `of_class`.
    Equal values of different types (1, 1.0, True) differ. `who` opens the message of an error.

    Raises:
        Unfingerprintable: it is, or holds, something whose content cannot be known; the message says where.
    """
    return hash_parts("value", [digest_graph(value, who, describe)]).hex()


@contextmanager
def noticing_bindings() -> Iterator[Bindings]:
    """Notices what the names mean that code uses which is fingerprinted meanwhile."""
    bindings = Bindings()
    token = noticed_bindings.set(bindings)
    try:
        yield bindings
    finally:
        noticed_bindings.reset(token)


def of_artifact(artifact: Artifact) -> str:
    """What of an artifact can change a result: its kind, files and properties, but not its location."""
    properties = dict(sorted(artifact.properties.items()))  # each in its own order, as code reads it
    content = digest_graph(properties, f"the properties of {artifact.name}", describe)
    return digest("artifact", artifact.kind, artifact.content, hash_parts("value", [content]).hex())


def of_function(function: Callable[..., object], *, who: str | None = None) -> str:
    """The digest of a callable: its code, defaults, closure, and, recursively, each global that the code names.

    Functions of the project count by their own code, libraries by distribution and version, the standard library by
    the version of Python (which is always part of it, since bytecode changes with it). A function's own name,
    docstring and annotations count only where the code reached reads such (`__name__`, `getdoc`, `signature`), and an
    argument's name only where a string or keyword of that name can be met in it: a rename is free, while swapping the
    names of arguments that are passed by keyword is not.

    Raises:
        Unfingerprintable: it depends on a lock, an open file or the like; the message says by which way.
    """
    name = who or f"function {getattr(function, '__qualname__', None) or type(function).__qualname__!r}"
    return hash_parts("function", [encode_text(PYTHON), digest_graph(function, name, describe)]).hex()


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
    return hash_parts("class", [encode_text(PYTHON), specification, digest_graph(cls, name, describe)]).hex()


def of_parameters(
    cls: type, parameters: Mapping[str, object], prepared: Mapping[str, object], *, who: str
) -> dict[str, str]:
    """The digest of each parameter of a component, and of each value that it prepared, as `of_value` gives it.

    What the names of functions and of their arguments count for is decided by the component and all parameters
    together, since the component may pass arguments by name to a function among the parameters, or read its own.
    """
    given, found = (
        {name: ValueGraph(value, f"parameter {name!r} of {who}", describe) for name, value in values.items()}
        for values in (parameters, prepared)
    )
    noticed = outside_key.get()
    if noticed is not None and not prepared:  # otherwise it may have read them
        noticed.files.update(text for graph in given.values() for text in graph.texts if names_file(text))
    texts: set[str] = set()
    if any(graph.has_names for graph in given.values()):
        texts.update(ValueGraph(cls, f"class {cls.__qualname__!r}", describe).texts)
        texts.update(*(graph.texts for graph in given.values()))
    return {name: hash_parts("value", [graph.digest(texts)]).hex() for name, graph in {**given, **found}.items()}


def _signature(run: types.FunctionType) -> bytes:
    code = run.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    notes = [(name, annotation_text(run.__annotations__.get(name, ""))) for name in (*names, "return")]
    return b"".join(encode_text(text) for pair in notes for text in pair)


@dataclass(frozen=True, kw_only=True)
class Tree:
    """The content of a file or folder."""

    digest: str  #: of the files' names and bytes; the folder's own name and place do not count
    files: Mapping[str, str]  #: digest of each regular file's bytes, by its path below the folder, in order
    size_bytes: int  #: their total size


def of_tree(
    path: str | os.PathLike[str], *, sync: bool = False, known: Mapping[str, tuple[bytes, int]] | None = None
) -> Tree:
    """The digest of a file, or of a folder by the names and bytes of all that is in it, empty folders included.

    Times, owners and permissions do not count. A symbolic link inside a folder counts by its text if it stays within
    the folder; one that leaves it is refused, since what it shows can change after the digest was taken.
    `sync` writes each file and folder through to the disk on the way, the inner ones first. `known` has the digest of
    the bytes, and their number, of files that whoever has just written them need not read again; they are on disk.

    Raises:
        Unfingerprintable: nothing is there, it cannot be read, or it holds a socket, a device or a link to outside.
    """
    root = Path(path)
    top = root.resolve() if root.is_dir() else root.parent
    buffer = bytearray(1 << 20)
    files: dict[str, str] = {}
    sizes: list[int] = []

    def contents(file: str) -> bytes:
        name = os.path.relpath(file, top)
        content, size_bytes = known[name] if known and name in known else _read(file, buffer, sync=sync)
        files[name] = content.hex()
        sizes.append(size_bytes)
        return frame(b"D", content)

    try:
        if root.is_dir():
            entries = sorted(_walk(top, contents, sync=sync))
            total = hash_parts("folder", [frame(b"p", name) + kind + content for name, kind, content in entries])
        elif root.exists() and not root.is_file():
            raise Unfingerprintable(f"{root} is neither a file nor a folder, so it has no content to fingerprint.")
        else:
            total = hash_parts("file", [contents(str(root))])
    except FileNotFoundError as error:
        raise Unfingerprintable(f"{root} could not be fingerprinted: there is nothing at {error.filename}.") from error
    except OSError as error:
        raise Unfingerprintable(f"{root} could not be fingerprinted: {error}.") from error
    return Tree(digest=total.hex(), files=dict(sorted(files.items())), size_bytes=sum(sizes))


def _walk(root: Path, contents: Callable[[str], bytes], *, sync: bool) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yields name below the root, kind and content of each entry, in no promised order."""
    for here, folders, files in os.walk(root, topdown=False, onerror=_raise):
        for name in (*folders, *files):
            full = os.path.join(here, name)  # noqa: PTH118  a Path costs more than the hash of a small file
            below = os.fsencode(os.path.relpath(full, root))
            mode = os.lstat(full).st_mode
            if stat.S_ISLNK(mode):
                yield below, b"L", frame(b"y", _link(root, full))
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
    """The digest of a file's bytes, and their number."""
    state = new_hash()
    view = memoryview(buffer)
    size_bytes = 0
    with open(file, "rb", buffering=0) as stream:  # noqa: PTH123  a Path costs more than the hash of a small file
        while count := stream.readinto(buffer):
            state.update(view[:count])
            size_bytes += count
        if sync:
            os.fsync(stream.fileno())
    return state.digest(), size_bytes


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
