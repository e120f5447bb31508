"""Which span, version and files ExampleGen ingests: `resolve`, `driver`, `processor`, `date`, `artifact_props`.

The files of a case are made on disk, and the driver of an ExampleGen is asked.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spanwise.components import ExampleGen, QueryExampleGen
from spanwise.components.ingest.splits import split_names
from spanwise.orchestrator import Run
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.driver import history_of
from spanwise.orchestrator.errors import SpanNotFound
from spanwise.orchestrator.span_pattern import SpanPattern
from spanwise.orchestrator.store import MemoryStore
from spanwise.scheduler.run.span_options import parse_span
from tests.components.flow import Bench


def resolve(given: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        lake = Path(folder)
        for file in given["files"]:
            _make(lake, file)
        node = _ingest(given, lake)
        prepared = _prepare(node, given["range"])
        files: Mapping[str, list[str]] = prepared["files"]
        patterns = {split["name"]: SpanPattern.parse(f"{lake}/{split['pattern']}") for split in given["splits"]}
        filled = [Path(pattern.fill(files[name][0])) for name, pattern in patterns.items()]
        return {
            "span": prepared["span"],
            "version": prepared["version"],
            "patterns": [str(pattern.relative_to(lake)) for pattern in filled],
            "fingerprint": prepared["fingerprint"],
            "executor_files": sum(len(found) for found in files.values()),
        }


def process(given: Mapping[str, Any]) -> dict[str, Any]:
    """Refuses a range that no input could satisfy; that there is no input yet is no reason to refuse."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            _prepare(_ingest(given, Path(folder)), given["range"])
        except SpanNotFound:
            return {"ok": True}
    raise AssertionError("a block was chosen from no files")


def _ingest(given: Mapping[str, Any], lake: Path) -> ExampleGen:
    split_names([split["name"] for split in given["splits"]])
    return ExampleGen(patterns={split["name"]: f"{lake}/{split['pattern']}" for split in given["splits"]})


def _prepare(node: ExampleGen, chosen: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What its driver decides in a run that names this span."""
    run = Run(pipeline="p", span=named_span(node, chosen))
    return node.prepare(run, lambda key: history_of(MemoryStore(), run, node[key]))


def record(given: Mapping[str, Any]) -> dict[str, Any]:
    """Ingests a block of this span and version. Its fingerprint is always its own: none can be given."""
    span, version = given["span"], given.get("version")
    with tempfile.TemporaryDirectory() as folder:
        lake = Path(folder) / "lake"
        _make(lake, {"path": f"{span}/v{version}/rows.csv", "content": "a,b\n1,2\n3,4\n"})
        below = "*" if version is None else "v{VERSION}"
        ran = Bench(Path(folder)).run(ExampleGen(pattern=f"{lake}/{{SPAN}}/{below}/*.csv"))
        (made,) = ran.executions["ExampleGen"].outputs["examples"]
    names = {"span": "span", "version": "version", "fingerprint": "input_fingerprint"}
    recorded = {theirs: made.properties.get(ours) for ours, theirs in names.items()}
    return {"custom_properties": {name: value for name, value in recorded.items() if value is not None}}


def count_days(given: Mapping[str, Any]) -> dict[str, Any]:
    year, month, day = given["date"]
    return {"span": Calendar.DAY.parse(f"{year:04}-{month:02}-{day:02}")}


def named_span(node: ExampleGen | QueryExampleGen, chosen: Mapping[str, Any] | None) -> int | None:
    """The one span that a run names, or None for the newest. Two ends are parsed as `spanwise run --span` does.

    A rolling range is asked of the node, which takes none.
    """
    if chosen is None or chosen == {"rolling": {"num_spans": 1, "start": 0}}:
        return None
    if (static := chosen.get("static")) is None:
        type(node)(**chosen["rolling"])
        raise AssertionError(f"{node.name} takes a rolling range")
    start, end = static["start"], static["end"]
    return int(start) if start == end else parse_span(f"{start}..{end}", node.calendar)


def _make(lake: Path, file: str | Mapping[str, Any]) -> None:
    if isinstance(file, str):
        file = {"path": file}
    if "dir" in file:
        (lake / file["dir"]).mkdir(parents=True, exist_ok=True)
        return
    path = lake / file["path"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(file.get("content", "x" * file.get("bytes", 0)))


APIS = {"resolve": resolve, "driver": resolve, "processor": process, "date": count_days, "artifact_props": record}
