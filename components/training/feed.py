"""Feed: what is prepared of a window's rows, kept as a snapshot for each span, and what a training had of these."""

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
from spanwise.pipelines.input.graph.fingerprint import of_graph
from spanwise.pipelines.input.op import Count, Element, Op, Opening, SingleInputStream, Stream
from spanwise.pipelines.input.ops.parquet import Parquet
from spanwise.pipelines.input.snapshot.load import load
from spanwise.pipelines.input.snapshot.source import Loaded
from spanwise.pipelines.input.snapshot.use import SnapshotUse

EXPIRY_S = 3600.0
"""After which what a training that was killed on another machine has left half written is taken up by another one."""

_AT_ONCE: Final = 32
"""How many spans a data service is asked for at a time."""


def prepared(
    parts: Sequence[tuple[Examples, Parquet]],
    prepare: Callable[[Dataset], Dataset],
    snapshots: Path,
    tally: Tally,
    service: str | None = None,
) -> Dataset:
    """What `prepare` makes of the rows of each artifact, one behind the other.

    A snapshot is known by the artifact's content, the columns and what `prepare` does: so one that is ingested again,
    or lies elsewhere, finds its own. The workers of a service make those that are missing before this returns.

    Raises:
        Unfingerprintable: `prepare` uses something whose content cannot be known.
        DatasetError: it gives no dataset.
    """
    spans = [
        Dataset(Published(reading=reading, artifact=artifact))
        .with_snapshot_fingerprint(fingerprint.digest("published rows", *_identity(artifact, reading)))
        .apply(prepare)
        for artifact, reading in parts
    ]
    if service is not None:
        return _served(spans, snapshots, tally, service)
    kept = [span.snapshot(snapshots, pending_snapshot_expiry_seconds=EXPIRY_S) for span in spans]
    whole = kept[0].concatenate(*kept[1:])
    return Dataset(Counted(input=whole.op, tally=tally), whole.settings)


def _served(spans: Sequence[Dataset], snapshots: Path, tally: Tally, service: str) -> Dataset:
    """Has workers prepare the spans, all at a time, and gives what lies there then."""
    from spanwise.pipelines.input.service.saves.save import save  # a training without a service needs none of it

    def kept(span: Dataset) -> tuple[Dataset, SnapshotUse]:
        written = save(span, snapshots, service, exist_ok=True, pending_snapshot_expiry_seconds=EXPIRY_S)
        loaded = load(snapshots, fingerprint=of_graph(span.op)).op
        assert isinstance(loaded, Loaded)
        use = SnapshotUse(
            path=loaded.path,
            fingerprint=loaded.run.fingerprint,
            state="write" if written else "read",
            committed=written,
            bytes_written=loaded.run.size_bytes if written else 0,
        )
        return Dataset(replace(loaded, of=span.spec), span.settings), use

    with ThreadPoolExecutor(min(len(spans), _AT_ONCE), "feed") as pool:
        found = list(pool.map(kept, spans))
    tally.begin([use for _, use in found])()
    whole = [dataset for dataset, _ in found]
    return whole[0].concatenate(*whole[1:])


def _identity(artifact: Examples, reading: Parquet) -> tuple[str, ...]:
    """What the rows depend on: which of the files are read, and as what columns."""
    return artifact.content, str(reading.given), *(Path(path).parent.name for path in reading.paths)


@dataclass(frozen=True, kw_only=True, eq=False)
class Published(Op):
    """The rows of an artifact, which is held against its digest before the first of them is read.

    A snapshot stands for the content of the artifact: made of files that have changed, it would be wrong for ever.
    """

    reading: Parquet
    artifact: Examples

    @property
    def inputs(self) -> tuple[Op, ...]:
        return ()  # what is read is known by its content, and not by where it lies

    @property
    def spec(self) -> Spec:
        return self.reading.spec

    @property
    def cardinality(self) -> Count:
        return self.reading.cardinality

    def open(self, opening: Opening) -> Stream:
        return PublishedStream(self, opening)


class PublishedStream(SingleInputStream):
    def __init__(self, op: Published, opening: Opening) -> None:
        super().__init__(opening.open(op.reading))
        self._artifact = op.artifact

    def __next__(self) -> Element:
        _hold_to(self._artifact.uri, self._artifact.content, self._artifact.name)
        return next(self._source)


@functools.cache
def _hold_to(place: str, content: str, name: str) -> None:
    """Refuses files that are not what was published; looks at them once."""
    if fingerprint.of_tree(place).digest != content:
        raise UnreadableInput(
            f"{place}: the files are not those that were published as {name}, so nothing can be made of them. "
            f"Make them again:  spanwise run … --to {name.split('/')[1]} --no-cache"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Counted(Op):
    """Gives what its input gives; what this has of snapshots is told to a tally."""

    input: Op
    tally: Tally

    def open(self, opening: Opening) -> Stream:
        uses: list[SnapshotUse] = []

        def report(record: object) -> None:
            if isinstance(record, SnapshotUse):
                uses.append(record)
            if opening.report is not None:
                opening.report(record)

        return CountedStream(replace(opening, report=report).open(self.input), self.tally.begin(uses))


class CountedStream(SingleInputStream):
    def __init__(self, source: Stream, end: Callable[[], None]) -> None:
        super().__init__(source)
        self._end = end

    def __next__(self) -> Element:
        return next(self._source)

    def close(self) -> None:
        super().close()
        self._end()


@dataclass
class _Counts:
    first: dict[str, bool] = field(default_factory=dict)  #: whether the first pass over a snapshot found it
    written: set[str] = field(default_factory=set)
    bytes_read: int = 0
    bytes_written: int = 0

    def with_passes(self, passes: Sequence[Sequence[SnapshotUse]]) -> _Counts:
        """These and what those passes had."""
        uses = [use for one in passes for use in one if use.state != "undecided"]
        return _Counts(
            first={**{use.fingerprint: use.hit for use in reversed(uses)}, **self.first},
            written=self.written | {use.fingerprint for use in uses if use.committed},
            bytes_read=self.bytes_read + sum(use.bytes_read for use in uses),
            bytes_written=self.bytes_written + sum(use.bytes_written for use in uses),
        )


class Tally:
    """What all passes of this process had of snapshots; in a process that is given it, it begins anew."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, list[SnapshotUse]] = {}  # the uses of passes that go on
        self._ended = _Counts()
        self._passes = 0

    def __reduce__(self) -> tuple[type[Tally], tuple[()]]:
        return Tally, ()

    def __fingerprint__(self) -> str:
        """It changes no element."""
        return "tally"

    def begin(self, uses: list[SnapshotUse]) -> Callable[[], None]:
        """Counts a pass by the uses it is going to have; to be told when it is over."""
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
        """Snapshots that were there, that were not, and that were written; bytes read and written. Empty: none used."""
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
