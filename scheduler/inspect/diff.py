"""Differences between two runs: parameters, code, what was read, schema, statistics, metrics, time. Reads only.

What two runs have in common is left out. Files that are gone cannot be compared, and are reported as such.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from spanwise.orchestrator.artifact import Artifact, Evaluation, Schema, Statistics, Value
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.generation import find_supplied
from spanwise.orchestrator.run import Execution, Run, State
from spanwise.orchestrator.store import Store
from spanwise.scheduler.formatting import (
    Document,
    as_document,
    elapsed_s,
    format_duration,
    format_run_span,
    format_table,
    run_calendar,
)
from spanwise.scheduler.inspect import records
from spanwise.scheduler.inspect.why import compare_keys

_SHIFTED = 0.1  # of a standard deviation: a mean that moved by less counts as unchanged
_SHARE = 0.02  # of all rows: a share that moved by less counts as unchanged
_LONGER, _LONGER_S = 1.2, 0.5  # a duration that grew by less than both counts as unchanged
_TOPICS = {"parameter": "parameters", "input": "inputs", "library": "libraries"}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One difference between two runs."""

    topic: str  #: run, nodes, parameters, inputs, code, content, libraries, schema, statistics, metrics or time
    where: str  #: the node, if it is about one
    what: str
    before: str | None = None  #: None where it is absent or cannot be shown
    after: str | None = None
    note: str = ""  #: how far apart they are, where that can be measured


def compare_runs(store: Store, before: Run, after: Run) -> list[Difference]:
    """All differences between two runs, by topic; the last attempt at each node counts."""
    one, other = ({e.node: e for e in store.executions(run)} for run in (before, after))
    both = [(one[node], other[node]) for node in one if node in other]
    executed = [(find_supplied(store, was), find_supplied(store, now)) for was, now in both]
    calendar = run_calendar(after)
    return [
        *_compare_records(before, after),
        *_compare_states(one, other),
        *(d for pair in executed for d in _compare_cache_keys(*pair, calendar)),
        *(d for pair in both for d in _compare_files(*pair, Schema, _compare_schemas)),
        *(d for pair in both for d in _compare_files(*pair, Statistics, _compare_statistics)),
        *(d for pair in both for d in _compare_metrics(*pair)),
        *(d for pair in both for d in _compare_durations(*pair)),
    ]


def _compare_records(before: Run, after: Run) -> Iterator[Difference]:
    documents = [{**records.run_document(run), "span": format_run_span(run)} for run in (before, after)]
    for name in ("span", "exclude", "trigger", "as_of", "base", "nodes", "source"):
        texts = [_text(facts[name]) for facts in documents]
        if texts[0] != texts[1]:
            yield Difference(topic="run", where="", what=name, before=texts[0], after=texts[1])
    for name in dict.fromkeys((*before.parameters, *after.parameters)):
        texts = [_text(run.parameters.get(name)) for run in (before, after)]
        if texts[0] != texts[1]:
            yield Difference(topic="parameters", where="", what=name, before=texts[0], after=texts[1])


def _text(value: Value) -> str | None:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return None if value is None else str(value)


def _compare_states(before: Mapping[str, Execution], after: Mapping[str, Execution]) -> Iterator[Difference]:
    for node in dict.fromkeys((*before, *after)):
        states = [_state(side.get(node)) for side in (before, after)]
        if states[0] != states[1]:
            yield Difference(topic="nodes", where=node, what="state", before=states[0], after=states[1])


def _state(execution: Execution | None) -> str | None:
    if execution is None:
        return None
    return "reused" if execution.reused is not None else execution.state.value


def _compare_cache_keys(before: Execution, after: Execution, calendar: Calendar) -> Iterator[Difference]:
    for change in compare_keys(before, after, calendar):
        yield Difference(
            topic=_TOPICS.get(change.kind, change.kind),
            where=after.node,
            what=change.name,
            before=change.before,
            after=change.after,
            note="changed" if change.before is change.after is None else "",
        )


# Files

Compare: TypeAlias = Callable[[Path, Path], Iterator[tuple[str, str | None, str | None, str]]]
"""Compares the folders of two artifacts; yields (what, before, after, note)."""


