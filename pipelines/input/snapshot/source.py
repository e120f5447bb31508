"""A snapshot as a source: an op that reads its elements."""

from __future__ import annotations

from dataclasses import dataclass, field

from spanwise.pipelines.input.element import Spec
from spanwise.pipelines.input.op import Op, Opening, Stream, list_ops, rebuild
from spanwise.pipelines.input.snapshot.folder import SnapshotFolder
from spanwise.pipelines.input.snapshot.op import Snapshot
from spanwise.pipelines.input.snapshot.reading import ReadStream
from spanwise.pipelines.input.snapshot.state import ChunkRecord, Metadata
from spanwise.pipelines.input.snapshot.storage import files_at
from spanwise.pipelines.input.snapshot.use import SnapshotUse


def with_sources(op: Op) -> Op:
    """The graph with a source in place of each complete snapshot, so that its chunks can be split among workers."""

    def change(each: Op) -> Op:
        if not isinstance(each, Snapshot) or each.mode not in {"auto", "read"} or each.reader_fn is not None:
            return each
        run = SnapshotFolder(files_at(each.path), each.fingerprint).look().final
        return each if run is None else LoadedSnapshot(path=each.path, run=run, chunks=run.chunks, of=each.spec)

    return rebuild(op, change)


def why_not_shared(op: Op) -> str:
    """Why processes that count the elements of a graph may count them in different orders; empty if they may not.

    Until a snapshot is complete, one process goes on from what another pass has left, in the order of that pass, and
    the others in their own; and one that comes later may read it when it is complete.
    """
    for each in list_ops(op):
        if not isinstance(each, Snapshot) or each.mode != "auto" or not any(map(_is_drawn, list_ops(each.input))):
            continue
        if SnapshotFolder(files_at(each.path), each.fingerprint).look().final is None:
            return (
                f"snapshot(path={each.path!r}) is not complete: each pass may draw its elements in another order. "
                "Write it first, in one process: for _ in dataset: pass"
            )
    return ""


def _is_drawn(op: Op) -> bool:
    return hasattr(op, "seed") and getattr(op, "shuffle", True) is not False


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedSnapshot(Op):
    path: str
    run: Metadata = field(repr=False)
    chunks: tuple[ChunkRecord, ...] = field(repr=False)  #: some of the run's
    of: Spec

    @property
    def spec(self) -> Spec:
        return self.of

    @property
    def cardinality(self) -> int:
        return sum(chunk.elements for chunk in self.chunks)

    def open(self, opening: Opening) -> Stream:
        run = self.run
        use = SnapshotUse(path=self.path, fingerprint=run.fingerprint, state="read", run_id=run.run_id)
        if opening.report is not None:
            opening.report(use)
        return ReadStream(SnapshotFolder(files_at(self.path), run.fingerprint), run, self.chunks, use, opening.block)
