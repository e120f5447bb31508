"""Splits: how the elements of a graph's sources are numbered, and graphs that are cut down to some of them. Pure.

A split is a run of a source's units (numbers, elements, rows of a table, files, row groups), known by its number alone.
So the dispatcher counts and knows nothing of what it hands out; what split 7 of the second source is, a worker knows.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from spanwise.pipelines.input.element import Spec
from spanwise.pipelines.input.graph.rewrite import optimize
from spanwise.pipelines.input.op import Element, Op, Opening, Options, State, Stream, list_ops, mix_seed, rebuild
from spanwise.pipelines.input.ops.arrow import Arrow
from spanwise.pipelines.input.ops.csv import Csv
from spanwise.pipelines.input.ops.file_names import FileNames
from spanwise.pipelines.input.ops.file_source import FileSource
from spanwise.pipelines.input.ops.interleave import Interleave
from spanwise.pipelines.input.ops.ipc import ArrowFiles
from spanwise.pipelines.input.ops.parquet import Parquet, ParquetRowGroup
from spanwise.pipelines.input.ops.random_access import RandomAccess
from spanwise.pipelines.input.ops.random_map import RandomMap
from spanwise.pipelines.input.ops.range import Range
from spanwise.pipelines.input.ops.repeat import Repeat
from spanwise.pipelines.input.ops.sample import Sample
from spanwise.pipelines.input.ops.tensors import Elements, TensorSlices
from spanwise.pipelines.input.snapshot.op import Snapshot
from spanwise.pipelines.input.snapshot.source import LoadedSnapshot
from spanwise.pipelines.input.stacking import cut, length

_SPLITS: Final = 256
"""At most how many splits the units of a source make, unless they are large."""

LARGE_BYTES: Final = 4 << 20
"""To produce a split of this size takes much longer than to begin it: no other file or row group is put to it."""

_SHARDS: Final = 32
"""At most how many shards a dataset is saved in."""

_BLOCK_ROWS: Final = 8_192


def sources_of(op: Op) -> list[Op]:
    """The ops without inputs, in the graph's order."""
    return [each for each in list_ops(op) if not each.inputs]


def plan_graph(op: Op, options: Options) -> Op:
    """The graph as workers run it, on which splits are counted: rewritten, but each `repeat` stays an op."""
    return optimize(op, replace(options, without=options.without | {"shuffle_and_repeat_fusion"})).op


def share_seeds(op: Op, seed: int) -> Op:
    """The graph with the seeds that its splits have in common: of the order of a whole source, and of numbers by a key.

    All others are left open, so that a shuffle differs from split to split.
    """
    numbers = itertools.count()

    def give(each: Op) -> Op:
        if getattr(each, "seed", 0) is not None:
            return each
        drawn = mix_seed(seed, next(numbers))  # as `assign_seeds` does
        if not each.inputs or (isinstance(each, RandomMap) and each.key is not None):
            changes: dict[str, object] = {"seed": drawn}
            return replace(each, **changes)
        return each

    return rebuild(op, give)


# Splits.


@dataclass(frozen=True)
class SourceSplits:
    """The splits of one source."""

    count: int
    part: Callable[[int], Op]  #: the source, cut down to one split


