"""Datasets: the verbs with which users describe a flow of elements. Each wraps the op before it in another one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Literal

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.call import Format
from spanwise.pipelines.input.element import UNKNOWN, ElementSpec, Table
from spanwise.pipelines.input.execution.callers import Workers
from spanwise.pipelines.input.graph.fingerprint import FilesBy, WithFingerprint
from spanwise.pipelines.input.graph.rewrite import RULES, RewritePlan, optimize
from spanwise.pipelines.input.op import AUTOTUNE, Op, Options, check_whole
from spanwise.pipelines.input.ops.as_numpy import AsNumpy
from spanwise.pipelines.input.ops.as_rows import AsRows
from spanwise.pipelines.input.ops.batch import Batch
from spanwise.pipelines.input.ops.bucket import Bucket
from spanwise.pipelines.input.ops.cache import DEFAULT_LIMIT_BYTES, Cache
from spanwise.pipelines.input.ops.concatenate import Concatenate
from spanwise.pipelines.input.ops.enumerate import Enumerate
from spanwise.pipelines.input.ops.filter import Filter
from spanwise.pipelines.input.ops.groups import Groups
from spanwise.pipelines.input.ops.ignore_errors import IgnoreErrors
from spanwise.pipelines.input.ops.interleave import Interleave
from spanwise.pipelines.input.ops.map import Map
from spanwise.pipelines.input.ops.padded_batch import PaddedBatch, Padding, Sizes
from spanwise.pipelines.input.ops.prefetch import Prefetch
from spanwise.pipelines.input.ops.random_map import RandomMap
from spanwise.pipelines.input.ops.rebatch import rebatch
from spanwise.pipelines.input.ops.repeat import Repeat
from spanwise.pipelines.input.ops.resample import Resample
from spanwise.pipelines.input.ops.scan import Scan
from spanwise.pipelines.input.ops.select import Select
from spanwise.pipelines.input.ops.shard import Shard
from spanwise.pipelines.input.ops.shuffle import Shuffle
from spanwise.pipelines.input.ops.skip import Skip
from spanwise.pipelines.input.ops.take import Take
from spanwise.pipelines.input.ops.take_while import TakeWhile
from spanwise.pipelines.input.ops.unbatch import Unbatch
from spanwise.pipelines.input.ops.unique import Unique
from spanwise.pipelines.input.ops.window import Window
from spanwise.pipelines.input.service.policy import CrossTrainerCache, ShardingPolicy
from spanwise.pipelines.input.sinks import Sinks
from spanwise.pipelines.input.snapshot.op import add_snapshot, apply_options
from spanwise.pipelines.input.snapshot.settings import CompressionName
from spanwise.pipelines.input.snapshot.state import Mode
from spanwise.pipelines.input.tf_names import answer_tf_names
from spanwise.pipelines.input.unzip import unzip

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from spanwise.pipelines.input.profiling.profile import Profile
    from spanwise.pipelines.input.service.wire.security import Security


@answer_tf_names
class Dataset(Sinks):
    """A description of a flow of elements; nothing happens until it is iterated over."""

    # One element of another

    def map(
        self,
        function: Callable[..., Any],
        *,
        vectorized: bool = False,
        spec: ElementSpec | pa.Schema | None = None,
        reads: Sequence[str] | None = None,
        writes: Sequence[str] | None = None,
        format: Format | None = None,  # noqa: A002  the word for it
        num_parallel: int | None = None,
        deterministic: bool | None = None,
        workers: Workers = "threads",
        stateless: bool = False,
    ) -> Dataset:
        """The results of `function`, element by element; a plain tuple is passed as several arguments.

        Vectorized, it takes blocks of rows, as RecordBatches (`format="arrow"`, or if its argument is annotated so) or
        else as dicts of NumPy arrays, and returns as many rows in either form. It must treat each row by itself.
        `reads` names the columns that it receives, `writes` those that it returns, which are added to the others; with
        both, only columns that are needed are read, and filters move below the map. `spec` describes its results.

        `num_parallel` calls run at once, in threads or, with `workers="processes"`, in worker processes: Python code
        in threads shares one lock. `stateless=True` says that calls do not depend on each other, so that calls with
        blocks of rows run in parallel without `num_parallel`.
        """
        result = _as_spec(spec)
        rows = isinstance(result, Table) and not vectorized
        op = Map(
            input=self.op,
            function=function,
            vectorized=vectorized,
            result=UNKNOWN if rows else result,
            reads=None if reads is None else tuple(reads),
            writes=None if writes is None else tuple(writes),
            format=format,
            num_parallel=num_parallel,
            deterministic=deterministic,
            workers=workers,
            stateless=stateless,
        )
        made = self._then(op)
        return made.as_rows(result.schema) if rows and isinstance(result, Table) and result.schema is not None else made

    def random_map(
        self,
        function: Callable[..., Any],
        *,
        key: Callable[..., Any] | None = None,
        seed: int | None = None,
        spec: ElementSpec | None = None,
        num_parallel: int | None = None,
        deterministic: bool | None = None,
        workers: Workers = "threads",
    ) -> Dataset:
        """The results of `function(element, generator)`, with a `numpy.random.Generator` for each element.

        The same element gets the same numbers in the same pass with the same seed, however the dataset runs. An element
        is known by its number in the input, or by what `key(element)` returns, a number or text: then also where the
        workers of a data service compute parts of the input. Elements of one key get the same numbers.
        """
        op = RandomMap(
            input=self.op,
            function=function,
            key=key,
            seed=seed,
            result=UNKNOWN if spec is None else spec,
            num_parallel=num_parallel,
            deterministic=deterministic,
            workers=workers,
        )
        return self._then(op)

    def map_batches(self, function: Callable[..., Any], **options: Any) -> Dataset:
        """`map(function, vectorized=True, …)`."""
        return self.map(function, vectorized=True, **options)

    def filter(
        self,
        predicate: Callable[..., Any] | pc.Expression,
        *,
        vectorized: bool = False,
        format: Format | None = None,  # noqa: A002  the word for it
    ) -> Dataset:
        """The elements that fulfil the predicate: `col("fare") > 3`, or a function (vectorized, it returns a mask)."""
        return self._then(Filter(input=self.op, predicate=predicate, vectorized=vectorized, format=format))

    def select(self, *columns: str) -> Dataset:
        """These columns of rows, in this order."""
        return self._then(Select(input=self.op, columns=columns))

    def enumerate(self, start: int = 0, *, column: str = "index") -> Dataset:
        """Elements as `(number, element)`; rows get the number as a first column."""
        return self._then(Enumerate(input=self.op, start=start, column=column))

    def scan(self, initial: Any, function: Callable[[Any, Any], tuple[Any, Any]]) -> Dataset:
        """The results of `function(carried, element)`, which returns a value to carry on, and a result."""
        return self._then(Scan(input=self.op, initial=initial, function=function))

    def as_rows(self, schema: pa.Schema) -> Dataset:
        """Dicts as the rows of a table."""
        return self._then(AsRows(input=self.op, schema=schema))

    def as_numpy(self) -> Dataset:
        """RecordBatches as dicts of NumPy arrays."""
        return self._then(AsNumpy(input=self.op))

    def ignore_errors(self) -> Dataset:
        """The elements without those for which a function raises; each of these is logged."""
        return self._then(IgnoreErrors(input=self.op))

    # Datasets of elements, elements of datasets

    def flat_map(self, function: Callable[..., Dataset], *, spec: ElementSpec | pa.Schema | None = None) -> Dataset:
        """The elements of the datasets that `function` returns for elements, one dataset after another.

        A schema as `spec` declares that these are datasets of such rows, which then travel in blocks.
        """
        return self._then(Interleave(input=self.op, function=function, result=_as_spec(spec)))

    def interleave(
        self,
        function: Callable[..., Dataset],
        *,
        cycle_length: int = 16,
        block_length: int = 1,
        spec: ElementSpec | pa.Schema | None = None,
        num_parallel: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset:
        """Like `flat_map`, but from `cycle_length` datasets in turns, `block_length` elements (rows) per turn."""
        return self._then(
            Interleave(
                input=self.op,
                function=function,
                cycle=cycle_length,
                block=block_length,
                result=_as_spec(spec),
                num_parallel=num_parallel,
                deterministic=deterministic,
            )
        )

    def window(self, size: int, *, shift: int | None = None, stride: int = 1, drop_remainder: bool = False) -> Dataset:
        """Datasets of `size` elements each, `stride` apart; each begins `shift` elements after the previous one."""
        op = Window(input=self.op, size=size, shift=shift, stride=stride, drop_remainder=drop_remainder)
        return self._then(op)

    # Batches

    def batch(self, size: int, *, drop_remainder: bool = False, ragged: bool = False) -> Dataset:
        """Batches of exactly `size` elements; the last may be smaller, unless dropped. Rows make RecordBatches."""
        return self._then(Batch(input=self.op, size=size, drop_remainder=drop_remainder, ragged=ragged))

    def unbatch(self) -> Dataset:
        """The elements of batches; RecordBatches become rows."""
        return self._then(Unbatch(input=self.op))

    def rebatch(self, size: int, *, drop_remainder: bool = False, ragged: bool = False) -> Dataset:
        """Batches of another size."""
        return self._then(rebatch(self.op, size, drop_remainder=drop_remainder, ragged=ragged))

    def padded_batch(
        self, size: int, *, shapes: Sizes = None, values: Padding = None, drop_remainder: bool = False
    ) -> Dataset:
        """Batches of arrays of different sizes, filled up with `values` to the largest of the batch or to `shapes`."""
        op = PaddedBatch(input=self.op, size=size, shapes=shapes, values=values, drop_remainder=drop_remainder)
        return self._then(op)

    def bucket_by_sequence_length(
        self,
        length: Callable[..., int],
        boundaries: Sequence[int],
        sizes: Sequence[int],
        *,
        shapes: Sizes = None,
        values: Padding = None,
        drop_remainder: bool = False,
        no_padding: bool = False,
    ) -> Dataset:
        """Padded batches of elements of similar length: below `boundaries[i]`, `sizes[i]` of them make a batch."""
        return self._then(
            Bucket(
                input=self.op,
                length=length,
                boundaries=tuple(boundaries),
                sizes=tuple(sizes),
                shapes=shapes,
                values=values,
                drop_remainder=drop_remainder,
                no_padding=no_padding,
            )
        )

    def group_by_window(
        self,
        key: Callable[..., Any],
        reduce: Callable[[Any, Dataset], Dataset],
        size: int | Callable[[Any], int],
        *,
        spec: ElementSpec | pa.Schema | None = None,
    ) -> Dataset:
        """The elements of `reduce(key, group)`: a group is a dataset of `size` elements with the same `key(element)`.

        A group is reduced as soon as it is complete, and at the end those that are not, in the order of their first
        elements. `size` may be a function of the key. `spec` describes the elements, as in `flat_map`.
        """
        return self._then(Groups(input=self.op, key=key, size=size)).flat_map(reduce, spec=spec)

    # Which elements, in what order

    def shuffle(
        self, buffer: int | None = None, *, seed: int | None = None, reshuffle_each_iteration: bool = True
    ) -> Dataset:
        """The elements of each window of `buffer` of them (None: of all) in an order that follows from the seed."""
        op = Shuffle(input=self.op, buffer=buffer, seed=seed, reshuffle_each_iteration=reshuffle_each_iteration)
        return self._then(op)

    def repeat(self, count: int | None = None) -> Dataset:
        """All elements `count` times over; without a count, without end."""
        return self._then(Repeat(input=self.op, count=count))

    def take(self, count: int) -> Dataset:
        """The first `count` elements; -1 for all of them."""
        return self._then(Take(input=self.op, count=count))

    def skip(self, count: int) -> Dataset:
        """All but the first `count` elements; -1 leaves none."""
        return self._then(Skip(input=self.op, count=count))

    def take_while(self, predicate: Callable[..., Any] | pc.Expression) -> Dataset:
        """The elements before the first one for which the predicate, a function or a condition, is not true."""
        return self._then(TakeWhile(input=self.op, predicate=predicate))

    def rejection_resample(
        self,
        class_of: Callable[..., int],
        target: Sequence[float],
        initial: Sequence[float] | None = None,
        *,
        seed: int | None = None,
    ) -> Dataset:
        """Elements left out by chance so that class `i`, as `class_of(element)` says, makes up the share `target[i]`.

        `initial` has the shares of the classes in the input; without it they are counted as elements pass. Rows come as
        dicts.
        """
        return self._then(
            Resample(
                input=self.op,
                class_of=class_of,
                target=tuple(target),
                initial=None if initial is None else tuple(initial),
                seed=seed,
            )
        )

    def unzip(self) -> Any:
        """A dataset for each leaf of the elements, in a structure like theirs; of rows, one for each column.

        Each of them runs the ops before by itself, in order. So every op that shuffles, or whose function makes
        datasets, needs a seed, or the pairs would be lost.
        """
        return unzip(self)

    def unique(self) -> Dataset:
        """Each element once, at its first place; rows come as dicts. All that were seen are held in memory."""
        return self._then(Unique(input=self.op))

    def shard(self, shards: int, index: int) -> Dataset:
        """Every `shards`-th element, beginning with number `index`."""
        return self._then(Shard(input=self.op, shards=shards, index=index))

    def concatenate(self, *others: Dataset) -> Dataset:
        """The elements of this dataset, followed by those of the others."""
        op = Concatenate(parts=(self.op, *dataset_ops("concatenate", others)))
        return Dataset(op, join_options("concatenate", [self, *others]))

    # How it runs

    def cache(self, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Dataset:
        """Stores the elements of the first complete pass in memory; more than `limit_bytes` is an error."""
        return self._then(Cache(input=self.op, limit_bytes=limit_bytes))

    def snapshot(
        self,
        path: str | os.PathLike[str],
        compression: CompressionName | None = "auto",
        reader_fn: Callable[[Dataset], Dataset] | None = None,
        writer_fn: Callable[[Dataset], Dataset | Sequence[Dataset]] | None = None,
        pending_snapshot_expiry_seconds: float = 86_400,
        mode: Mode = "auto",
        *,
        files_by: FilesBy = "mtime",
    ) -> Dataset:
        """The same elements, stored below `path` by the first pass that completes, and read from there by later ones.

        `path` is a folder or a URL of object storage. A snapshot is identified by the fingerprint of the ops before
        this one, in which a source file counts by its modification time or, with `files_by="content"`, by every byte.
        `writer_fn` splits the elements into datasets that are written in parallel; `reader_fn` combines these splits
        into one dataset again, in any order.
        """
        return add_snapshot(
            self,
            path=os.fspath(path),
            compression=compression or "none",
            reader_fn=reader_fn,
            writer_fn=writer_fn,
            expiry_s=pending_snapshot_expiry_seconds,
            mode=mode,
            files_by=files_by,
        )

    def with_snapshot_fingerprint(self, fingerprint: str) -> Dataset:
        """The same elements; in the fingerprint of later snapshots this name replaces the step before it."""
        return self._then(WithFingerprint(input=self.op, fingerprint=fingerprint))

    def distribute(
        self,
        service: str,
        processing_mode: ShardingPolicy | str = ShardingPolicy.OFF,
        job_name: str | None = None,
        *,
        dataset_id: str | None = None,
        max_outstanding_requests: int | None = None,
        compression: Literal["auto", "lz4", "zstd"] | None = "auto",
        target_workers: str | Sequence[str] = "any",
        consumer_index: int | None = None,
        num_consumers: int | None = None,
        cross_trainer_cache: CrossTrainerCache | None = None,
        security: Security | None = None,
    ) -> Dataset:
        """The same elements, computed by the workers of a data service; later ops run here.

        `service` is the dispatcher's address, or the URL of its journal. The mode says how the elements are divided
        among the workers, and what is guaranteed. Consumers with the same `job_name` share the elements of one pass.
        Elements are read from any worker, from those in this process ("local"), or from those at the addresses in a
        list.

        Coordinated reads: consumer `consumer_index` of `num_consumers` gets element `round * num_consumers +
        consumer_index` of the worker that serves the round, which is the same for all of them. A
        `cross_trainer_cache` lets trainers share what workers make, each at its own pace. Both need a `job_name` and
        a dataset that never ends.
        """
        from spanwise.pipelines.input.service.client.distribute import distribute

        return distribute(
            self,
            service=service,
            processing_mode=processing_mode,
            job_name=job_name,
            dataset_id=dataset_id,
            max_outstanding_requests=max_outstanding_requests,
            compression=compression,
            target_workers=target_workers,
            consumer_index=consumer_index,
            num_consumers=num_consumers,
            cross_trainer_cache=cross_trainer_cache,
            security=security,
        )

    def prefetch(self, buffer: int = AUTOTUNE, *, limit_bytes: int | None = None) -> Dataset:
        """Prepares up to `buffer` elements in the background, as long as they hold no more than `limit_bytes`."""
        return self._then(Prefetch(input=self.op, buffer=buffer, limit_bytes=limit_bytes))

    def apply(self, function: Callable[[Dataset], Dataset]) -> Dataset:
        """`function(self)`: a chain of ops under a name."""
        result = function(self)
        if not isinstance(result, Dataset):
            raise DatasetError(f"apply({function!r}): must return a Dataset, not {type(result).__name__}.")
        return result

    def options(self, **changes: Any) -> Dataset:
        """The same elements, run with other options; see `Options` for the names."""
        known = [each.name for each in fields(Options) if each.name not in {"consumer", "in_order"}]
        for name, value in changes.items():
            if name not in known:
                raise DatasetError(f"options({name}=…): no such option. The options are {', '.join(known)}.")
            if name in {"block_rows", "cpu_budget", "memory_budget_bytes"} and value is not None:
                check_whole("options", name, value, autotune=name == "block_rows")
            if name == "seed" and value is not None:
                check_whole("options", name, value, at_least=0)
        if "without" in changes:
            changes["without"] = frozenset(changes["without"])
            for rule in changes["without"] - {rule.name for rule in RULES}:
                names = ", ".join(rule.name for rule in RULES)
                raise DatasetError(f"options(without={rule!r}): no such rewrite. The rewrites are {names}.")
        settings = replace(self.settings, **changes)
        op = apply_options(self.op, settings) if changes.keys() & {"seed", "deterministic"} else self.op
        return Dataset(op, settings)

    def explain(self) -> RewritePlan:
        """The graph before and after rewriting, and what each rewrite did and why; print it."""
        return optimize(self.op, self.settings)

    # Where it goes

    def profile(self, step: Callable[[Any], object] | None = None, *, limit_s: float = 5.0) -> Profile:
        """Where the time of one pass goes, op by op; prints as a table, and `save(path)` writes a timeline.

        `step` is what you do with each element: with it the profile shows whether the step waits for the input
        or the input for the step. It runs for `limit_s` seconds, or until the elements end.
        """
        from spanwise.pipelines.input.profiling.profile import profile_pass

        if step is not None and not callable(step):
            raise DatasetError(f"profile(step={step!r:.80}): expected a function of an element.")
        return profile_pass(self, step, limit_s=limit_s)

    def _then(self, op: Op) -> Dataset:
        return Dataset(op, self.settings)


def _as_spec(spec: ElementSpec | pa.Schema | None) -> ElementSpec:
    """The description of a function's results as a spec: a schema describes rows."""
    import pyarrow as pa

    if spec is None:
        return UNKNOWN
    if isinstance(spec, pa.Schema):
        return Table(spec)
    if isinstance(spec, ElementSpec):
        return spec
    raise DatasetError(f"spec={spec!r}: expected an ElementSpec, or a pyarrow.Schema for rows.")


def dataset_ops(who: str, datasets: Sequence[object]) -> tuple[Op, ...]:
    """The ops of datasets.

    Raises:
        DatasetError: one of them is not a dataset.
    """
    for each in datasets:
        if not isinstance(each, Dataset):
            raise DatasetError(f"{who}: expected datasets, not {each!r:.80}.")
    return tuple(each.op for each in datasets if isinstance(each, Dataset))


def join_options(who: str, datasets: Sequence[Dataset]) -> Options:
    """The options of one pass over several datasets: those of the first, with the seed that any of them has.

    It keeps the order that any of them keeps.

    Raises:
        DatasetError: they have two seeds.
    """
    settings = [each.settings for each in datasets] or [Options()]
    seeds = {each.seed for each in settings if each.seed is not None}
    if len(seeds) > 1:
        raise DatasetError(
            f"{who}: its datasets have options(seed=…) of {' and '.join(map(str, sorted(seeds)))}, and one pass has "
            f"one seed. Call options(seed=…) on what {who} returns instead, and give ops that need another seed a "
            f"seed= of their own."
        )
    return replace(
        settings[0],
        seed=next(iter(seeds), None),
        deterministic=any(each.deterministic for each in settings),
        in_order=any(each.in_order for each in settings),
    )
