"""The pass over a window: measures models over its rows and over slices of it, with replicates, here or on Beam.

The pass goes over row groups and keeps a few numbers of each row: label, score, id, slices. Up to a number of rows they
are in memory, beyond it in files, and the figures are the same: exact, as scikit-learn's. Only replicates treat rows
with neighbouring scores, one in 4,096, as ties. Row groups are put together in their order, so that the figures do not
depend on which process read what.

In memory, beside one batch and what `predict_fn` takes: 16 bytes a row, 8 for each model (12 with classes), 8 for
weights and 4 for each sliced column, twice, and temporaries: 215 MB in all for a million rows, two models, two slicings
and 40 replicates. In files: as many bytes, and 25, 8 for weights and 2 for each slicing while the rows of one model are
sorted.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, Self, TypeVar

from spanwise.components.evaluation.exact_rows import measure_exact, read_rows
from spanwise.components.evaluation.measurement import EvaluationSpec, Measurement
from spanwise.components.evaluation.out_of_core import measure_parts
from spanwise.components.evaluation.scored_parts import ScoredPart
from spanwise.components.rows import ExamplesPart
from spanwise.orchestrator.beam_settings import BeamSettings

log = logging.getLogger("spanwise.evaluation")

M = TypeVar("M", bound="Mergeable")

HERE_ROWS = 1_000_000
"""Up to this number of rows are measured in this process if no Beam runner is named: a job would only take longer."""


class Mergeable(Protocol):
    """A result from some of the rows."""

    def merge(self, other: Self) -> Self: ...


def measure_window(
    spec: EvaluationSpec,
    parts: Sequence[ExamplesPart],
    *,
    memory_rows: int,
    beam: BeamSettings,
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
    is_here = beam.runner is None and count <= HERE_ROWS
    if count <= memory_rows and is_here:
        return measure_exact(merge_all(rows for part in parts for rows in read_rows(part, spec)), spec)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        tasks = [(part, Path(folder, f"{number}.npz")) for number, part in enumerate(parts)]
        if is_here:
            scored = [_write_part(spec, task) for task in tasks]
        else:
            from spanwise.components.beam import map_with_user_code

            scored = map_with_user_code(spec, _write_part, tasks, beam=beam, scratch=scratch)
        if count <= memory_rows:
            return measure_exact(merge_all(part.read(spec) for part in scored), spec)
        log.info("rows-on-disk", extra={"rows": count, "memory_rows": memory_rows})
        return measure_parts(scored, spec, Path(folder))


def _write_part(spec: EvaluationSpec, task: tuple[ExamplesPart, Path]) -> ScoredPart:
    """Reads and scores the rows of a part, and writes them to a file."""
    part, file = task
    return ScoredPart.write(merge_all(read_rows(part, spec)), spec, file)


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