def _compare_files(before: Execution, after: Execution, kind: type[Artifact], compare: Compare) -> Iterator[Difference]:
    for key in before.outputs.keys() & after.outputs.keys():
        pairs = zip(_of_kind(before.outputs[key], kind), _of_kind(after.outputs[key], kind), strict=False)
        for one, other in pairs:
            if one.content == other.content:
                continue
            topic = "schema" if kind is Schema else "statistics"
            try:
                for what, was, now, note in compare(one.path, other.path):
                    yield Difference(topic=topic, where=after.node, what=what, before=was, after=now, note=note)
            except (OSError, ValueError, KeyError, TypeError) as error:
                note = f"could not compare: {error}"
                yield Difference(topic=topic, where=after.node, what=key, before=one.name, after=other.name, note=note)


def _of_kind(found: Sequence[Artifact], kind: type[Artifact]) -> list[Artifact]:
    return [artifact for artifact in found if artifact.is_a(kind)]


def _compare_schemas(before: Path, after: Path) -> Iterator[tuple[str, str | None, str | None, str]]:
    one, other = (
        _flatten_schema(tomllib.loads(_toml(folder).read_text(encoding="utf-8"))) for folder in (before, after)
    )
    for name in dict.fromkeys((*one, *other)):
        if one.get(name) != other.get(name):
            yield name, one.get(name), other.get(name), ""


def _toml(folder: Path) -> Path:
    (file,) = folder.glob("*.toml")
    return file


def _flatten_schema(schema: Mapping[str, object]) -> dict[str, str]:
    """The entries of a schema by name: `carrier.type` of a feature, and those for all features."""
    features = schema.get("features", {})
    assert isinstance(features, dict)
    by_feature = {f"{name}.{key}": str(value) for name, facts in features.items() for key, value in facts.items()}
    return {**{key: str(value) for key, value in schema.items() if key not in ("format", "features")}, **by_feature}


def _compare_statistics(before: Path, after: Path) -> Iterator[tuple[str, str | None, str | None, str]]:
    one, other = (
        {file.stem: _read_split(file) for file in sorted(folder.glob("*.jsonl"))} for folder in (before, after)
    )
    for split in dict.fromkeys((*one, *other)):
        if split not in one or split not in other:
            rows = [f"{found[split].rows} rows" if split in found else None for found in (one, other)]
            yield f"split {split}", rows[0], rows[1], ""
            continue
        yield from _compare_splits(split, one[split], other[split])


@dataclass(frozen=True, kw_only=True)
class _SplitStatistics:
    """A file of statistics (docs/reference/statistics.md, The file)."""

    rows: int
    features: Mapping[str, Mapping[str, Any]]


def _read_split(file: Path) -> _SplitStatistics:
    head, *features = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    return _SplitStatistics(rows=head["rows"], features={feature["name"]: feature for feature in features})


def _compare_splits(
    split: str, before: _SplitStatistics, after: _SplitStatistics
) -> Iterator[tuple[str, str | None, str | None, str]]:
    if before.rows != after.rows:
        note = f"{after.rows / before.rows - 1:+.1%}" if before.rows else ""
        yield f"{split}: rows", str(before.rows), str(after.rows), note
    for name in dict.fromkeys((*before.features, *after.features)):
        one, other = before.features.get(name), after.features.get(name)
        if one is None or other is None:
            types = [None if feature is None else str(feature["type"]) for feature in (one, other)]
            yield f"{split}: {name}", types[0], types[1], "a new feature" if one is None else "a feature is gone"
        else:
            yield from ((f"{split}: {name}", *difference) for difference in _compare_features(one, other))


