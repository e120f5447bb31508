"""The pass over a window: measures models over its rows and over slices of it, with replicates, here or on Beam.

The pass goes over row groups. Up to a number of rows it stores a few numbers of each row (label, score, id, slice),
and every figure is exact; replicates treat rows with neighbouring scores, one in 4,096, as ties. Beyond that number it
stores sums, and counts by class and score bin: figures made of sums are still exact, and areas under curves treat the
rows of one bin as ties. In both forms the results of two row groups merge, always in the same order, so that the
figures do not depend on which process read what.

Memory, beside one batch and what `predict_fn` takes: while exact, 16 bytes a row, 8 for each model (12 with classes)
and 4 for each sliced column, twice, and temporaries: 215 MB in all for a million rows, two models, two slicings and 40
replicates. Beyond, for each model `EDGES` counters a replicate and class, and `SLICE_EDGES` for each of at most
`MOST_SLICES` slices: 45 MB a slicing with 1,000 slices, 100 MB in all with 19 slices, however many rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self, TypeVar

import numpy as np

from spanwise.components.evaluation.binned_counts import BinnedCounts, count_rows, join_batches, measure_binned
from spanwise.components.evaluation.bootstrap import Floats
from spanwise.components.evaluation.exact_rows import EDGES, ExactRows, measure_exact, read_rows
from spanwise.components.evaluation.measurement import EvaluationSpec, Measurement
from spanwise.components.rows import ExamplesPart
from spanwise.orchestrator import user_code
from spanwise.orchestrator.errors import SpanwiseError

log = logging.getLogger("spanwise.evaluation")

M = TypeVar("M", bound="Mergeable")

HERE_ROWS = 1_000_000
"""Up to this number of rows are measured in this process if no Beam runner is named: a job would only take longer."""

_SAMPLED_PARTS = 8


class Mergeable(Protocol):
    """PartResult from some of the rows."""

    def merge(self, other: Self) -> Self: ...


@dataclass(kw_only=True)
class PartResult:
    """The rows or counts of some parts of the window."""

    exact: ExactRows | None = None
    counts: BinnedCounts | None = None
    error: SpanwiseError | None = None  #: raised while the rows were read or scored

    def merge(self, other: PartResult) -> PartResult:
        """The results of both, in the order of the rows; the first error wins."""
        if self.error is not None or other.error is not None:
            return self if self.error is not None else other
        if self.exact is not None and other.exact is not None:
            return PartResult(exact=self.exact.merge(other.exact))
        assert self.counts is not None, "all parts are measured in the same form"
        assert other.counts is not None, "all parts are measured in the same form"
        return PartResult(counts=self.counts.merge(other.counts))


def measure_window(
    spec: EvaluationSpec,
    parts: Sequence[ExamplesPart],
    *,
    exact_rows: int,
    runner: str | None,
    options: Mapping[str, str | int | float | bool],
    scratch: Path,
) -> Measurement:
    """Measures the models of the spec over the rows of the parts.

    Raises:
        ParameterError: labels or scores do not suit the metrics, or a function returned too few of them.
        UnreadableInput: a file is damaged.
    """
    count = sum(part.rows for part in parts)
    if not count:
        return Measurement(rows=0)
    if count > exact_rows:
        log.info("curves-approximated", extra={"rows": count, "exact_rows": exact_rows})
        spec = _with_edges(spec, parts)
    if runner is None and count <= HERE_ROWS:
        result = merge_all(measure_part(part, spec) for part in parts)
    else:
        result = _measure_on_beam(spec, parts, runner, options, scratch)
    if result.error is not None:
        raise result.error
    if result.exact is not None:
        return measure_exact(result.exact, spec)
    assert result.counts is not None, "a result has rows or counts"
    return measure_binned(result.counts, spec)


def measure_part(part: ExamplesPart, spec: EvaluationSpec) -> PartResult:
    """Reads and scores the rows of a part."""
    if spec.edges is None:
        return PartResult(exact=merge_all(read_rows(part, spec)))
    return PartResult(counts=merge_all(count_rows(batch, spec) for batch in join_batches(read_rows(part, spec))))


def merge_all(results: Iterable[M]) -> M:
    """Merges neighbours first, in the same tree as `spanwise.components.beam`."""
    stack: list[tuple[int, M]] = []
    for each in results:
        level, value = 0, each
        while stack and stack[-1][0] == level:
            value = stack.pop()[1].merge(value)
            level += 1
        stack.append((level, value))
    result = stack[0][1]
    for _, value in stack[1:]:
        result = result.merge(value)
    return result


def _measure_on_beam(
    spec: EvaluationSpec,
    parts: Sequence[ExamplesPart],
    runner: str | None,
    options: Mapping[str, str | int | float | bool],
    scratch: Path,
) -> PartResult:
    from spanwise.components.beam import merge_in_order

    sent = user_code.ship(spec)

    def work(part: ExamplesPart) -> Iterator[tuple[str, PartResult]]:
        received = user_code.unpack(sent)
        assert isinstance(received, EvaluationSpec), "the packed value"
        try:
            yield "all", measure_part(part, received)
        except SpanwiseError as error:  # Beam would wrap it
            yield "all", PartResult(error=error)

    def merge(one: PartResult, other: PartResult) -> PartResult:
        return one.merge(other)

    return merge_in_order(parts, work, merge, runner=runner, options=options, scratch=scratch)["all"]


def _with_edges(spec: EvaluationSpec, parts: Sequence[ExamplesPart]) -> EvaluationSpec:
    """The spec with bin edges: quantiles of the scores in a few batches from all over the window."""
    places = np.unique(np.linspace(0, len(parts) - 1, _SAMPLED_PARTS).astype(np.int64))
    sample = merge_all(next(read_rows(parts[place], spec)) for place in places)
    edges: dict[str, Floats] = {}
    for model, scores in sample.scores.items():
        finite = scores[np.isfinite(scores)]
        if not spec.classes and len(finite):
            edges[model] = np.unique(np.quantile(finite, np.arange(1, EDGES) / EDGES, method="nearest"))
    return replace(spec, edges=edges, pivot=float(sample.labels[0]) if len(sample.labels) else 0.0)
