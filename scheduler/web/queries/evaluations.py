"""Evaluations as their Evaluator wrote them: figures with intervals, overall and by slice; each file is read once."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from spanwise.scheduler.web.site import WebSite

MOST_BYTES = 8 * 1024 * 1024
"""Of a report that is read; a larger one is shown on the page of its artifact only."""

Interval: TypeAlias = tuple[float, float]

_FILE = "metrics.json"


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The figures of a model on some examples."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    baseline: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SliceScores(Scores):
    """Those of one slice."""

    by: tuple[str, ...]  #: columns
    label: str  #: their values

    @property
    def rows(self) -> float:
        return self.metrics.get("count", 0.0)


@dataclass(frozen=True, kw_only=True)
class EvaluationReport(Scores):
    """One evaluation."""

    slices: Sequence[SliceScores] = ()

    @property
    def slicings(self) -> list[str]:
        """What it was sliced by, in words that a form sends back."""
        return list(dict.fromkeys(",".join(each.by) for each in self.slices))

    def of_slicing(self, by: str) -> list[SliceScores]:
        """The slices by these columns, the largest first."""
        return sorted((s for s in self.slices if ",".join(s.by) == by), key=lambda s: -s.rows)


def read_evaluation(site: WebSite, folder: Path | None) -> EvaluationReport:
    """The evaluation in a folder; an empty one where the file is gone, too large, or something else."""
    if folder is None:
        return EvaluationReport()
    return site.memo.get(("evaluation", folder), lambda: _read(folder / _FILE))


def _read(file: Path) -> EvaluationReport:
    try:
        if file.stat().st_size > MOST_BYTES:
            return EvaluationReport()
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return EvaluationReport()
    if not isinstance(found, dict):
        return EvaluationReport()
    listed = found.get("slices")
    return EvaluationReport(
        metrics=_numbers(found.get("overall")),
        intervals=_intervals(found.get("intervals")),
        baseline=_numbers(found.get("baseline_overall")),
        slices=[_slice(each) for each in listed if isinstance(each, dict)] if isinstance(listed, list) else [],
    )


def _slice(found: Mapping[str, object]) -> SliceScores:
    values = found.get("slice")
    place = values if isinstance(values, dict) else {}
    return SliceScores(
        by=tuple(map(str, place)),
        label=", ".join("none" if value is None else str(value) for value in place.values()),
        metrics=_numbers(found.get("metrics")),
        intervals=_intervals(found.get("intervals")),
        baseline=_numbers(found.get("baseline_metrics")),
    )


def _numbers(found: object) -> dict[str, float]:
    items = found.items() if isinstance(found, dict) else ()
    return {str(k): float(v) for k, v in items if isinstance(v, int | float) and math.isfinite(v)}


def _intervals(found: object) -> dict[str, Interval]:
    items = found.items() if isinstance(found, dict) else ()
    return {
        str(name): (float(ends[0]), float(ends[1]))
        for name, ends in items
        if isinstance(ends, list) and len(ends) == 2 and all(isinstance(end, int | float) for end in ends)  # noqa: PLR2004
    }
