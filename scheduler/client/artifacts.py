"""Artifacts of a client: where their files are, their first rows, their lineage and verdicts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from spanwise.orchestrator.artifact import Artifact, SpanRows, Value
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import DamagedArtifact, UsageError
from spanwise.orchestrator.verdict import Verdict, read_verdicts_on
from spanwise.scheduler.client.session import Session
from spanwise.scheduler.formatting import Document, format_size, format_time, iso_time, run_calendar
from spanwise.scheduler.inspect import artifact_summary, find, records
from spanwise.scheduler.inspect.artifact_pages import PageFinder, is_page
from spanwise.scheduler.inspect.collected import find_collected
from spanwise.scheduler.inspect.verdicts import list_verdicts

if TYPE_CHECKING:
    from pyarrow import Table

    from spanwise.orchestrator.lineage import Lineage


@dataclass(frozen=True)
class ArtifactRecord:
    """One published artifact."""

    session: Session = field(repr=False, compare=False)
    artifact: Artifact
    default: Calendar | None = field(default=None, repr=False, compare=False)  #: of its pipeline; None: not read yet

    @property
    def id(self) -> int:
        """The store's number."""
        return self.artifact.id

    @property
    def name(self) -> str:
        """`pipeline/node/key/…`, unique."""
        return self.artifact.name

    @property
    def kind(self) -> str:
        """Its type, such as Examples or Model."""
        return self.artifact.kind

    @property
    def pipeline(self) -> str:
        """The pipeline that published it."""
        return self.name.partition("/")[0]

    @property
    def node(self) -> str:
        """The node that published it."""
        return self.name.split("/")[1]

    @property
    def span(self) -> int | None:
        """Its span; None for a kind without."""
        span = self.artifact.properties.get("span")
        return span if isinstance(span, int) else None

    @property
    def span_label(self) -> str | None:
        """Its span as people write it."""
        return None if self.span is None else self.calendar.label(self.span)

    @property
    def version(self) -> int | None:
        """The version of the data of its span."""
        version = self.artifact.properties.get("version")
        return version if isinstance(version, int) else None

    @property
    def calendar(self) -> Calendar:
        """What its spans count: as it records, or as the newest run of its pipeline."""
        if "calendar" in self.artifact.properties or self.default is not None:
            return records.artifact_calendar(self.artifact, self.default or Calendar.NUMBER)
        newest = find.latest(self.session.store, self.pipeline)
        return Calendar.NUMBER if newest is None else run_calendar(newest)

    @property
    def created(self) -> datetime | None:
        """When it was published, UTC."""
        return self.artifact.created

    @property
    def size_bytes(self) -> int:
        """The size of its files."""
        return self.artifact.size_bytes

    @property
    def properties(self) -> dict[str, Value]:
        """Its properties; a copy."""
        return dict(self.artifact.properties)

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.artifact.path

    @property
    def present(self) -> bool:
        """Whether its files exist; garbage collection may have removed them."""
        archive = self.artifact.archive
        return self.artifact.is_here or (archive is not None and archive.has(self.artifact.uri))

    @property
    def summary(self) -> list[str]:
        """Short phrases on what is in it, the most important first."""
        return artifact_summary.summarize_artifact(self.artifact, self.calendar)

    def files(self) -> list[Path]:
        """Its files, relative to its folder; empty when they are gone. Nothing is fetched from object storage."""
        return sorted(self.sizes())

    def sizes(self) -> dict[Path, int]:
        """Its files, relative to its folder, with their sizes."""
        here, archive = Path(self.artifact.uri), self.artifact.archive
        if archive is None or self.artifact.is_here:
            return {f.relative_to(here): f.stat().st_size for f in here.rglob("*") if f.is_file()}
        return {Path(name): size for name, size in archive.list_files(self.artifact.uri).items()}

    def open(self, name: str | Path) -> BinaryIO:
        """One of its files; of one in object storage, what is read is fetched.

        Raises:
            DamagedArtifact: it is gone.
        """
        here, archive = Path(self.artifact.uri), self.artifact.archive
        if archive is not None and not self.artifact.is_here:
            return archive.open_file(self.artifact.uri, Path(name).as_posix())
        try:
            return (here / name).open("rb")
        except FileNotFoundError:
            raise DamagedArtifact(f"{here / name} is gone; it may have been garbage-collected.") from None

    def pages(self) -> list[Path]:
        """The HTML pages in its folder."""
        has_pages = any(is_page(name.as_posix()) for name in self.sizes())
        return sorted(self.path.glob("*.html")) if has_pages else []

    def table(
        self, split: str | None = None, *, columns: Sequence[str] | None = None, limit: int | None = None
    ) -> Table:
        """The rows of an artifact that holds rows, such as Examples, as an Arrow table: of one split, or of all.

        With `limit`, no more than the first rows are read.

        Raises:
            UsageError: it holds no rows, or has no such split or column.
            DamagedArtifact: its files are gone.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        names = self._row_files(split)
        with self.open(names[0]) as first:
            schema = pq.read_schema(first)
        if unknown := [name for name in columns or () if name not in schema.names]:
            raise UsageError(f"{self.name} has no column {unknown[0]!r}; it has: {', '.join(schema.names)}.")
        wanted = None if columns is None else list(columns)
        if limit is None:
            files = [self.path / name for name in names]
            return pa.concat_tables([pq.read_table(file, columns=wanted, partitioning=None) for file in files])
        batches, left = [], limit
        for name in names:
            with self.open(name) as file, pq.ParquetFile(file) as opened:
                for batch in opened.iter_batches(batch_size=max(1, min(left, 10_000)), columns=wanted):
                    batches.append(batch.slice(0, left))
                    left -= batches[-1].num_rows
                    if left <= 0:
                        return pa.Table.from_batches(batches)
        if batches:
            return pa.Table.from_batches(batches)
        return (schema if wanted is None else pa.schema([schema.field(name) for name in wanted])).empty_table()

    def _row_files(self, split: str | None) -> list[Path]:
        splits = self.artifact.properties.get("split_names")
        if not isinstance(splits, list) or not self.artifact.is_a(SpanRows):
            raise UsageError(f"{self.name} is {self.kind}, which holds no rows. Its files are in {self.artifact.uri}")
        if split is not None and split not in splits:
            raise UsageError(f"{self.name} has no split {split!r}; it has: {', '.join(map(str, splits))}.")
        folders = [f"Split-{name}" for name in ([split] if split else splits)]
        files = [name for name in self.files() if name.suffix == ".parquet"]
        found = [name for folder in folders for name in files if str(name.parent) == folder]
        if not found:
            raise DamagedArtifact(
                f"The files of {self.name} are gone from {self.artifact.uri}; they may have been garbage-collected. "
                f"Look at what made it:  spanwise lineage {self.name}"
            )
        return found

    def lineage(self, direction: Literal["up", "down"] = "up", *, depth: int | None = None) -> Lineage:
        """What it was made from (`up`), or what was made from it (`down`)."""
        from spanwise.orchestrator.lineage import Direction, walk

        return walk(self.session.store, [self.artifact], Direction(direction), depth=depth)

    def verdicts(self) -> list[Verdict]:
        """What gates, Evaluators and people have decided about it, oldest first."""
        store = self.session.store
        return [v for mark in ("accepted", "blessed") for v in read_verdicts_on(store, mark, self.artifact)]

    @property
    def collected(self) -> datetime | None:
        """When garbage collection removed its files, UTC; None where it did not."""
        return find_collected(self.session.store, [self.artifact]).get(self.id)

    def document(self, pages: PageFinder | None = None) -> Document:
        """As `spanwise artifacts --json` prints it."""
        found = records.artifact_document(self.artifact, self.calendar, pages)
        judged = list_verdicts(self.session.store, [self.artifact])
        return {**found, "collected": iso_time(self.collected), "verdicts": judged}

    def _repr_html_(self) -> str:
        from spanwise.scheduler.client import html

        facts = {
            "type": self.kind,
            **({"span": self.span_label} if self.span is not None else {}),
            **({"version": self.version} if self.version is not None else {}),
            "published": format_time(self.created),
            "size": format_size(self.size_bytes),
            "folder": self.artifact.uri,
            "summary": ", ".join(self.summary) or "-",
        }
        return html.heading(self.name) + html.table(("", " "), facts.items())


def find_artifact(session: Session, reference: str | int) -> ArtifactRecord:
    """The artifact of that name, id or folder.

    Raises:
        NotRecorded: there is none.
    """
    return ArtifactRecord(session, find.artifact(session.store, str(reference), session.settings.root))


def find_artifacts(
    session: Session, pipeline: str | None, *, kind: str | None, span: str | None, limit: int
) -> list[ArtifactRecord]:
    """The newest artifacts; none when nothing has run."""
    if pipeline is None and not session.store.pipelines():
        return []
    found, calendars = find.artifacts(session.store, pipeline, kind=kind, span=span, limit=limit)
    return [ArtifactRecord(session, artifact, calendars[artifact.name.partition("/")[0]]) for artifact in found]


def records_of(session: Session, sides: Iterator[Sequence[Artifact]]) -> list[ArtifactRecord]:
    """Artifacts as records, each once."""
    each = {artifact.id: artifact for artifact in itertools.chain.from_iterable(sides)}
    return [ArtifactRecord(session, artifact) for artifact in each.values()]