def _compare_features(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """How a feature has drifted: its type, the missing share, the mean, or the share of a value."""
    if one["type"] != other["type"]:
        yield one["type"], other["type"], "type"
        return
    shares = [f["missing"] / f["count"] if f["count"] else 0.0 for f in (one, other)]
    if abs(shares[1] - shares[0]) >= _SHARE:
        yield f"{shares[0]:.1%}", f"{shares[1]:.1%}", "missing"
    if one["kind"] == "number" and one["numbers"] and other["numbers"]:
        yield from _compare_means(one["numbers"]["moments"], other["numbers"]["moments"])
    elif one["frequent"] and other["frequent"]:
        value, was, now = _most_changed_share(*(_frequencies(feature) for feature in (one, other)))
        if abs(now - was) >= _SHARE:
            yield f"{was:.1%}", f"{now:.1%}", f"share of {value!r}"


def _compare_means(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    means = [moments["mean"] for moments in (before, after)]
    if None in means:
        return
    deviation, moved = before["std"], means[1] - means[0]
    if abs(moved) > _SHIFTED * deviation:
        far = f", {moved / deviation:+.1f} standard deviations" if deviation else " of a column that was constant"
        digits = _digits(*means)
        yield f"{means[0]:.{digits}g}", f"{means[1]:.{digits}g}", f"mean{far}"


def _digits(before: float, after: float) -> int:
    """How many digits show that they differ."""
    return next((n for n in (4, 8) if f"{before:.{n}g}" != f"{after:.{n}g}"), 17)


def _frequencies(feature: Mapping[str, Any]) -> dict[str, float]:
    """The share of each frequent value among the present ones."""
    import datasketches

    present = feature["count"] - feature["missing"]
    encoded = base64.b64decode(feature["frequent"]["frequent"])
    if not encoded or not present:
        return {}
    sketch = datasketches.frequent_strings_sketch.deserialize(encoded)
    items = sketch.get_frequent_items(datasketches.frequent_items_error_type.NO_FALSE_NEGATIVES)
    return {value: estimate / present for value, estimate, _, _ in items}


def _most_changed_share(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[str, float, float]:
    """The value whose share moved most (the L-infinity distance), with both shares; among equals the first by name."""
    shares = [(value, before.get(value, 0.0), after.get(value, 0.0)) for value in sorted({*before, *after})]
    return max(shares, key=lambda s: abs(s[2] - s[1]), default=("", 0.0, 0.0))


# Artifacts and executions


def _compare_metrics(before: Execution, after: Execution) -> Iterator[Difference]:
    one, other = (_metrics(execution) for execution in (before, after))
    for name in dict.fromkeys((*one, *other)):
        was, now = one.get(name), other.get(name)
        if was != now and not (_is_nan(was) and _is_nan(now)):
            digits = 4 if was is None or now is None else _digits(was, now)
            texts = [None if value is None else f"{value:.{digits}g}" for value in (was, now)]
            note = f"{now - was:+.4g}" if was is not None and now is not None else ""
            yield Difference(topic="metrics", where=after.node, what=name, before=texts[0], after=texts[1], note=note)


def _is_nan(value: float | None) -> bool:
    return value is not None and math.isnan(value)


def _metrics(execution: Execution) -> dict[str, float]:
    """The metrics of all evaluations that it published, over all rows."""
    found: dict[str, float] = {}
    for artifact in itertools.chain(*execution.outputs.values()):
        metrics = artifact.properties.get("metrics")
        if artifact.is_a(Evaluation) and isinstance(metrics, dict):
            found |= {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    return found


def _compare_durations(before: Execution, after: Execution) -> Iterator[Difference]:
    lengths = [elapsed_s(e) for e in (before, after) if e.state is State.COMPLETE]
    if len(lengths) < 2 or None in lengths:  # noqa: PLR2004  both executed
        return
    was, now = sorted(length for length in lengths if length is not None)
    if now > was * _LONGER and now - was > _LONGER_S:
        texts = [format_duration(length) for length in lengths]
        yield Difference(topic="time", where=after.node, what="took", before=texts[0], after=texts[1])


def format_differences(before: Run, after: Run, differences: Sequence[Difference]) -> str:
    """The differences as a table."""
    if not differences:
        return f"{before.name} and {after.name} do not differ."
    rows = ((d.topic, d.where, d.what, _cell(d.before), _cell(d.after), d.note) for d in differences)
    return format_table(("TOPIC", "NODE", "WHAT", before.name, after.name, ""), rows)


def _cell(text: str | None) -> str:
    return "-" if text is None else text


def differences_document(before: Run, after: Run, differences: Sequence[Difference]) -> Document:
    """The differences for programs."""
    return {
        "runs": [before.name, after.name],
        "differences": [
            {**as_document(d, "topic", "what", "before", "after"), "node": d.where or None, "note": d.note or None}
            for d in differences
        ],
    }
