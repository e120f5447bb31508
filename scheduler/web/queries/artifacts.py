"""One artifact: its files with previews, the first rows of examples, and its lineage as a graph that can be walked."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from markupsafe import Markup

from spanwise.orchestrator.artifact import Artifact, SpanRows
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import DamagedArtifact, NotRecorded, StorageError, UsageError
from spanwise.orchestrator.lineage import Direction, Lineage, walk
from spanwise.orchestrator.verdict import Verdict
from spanwise.scheduler.client import ArtifactRecord
from spanwise.scheduler.formatting import single_line
from spanwise.scheduler.inspect import records
from spanwise.scheduler.storage.pins import describe_pin
from spanwise.scheduler.web.access import sign_path
from spanwise.scheduler.web.pages import artifact_url, make_url
from spanwise.scheduler.web.pictures.graphs import Box, draw_graph
from spanwise.scheduler.web.site import WebSite

ROWS = 20
COLUMNS = 50
FILES = 200
PREVIEW_BYTES = 32 * 1024
"""How much of a text file is shown."""

LINKS_S = 3600
"""How long the link of a sandboxed frame holds."""

_TEXT = (".json", ".txt", ".md", ".csv", ".toml", ".yaml", ".yml", ".py", ".log", ".jsonl", ".pbtxt", ".sql")
_MOST_BOXES = 60  # of a lineage in a picture
_LONGEST_CELL = 80


@dataclass(frozen=True, kw_only=True)
class Preview:
    """The first rows of an artifact that holds rows."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    more_columns: int


@dataclass(frozen=True, kw_only=True)
class FileView:
    """One file of an artifact."""

    name: str
    size_bytes: int
    text: str | None = None  #: the beginning of a text file
    frame: str = ""  #: address of a sandboxed frame, of an HTML page


@dataclass(frozen=True, kw_only=True)
class ArtifactView:
    """One artifact."""

    record: ArtifactRecord
    properties: Sequence[tuple[str, str]]
    verdicts: Sequence[Verdict]
    pin: str
    gone: bool  #: there are no files, and storage that was asked says so
    files: Sequence[FileView]
    more_files: int
    preview: Preview | None
    trouble: str  #: why there is no preview
    run: str
    graph: Markup
    up: int
    down: int
    cut: bool  #: there is more lineage than is drawn


def read_artifact(site: WebSite, reference: str, depth: int) -> ArtifactView:
    """One artifact, with so many executions up and down.

    Raises:
        NotRecorded: there is none.
    """
    record = site.client.artifact(reference)
    up = walk(site.store, [record.artifact], Direction.UP, depth=depth)
    down = walk(site.store, [record.artifact], Direction.DOWN, depth=depth)
    gone, files, preview, trouble = _read_files(record)
    try:
        maker = site.store.producer(record.artifact)
        run = f"{maker.pipeline}/{maker.run}"
    except NotRecorded:
        run = ""
    return ArtifactView(
        record=record,
        properties=[(name, _short(value)) for name, value in sorted(record.properties.items())],
        verdicts=record.verdicts(),
        pin=describe_pin(site.store, record.artifact),
        gone=gone,
        files=[_file(site, record, name, size) for name, size in files[:FILES]],
        more_files=max(0, len(files) - FILES),
        preview=preview,
        trouble=trouble,
        run=run,
        graph=_graph(record, up, down),
        up=len(up.artifacts) - 1,
        down=len(down.artifacts) - 1,
        cut=bool(up.cut or down.cut) or len(up.artifacts) + len(down.artifacts) > _MOST_BOXES,
    )


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) < 2000 else f"{text[:2000]}…"  # noqa: PLR2004


def _read_files(record: ArtifactRecord) -> tuple[bool, list[tuple[Path, int]], Preview | None, str]:
    """Whether there are none, the files with their sizes, the first rows, and why these are not known.

    What is recorded is shown also where storage cannot be read.
    """
    try:
        return not record.present, sorted(record.sizes().items()), *_preview(record)
    except (StorageError, DamagedArtifact) as error:
        return False, [], None, str(error)


