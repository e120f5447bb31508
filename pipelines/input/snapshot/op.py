"""The snapshot op: the first pass stores its elements, and others read them as long as the graph is the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

from spanwise.orchestrator.errors import DatasetError
from spanwise.orchestrator.fingerprint import Bindings
from spanwise.pipelines.input.flow import AnyFlow, extend
from spanwise.pipelines.input.graph.fingerprint import FILES_BY, FilesBy, of_graph_now, stamp_files, with_options
from spanwise.pipelines.input.op import Op, Opening, Options, Stream, list_ops, rebuild
from spanwise.pipelines.input.snapshot.settings import Compression, CompressionName, SnapshotSettings
from spanwise.pipelines.input.snapshot.state import Mode
from spanwise.pipelines.input.snapshot.storage import files_at
from spanwise.pipelines.input.snapshot.stream import SnapshotStream


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot(SnapshotSettings, Op):
    own_seeds: ClassVar[bool] = True  # a pass that continues another one's chunks takes its seeds as well

    def open(self, opening: Opening) -> Stream:
        if self.options is not None:
            seed = opening.seed if self.options.seed is None else self.options.seed
            options = replace(opening.options, deterministic=self.options.deterministic)
            opening = replace(opening, seed=seed, options=options)
        return SnapshotStream(self, opening)


def apply_options(op: Op, options: Options) -> Op:
    """The graph in which each snapshot is that of a run with these options."""

    def change(each: Op) -> Op:
        if not isinstance(each, Snapshot) or not each.graph:
            return each
        return replace(each, fingerprint=with_options(each.graph, each.input, options), options=_fingerprinted(options))

    return rebuild(op, change) if any(isinstance(each, Snapshot) for each in list_ops(op)) else op


def _fingerprinted(options: Options) -> Options:
    """Those of the options that a fingerprint covers."""
    return Options(seed=options.seed, deterministic=options.deterministic)


def add_snapshot(
    dataset: AnyFlow,
    *,
    path: str,
    compression: CompressionName,
    reader_fn: Callable[[AnyFlow], AnyFlow] | None,
    writer_fn: Callable[[AnyFlow], AnyFlow | Sequence[AnyFlow]] | None,
    expiry_s: float,
    mode: Mode,
    files_by: FilesBy,
) -> AnyFlow:
    """Implements `Dataset.snapshot`: the dataset with a snapshot behind it.

    Raises:
        DatasetError: an argument is wrong.
        Unfingerprintable: the graph depends on something whose content cannot be known.
    """
    if files_by not in FILES_BY:
        raise DatasetError(f"snapshot(files_by={files_by!r}): wants one of {', '.join(FILES_BY)}.")
    files_at(path)  # refuses what is no place for snapshots
    stamps = () if mode == "passthrough" else stamp_files(dataset.op)  # before the fingerprint, which reads files
    graph, bindings = ("", Bindings()) if mode == "passthrough" else of_graph_now(dataset.op, files_by=files_by)
    op = Snapshot(
        input=dataset.op,
        path=path,
        fingerprint=graph and with_options(graph, dataset.op, dataset.settings),
        graph=graph,
        options=_fingerprinted(dataset.settings) if graph else None,
        stamps=stamps,
        bindings=bindings,
        files_by=files_by,
        compression=cast("Compression", compression.lower()),
        mode=mode,
        expiry_s=expiry_s,
        reader_fn=reader_fn,
        writer_fn=writer_fn,
    )
    op.rehearse(lambda each: extend(dataset, each))
    return extend(dataset, op)