def splits_of(source: Op) -> SourceSplits | None:  # noqa: C901, PLR0911  a case per kind of source
    """The splits of a source; None if it cannot be split."""
    match source:
        case Range(start=start, stop=stop, step=step):
            numbers = range(start, stop, step)

            def cut_range(units: slice) -> Op:
                part = numbers[units]
                return Range(start=part.start, stop=part.stop, step=step)

            return _of_units(len(numbers), cut_range)
        case Elements(values=values):
            return _of_units(len(values), lambda units: Elements(values=values[units]))
        case TensorSlices(tensors=tensors):
            return _of_units(length(tensors), lambda units: TensorSlices(tensors=cut(tensors, units.start, units.stop)))
        case Arrow(table=table):
            rows = int(table.num_rows)
            size = max(_BLOCK_ROWS, -(-rows // _SPLITS))
            return _of_units(rows, lambda units: Arrow(table=table[units]), size)
        case Parquet(groups=groups):
            sizes = [group.size_bytes for group in groups]
            if source.shuffle:
                return _of_places(sizes, lambda places: replace(source, places=places))
            return _of_runs(sizes, lambda units: replace(source, groups=groups[units]))
        case ArrowFiles():  # counting the rows of each file would take longer than opening it
            return _of_files(source, lambda units: replace(source, paths=source.paths[units], rows=None))
        case FileNames(shuffle=True):
            return _of_places(_sizes_of(source), lambda places: replace(source, places=places))
        case Csv() | FileSource():
            return _of_files(source, lambda units: replace(source, paths=source.paths[units]))
        case RandomAccess(positions=positions):
            return _of_units(len(positions), lambda units: replace(source, positions=positions[units]))
        case LoadedSnapshot(chunks=chunks):
            return _of_units(len(chunks), lambda units: replace(source, chunks=chunks[units]), 1)
    return None


def _of_units(units: int, cut_source: Callable[[slice], Op], size: int | None = None) -> SourceSplits:
    """Runs of `size` units; None makes as many splits as allowed."""
    size = size or max(1, -(-units // _SPLITS))
    return SourceSplits(
        -(-units // size), lambda number: cut_source(slice(number * size, min(units, (number + 1) * size)))
    )


def _of_runs(sizes: Sequence[int], cut_source: Callable[[slice], Op]) -> SourceSplits:
    """Runs of units of these sizes in bytes: no more than allowed that are not large."""
    least = min(LARGE_BYTES, max(1, -(-sum(sizes) // _SPLITS)))
    ends, size_bytes = list[int](), 0
    for number, more in enumerate(sizes, 1):
        size_bytes += more
        if size_bytes >= least or number == len(sizes):
            ends.append(number)
            size_bytes = 0
    return SourceSplits(len(ends), lambda number: cut_source(slice(ends[number - 1] if number else 0, ends[number])))


def _of_places(sizes: Sequence[int], cut_source: Callable[[slice], Op]) -> SourceSplits:
    """Runs of places in an order of units of these sizes, of which it is not known yet where each comes."""
    total = max(1, sum(sizes))
    least = min(LARGE_BYTES, -(-total // _SPLITS))
    return _of_units(len(sizes), cut_source, max(1, -(-least * len(sizes) // total)))


def _of_files(source: ArrowFiles | Csv | FileSource, cut_source: Callable[[slice], Op]) -> SourceSplits:
    return _of_runs(_sizes_of(source), cut_source)


def _sizes_of(source: ArrowFiles | Csv | FileSource) -> list[int]:
    """Of its files; one whose size is not known may be large."""
    return [source.file_bytes.get(path, LARGE_BYTES) for path in source.paths]


def with_file_sizes(op: Op) -> Op:
    """The graph with the sizes of local files where a source has many: all members must put the same ones together.

    To ask for those of many objects would take longer than reading them.
    """

    def change(each: Op) -> Op:
        if not isinstance(each, ArrowFiles | Csv | FileSource) or len(each.paths) <= _SPLITS:
            return each
        return replace(each, file_bytes=dict(_find_sizes(each.paths)))

    return rebuild(op, change)


def _find_sizes(paths: Iterable[str]) -> Iterator[tuple[str, int]]:
    for path in paths:
        with contextlib.suppress(OSError, ValueError):  # it is a URL, or only the workers have it
            yield path, Path(path).stat().st_size


@dataclass(frozen=True)
class GraphSplits:
    """Whether and how a graph can be split."""

    splits: tuple[int, ...]  #: of each source
    unsplittable: str = ""  #: why it cannot be
    unleasable: str = ""  #: why a split cannot be produced without the others


def split_graph(op: Op) -> GraphSplits:
    """How a graph can be split."""
    by_source = [splits_of(source) for source in sources_of(op)]
    if why := why_unsplit(op):
        return GraphSplits((), why)
    if any(_writes_snapshot(each) for each in list_ops(op)):
        return GraphSplits((), "snapshot keeps a whole pass, and no worker makes one; save the dataset and load it")
    counts = tuple(splits.count for splits in by_source if splits is not None)
    return GraphSplits(counts, why_whole(op), why_whole(op, leased=True))


def why_unsplit(op: Op) -> str:
    """Why a graph has a source that cannot be split; empty if it has none."""
    unsplit = next((source.name for source in sources_of(op) if splits_of(source) is None), "")
    return unsplit and f"{unsplit} has no splits; use processing_mode='off' or a static one"


def hide_snapshots(op: Op) -> Op:
    """The graph without what its snapshots are written from: once they are complete, it is not read."""
    return rebuild(op, lambda each: Elements(values=()) if isinstance(each, Snapshot) else each)


def why_whole(op: Op, *, leased: bool = False) -> str:
    """Why a graph gives other elements of the parts of its sources than of the whole; empty if it does not.

    `leased` splits are computed one by one, so that nothing spans two of them.
    """
    for each in list_ops(op):
        if each.needs_all and not isinstance(each, Snapshot):
            return f"{each.needs_all}; put it behind distribute"
        if leased and isinstance(each, Sample):
            return f"{each.name} reads several sources side by side; put it behind distribute"
        if leased and isinstance(each, Repeat) and each.cardinality == math.inf:
            return "it is infinite; put repeat behind distribute"
    return ""


def _writes_snapshot(op: Op) -> bool:
    return isinstance(op, Snapshot) and op.mode != "passthrough"


def describe_split(op: Op, number: int) -> str:
    """Where a split lies in the dataset: which elements of which source, as far as that is known."""
    at = number
    for source in sources_of(op):
        splits = splits_of(source)
        if splits is None or at >= splits.count:
            at -= 0 if splits is None else splits.count
            continue
        match splits.part(at):
            case Parquet(places=slice() as places) | FileNames(places=slice() as places):
                between = f"places {places.start} to {places.stop - 1}"
                return f"split {number}: {between} of the random order of {source.name}"
            case Parquet(groups=groups) if groups:
                earlier = [group for each in range(at) for group in splits.part(each).groups]  # type: ignore[attr-defined]
                first, rows = (sum(group.rows for group in some) for some in (earlier, groups))
                place = _format_files([*dict.fromkeys(group.path for group in groups)])
                return f"split {number}: rows {first} to {first + rows - 1} of {source.name}, in {place}"
            case LoadedSnapshot(chunks=chunks) if chunks:
                return f"split {number}: elements from {chunks[0].first} on of the snapshot {source.path}"  # type: ignore[attr-defined]
            case Csv(paths=paths) | ArrowFiles(paths=paths) | FileSource(paths=paths):
                return f"split {number}: {_format_files(paths)}"
            case part:
                before = [splits.part(each).cardinality for each in range(at)]
                first = sum(int(each or 0) for each in before)
                return f"split {number}: elements {first} to {first + int(part.cardinality or 0) - 1} of {source.name}"
    return f"split {number}"


def _format_files(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - 2} more" if len(paths) > 3 else ""  # noqa: PLR2004  three fit in
    return ", ".join(paths[: 2 if more else 3]) + more


def splitter_of(op: Op) -> Callable[[int], Op]:
    """Cuts the graph to one split of one source and nothing of the others; splits are numbered through all sources."""
    by_source = [(source, splits_of(source)) for source in sources_of(op)]

    def cut_graph(number: int) -> Op:
        parts: dict[int, Op] = {}
        for source, splits in by_source:
            assert splits is not None, "checked when the dataset was registered"
            parts[id(source)] = splits.part(number) if 0 <= number < splits.count else EmptySource(of=source)
            number -= splits.count
        return rebuild(op, lambda each: parts.get(id(each), each))

    return cut_graph


@dataclass(frozen=True, kw_only=True, eq=False)
class EmptySource(Op):
    """Replaces a source of which a worker reads nothing."""

    of: Op = field(repr=False)

    @property
    def inputs(self) -> tuple[Op, ...]:
        return ()

    @property
    def spec(self) -> Spec:
        return self.of.spec

    @property
    def cardinality(self) -> int:
        return 0

    def open(self, opening: Opening) -> Stream:  # noqa: ARG002
        return EmptyStream()


class EmptyStream(Stream):
    def __next__(self) -> Element:
        raise StopIteration

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        pass


def count_shards(op: Op) -> int:
    """In how many shards a dataset is saved; one if its splits, one behind the other, are not its elements in order."""
    splits = split_graph(op)
    return max(1, min(_SHARDS, sum(splits.splits))) if not splits.unsplittable and _keeps_order(op) else 1


def _keeps_order(op: Op) -> bool:
    """Whether no op needs to see all elements, and each is read once: a split holds all that is read of it."""
    ops = [each for each in list_ops(op) if each.inputs]
    below = [id(each) for above in ops for each in above.inputs]
    return len(set(below)) == len(below) and all(
        each.by_element or (isinstance(each, Interleave) and each.cycle == 1) for each in ops
    )


def splits_of_shard(op: Op, shards: int, shard: int) -> Iterator[tuple[int, Op]]:
    """The splits of a shard, with their numbers; one behind the other, the shards are the elements in their order."""
    if shards == 1:
        yield 0, op
        return
    count, cut_graph = sum(split_graph(op).splits), splitter_of(op)
    for number in range(shard * count // shards, (shard + 1) * count // shards):
        yield number, cut_graph(number)


def with_files(source: Op, paths: Sequence[str]) -> Op:
    """The source with only these of its files."""
    if isinstance(source, Parquet):
        of_file: dict[str, dict[int, ParquetRowGroup]] = {}
        for group in source.groups:  # again for each time that its file is named
            of_file.setdefault(group.path, {})[group.number] = group
        groups = tuple(group for path in paths for group in of_file.get(path, {}).values())
        return replace(source, paths=tuple(paths), groups=groups)
    if isinstance(source, ArrowFiles):
        from spanwise.pipelines.input.ops.ipc import count_rows

        counts = [count_rows(path) for path in paths] if source.rows is not None else [None]
        known = [count for count in counts if count is not None]
        return replace(source, paths=tuple(paths), rows=sum(known) if len(known) == len(counts) else None)
    assert isinstance(source, Csv | FileSource)
    return replace(source, paths=tuple(paths))
