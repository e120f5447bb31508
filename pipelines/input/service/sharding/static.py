"""Static sharding: a fixed list of workers shares the files or elements of a graph. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from spanwise.orchestrator.errors import DatasetError
from spanwise.orchestrator.fingerprint import digest
from spanwise.pipelines.input.graph.fingerprint import WithFingerprint
from spanwise.pipelines.input.op import Op, list_ops, rebuild
from spanwise.pipelines.input.ops.csv import Csv
from spanwise.pipelines.input.ops.file_source import FileSource
from spanwise.pipelines.input.ops.interleave import Interleave
from spanwise.pipelines.input.ops.ipc import ArrowFiles
from spanwise.pipelines.input.ops.map import Map
from spanwise.pipelines.input.ops.parquet import Parquet
from spanwise.pipelines.input.ops.prefetch import Prefetch
from spanwise.pipelines.input.ops.select import Select
from spanwise.pipelines.input.ops.shard import SHARD_HINT, Shard
from spanwise.pipelines.input.ops.tensors import Elements, TensorSlices
from spanwise.pipelines.input.ops.zip import Zip
from spanwise.pipelines.input.service.policy import ShardingPolicy
from spanwise.pipelines.input.service.sharding.splits import sources_of, with_files
from spanwise.pipelines.input.snapshot.op import Snapshot

_FILES: Final = (Parquet, Csv, ArrowFiles, FileSource)
_ROW_BY_ROW: Final = (Map, Prefetch, Select, WithFingerprint)


def cut_to_shard(op: Op, policy: ShardingPolicy, shards: int, index: int) -> Op:
    """The graph cut down to what the worker with this index reads.

    Raises:
        DatasetError: the policy is FILE, and there are no files, or fewer files than workers.
    """
    if policy is ShardingPolicy.HINT:
        # a snapshot below a hint has the elements of the dataset, which the workers count
        own = rebuild(op, lambda each: _rename_snapshot(each, shards, index) if list_hints(each) else each)
        return rebuild(own, lambda each: _fill_hint(each, shards, index))
    files = _files_of(op)
    if policy is not ShardingPolicy.FILE and not shares_files(op, policy):
        return Shard(input=op, shards=shards, index=index)
    if whole := why_not_by_file(op):
        raise DatasetError(f"distribute(processing_mode='file'): {whole}; or use 'data', or 'file_or_data'.")

    def change(each: Op) -> Op:
        if id(each) in files:
            return _cut_to_files(each, files[id(each)], shards, index)
        return _rename_snapshot(each, shards, index)

    return rebuild(op, change)


def shares_files(op: Op, policy: ShardingPolicy) -> bool:
    """Whether each worker reads files of its own, rather than all that the others read too."""
    return policy is ShardingPolicy.FILE or (policy is ShardingPolicy.FILE_OR_DATA and not why_not_by_file(op))


def why_not_by_file(op: Op) -> str:
    """Why the elements of all shares of the files are not those of the dataset; empty if they are."""
    ops = [each for each in list_ops(op) if not (isinstance(each, Zip) and _pairs_rows_of_files(each))]
    if reason := next((each.needs_all for each in ops if each.needs_all), ""):
        return f"{reason}; put it behind distribute"
    files = _files_of(op)
    if names := ", ".join(source.name for source in sources_of(op) if id(source) not in files):
        return f"an unshardable source dataset was found: {names} reads no files; use 'data', or 'file_or_data'"
    return ""


def _pairs_rows_of_files(op: Zip) -> bool:
    """Whether a zip pairs, row by row, files with the same numbers of rows."""
    layouts = set()
    for part in op.parts:
        source = part
        while isinstance(source, _ROW_BY_ROW):
            source = source.inputs[0]
        if not isinstance(source, Parquet) or source.filter is not None or source.shuffle:
            return False
        rows = Counter[str]()
        for group in source.groups:
            rows[group.path] += group.rows
        layouts.add(tuple(rows[path] for path in source.paths))
    return len(layouts) == 1


def _rename_snapshot(op: Op, shards: int, index: int) -> Op:
    """The snapshot of a shard has a name of its own: its elements are not the dataset's (Snapshot RFC, Concurrency).

    It draws from the seed of the shard.
    """
    if isinstance(op, Snapshot) and op.fingerprint:
        return replace(op, fingerprint=digest("shard", op.fingerprint, str(shards), str(index)), options=None)
    return op


def list_hints(op: Op) -> list[Shard]:
    """The ops of a graph that give each worker its part of what is below them."""
    return [each for each in list_ops(op) if isinstance(each, Shard) and each.shards == SHARD_HINT]


def _fill_hint(op: Op, shards: int, index: int) -> Op:
    return replace(op, shards=shards, index=index) if isinstance(op, Shard) and op.shards == SHARD_HINT else op


def _files_of(op: Op) -> dict[int, Sequence[Any]]:
    """The sources that read files, or yield names of files to an interleave that reads them; and these files."""
    files: dict[int, Sequence[Any]] = {}
    for each in list_ops(op):
        if isinstance(each, _FILES):
            files[id(each)] = each.paths
        elif isinstance(each, Interleave):
            for source in sources_of(each):
                values = _strings_of(source)
                if values:
                    files[id(source)] = values
    return files


def _strings_of(source: Op) -> Sequence[str]:
    values: Sequence[Any] = ()
    if isinstance(source, Elements):
        values = source.values
    elif isinstance(source, TensorSlices) and isinstance(source.tensors, list | tuple):
        values = source.tensors
    elif isinstance(source, TensorSlices) and getattr(getattr(source.tensors, "dtype", None), "kind", "") == "U":
        values = source.tensors.tolist()
    return values if all(isinstance(value, str) for value in values) else ()


def _cut_to_files(source: Op, files: Sequence[Any], shards: int, index: int) -> Op:
    if len(files) < shards:
        raise DatasetError(
            f"distribute(processing_mode='file'): there are {len(files)} files, which is not enough for the required "
            f"{shards} shards/workers. Use 'data', fewer workers or more files."
        )
    mine = tuple(files[index::shards])
    return Elements(values=mine) if isinstance(source, Elements | TensorSlices) else with_files(source, mine)
