"""StatisticsGen: counts one span, split by split and feature by feature, in a form that merges with other spans'.

No row is an element of a Beam collection: the elements are row groups (a file and a number), they are read in batches
of bounded size, and only accumulators of a few kilobytes are combined. The same input gives the same bytes, on any
runner and with any number of workers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from spanwise.orchestrator.artifact import Examples, Statistics
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import ParameterError, UnreadableInput
from spanwise.orchestrator.signature import Attempt, Input, Output

if TYPE_CHECKING:
    import pyarrow as pa

    from spanwise.components.statistics.span_statistics import FeatureStatistics, SpanStatistics, SplitCounts

log = logging.getLogger("spanwise.statistics")

PAGE = "statistics.html"

BATCH_ROWS = 1 << 16
"""So many rows are in memory at once. A constant: the order in which batches are merged is part of the result."""

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
        "spanwise.components.beam",
        "spanwise.components.statistics.span_statistics",
    )
    libraries: ClassVar = ("datasketches", "numpy", "pyarrow")

    def run(
        self,
        attempt: Attempt,
        examples: Input[Examples],
        statistics: Output[Statistics],
        weight: str | None = None,
        beam_runner: str | None = None,
        beam_options: dict[str, str | int | float | bool] | None = None,
    ) -> None:
        from spanwise.components.statistics.statistics_page import page

        found = count(
            {name: examples.split(name) for name in examples.split_names},
            weight=weight,
            scratch=attempt.scratch,
            runner=beam_runner,
            runner_options=beam_options or {},
        )
        found.write(statistics.path)
        title = Calendar(examples.calendar or "number").label(examples.span)
        (statistics.path / PAGE).write_text(page(found, title=title), encoding="utf-8")
        statistics.span = examples.span
        statistics.version = examples.version
        statistics.calendar = examples.calendar
        statistics.split_names = list(found.splits)


@dataclass(frozen=True)
class RowGroup:
    """A piece of a split that one worker counts."""

    split: str
    path: str
    number: int
    weight: str | None = None  #: the column of the rows' weights


def count(
    splits: Mapping[str, Path],
    *,
    scratch: Path,
    weight: str | None = None,
    runner: str | None = None,
    runner_options: Mapping[str, str | int | float | bool] | None = None,
) -> SpanStatistics:
    """Counts folders of Parquet files.

    Raises:
        UnreadableInput: a file is no Parquet, or the files of a split have different columns.
        ParameterError: there is no such column of weights, or it has others than finite numbers that are not negative.
    """
    from spanwise.components.beam import merge_in_order
    from spanwise.components.statistics.span_statistics import SpanStatistics, merge_column

    schemas: dict[str, pa.Schema] = {}
    parts: list[RowGroup] = []
    for name, folder in splits.items():
        schemas[name], groups = _read_footers(folder)
        parts += [RowGroup(name, path, number, weight) for path, number in groups]
        if weight is not None and groups and weight not in schemas[name].names:
            listed = ", ".join(schemas[name].names)
            raise ParameterError(f"weight: the examples have no column {weight!r}; they have: {listed}.")
    found = merge_in_order(
        parts, count_row_group, merge_column, runner=runner, options=runner_options or {}, scratch=scratch
    )
    made = SpanStatistics(splits={name: _split(name, schema, found) for name, schema in schemas.items()})
    log.info("span-counted", extra={"rows": {s.name: s.rows for s in made.splits.values()}, "row_groups": len(parts)})
    return made


def count_row_group(part: RowGroup) -> Iterator[tuple[tuple[str, str], tuple[FeatureStatistics, ...]]]:
    """Counts one row group: for each column its features, under (split, column)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from spanwise.components.statistics.span_statistics import count_column, merge_column
    from spanwise.components.statistics.weighted import read_weights

    try:
        with pq.ParquetFile(part.path, page_checksum_verification=True) as file:
            names = file.schema_arrow.names
            for start in range(0, len(names), BATCH_COLUMNS):
                wanted = names[start : start + BATCH_COLUMNS]
                found: dict[str, tuple[FeatureStatistics, ...]] = {}
                read = wanted if part.weight is None or part.weight in wanted else [*wanted, part.weight]
                for batch in file.iter_batches(BATCH_ROWS, row_groups=[part.number], columns=read):
                    weights = None if part.weight is None else read_weights(part.weight, batch.column(part.weight))
                    for name in wanted:
                        features = count_column(name, batch.column(name), weights)
                        found[name] = merge_column(found[name], features) if name in found else features
                for name, features in found.items():
                    yield (part.split, name), features
    except (OSError, pa.ArrowException) as error:
        raise UnreadableInput(f"{part.path}: row group {part.number} cannot be read ({error}).") from error


def _split(name: str, schema: pa.Schema, found: Mapping[tuple[str, str], Sequence[FeatureStatistics]]) -> SplitCounts:
    import pyarrow as pa

    from spanwise.components.statistics.span_statistics import SplitCounts, count_column

    features: dict[str, FeatureStatistics] = {}
    rows = 0
    for column in schema:
        counted = found.get((name, column.name)) or count_column(column.name, pa.nulls(0, column.type))
        rows = counted[0].count
        for feature in counted:
            if feature.name in features:
                raise UnreadableInput(
                    f"split '{name}' has two features called '{feature.name}': a column of that name and a field of "
                    f"the column '{feature.in_column}'. Rename one of them."
                )
            features[feature.name] = feature
    return SplitCounts(name=name, rows=rows, features=features)


def _read_footers(folder: Path) -> tuple[pa.Schema, list[tuple[str, int]]]:
    """The columns of a split and its row groups, in order. A split without files has neither."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema: pa.Schema | None = None
    groups: list[tuple[str, int]] = []
    for path in sorted(folder.glob("*.parquet")):
        try:
            with pq.ParquetFile(path) as file:
                found = file.schema_arrow
                groups += [(str(path), number) for number in range(file.num_row_groups)]
        except (OSError, pa.ArrowException) as error:
            raise UnreadableInput(f"{path}: this Parquet file cannot be read ({error}).") from error
        if schema is not None and not found.equals(schema):
            raise UnreadableInput(
                f"{path} has other columns than the files before it; all files of a split have the same. "
                "Ingest the span again."
            )
        schema = found
    return schema if schema is not None else pa.schema([]), groups
