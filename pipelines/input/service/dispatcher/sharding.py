"""Which part of a dataset is whose: graphs cut down to files, elements or splits. Pure.

A split is a run of a source's units (numbers, elements, rows of a table, files, row groups), told by its number alone.
So the dispatcher counts and knows nothing of what it deals; what split 7 of the second source is, the worker knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from spanwise.orchestrator.errors import DatasetError
from spanwise.orchestrator.fingerprint import digest
from spanwise.pipelines.input.element import Spec
from spanwise.pipelines.input.graph.fingerprint import WithFingerprint
from spanwise.pipelines.input.graph.rewrite import optimized
from spanwise.pipelines.input.op import Count, Element, Op, Opening, Options, State, Stream, mixed, ops_of, rebuilt
from spanwise.pipelines.input.ops.arrow import Arrow
from spanwise.pipelines.input.ops.as_numpy import AsNumpy
from spanwise.pipelines.input.ops.as_rows import AsRows
from spanwise.pipelines.input.ops.concatenate import Concatenate
from spanwise.pipelines.input.ops.csv import Csv
from spanwise.pipelines.input.ops.enumerate import Enumerate
from spanwise.pipelines.input.ops.filter import Filter
from spanwise.pipelines.input.ops.ignore_errors import IgnoreErrors
from spanwise.pipelines.input.ops.interleave import Interleave
from spanwise.pipelines.input.ops.ipc import ArrowFiles
from spanwise.pipelines.input.ops.map import Map
from spanwise.pipelines.input.ops.parquet import Parquet
from spanwise.pipelines.input.ops.prefetch import Prefetch
from spanwise.pipelines.input.ops.range import Range
from spanwise.pipelines.input.ops.repeat import Repeat
from spanwise.pipelines.input.ops.sample import Sample
from spanwise.pipelines.input.ops.scan import Scan
from spanwise.pipelines.input.ops.select import Select
from spanwise.pipelines.input.ops.shard import SHARD_HINT, Shard
from spanwise.pipelines.input.ops.shuffle_and_repeat import ShuffleAndRepeat
from spanwise.pipelines.input.ops.skip import Skip
from spanwise.pipelines.input.ops.take import Take
from spanwise.pipelines.input.ops.tensors import Elements, TensorSlices
from spanwise.pipelines.input.ops.unbatch import Unbatch
from spanwise.pipelines.input.ops.zip import Zip
from spanwise.pipelines.input.service.policy import ShardingPolicy
from spanwise.pipelines.input.snapshot.op import Snapshot
from spanwise.pipelines.input.snapshot.source import Loaded
from spanwise.pipelines.input.stacking import cut, length

_SPLITS: Final = 256
"""How many splits the units of a source make, at most; files are not put together."""

_SHARDS: Final = 32
"""How many shards a dataset is saved in, at most."""

_BLOCK_ROWS: Final = 8_192
_FILES: Final = (Parquet, Csv, ArrowFiles)
_BY_ELEMENT: Final = (
    AsNumpy,
    AsRows,
    Concatenate,
    Filter,
    IgnoreErrors,
    Interleave,
    Map,
    Prefetch,
    Select,
    Unbatch,
    WithFingerprint,
)
"""Ops that give of two datasets, one behind the other, what they give of each."""


def sources_of(op: Op) -> list[Op]:
    """The ops without inputs, in the graph's order."""
    return [each for each in ops_of(op) if not each.inputs]


def planned(op: Op, options: Options) -> Op:
    """The graph as workers run it, on which splits are counted: rewritten, but with each `repeat` still to be seen."""
    return optimized(op, replace(options, without=options.without | {"shuffle_and_repeat_fusion"})).op


# Splits.


@dataclass(frozen=True)
class Splits:
    """How a source is split."""

    count: int
    part: Callable[[int], Op]  #: the source with the elements of one split only


