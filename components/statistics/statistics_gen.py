"""StatisticsGen: counts one span, split by split and feature by feature, in a form that merges with other spans'.

No row is an element of a Beam collection: the elements are runs of blocks (files, row groups and the rows of them), and
only accumulators of a few kilobytes are combined. The same rows give the same bytes, on any runner, with any number of
workers, and whatever files and row groups they lie in.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from spanwise.orchestrator.artifact import Examples, Statistics
from spanwise.orchestrator.beam_settings import (
    BEAM_PARAMETERS,
    HERE,
    BeamOptions,
    BeamSettings,
    check_given,
    choose_beam,
)
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import ParameterError, UnreadableInput
from spanwise.orchestrator.signature import Attempt, Input, Output

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from spanwise.components.beam import Place
    from spanwise.components.row_blocks import BlockRun
    from spanwise.components.statistics.span_statistics import FeatureStatistics, SpanStatistics, SplitCounts

log = logging.getLogger("spanwise.statistics")

PAGE = "statistics.html"

BATCH_COLUMNS = 128
"""So many columns are in memory at once; they are independent of each other."""


class StatisticsGen(Component):
    """Counts the examples of one span.

        statistics = StatisticsGen(examples=ingest["examples"])

    Per feature: present and missing values, mean, standard deviation, extrema, zeros, NaN and infinities, quantiles and
    histograms (rank within 1 %), distinct values (within 3.3 %, 19 times in 20), the most frequent values with their
    counts, and the lengths of texts and lists. `SpanStatistics.load(path)` reads them, `merge` makes
    one of several spans', and `statistics.html` in the same folder shows them.

    With `weight`, a column of numbers that are not negative, missing shares, means and standard deviations of columns
    have weighted counterparts, in which each row counts by its weight.

    `beam_runner` and `beam_options` send the work to a Beam cluster that sees the same storage.
    """

    preload: ClassVar = (
        "pyarrow.parquet",
        "pandas",  # which pyarrow imports when it converts the first column, where it is installed
        "spanwise.components.beam",
        "spanwise.components.statistics.span_statistics",
    )
    hints: ClassVar = BEAM_PARAMETERS
    libraries: ClassVar = ("datasketches", "numpy", "pyarrow")

    def check(self) -> None:
        check_given(self.name, self.parameters)

    def run(
        self,
        attempt: Attempt,
        examples: Input[Examples],
        statistics: Output[Statistics],
        weight: str | None = None,
        beam_runner: str | None = None,
        beam_options: BeamOptions | None = None,
    ) -> None:
        from spanwise.components.statistics.statistics_page import page

        beam = choose_beam(attempt.run, beam_runner, beam_options)
        found = count(
            {name: examples.split(name) for name in examples.split_names},
            weight=weight,
            scratch=attempt.scratch,
            beam=beam,
        )
        found.write(statistics.path)
        title = Calendar(examples.calendar or "number").label(examples.span)
        (statistics.path / PAGE).write_text(page(found, title=title), encoding="utf-8")
        statistics.span = examples.span
        statistics.version = examples.version
        statistics.calendar = examples.calendar
        statistics.split_names = list(found.splits)


@dataclass(frozen=True)
class SplitRun:
    """A piece of a split that one worker counts."""

    split: str
    run: BlockRun
    columns: tuple[str, ...]
    weight: str | None = None  #: the column of the rows' weights


def count(
    splits: Mapping[str, Path],
    *,
    scratch: Path,
    weight: str | None = None,
    beam: BeamSettings = HERE,
) -> SpanStatistics:
    """Counts folders of Parquet files.

    Raises:
        UnreadableInput: a file is no Parquet, or the files of a split have different columns.
        ParameterError: there is no such column of weights, or it has others than finite numbers that are not negative.
    """
    from spanwise.components.beam import merge_in_order
    from spanwise.components.read_ahead import count_threads
    from spanwise.components.row_blocks import list_runs
    from spanwise.components.statistics.span_statistics import SpanStatistics, merge_column

    schemas: dict[str, pa.Schema] = {}
    parts: list[SplitRun] = []
    for name, folder in splits.items():
        schemas[name], files = _read_footers(folder)
        columns = tuple(schemas[name].names)
        parts += [SplitRun(name, run, columns, weight) for run in list_runs(files)]
        if weight is not None and files and weight not in schemas[name].names:
            listed = ", ".join(schemas[name].names)
            raise ParameterError(f"weight: the examples have no column {weight!r}; they have: {listed}.")
    threads = count_threads(min(BATCH_COLUMNS, max((len(part.columns) for part in parts), default=0)))
    found = merge_in_order(parts, count_run, merge_column, beam=beam, scratch=scratch, threads=threads)
    made = SpanStatistics(splits={name: _split(name, schema, found, weight=weight) for name, schema in schemas.items()})
    log.info(
        "span-counted",
        extra={
            "rows": {s.name: s.rows for s in made.splits.values()},
            "blocks": sum(len(part.run.blocks) for part in parts),
        },
    )
    return made


def count_run(part: SplitRun) -> Iterator[tuple[tuple[str, str], dict[Place, tuple[FeatureStatistics, ...]]]]:
    """Counts the blocks of a run: the features of each column, under (split, column), in their places."""
    import pyarrow as pa

    from spanwise.components.beam import fold
    from spanwise.components.row_blocks import read_blocks
    from spanwise.components.statistics.span_statistics import merge_column

    for start in range(0, len(part.columns), BATCH_COLUMNS):
        wanted = part.columns[start : start + BATCH_COLUMNS]
        found: dict[str, dict[Place, tuple[FeatureStatistics, ...]]] = {name: {} for name in wanted}
        read = wanted if part.weight is None or part.weight in wanted else (*wanted, part.weight)
        for number, tables in enumerate(read_blocks(part.run, read), part.run.first):
            # what is in one piece already is not copied; more text than an array holds stays in several
            block = pa.concat_tables(tables).combine_chunks()
            weights = None if part.weight is None else _weights(part.weight, block)
            for name in wanted:
                found[name] = fold((found[name], {(0, number): _count_block(name, block[name], weights)}), merge_column)
        for name, places in found.items():
            yield (part.split, name), places


def _count_block(
    name: str, column: pa.ChunkedArray[Any], weights: NDArray[np.float64] | None
) -> tuple[FeatureStatistics, ...]:
    from spanwise.components.statistics.span_statistics import count_column, merge_column

    parts, start = [], 0
    for chunk in column.chunks:
        some = None if weights is None else weights[start : start + len(chunk)]
        parts.append(count_column(name, chunk, some))
        start += len(chunk)
    return functools.reduce(merge_column, parts)


def _weights(name: str, block: pa.Table) -> NDArray[np.float64]:
    import numpy as np

    from spanwise.components.statistics.weighted import read_weights

    return np.concatenate([read_weights(name, chunk) for chunk in block[name].chunks])


def _split(
    name: str,
    schema: pa.Schema,
    found: Mapping[tuple[str, str], Sequence[FeatureStatistics]],
    *,
    weight: str | None,
) -> SplitCounts:
    import numpy as np
    import pyarrow as pa

    from spanwise.components.statistics.span_statistics import SplitCounts, count_column

    features: dict[str, FeatureStatistics] = {}
    rows = 0
    no_weights = None if weight is None else np.empty(0)  # a split without rows has weights as the others have
    for column in schema:
        counted = found.get((name, column.name)) or count_column(column.name, pa.nulls(0, column.type), no_weights)
        rows = counted[0].count
        for feature in counted:
            if feature.name in features:
                raise UnreadableInput(
                    f"split '{name}' has two features called '{feature.name}': a column of that name and a field of "
                    f"the column '{feature.in_column}'. Rename one of them."
                )
            features[feature.name] = feature
    return SplitCounts(name=name, rows=rows, features=features)


def _read_footers(folder: Path) -> tuple[pa.Schema, list[Path]]:
    """The columns of a split and its files, in order. A split without files has neither."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema: pa.Schema | None = None
    files = sorted(folder.glob("*.parquet"))
    for path in files:
        try:
            found = pq.read_schema(path)
        except (OSError, pa.ArrowException) as error:
            raise UnreadableInput(f"{path}: this Parquet file cannot be read ({error}).") from error
        if schema is not None and not found.equals(schema):
            raise UnreadableInput(
                f"{path} has other columns than the files before it; all files of a split have the same. "
                "Ingest the span again."
            )
        schema = found
    return schema if schema is not None else pa.schema([]), files
