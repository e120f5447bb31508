"""Summaries of artifacts: the properties that people look for, as short phrases. Pure.

It goes by the names of properties, so a user's own type with `blessed` and `reasons` is summarized like ours.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from spanwise.orchestrator.artifact import Artifact, Value
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.run import Execution, Run
from spanwise.scheduler.formatting import format_number, format_size, format_spans

Properties: TypeAlias = Mapping[str, Value]

_ELSEWHERE = frozenset({
    "span", "version", "calendar",  # in the label of the artifact
    "split_names", "fingerprint", "columns", "dropped_columns", "model", "base",
    "current_model", "current_model_id", "baseline_model", "baseline_model_id", "baseline_error",
})  # fmt: skip
_SUMMARIZED = frozenset({
    "blessed", "reasons", "pushed", "reason", "pushed_destination", "pushed_version", "found", "severity",
    "metrics", "baseline_metrics", "rows", "spans", "snapshots",
})  # fmt: skip
_SNAPSHOTS = ("hits", "misses", "written", "bytes_read", "bytes_written")


def summarize_artifact(artifact: Artifact, calendar: Calendar) -> list[str]:
    """The phrases that describe an artifact, most important first; none when its properties say nothing of interest."""
    of = artifact.properties
    parts = [*_blessed(of), *_pushed(of), *_found(of), *_metrics(of), *_rows(of)]
    if isinstance(spans := of.get("spans"), list):
        parts.append(f"learned from {format_spans((s for s in spans if isinstance(s, int)), calendar)}")
    parts += _snapshots(of)
    others = ((n, v) for n, v in sorted(of.items()) if n not in _ELSEWHERE | _SUMMARIZED)
    return [
        *parts,
        *(f"{name} {format_number(value)}" for name, value in others if isinstance(value, int | float | str)),
    ]


def describe_verdict(run: Run, executions: Iterable[Execution]) -> str:
    """Whether the outputs of a run were blessed and pushed, and why not; empty when no output says."""
    published = [
        artifact.properties
        for execution in sorted((e for e in executions if e.node in run.nodes), key=lambda e: run.nodes.index(e.node))
        if not execution.chosen
        for artifact in itertools.chain(*execution.outputs.values())
    ]
    blessings = [part for of in published for part in _blessed(of)]
    refused = [part for part in blessings if part.startswith("not ")]
    pushes = [
        "not pushed" if refused and not of["pushed"] else part
        for of in published
        if "pushed" in of
        for part in _pushed(of)
    ]
    return "; ".join(dict.fromkeys([*(refused or blessings), *pushes]))


def format_verdict(run: Run, executions: Iterable[Execution]) -> list[str]:
    """The same as a line that is printed before the summary of the run; none where no output says."""
    verdict = describe_verdict(run, executions)
    return [f"{verdict[0].upper()}{verdict[1:]}."] if verdict else []


def _blessed(of: Properties) -> list[str]:
    if "blessed" not in of:
        return []
    reasons = of.get("reasons")
    why = "; ".join(map(str, reasons)) if isinstance(reasons, list) else ""
    alone = f" (compared with no baseline: {failed})" if (failed := of.get("baseline_error")) else ""
    return [f"blessed{alone}" if of["blessed"] else f"not blessed{why and f': {why}'}{alone}"]


def _pushed(of: Properties) -> list[str]:
    if "pushed" not in of:
        return []
    reason = str(of.get("reason") or "")
    if not of["pushed"]:
        return [reason if reason.startswith("not pushed") else f"not pushed{reason and f': {reason}'}"]
    where, version = str(of.get("pushed_destination") or ""), str(of.get("pushed_version") or "")
    new = f"pushed{where and f' to {where}'}"
    new += f" as version {version}" if version and not where.endswith(f"/{version}") else ""
    return [reason if reason.startswith("not pushed") else f"{new}{reason and f' ({reason})'}"]


def _found(of: Properties) -> list[str]:
    count, severity = of.get("found"), of.get("severity")
    if not isinstance(count, int):
        return []
    return [f"{count} found, {severity}" if count and severity else f"{count} found" if count else "nothing found"]


def _metrics(of: Properties) -> list[str]:
    metrics, before = of.get("metrics"), of.get("baseline_metrics")
    if not isinstance(metrics, dict):
        return []
    baseline = before if isinstance(before, dict) else {}
    return [
        f"{name} {format_number(value)}" + (f" (baseline {format_number(baseline[name])})" if name in baseline else "")
        for name, value in metrics.items()
    ]


def _rows(of: Properties) -> list[str]:
    rows = of.get("rows")
    if isinstance(rows, dict):
        return [f"{name} {format_number(count)} rows" for name, count in rows.items()]
    return [] if rows is None else [f"{format_number(rows)} rows"]


def _snapshots(of: Properties) -> list[str]:
    counts = of.get("snapshots")
    if not isinstance(counts, dict):
        return []
    found = [count for name in _SNAPSHOTS if isinstance(count := counts.get(name), int)]
    if len(found) < len(_SNAPSHOTS):
        return []  # a user's own type may use the name for something else
    hits, misses, written, bytes_read, bytes_written = found
    wrote = [f"wrote {written} ({format_size(bytes_written)})"] if written else []
    return [f"found {hits} of {hits + misses} snapshots ({format_size(bytes_read)} read)", *wrote]
