"""The flights pipeline on a lake of real flights: days of January 2013, one run after the other by one executor."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from spanwise.components.row_hash import buckets, hash_rows
from spanwise.orchestrator import Artifact, Calendar, Examples, Pipeline, Trigger
from spanwise.orchestrator.local_executor import LocalExecutor
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.run_request import Event, RunRequest
from spanwise.orchestrator.runner import run
from spanwise.orchestrator.store import Address
from spanwise.orchestrator.testing import Lake, TrialRun
from spanwise.pipelines import flights, nycflights

WINDOW = 3
DAYS = 8
THIN = 2  #: every second flight of a day

Rows = Sequence[dict[str, str]]


def span(day: int) -> int:
    """The span of a day of January."""
    return Calendar.DAY.parse(f"2013-01-{day:02}")


def day(number: int) -> int:
    """The day of January of a span."""
    return number - span(1) + 1


def editions(artifacts: Iterable[Artifact]) -> list[str]:
    """What artifacts were made of: "5v2" is the second version of January 5."""
    return [f"{day(int(str(a.properties['span'])))}v{a.properties['version']}" for a in artifacts]


def _ignore(_event: Event) -> None:
    """Nobody looks on."""


class FlightsLake(Lake):
    """Days of flights, as they are or changed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "lake", Calendar.DAY)
        files = nycflights.lay_out(folder / "source", days=DAYS)
        self._days = {number: _thinned(file) for number, file in enumerate(files, start=1)}

    def arrive_day(self, number: int, version: int = 1, change: Callable[[Rows], Rows] = list) -> Path:
        """Writes a day, or what `change` makes of its flights."""
        return self.arrive(span=span(number), version=version, rows=change(self._days[number]))


def _thinned(file: Path) -> Rows:
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))[::THIN]


def without(column: str) -> Callable[[Rows], Rows]:
    """A column is gone."""
    return lambda rows: [{name: value for name, value in row.items() if name != column} for row in rows]


def half_missing(column: str) -> Callable[[Rows], Rows]:
    """Every second flight lacks a value."""
    return lambda rows: [{**row, column: row[column] if place % 2 else ""} for place, row in enumerate(rows)]


def without_first(count: int) -> Callable[[Rows], Rows]:
    """So many flights are gone."""
    return lambda rows: rows[count:]


def arrivals_corrected(file: Path, ingested: Artifact, by_min: int = 60) -> Callable[[Rows], Rows]:
    """Flights came later than was told: those that stay in their split when their row is another.

    So nothing that is known of a flight before it departs changes, in either split, but the label does.
    """
    schema = pq.read_schema(next(ingested.as_kind(Examples).split("train").glob("*.parquet")))
    options = pyarrow.csv.ConvertOptions(column_types=schema, strings_can_be_null=True)
    (told,) = pyarrow.csv.read_csv(file, convert_options=options).combine_chunks().to_batches()
    later = pa.compute.add(told["arr_delay"], by_min).cast(told["arr_delay"].type)
    place = told.schema.get_field_index("arr_delay")
    moved = told.set_column(place, told.schema.field("arr_delay"), later)
    before, after = (buckets(hash_rows(batch), (2, 1)) for batch in (told, moved))
    stays = (before == after).tolist()

    def change(rows: Rows) -> Rows:
        return [
            {**row, "arr_delay": str(int(row["arr_delay"]) + by_min)} if stay and row["arr_delay"].isdigit() else row
            for row, stay in zip(rows, stays, strict=True)
        ]

    return change


@dataclass(frozen=True)
class Served:
    """What stands where models are served, after a run."""

    versions: tuple[str, ...]  #: oldest first

    @property
    def newest(self) -> str | None:
        """What a server takes."""
        return self.versions[-1] if self.versions else None


class Flights:
    """The real pipeline, the real runner, records in SQLite."""

    def __init__(self, folder: Path) -> None:
        self.lake = FlightsLake(folder)
        self.serving = folder / "serving"
        self.root = folder / "root"
        self.store = open_store(str(folder / "metadata.db"))
        self.pipeline = flights.flights(str(self.lake.folder), str(self.serving), window=WINDOW)
        self._executor = LocalExecutor(self.pipeline)

    def run(
        self,
        of_day: int | None = None,
        *,
        trigger: Trigger = Trigger.SCHEDULE,
        first: Sequence[str] = (),
        last: Sequence[str] = (),
        base: int | None = None,
        observe: Callable[[Event], None] = _ignore,
    ) -> TrialRun:
        """A run for a day of January, or of the part of the pipeline from `first` to `last`."""
        request = RunRequest(
            selection=self.pipeline.select(first=first, last=last),
            trigger=trigger,
            from_scratch=trigger is Trigger.BACKFILL,
            span=None if of_day is None else span(of_day),
            calendar="day",
            base=base,
        )
        return self._ran(self.pipeline, self._executor, request, observe)

    def run_other(self, pipeline: Pipeline, executor: LocalExecutor, of_day: int, trigger: Trigger) -> TrialRun:
        """A run of another pipeline of the same name, with the same records."""
        scratch = trigger is Trigger.BACKFILL
        request = RunRequest(trigger=trigger, from_scratch=scratch, span=span(of_day), calendar="day")
        return self._ran(pipeline, executor, request)

    def _ran(
        self,
        pipeline: Pipeline,
        executor: LocalExecutor,
        request: RunRequest,
        observe: Callable[[Event], None] = _ignore,
    ) -> TrialRun:
        outcome = run(pipeline, executor=executor, store=self.store, root=self.root, request=request, observe=observe)
        return TrialRun(outcome=outcome, events=())

    def published(self, node: str, key: str) -> Mapping[int, tuple[str, ...]]:
        """The names of all that a node has published, by day."""
        address = Address(self.pipeline.name, node, key)
        found = {number: self.store.of_span(address, number) for number in self.store.spans(address)}
        return {day(number): tuple(a.name for a in artifacts) for number, artifacts in found.items()}

    def served(self) -> Served:
        """What stands in the serving folder now."""
        there = [path.name for path in self.serving.iterdir() if path.name.isdigit()] if self.serving.is_dir() else []
        return Served(tuple(sorted(there, key=int)))

    def close(self) -> None:
        self._executor.close()
        self.store.close()
