"""Fingerprints of graphs: two datasets with equal ones give the same elements.

An op counts by its kind, its arguments and its inputs; a function by its code and all that this code uses
(`orchestrator.fingerprint`); a source file by its name, size and time of change, or by its content. What only changes
how fast it goes does not count: parallelism, buffers, prefetch and cache, and snapshots on the way, unless they keep
the rounds of a repeat from differing. Neither does what comes after the op, nor in which order the graph was built.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from spanwise.orchestrator import fingerprint
from spanwise.orchestrator.errors import DatasetError, Unfingerprintable, UnreadableInput
from spanwise.pipelines.input.element import each_leaf
from spanwise.pipelines.input.op import Op, Opening, Options, Stream, list_ops
from spanwise.pipelines.input.ops.interleave import Interleave
from spanwise.pipelines.input.ops.repeat import Repeat

FilesBy: TypeAlias = Literal["mtime", "content", "size"]
"""What tells that a source file is another one: its time of change (and name and size), or every byte of it."""

FILES_BY: Final = ("mtime", "content")

_TRANSPARENT: Final = frozenset({"Cache", "Prefetch", "Snapshot"})
_SPEED: Final = frozenset(
    {"num_parallel", "workers", "stateless", "limit_bytes", "buffer_bytes", "block_rows", "file_bytes"}
    | {"service", "security", "compression", "max_outstanding_requests"}  # of `Distribute`
)
_DERIVED: Final = {  # what follows from the files
    "Parquet": {"groups", "schema", "places"},
    "FileNames": {"places"},
    "ArrowFiles": {"files", "schema", "rows"},
    "Csv": {"inferred"},
    "Snapshot": {"stamps", "bindings"},
}


@dataclass(frozen=True, kw_only=True, eq=False)
class WithFingerprint(Op):
    """Names the step before it: the name replaces the step in fingerprints."""

    by_element = True

    input: Op
    fingerprint: str

    def __post_init__(self) -> None:
        if not isinstance(self.fingerprint, str) or not self.fingerprint:
            raise DatasetError(f"with_snapshot_fingerprint({self.fingerprint!r}): expected a text that is not empty.")

    def open(self, opening: Opening) -> Stream:
        return opening.open(self.input)


def of_graph(op: Op, *, files_by: FilesBy = "mtime") -> str:
    """The fingerprint of what an op gives.

    Raises:
        Unfingerprintable: a step depends on something whose content cannot be known; the message says on what.
        DatasetError: a source file is not there.
    """
    done: dict[int, str] = {}
    kept = _kept_rounds(op)

    def of(each: Op) -> str:
        if id(each) not in done:
            made = _of_step(each, [of(one) for one in _below(each)], files_by)
            done[id(each)] = fingerprint.digest("kept for all rounds", made) if id(each) in kept else made
        return done[id(each)]

    return fingerprint.digest("dataset", _own_version(), of(op))


def _kept_rounds(op: Op) -> frozenset[int]:
    """The ids of caches and snapshots below a repeat that change its elements: without them, rounds would differ."""
    repeated = [each for repeat in list_ops(op) if isinstance(repeat, Repeat) for each in list_ops(repeat.input)]
    return frozenset(
        id(each)
        for each in repeated
        if _is_built_in(each) and type(each).__name__ in {"Cache", "Snapshot"} and any(map(_may_differ, list_ops(each)))
    )


def _may_differ(op: Op) -> bool:
    """Whether an op may yield other elements, or in another order, in each round."""
    draws = hasattr(op, "seed") and getattr(op, "shuffle", True) and getattr(op, "reshuffle_each_iteration", True)
    return draws or not op.proves_place


@functools.cache
def _own_version() -> str:
    """That of the code in this process, whatever is installed meanwhile."""
    return fingerprint.versions(["spanwise"])["spanwise"]


def of_graph_now(op: Op, *, files_by: FilesBy) -> tuple[str, fingerprint.Bindings]:
    """The fingerprint of what an op gives, and what the names that its functions use mean.

    Raises:
        Unfingerprintable: as `of_graph`.
        DatasetError: as `of_graph`.
    """
    with fingerprint.noticing_bindings() as bindings:
        return of_graph(op, files_by=files_by), bindings


def refuse_rebound(bindings: fingerprint.Bindings) -> None:
    """Refuses functions that use a name which has been set anew since their fingerprint was taken.

    Raises:
        DatasetError: says which.
    """
    if (name := bindings.changed(_are_same)) is not None:
        raise DatasetError(
            f"snapshot: {name!r}, which a function before it uses, has been set anew since the dataset was created, so "
            "the snapshot would hold other elements than those that its fingerprint stands for. Create the dataset "
            f"again when {name!r} is set. In a loop, give each function a value of its own: lambda x, {name}={name}: …"
        )


def _are_same(before: object, now: object) -> bool:
    try:
        return fingerprint.of_value(before) == fingerprint.of_value(now)
    except Unfingerprintable:
        return False


def with_options(graph: str, op: Op, options: Options) -> str:
    """The fingerprint of what a graph gives with these options: a seed counts where an op has none of its own.

    Without any seed each pass draws another one, and any of them will do.
    """
    ops = list_ops(op)
    if options.seed is not None and any(map(_leaves_seed_open, ops)):
        graph = fingerprint.digest("seeded", graph, options.seed)
    if not options.deterministic and any(getattr(each, "deterministic", False) is None for each in ops):
        graph = fingerprint.digest("in any order", graph)
    return graph


def _leaves_seed_open(op: Op) -> bool:
    """Whether what an op yields follows from the pass's seed; a function's datasets may have ops without one."""
    return getattr(op, "seed", 0) is None or isinstance(op, Interleave)


def of_steps(op: Op) -> list[tuple[str, str]]:
    """The name of each op of a graph and a digest of its arguments, inputs first: what the state of a pass belongs to.

    A source file counts by name and size. What has no content to compare counts by its type alone.
    """
    return [(each.name, _of_step(each, [], "size", tolerant=True)[:16]) for each in list_ops(op)]


def stamp_files(op: Op) -> tuple[tuple[str, str], ...]:
    """What changes with each source file that a graph's fingerprint covers, without reading it: paths and texts.

    It says more than a fingerprint: on a disk, a new owner, permission or link changes it as well.
    """
    return tuple((path, _stamp(path)) for path in _covered_files(op))


def digest_files(op: Op) -> str:
    """The digest of sizes and modification times of the source files that a graph's fingerprint covers.

    Raises:
        DatasetError: a source file is not there.
    """
    return fingerprint.digest(
        "source files", *(str(part) for path in _covered_files(op) for part in _file(path, "mtime")[1:])
    )


def refuse_changed(op: Op, graph: str, stamps: Sequence[tuple[str, str]], *, files_by: FilesBy) -> None:
    """Refuses files that are no longer those of the stamps, unless the fingerprint of the graph is still the same.

    Raises:
        UnreadableInput: names the first file that changed.
    """
    before, after = dict(stamps), dict(stamp_files(op))
    changed = sorted(path for path, stamp in after.items() if before.get(path) != stamp)
    if not changed:
        return
    with suppress(DatasetError):
        if of_graph(op, files_by=files_by) == graph:
            return
    raise UnreadableInput(
        f"{changed[0]} changed while the dataset was in use, so its snapshot was not kept: rows of two states of the "
        "file may be in it. Create the dataset again when the file no longer changes; write files under another name "
        "and rename them when they are complete."
    )


def of_files(op: Op) -> str:
    """The digest of the modification times of a graph's source files."""
    paths = [path for each in list_ops(op) for path in getattr(each, "paths", ())]
    return fingerprint.digest("times", *(str(part) for path in paths for part in _file(path, "mtime")[2:]))


