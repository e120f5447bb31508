"""Prepared spans: the rows of a window after the user's preparation, a snapshot for each span; and their use."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from spanwise.orchestrator import fingerprint
from spanwise.orchestrator.artifact import Examples
from spanwise.orchestrator.errors import UnreadableInput
from spanwise.pipelines.input.dataset import Dataset
from spanwise.pipelines.input.element import Spec
from spanwise.pipelines.input.graph.fingerprint import WithFingerprint, of_graph, with_options
from spanwise.pipelines.input.graph.rewrite import columns_read
from spanwise.pipelines.input.op import Count, Element, Op, Opening, SingleInputStream, Stream, rebuild
from spanwise.pipelines.input.ops.parquet import Parquet
from spanwise.pipelines.input.snapshot.source import LoadedSnapshot
from spanwise.pipelines.input.snapshot.use import SnapshotUse
from spanwise.pipelines.input.snapshot_loader import load

EXPIRY_S = 3600.0
"""After this time a training takes over an unfinished snapshot of a training that was killed on another machine."""

_AT_ONCE: Final = 32
"""The number of spans requested from a data service at a time."""


def prepare_spans(
    parts: Sequence[tuple[Examples, Parquet]],
    prepare: Callable[[Dataset], Dataset],
    snapshots: str | Path,
    tally: SnapshotTally,
    service: str | None = None,
) -> Dataset:
    """The rows of each artifact after `prepare`, one artifact after the other.

    The fingerprint of a snapshot covers the artifact's content, the columns that `prepare` can be proved to read, and
    `prepare`, and not the location: a span that is ingested again finds its snapshot. The workers of a service write
    the missing ones before this returns.

    Raises:
        Unfingerprintable: `prepare` uses something whose content cannot be fingerprinted.
        DatasetError: `prepare` does not return a dataset.
    """
    spans = [_prepare(artifact, reading, prepare) for artifact, reading in parts]
    if service is not None:
        return _prepare_on_service(spans, snapshots, tally, service)
    first, *others = [span.snapshot(snapshots, pending_snapshot_expiry_seconds=EXPIRY_S) for span in spans]
    whole = first.concatenate(*others)
    return Dataset(CountSnapshots(input=whole.op, tally=tally), whole.settings)


def _prepare(artifact: Examples, reading: Parquet, prepare: Callable[[Dataset], Dataset]) -> Dataset:
    """The rows of one artifact after `prepare`, of which only the columns are read that it looks at."""
    given = _published(artifact, reading)
    span = Dataset(given).apply(prepare)
    plain = rebuild(span.op, lambda each: reading if each is given else each, stop=lambda each: each is given)
    columns = columns_read(plain, reading)
    if columns == tuple(reading.row_schema.names):
        return span
    narrow = _published(artifact, replace(reading, columns=columns))
    op = rebuild(span.op, lambda each: narrow if each is given else each, stop=lambda each: each is given)
    return Dataset(op, span.settings)


def _published(artifact: Examples, reading: Parquet) -> WithFingerprint:
    rows = PublishedRows(reading=reading, artifact=artifact)
    return WithFingerprint(input=rows, fingerprint=fingerprint.digest("published rows", *_identity(artifact, reading)))


def _prepare_on_service(spans: Sequence[Dataset], snapshots: str | Path, tally: SnapshotTally, service: str) -> Dataset:
    """Has workers write the missing snapshots, several at a time, and reads all of them."""
    from spanwise.pipelines.input.service.saves.save import save  # a training without a service needs none of it

    def prepare(span: Dataset) -> tuple[Dataset, SnapshotUse]:
        is_new = save(span, snapshots, service, exist_ok=True, pending_snapshot_expiry_seconds=EXPIRY_S)
        loaded = load(snapshots, fingerprint=with_options(of_graph(span.op), span.op, span.settings)).op
        assert isinstance(loaded, LoadedSnapshot)
        use = SnapshotUse(
            path=loaded.path,
            fingerprint=loaded.run.fingerprint,
            state="write" if is_new else "read",
            committed=is_new,
            bytes_written=loaded.run.size_bytes if is_new else 0,
        )
        return Dataset(replace(loaded, of=span.spec), span.settings), use

    with ThreadPoolExecutor(min(len(spans), _AT_ONCE), "prepare-spans") as pool:
        prepared = list(pool.map(prepare, spans))
    tally.begin([use for _, use in prepared])()
    first, *others = [dataset for dataset, _ in prepared]
    return first.concatenate(*others)


def _identity(artifact: Examples, reading: Parquet) -> tuple[str, ...]:
    """What the rows depend on: the content, the columns and the splits that are read."""
    return artifact.content, str(reading.row_schema), *(Path(path).parent.name for path in reading.paths)


@dataclass(frozen=True, kw_only=True, eq=False)
class PublishedRows(Op):
    """The rows of an artifact, whose files are compared with its digest before the first row is read.

    The snapshot is found by that digest: written from files that have changed, it would be wrong for ever.
    """

    reading: Parquet
    artifact: Examples

    @property
    def inputs(self) -> tuple[Op, ...]:
        return ()  # identified by its content, not by its location

    @property
    def spec(self) -> Spec:
        return self.reading.spec

    @property
    def cardinality(self) -> Count:
        return self.reading.cardinality

    def open(self, opening: Opening) -> Stream:
        return PublishedRowsStream(self, opening)


class PublishedRowsStream(SingleInputStream):
    def __init__(self, op: PublishedRows, opening: Opening) -> None:
        super().__init__(opening.open(op.reading))
        self._artifact = op.artifact

    def __next__(self) -> Element:
        _verify(self._artifact.uri, self._artifact.content, self._artifact.name)
        return next(self._source)


@functools.cache
def _verify(folder: str, content: str, name: str) -> None:
    """Compares the files with what was published, once in a process."""
    if fingerprint.of_tree(folder).digest != content:
        raise UnreadableInput(
            f"{folder}: the files are not those that were published as {name}, so they cannot be prepared. They have "
            "changed since the node was started: run it again, and it prints the command that creates them again."
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class CountSnapshots(Op):
    """The elements of its input, whose use of snapshots is added to a tally."""

    by_element = True

    input: Op
    tally: SnapshotTally

    def open(self, opening: Opening) -> Stream:
        uses: list[SnapshotUse] = []

        def report(record: object) -> None:
            if isinstance(record, SnapshotUse):
                uses.append(record)
            if opening.report is not None:
                opening.report(record)

        return CountSnapshotsStream(replace(opening, report=report).open(self.input), self.tally.begin(uses))


class CountSnapshotsStream(SingleInputStream):
    def __init__(self, source: Stream, end: Callable[[], None]) -> None:
        super().__init__(source)
        self._end = end

    def __next__(self) -> Element:
        return next(self._source)

    def close(self) -> None:
        super().close()
        self._end()


@dataclass
class SnapshotCounts:
    first: dict[str, bool] = field(default_factory=dict)  #: by fingerprint: whether the first pass found the snapshot
    written: set[str] = field(default_factory=set)
    bytes_read: int = 0
    bytes_written: int = 0

    def with_passes(self, passes: Sequence[Sequence[SnapshotUse]]) -> SnapshotCounts:
        """These counts and the uses of more passes."""
        uses = [use for one in passes for use in one if use.state != "undecided"]
        return SnapshotCounts(
            first={**{use.fingerprint: use.hit for use in reversed(uses)}, **self.first},
            written=self.written | {use.fingerprint for use in uses if use.committed},
            bytes_read=self.bytes_read + sum(use.bytes_read for use in uses),
            bytes_written=self.bytes_written + sum(use.bytes_written for use in uses),
        )


class SnapshotTally:
    """Counts the snapshots that the passes of this process read and write. Sent to another process, it starts empty."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, list[SnapshotUse]] = {}  # the uses of passes that have not ended
        self._ended = SnapshotCounts()
        self._passes = 0

    def __reduce__(self) -> tuple[type[SnapshotTally], tuple[()]]:
        return SnapshotTally, ()

    def __fingerprint__(self) -> str:
        """The same for all, since it changes no element."""
        return "tally"

    def begin(self, uses: list[SnapshotUse]) -> Callable[[], None]:
        """Begins a pass, which appends its uses to the list; call what is returned at its end."""
        with self._lock:
            self._passes += 1
            number = self._passes
            self._open[number] = uses
        return functools.partial(self._end, number)

    def _end(self, number: int) -> None:
        with self._lock:
            uses = self._open.pop(number, None)
            if uses is not None:
                self._ended = self._ended.with_passes([uses])

    def counts(self) -> dict[str, int]:
        """The numbers of snapshots found, missed and written, and of bytes; empty if no snapshot was used."""
        with self._lock:
            now = self._ended.with_passes(list(self._open.values()))
        if not now.first:
            return {}
        hits = sum(now.first.values())
        return {
            "hits": hits,
            "misses": len(now.first) - hits,
            "written": len(now.written),
            "bytes_read": now.bytes_read,
            "bytes_written": now.bytes_written,
        }