def splits_of(source: Op, *, single: bool = False) -> Splits | None:  # noqa: C901, PLR0911  one line per kind of source
    """The splits of a source, `single` ones of one unit each; None if it cannot be split."""
    match source:
        case Range(start=start, stop=stop, step=step):
            numbers = range(start, stop, step)

            def some(units: slice) -> Op:
                chosen = numbers[units]
                return Range(start=chosen.start, stop=chosen.stop, step=step)

            return _of_units(len(numbers), some, 1 if single else None)
        case Elements(values=values):
            return _of_units(len(values), lambda units: Elements(values=values[units]), 1 if single else None)
        case TensorSlices(tensors=tensors):
            return _of_units(
                length(tensors),
                lambda units: TensorSlices(tensors=cut(tensors, units.start, units.stop)),
                1 if single else None,
            )
        case Arrow(table=table):
            rows = int(table.num_rows)
            size = max(_BLOCK_ROWS, -(-rows // _SPLITS))
            return _of_units(rows, lambda units: Arrow(table=table[units]), size)
        case Parquet(groups=groups) if not source.shuffle:
            return _of_units(len(groups), lambda units: replace(source, groups=groups[units]), 1)
        case Parquet(groups=groups):
            return Splits(len(groups), lambda number: replace(source, groups=(groups[number],), shuffle=False))
        case ArrowFiles():  # to count the rows of each file would take longer than to open it
            return _of_units(len(source.paths), lambda units: replace(source, paths=source.paths[units], rows=None), 1)
        case Csv():
            return _of_units(len(source.paths), lambda units: _with_files(source, source.paths[units]), 1)
        case Loaded(chunks=chunks):
            return _of_units(len(chunks), lambda units: replace(source, chunks=chunks[units]), 1)
    return None


def _of_units(units: int, some: Callable[[slice], Op], size: int | None) -> Splits:
    """Runs of `size` units; None makes as many splits as there may be."""
    size = size or max(1, -(-units // _SPLITS))
    return Splits(-(-units // size), lambda number: some(slice(number * size, min(units, (number + 1) * size))))


@dataclass(frozen=True)
class Shares:
    """Whether and how a graph can be split."""

    splits: tuple[int, ...]  #: of each source
    unsplittable: str = ""  #: why it cannot be
    unleasable: str = ""  #: why no split of it can be made by itself


def shares_of(op: Op) -> Shares:
    """How a graph can be shared out by splits."""
    single = _is_zipped(op)
    found = [splits_of(source, single=single) for source in sources_of(op)]
    for source, splits in zip(sources_of(op), found, strict=True):
        if splits is None:
            return Shares((), f"{source.name} has no splits; use processing_mode='off', or one of those by shards")
    counting = (Take, Skip, Shard, Enumerate, Scan)
    unleasable = ""
    for each in ops_of(op):
        if _keeps(each):
            return Shares((), "snapshot keeps a whole pass, and no worker makes one; save the dataset, and load it")
        if isinstance(each, counting):
            unleasable = f"{each.name} counts elements over all splits; put it behind distribute"
        elif isinstance(each, Zip | Sample):
            unleasable = f"{each.name} reads several sources side by side; put it behind distribute"
    return Shares(tuple(splits.count for splits in found if splits is not None), "", unleasable)


def _keeps(op: Op) -> bool:
    return isinstance(op, Snapshot) and op.mode != "passthrough"


def _is_zipped(op: Op) -> bool:
    return any(isinstance(each, Zip) for each in ops_of(op))


class Deal:
    """Where a worker gets its splits from, one at a time; asked by several threads."""

    def next(self, source: int, repetition: int) -> int | None:
        """The number of the next split; None if there is none left in this round."""
        raise NotImplementedError


def dealt(op: Op, deal: Deal) -> Op:
    """The graph whose sources read the splits that they are dealt."""
    single = _is_zipped(op)
    numbers = {id(source): number for number, source in enumerate(sources_of(op))}

    def change(each: Op) -> Op:
        if id(each) in numbers:
            splits = splits_of(each, single=single)
            assert splits is not None, "who registered the dataset has looked"
            return Dealt(source=each, splits=splits, number=numbers[id(each)], deal=deal)
        assert not isinstance(each, ShuffleAndRepeat), "the rewrite that makes it is left out"
        return Rounds(input=each.input, count=each.count) if isinstance(each, Repeat) else each

    return rebuilt(op, change)


@dataclass(frozen=True, kw_only=True, eq=False)
class Dealt(Op):
    """A source of which a worker reads the splits that it is dealt."""

    source: Op = field(repr=False)
    splits: Splits = field(repr=False)
    number: int
    deal: Deal = field(repr=False)
    opened: list[int] = field(default_factory=lambda: [0], repr=False)  #: how often: the round it is opened for

    @property
    def inputs(self) -> tuple[Op, ...]:
        return ()

    @property
    def spec(self) -> Spec:
        return self.source.spec

    @property
    def cardinality(self) -> Count:
        return None if self.splits.count else 0

    def open(self, opening: Opening) -> Stream:
        self.opened[0] += 1
        order = list(range(self.splits.count))
        if isinstance(self.source, Parquet) and self.source.shuffle:
            import numpy as np

            seed = mixed(self.source.seed or 0, *opening.epoch)
            order = np.random.Generator(np.random.PCG64(seed)).permutation(len(order)).tolist()
        return DealtStream(self, opening, self.opened[0] - 1, order)


class DealtStream(Stream):
    def __init__(self, op: Dealt, opening: Opening, repetition: int, order: Sequence[int]) -> None:
        self._op = op
        self._opening = opening
        self._repetition = repetition
        self._order = order
        self._split: Stream | None = None

    def __next__(self) -> Element:
        while True:
            if self._split is None:
                number = self._op.deal.next(self._op.number, self._repetition)
                if number is None:
                    raise StopIteration
                self._split = self._opening.open(self._op.splits.part(self._order[number]))
            try:
                return next(self._split)
            except StopIteration:
                self._split.close()
                self._split = None

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        raise NotImplementedError("the splits of a job are dealt once; the job itself is what goes on")

    def close(self) -> None:
        if self._split is not None:
            self._split.close()


@dataclass(frozen=True, kw_only=True, eq=False)
class Rounds(Repeat):
    """A repeat over what is dealt: a round in which others got everything does not end it."""

    def open(self, opening: Opening) -> Stream:
        return RoundsStream(self, opening)


class RoundsStream(Stream):
    def __init__(self, op: Rounds, opening: Opening) -> None:
        self._op = op
        self._opening = opening
        self._round = 0
        self._source: Stream | None = None
        self._nothing = all(each.cardinality == 0 for each in sources_of(op))

    def __next__(self) -> Element:
        while self._round < self._op.rounds and not self._nothing:
            if self._source is None:
                self._source = self._opening.round(self._round).open(self._op.input)
            try:
                return next(self._source)
            except StopIteration:
                self._source.close()
                self._source = None
                self._round += 1
        raise StopIteration

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        raise NotImplementedError("the splits of a job are dealt once; the job itself is what goes on")

    def close(self) -> None:
        if self._source is not None:
            self._source.close()


def of_split(op: Op, number: int) -> Op:
    """The graph with one split of one source, and nothing of the others; splits are numbered through all sources."""
    chosen: dict[int, Op] = {}
    single = _is_zipped(op)
    for source in sources_of(op):
        splits = splits_of(source, single=single)
        assert splits is not None, "who registered the dataset has looked"
        chosen[id(source)] = splits.part(number) if 0 <= number < splits.count else Nothing(of=source)
        number -= splits.count
    return rebuilt(op, lambda each: chosen.get(id(each), each))


@dataclass(frozen=True, kw_only=True, eq=False)
class Nothing(Op):
    """A source without elements, in the place of one whose elements are others'."""

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
        return NothingStream()


class NothingStream(Stream):
    def __next__(self) -> Element:
        raise StopIteration

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        pass


# Saves.


def shards_of(op: Op) -> int:
    """How many shards a dataset is saved in, each made by itself; one, if something in it looks at all its elements."""
    shares = shares_of(op)
    if shares.unsplittable or not all(isinstance(each, _BY_ELEMENT) for each in ops_of(op) if each.inputs):
        return 1
    return max(1, min(_SHARDS, sum(shares.splits)))


def of_save(op: Op, shards: int, shard: int) -> Iterator[tuple[int, Op]]:
    """The splits of a shard, with their numbers; put behind each other, shards give the elements in their order."""
    if shards == 1:
        yield 0, op
        return
    count = sum(shares_of(op).splits)
    for number in range(shard * count // shards, (shard + 1) * count // shards):
        yield number, of_split(op, number)


# Shards.


def of_shard(op: Op, policy: ShardingPolicy, shards: int, index: int) -> Op:
    """What the worker with this index gives of the elements, by static sharding.

    Raises:
        DatasetError: FILE, and there are no files to share out, or fewer than workers.
    """
    if policy is ShardingPolicy.HINT:
        return rebuilt(op, lambda each: _filled(_named(each, shards, index), shards, index))
    files = _files_of(op)
    if policy is ShardingPolicy.DATA or (policy is ShardingPolicy.FILE_OR_DATA and not files):
        return Shard(input=op, shards=shards, index=index)
    if not files:
        names = ", ".join(source.name for source in sources_of(op))
        raise DatasetError(
            f"distribute(processing_mode='file'): found an unshardable source dataset: {names} reads no files. "
            f"Use 'data', or 'file_or_data'."
        )

    def change(each: Op) -> Op:
        if id(each) in files:
            return _of_file_shard(each, files[id(each)], shards, index)
        return _named(each, shards, index)

    return rebuilt(op, change)


def _named(op: Op, shards: int, index: int) -> Op:
    """A snapshot of a shard has a name of its own: it is not that of the whole dataset (Snapshot RFC, Concurrency)."""
    if isinstance(op, Snapshot) and op.fingerprint:
        return replace(op, fingerprint=digest("shard", op.fingerprint, str(shards), str(index)))
    return op


def _filled(op: Op, shards: int, index: int) -> Op:
    return replace(op, shards=shards, index=index) if isinstance(op, Shard) and op.shards == SHARD_HINT else op


def _files_of(op: Op) -> dict[int, Sequence[Any]]:
    """The sources that read files, or give names of files to an interleave that reads them; and these files."""
    found: dict[int, Sequence[Any]] = {}
    for each in ops_of(op):
        if isinstance(each, _FILES):
            found[id(each)] = each.paths
        elif isinstance(each, Interleave):
            for source in sources_of(each):
                values = _texts(source)
                if values:
                    found[id(source)] = values
    return found


def _texts(source: Op) -> Sequence[str]:
    values: Sequence[Any] = ()
    if isinstance(source, Elements):
        values = source.values
    elif isinstance(source, TensorSlices) and isinstance(source.tensors, list | tuple):
        values = source.tensors
    elif isinstance(source, TensorSlices) and getattr(getattr(source.tensors, "dtype", None), "kind", "") == "U":
        values = source.tensors.tolist()
    return values if all(isinstance(value, str) for value in values) else ()


def _of_file_shard(source: Op, files: Sequence[Any], shards: int, index: int) -> Op:
    if len(files) < shards:
        raise DatasetError(
            f"distribute(processing_mode='file'): there are {len(files)} files, which is not enough for the required "
            f"{shards} shards/workers. Use 'data', fewer workers or more files."
        )
    mine = tuple(files[index::shards])
    return Elements(values=mine) if isinstance(source, Elements | TensorSlices) else _with_files(source, mine)


def _with_files(source: Op, paths: Sequence[str]) -> Op:
    """The source with only these of its files."""
    if isinstance(source, Parquet):
        groups = tuple(group for group in source.groups if group.path in paths)
        return replace(source, paths=tuple(paths), groups=groups)
    if isinstance(source, ArrowFiles):
        from spanwise.pipelines.input.ops.ipc import rows_in

        counts = [rows_in(path) for path in paths] if source.rows is not None else [None]
        known = [count for count in counts if count is not None]
        return replace(source, paths=tuple(paths), rows=sum(known) if len(known) == len(counts) else None)
    assert isinstance(source, Csv)
    return replace(source, paths=tuple(paths))