def _covered_files(op: Op) -> list[str]:
    """The paths below an op, but those that a name replaces."""
    found: dict[str, None] = {}
    waiting, done = [op], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) not in done:
            done.add(id(each))
            waiting += _below(each)
            if not isinstance(each, WithFingerprint):
                found |= dict.fromkeys(getattr(each, "paths", ()))
    return sorted(found)


def _below(op: Op) -> tuple[Op, ...]:
    """The ops that a step's elements come from; the step that a name replaces is left out."""
    return op.input.inputs if isinstance(op, WithFingerprint) else op.inputs


def _of_step(op: Op, inputs: list[str], files_by: FilesBy, *, tolerant: bool = False) -> str:
    if isinstance(op, WithFingerprint):
        return fingerprint.digest("named step", op.fingerprint, *inputs)
    if _is_built_in(op) and type(op).__name__ in _TRANSPARENT and inputs:
        return inputs[0]
    kind = type(op).__qualname__ if _is_built_in(op) else fingerprint.of_class(type(op))
    parts: list[str] = []
    derived = _DERIVED.get(type(op).__name__, ())
    for each in sorted(fields(op), key=lambda one: one.name):
        value = getattr(op, each.name)
        if each.name in _SPEED or _is_input(value, op) or (_is_built_in(op) and each.name in derived):
            continue
        try:
            parts += [each.name, _of_argument(op, each.name, value, files_by)]
        except Unfingerprintable:
            if not tolerant:
                raise
            parts += [each.name, type(value).__qualname__]
    return fingerprint.digest("step", kind, *parts, *inputs)


