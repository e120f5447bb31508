"""Which span, version and files ExampleGen ingests: `resolve`, `driver`, `processor`, `date`, `artifact_props`.

The files of a case are made on disk and listed by a real glob.
"""

import glob
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spanwise.components import ExampleGen
from spanwise.components.ingest.fingerprint import fingerprint
from spanwise.components.ingest.splits import split_names
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import SpanNotFound
from spanwise.orchestrator.span import choose
from spanwise.orchestrator.span_pattern import SpanPattern
from spanwise.scheduler.run.span_options import parse_span
from tests.components.flow import Bench
from tests.conformance.judge import NotMapped


def resolve(given: Mapping[str, Any]) -> dict[str, Any]:
    patterns = _patterns(given)
    span = _named_span(patterns, given["range"])
    with tempfile.TemporaryDirectory() as folder:
        lake = Path(folder)
        for file in given["files"]:
            _make(lake, file)

        def listing(pattern: str) -> list[str]:
            found = glob.glob(pattern, root_dir=lake, recursive=True)  # noqa: PTH207  Path.glob knows no root_dir
            return [path for path in found if (lake / path).is_file()]

        block = choose(patterns, listing, span)
        files = {split: tuple(str(lake / path) for path in found) for split, found in block.files.items()}
        digest = fingerprint(files)
    return {
        "span": block.span,
        "version": block.version,
        "patterns": [pattern.fill(block.files[name][0]) for name, pattern in patterns.items()],
        "fingerprint": digest,
        "executor_files": sum(len(files) for files in block.files.values()),
    }


def process(given: Mapping[str, Any]) -> dict[str, Any]:
    """Refuses a range that no input could satisfy; that there is no input yet is no reason to refuse."""
    patterns = _patterns(given)
    try:
        choose(patterns, lambda _: (), _named_span(patterns, given["range"]))
    except SpanNotFound:
        return {"ok": True}
    raise AssertionError("a block was chosen from no files")


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


def _patterns(given: Mapping[str, Any]) -> dict[str, SpanPattern]:
    split_names([split["name"] for split in given["splits"]])
    return {split["name"]: SpanPattern.parse(split["pattern"]) for split in given["splits"]}


def _named_span(patterns: Mapping[str, SpanPattern], chosen: Mapping[str, Any] | None) -> int | None:
    return named_span(next(iter(patterns.values())).calendar, chosen)


def named_span(calendar: Calendar, chosen: Mapping[str, Any] | None) -> int | None:
    """The one span that a run names, or None for the newest. Two ends are parsed as `spanwise run --span` does."""
    if chosen is None or chosen == {"rolling": {"num_spans": 1, "start": 0}}:
        return None
    if (static := chosen.get("static")) is None:
        raise NotMapped("rolling ranges")
    start, end = static["start"], static["end"]
    return int(start) if start == end else parse_span(f"{start}..{end}", calendar)


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
