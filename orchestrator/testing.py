"""Testing: run a pipeline for real in a test, in a folder of its own, without a scheduler or a server.

def test_the_window_slides(tmp_path):
lake = Lake(tmp_path / "lake")
trial = Trial(tmp_path / "root")
lake.arrive(span=1), lake.arrive(span=2)

trial.run(taxi(lake.pattern), span=1)
second = trial.run(taxi(lake.pattern), span=2)

assert second.states == {"ExampleGen": State.COMPLETE, "Trainer": State.COMPLETE}
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.lease import TTL_S, Clock
from spanwise.orchestrator.local_executor import LocalExecutor
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run import Execution, Run, State
from spanwise.orchestrator.run_request import Event, RunOutcome, RunRequest
from spanwise.orchestrator.runner import run
from spanwise.orchestrator.store import MemoryStore, Store

__all__ = ["FakeClock", "Lake", "MemoryStore", "Trial", "TrialRun"]

_PATTERN = {
    Calendar.NUMBER: "{SPAN}/v{VERSION}/*.csv",
    Calendar.HOUR: "{YYYY}-{MM}-{DD}T{HH}/v{VERSION}/*.csv",
    Calendar.DAY: "{YYYY}-{MM}-{DD}/v{VERSION}/*.csv",
    Calendar.WEEK: "{GGGG}-W{WW}/v{VERSION}/*.csv",
    Calendar.MONTH: "{YYYY}-{MM}/v{VERSION}/*.csv",
    Calendar.QUARTER: "{YYYY}-Q{Q}/v{VERSION}/*.csv",
}


class FakeClock:
    """A clock that moves only when a test moves it; sleeping moves it. Calling it returns the time, as stores need."""

    def __init__(self, start: datetime = datetime(2024, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._passed = timedelta()

    def __call__(self) -> datetime:
        return self.now()

    def now(self) -> datetime:
        return self._start + self._passed

    def monotonic(self) -> float:
        """Seconds since the start."""
        return self._passed.total_seconds()

    def sleep(self, seconds: float) -> None:
        """Moves the time on and returns at once."""
        self._passed += timedelta(seconds=seconds)

    def forward(self, by: timedelta) -> datetime:
        """Moves the time on and returns it."""
        self._passed += by
        return self.now()

    def lease(self, *, ttl_s: float = TTL_S) -> Clock:
        """Returns this clock in the form that leases take."""
        return Clock(now=self.now, monotonic=self.monotonic, sleep=self.sleep, ttl_s=ttl_s)


class Lake:
    """A data lake in a folder: a CSV file for each version of each span, at the place that `pattern` matches."""

    def __init__(self, folder: Path, calendar: Calendar = Calendar.NUMBER) -> None:
        self.folder = folder
        self.calendar = calendar

    @property
    def pattern(self) -> str:
        """The span pattern of the files, for an ExampleGen."""
        return f"{self.folder}/{_PATTERN[self.calendar]}"

    def arrive(self, *, span: int | str, version: int = 1, rows: Sequence[Mapping[str, object]] = ()) -> Path:
        """Writes one version of a span, and returns its file.

        `span` is a number or a label such as "2013-01-08". Without `rows` it writes ten, with the columns `span`,
        `version` and `row`.
        """
        number = self.calendar.parse(span) if isinstance(span, str) else span
        rows = rows or [{"span": number, "version": version, "row": row} for row in range(10)]
        file = self.folder / self.calendar.label(number) / f"v{version}" / "rows.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("w", encoding="utf-8", newline="") as opened:
            writer = csv.DictWriter(opened, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        return file


@dataclass(frozen=True, kw_only=True)
class TrialRun:
    """The outcome of a run, and shortcuts to its parts."""

    outcome: RunOutcome
    events: tuple[Event, ...]  #: in order

    @property
    def run(self) -> Run:
        return self.outcome.run

    @property
    def states(self) -> dict[str, State]:
        """The state of each node that began, by name."""
        return {name: execution.state for name, execution in self.outcome.executions.items()}

    def __getitem__(self, node: str) -> Execution:
        """The last execution of a node.

        Raises:
            KeyError: it did not begin.
        """
        if node not in self.outcome.executions:
            raise KeyError(f"{node} did not begin in {self.run.name}; these nodes did: {', '.join(self.states)}")
        return self.outcome.executions[node]

    def artifacts(self, node: str, key: str) -> tuple[Artifact, ...]:
        """The artifacts that a node published under a key."""
        return tuple(self[node].outputs.get(key, ()))

    def artifact(self, node: str, key: str) -> Artifact:
        """The only artifact that a node published under a key."""
        (only,) = self.artifacts(node, key)
        return only

    def log(self, node: str) -> str:
        """The output of the last attempt at a node; none of a node that was not executed, as when it was reused."""
        file = Path(self[node].log)
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def _calendar_of(pipeline: Pipeline) -> Calendar:
    known = (getattr(node, "calendar", None) for node in pipeline)
    return next((calendar for calendar in known if isinstance(calendar, Calendar)), Calendar.NUMBER)


class Trial:
    """A root folder and a store for a sequence of runs; nodes run in processes of their own, as always."""

    def __init__(self, root: Path, store: Store | None = None, clock: Clock | None = None) -> None:
        self.root = root
        self.store = MemoryStore() if store is None else store
        self.clock = clock

    def run(self, pipeline: Pipeline, request: RunRequest | None = None, *, span: int | str | None = None) -> TrialRun:
        """Runs the pipeline, or the part that `request` selects, to its end; raises what the runner raises.

        `span` is a number or a label such as "2013-01-08".
        """
        calendar = _calendar_of(pipeline)
        asked = request or RunRequest()
        if isinstance(span, str):
            span = calendar.parse(span)
        if span is not None:
            asked = replace(asked, span=span)
        if asked.calendar == Calendar.NUMBER.value:
            asked = replace(asked, calendar=calendar.value)
        events: list[Event] = []
        with LocalExecutor(pipeline) as executor:
            outcome = run(
                pipeline,
                executor=executor,
                store=self.store,
                root=self.root,
                request=asked,
                observe=events.append,
                clock=self.clock,
            )
        return TrialRun(outcome=outcome, events=tuple(events))