def _is_built_in(op: Op) -> bool:
    """Whether an op counts by its kind and by the version of spanwise; an op of a component counts by its code."""
    return type(op).__module__.startswith("spanwise.pipelines.input.")


def _is_input(value: object, op: Op) -> bool:
    below = {id(one) for one in op.inputs}
    return id(value) in below or (isinstance(value, tuple) and bool(value) and all(id(one) in below for one in value))


def _of_argument(op: Op, name: str, value: Any, files_by: FilesBy) -> str:
    if name == "paths":
        return fingerprint.digest("files", *(part for path in value for part in _file(path, files_by)))
    if name == "deterministic":
        return str(value is not False)  # None is decided by options, which say how a pass is run
    try:
        return fingerprint.of_value(_without_datasets(value, files_by), who=f"{op.name}({name}=)")
    except Unfingerprintable as error:
        raise Unfingerprintable(
            f'{error} Or name the step yourself, with .with_snapshot_fingerprint("…") after it, and change the name '
            f"whenever the step changes."
        ) from error


def _without_datasets(value: Any, files_by: FilesBy) -> Any:
    """The value with each dataset in it replaced by its fingerprint: a dataset holds more than its graph."""
    if isinstance(value, Mapping | tuple):
        return each_leaf(lambda leaf: _graph_or_leaf(leaf, files_by), value)
    return _graph_or_leaf(value, files_by)


def _graph_or_leaf(leaf: Any, files_by: FilesBy) -> Any:
    op, settings = getattr(leaf, "op", None), getattr(leaf, "settings", None)
    if not isinstance(op, Op):
        return leaf
    graph = of_graph(op, files_by=files_by)
    return ("dataset", with_options(graph, op, settings) if isinstance(settings, Options) else graph)


def _stamp(path: str) -> str:
    if "://" not in path:
        try:
            found = Path(path).stat()
        except OSError:
            return "gone"
        # the inode too: a file that is replaced within a tick of the clock, some milliseconds, has the same times
        return f"{found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"
    try:
        return " ".join(map(str, _file(path, "mtime")[1:]))
    except DatasetError:
        return "gone"


def _file(path: str, files_by: FilesBy) -> tuple[str | int | None, ...]:
    """Name, size and modification time, or size and content."""
    import pyarrow as pa

    from spanwise.pipelines.input.files import file_stamp, locate

    try:
        system, name = locate(path)
        found = system.get_file_info(name)
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"cannot read {path}: {error}.") from error
    if not found.is_file:
        raise DatasetError(f"{path} no longer exists; create the dataset again from the files that exist.")
    if files_by == "size":
        return found.base_name, found.size
    if files_by == "mtime" and (stamp := file_stamp(system, name, found.mtime_ns)) is not None:
        return path, found.size, stamp
    return found.base_name, found.size, _content(system, name)


def _content(system: Any, name: str) -> str:
    import xxhash

    state = xxhash.xxh3_128()
    with system.open_input_stream(name) as stream:
        while chunk := stream.read(1 << 22):
            state.update(chunk)
    digest: str = state.hexdigest()
    return digest
