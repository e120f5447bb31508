"""Feature files: the transformed examples of each span, written anew or linked from a run that wrote the very same."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq

from spanwise.components.read_ahead import count_threads
from spanwise.components.transform.analyzer_states import STORAGE_VERSION, code_versions, link_file
from spanwise.components.transform.graph import Preprocessor, to_arrow
from spanwise.components.transform.window_plan import TransformReport, TransformWindow, count_row_groups
from spanwise.components.transform.worker import FeatureTask, FeatureWriter, FilePiece, Place, WrittenFeatures
from spanwise.orchestrator import fingerprint


@dataclass(frozen=True)
class TransformedSpan:
    """One transformed span, as later runs may reuse it."""

    content: str  #: digest of the span's files
    graph: str  #: digest of the graph's files and of what applies it
    splits: list[str]
    folder: str  #: relative to that of the record
    rows: dict[str, int]
    digests: dict[str, str]  #: of each file, by its path below the folder


def transform_spans(window: TransformWindow, graph: Preprocessor) -> TransformReport:
    """Links the spans that this graph has transformed before, and transforms the others."""
    plan = window.plan
    digest = fingerprint.digest(
        "transform",
        STORAGE_VERSION,
        code_versions(),
        *plan.beam.unverified_part.values(),
        fingerprint.of_tree(plan.graph).digest,
    )
    earlier = _earlier_spans(plan.earlier)
    tasks: list[FeatureTask] = []
    linked: dict[int, dict[str, str]] = {}  # digests of the files, by number of the span
    for number, content in enumerate(window.contents):
        same = earlier.get((content, digest, plan.transform))
        if same is not None and _link_span(same, Path(plan.destinations[number])):
            window.reads[number].reused = same.folder
            linked[number] = same.digests
            continue
        for split in plan.transform:
            tasks += _list_tasks(window, graph, (number, split))
    threads = count_threads(len(graph.needs()) + len(graph.outputs))
    results = window.map(FeatureWriter.of(graph), tasks, threads=threads)
    for task, result in zip(tasks, results, strict=True):
        assert isinstance(result, WrittenFeatures)
        reads = window.reads[task.piece.place[0]]
        reads.transformed_files += 1
        reads.transformed_rows += result.rows
    counts = [_count_rows(folder, plan.transform) for folder in map(Path, plan.destinations)]
    _store_records(window, digest, counts, linked)
    schema = to_arrow(pl.DataFrame(schema=dict(graph.outputs))).schema
    return TransformReport(
        rows=tuple(counts), columns={column.name: str(column.type) for column in schema}, reads=window.reads
    )


def _list_tasks(window: TransformWindow, graph: Preprocessor, place: Place) -> list[FeatureTask]:
    number, split = place
    folder = Path(window.plan.destinations[number], f"Split-{split}")
    folder.mkdir(parents=True, exist_ok=True)
    files = window.files(place)
    if not files:  # a split without rows has its columns all the same
        pq.write_table(
            to_arrow(pl.DataFrame(schema=dict(graph.outputs))), folder / "part-00000.parquet", write_page_checksum=True
        )
    return [
        FeatureTask(
            FilePiece(place, str(path), tuple(range(count_row_groups(path)))),
            str(folder / path.name),
            window.is_newest(place),
        )
        for path in files
    ]


def _count_rows(folder: Path, splits: Iterable[str]) -> dict[str, int]:
    """The rows of each split that was written or linked."""
    return {
        split: sum(int(pq.read_metadata(path).num_rows) for path in sorted((folder / f"Split-{split}").iterdir()))
        for split in splits
    }


def _link_span(span: TransformedSpan, destination: Path) -> bool:
    """Links the files of an earlier run, if all exist and are as it wrote them."""
    source = Path(span.folder)
    if not source.is_dir() or fingerprint.of_tree(source).files != span.digests:
        return False
    for name in span.digests:
        path = source / name
        target = destination / name
        target.parent.mkdir(parents=True, exist_ok=True)
        link_file(path, target)
    return True


def _store_records(
    window: TransformWindow, digest: str, counts: Sequence[dict[str, int]], linked: Mapping[int, dict[str, str]]
) -> None:
    """Stores where each transformed span is, and what was read."""
    plan = window.plan
    spans = [
        TransformedSpan(
            content=content,
            graph=digest,
            splits=list(plan.transform),
            folder=os.path.relpath(folder, plan.cache),
            rows=counted,
            digests=linked[number] if number in linked else dict(fingerprint.of_tree(folder).files),
        )
        for number, (content, folder, counted) in enumerate(
            zip(window.contents, map(Path, plan.destinations), counts, strict=True)
        )
    ]
    for name, records in (("transformed", spans), ("reads", window.reads)):
        text = json.dumps([asdict(record) for record in records], indent=1)
        Path(plan.cache, f"{name}.json").write_text(text + "\n", encoding="utf-8")


def _earlier_spans(earlier: Iterable[str]) -> dict[tuple[str, str, tuple[str, ...]], TransformedSpan]:
    """The transformed spans of earlier runs, by content, graph and splits."""
    spans: dict[tuple[str, str, tuple[str, ...]], TransformedSpan] = {}
    for folder in earlier:
        path = Path(folder, "transformed.json")
        if path.is_file():
            for record in json.loads(path.read_text(encoding="utf-8")):
                span = TransformedSpan(**{**record, "folder": str((Path(folder) / record["folder"]).resolve())})
                spans.setdefault((span.content, span.graph, tuple(span.splits)), span)
    return spans