def _preview(record: ArtifactRecord) -> tuple[Preview | None, str]:
    """The first rows; read by row group, so that a large file costs no more than a small one."""
    if not record.artifact.is_a(SpanRows):
        return None, ""
    try:
        import pyarrow.parquet as pq

        first = next((name for name in record.files() if name.match("Split-*/*.parquet")), None)
        if first is None:
            return None, "Its files are gone; they may have been garbage-collected."
        with record.open(first) as opened:
            names = pq.read_schema(opened).names
        table = record.table(columns=names[:COLUMNS], limit=ROWS)
    except (UsageError, DamagedArtifact, OSError, ValueError) as error:
        return None, str(error)
    rows = [[_cell(row[name]) for name in table.column_names] for row in table.to_pylist()]
    return Preview(columns=table.column_names, rows=rows, more_columns=max(0, len(names) - COLUMNS)), ""


def _cell(value: object) -> str:
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else single_line(str(value))
    return text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]}…"


def _file(site: WebSite, record: ArtifactRecord, name: Path, size: int) -> FileView:
    text = None
    if name.suffix.lower() in _TEXT:
        try:
            with record.open(name) as opened:
                text = opened.read(PREVIEW_BYTES).decode("utf-8", "replace")
        except (OSError, StorageError, DamagedArtifact):
            return FileView(name=str(name), size_bytes=size)
    return FileView(name=str(name), size_bytes=size, text=text, frame=_frame(site, record.id, name))


def _frame(site: WebSite, artifact: int, name: Path) -> str:
    return sign_page(site, artifact, str(name)) if name.suffix.lower() in (".html", ".htm") else ""


def sign_page(site: WebSite, artifact: int, name: str) -> str:
    """The address of an HTML page of an artifact, for a sandboxed frame."""
    until = (int(time.time()) // LINKS_S + 2) * LINKS_S  # the same for an hour, so that a live page need not change
    path = f"{artifact}/{name}"
    signature = sign_path(site.policy.key, path, until)
    return f"/file/{until}/{signature}{make_url(*path.split('/'))}"


def find_file(site: WebSite, artifact: str, name: str) -> Path | BinaryIO:
    """A file of an artifact, which has to be one of those in its folder: no way leads out of it.

    Of one in object storage, what is read is fetched.

    Raises:
        NotRecorded: the artifact or the file does not exist.
    """
    record = site.client.artifact(artifact)
    for known in record.files():
        if str(known) == name:
            folder = Path(record.artifact.uri)
            if not record.artifact.is_here:
                return record.open(known)
            if (folder / known).resolve().is_relative_to(folder.resolve()):
                return folder / known
    raise NotRecorded(f"{record.name} has no file {name!r}.")


def _graph(record: ArtifactRecord, up: Lineage, down: Lineage) -> Markup:
    found = {a.id: a for a in itertools.islice({**up.artifacts, **down.artifacts}.values(), _MOST_BOXES)}
    found[record.id] = record.artifact
    boxes = [
        Box(
            str(artifact.id),
            artifact.kind,
            _label(artifact, record.calendar),
            "here" if artifact.id == record.id else "",
            artifact_url(artifact.id),
        )
        for artifact in sorted(found.values(), key=lambda a: a.id)
    ]
    edges = {
        (str(read), str(made))
        for lineage in (up, down)
        for step in lineage.steps
        for read in step.inputs
        for made in step.outputs
    }
    return draw_graph(boxes, edges, f"What {record.name} was made from, on the left, and what was made from it")


def _label(artifact: Artifact, calendar: Calendar) -> str:
    """Its span and version, or what tells it from others of its kind."""
    label = records.describe_artifact(artifact, calendar).partition(" (")[0]
    return label.replace(artifact.name, "/".join(artifact.name.split("/")[1:]))
