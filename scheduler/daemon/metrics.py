"""Metrics: what a scheduler counts and measures, in the format of Prometheus. Reads only.

A registry of its own, so that two schedulers in one process do not mix. Counters and histograms are of this scheduler
since it started; add them up over schedulers. What is true at a moment is read when somebody asks.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.continuation import has_completed
from spanwise.orchestrator.run import Execution, Run
from spanwise.orchestrator.store import Store
from spanwise.scheduler.alerts import outbox
from spanwise.scheduler.ledger.overdue import last_push, newest_pushes
from spanwise.scheduler.ledger.ticks import TickRecord
from spanwise.scheduler.schedule.outcome import TickOutcome
from spanwise.scheduler.schedule.schedule_key import pipeline_of
from spanwise.scheduler.schedule.timetable import Timetable

if TYPE_CHECKING:
    from spanwise.scheduler.daemon.pipeline_scheduler import PipelineScheduler

LOOK_S = 60.0
"""Between two looks at what the metadata know of a pipeline, beside the ticks that end here."""

_LOOKED_AT = 1000  # newest runs, among which the last that succeeded is looked for
_RUNS_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0, 86400.0)
_NODES_S = (1.0, 10.0, 60.0, 600.0, 3600.0, 21600.0)  # fewer: there are many nodes
_TURNS_S = (0.001, 0.005, 0.025, 0.1, 0.25, 1.0, 5.0, 30.0)


@dataclass(frozen=True, kw_only=True)
class KnownTimes:
    """What the metadata knew of a pipeline when they were last looked at."""

    success: Run | None = None  #: the last that succeeded
    looked_at: int = 0  #: the last run before which, and with which, all have ended
    pushed: datetime | None = None


@dataclass(frozen=True)
class MetricFamily:
    """Measurements of one kind, by the values of their labels."""

    name: str
    says: str
    kind: str  #: gauge or counter
    labels: tuple[str, ...]
    values: Mapping[tuple[str, ...], float]

    def metric(self) -> Metric:
        made = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        family: CounterMetricFamily | GaugeMetricFamily = made(self.name, self.says, labels=self.labels)
        for labels, value in self.values.items():
            family.add_metric(labels, value)
        return family


class MetricsPage:
    """What another server has to tell: all of it is measured when somebody asks."""

    def __init__(self, measure: Callable[[], Iterator[MetricFamily]]) -> None:
        self._measure = measure
        self._registry = own = MetricsRegistry()
        PlatformCollector(registry=own)
        ProcessCollector(registry=own)
        own.register(MetricsCollector(lambda: (family.metric() for family in measure())))

    @property
    def turned_s(self) -> float:
        """When it last answered, on the monotonic clock: now, if it still does."""
        for _ in self._measure():
            pass
        return time.monotonic()

    def page(self, accept: str) -> tuple[bytes, str]:
        """All of it as text, in the form that the reader accepts, and the name of that form."""
        encode, kind = choose_encoder(accept)
        return encode(self._registry), kind


class SchedulerMetrics:
    """What one scheduler has to tell."""

    def __init__(self, place: str | Path, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.turned_s = time.monotonic()  #: when the loop last turned
        self._place = place
        self._clock = clock
        self._watched: Mapping[str, PipelineScheduler] = {}
        self._known: dict[str, KnownTimes] = {}
        self._look_s: dict[str, float] = {}  # by pipeline: monotonic, when to look again
        self._lags_s: dict[str, float] = {}
        self._registry = own = MetricsRegistry()
        PlatformCollector(registry=own)
        ProcessCollector(registry=own)
        own.register(MetricsCollector(self._now))
        self._ticks = Counter(
            "spanwise_ticks",
            "Ticks that have ended here, by what became of them.",
            ["pipeline", "outcome"],
            registry=own,
        )
        self._runs = Histogram(
            "spanwise_run_duration_seconds",
            "How long the last run of a tick took, by how it ended.",
            ["pipeline", "state"],
            buckets=_RUNS_S,
            registry=own,
        )
        self._nodes = Histogram(
            "spanwise_node_duration_seconds",
            "How long an attempt at a node took in such a run, by how it ended; cached is one that had nothing to do.",
            ["pipeline", "node", "state"],
            buckets=_NODES_S,
            registry=own,
        )
        self._turns = Histogram(
            "spanwise_loop_duration_seconds", "How long a turn of the loop took.", buckets=_TURNS_S, registry=own
        )
        self._errors = Counter(
            "spanwise_loop_errors",
            "Turns that failed for a pipeline; without one, for all, since the metadata could not be had.",
            ["pipeline"],
            registry=own,
        )
        self._errors.labels("")

    def page(self, accept: str) -> tuple[bytes, str]:
        """All of it as text, in the form that the reader accepts, and the name of that form."""
        encode, kind = choose_encoder(accept)
        return encode(self._registry), kind

    # --- what the loop tells

    def watch(self, watched: Mapping[str, PipelineScheduler]) -> None:
        """Names the pipelines that are looked after; who is among them may change."""
        self._watched = watched

    def turned(self, took_s: float) -> None:
        """A turn of the loop has ended."""
        self._turns.observe(took_s)
        self.turned_s = time.monotonic()

    def failed(self, pipeline: str = "") -> None:
        """A turn has failed."""
        self._errors.labels(pipeline).inc()

    def look(self, store: Store, one: PipelineScheduler, monotonic: float) -> None:
        """Reads what the metadata know of a pipeline, if that was not done of late."""
        if one.key not in self._look_s:
            for outcome in TickOutcome:  # a rate needs the zero before the first
                self._ticks.labels(one.key, outcome.value)
            self._errors.labels(one.key)
        elif monotonic < self._look_s[one.key]:
            return
        self._look_s[one.key] = monotonic + LOOK_S
        self._read(store, one)

    def tick_ended(self, store: Store, entry: TickRecord) -> None:
        """A tick has got its outcome."""
        assert entry.end is not None, "it has ended"
        self._ticks.labels(entry.key, entry.end.outcome.value).inc()
        if entry.end.run is None:
            return
        one = self._watched[entry.key]
        self._read(store, one)
        run = store.run(pipeline_of(entry.key), entry.end.run)
        executions = store.executions(run)
        if (took_s := _took_s(run)) is not None:
            self._runs.labels(run.pipeline, run.state.value).observe(took_s)
        for each in executions:
            if (took_s := _took_s(each)) is not None:
                self._nodes.labels(each.pipeline, each.node, each.state.value).observe(took_s)
        mine = (push.created for push in newest_pushes(store, one.record) if push.run == run.name)
        pushed = max((moment for moment in mine if moment is not None), default=None)
        end = span_end(run, one.description.timetable)
        if pushed is not None and end is not None:
            self._lags_s[entry.key] = (pushed - end).total_seconds()

    def _read(self, store: Store, one: PipelineScheduler) -> None:
        known = self._known.get(one.key, KnownTimes())
        newest = itertools.islice(store.runs(pipeline_of(one.key)), _LOOKED_AT)
        success, since = known.success, []
        for run in itertools.takewhile(lambda run: run.number > known.looked_at, newest):
            since.append(run)
            if has_completed(store, run, one.description.nodes):
                success = run
                break
        ended = itertools.takewhile(lambda run: run.state.ended, reversed(since))
        looked_at = max((run.number for run in ended), default=known.looked_at)
        self._known[one.key] = KnownTimes(success=success, looked_at=looked_at, pushed=last_push(store, one.record))

    # --- what is read when somebody asks

    def _now(self) -> Iterator[GaugeMetricFamily]:
        now = self._clock()
        mine = list(self._watched.values())  # the loop may change it meanwhile
        names = [one.key for one in mine]
        known = {name: found for name in names if (found := self._known.get(name)) is not None}
        pushed = {name: found.pushed for name, found in known.items() if found.pushed is not None}
        allowed = {one.key: one.description.timetable.freshness for one in mine}
        yield _gauge(
            "spanwise_running_runs",
            "Processes of this scheduler that wait for their data, or run a pipeline.",
            {one.key: sum(open_.child is not None for open_ in list(one.open.values())) for one in mine},
        )
        yield _gauge(
            "spanwise_open_ticks",
            "Ticks that were taken by this scheduler and have no outcome yet.",
            {one.key: len(one.open) for one in mine},
        )
        yield _gauge(
            "spanwise_next_tick_timestamp_seconds",
            "When the next tick comes.",
            {one.key: due.timestamp() for one in mine if (due := one.due_at) is not None},
        )
        yield _gauge(
            "spanwise_last_success_timestamp_seconds",
            "When the last run that did all of it, or all of the part, has ended well, by whomever it was started.",
            {name: ended.timestamp() for name, found in known.items() if (ended := _ended(found.success)) is not None},
        )
        yield _gauge(
            "spanwise_last_push_timestamp_seconds",
            "When a model was last pushed.",
            {name: moment.timestamp() for name, moment in pushed.items()},
        )
        yield _gauge(
            "spanwise_model_age_seconds",
            "How long ago a model was last pushed.",
            {name: (now - moment).total_seconds() for name, moment in pushed.items()},
        )
        yield _gauge(
            "spanwise_model_age_limit_seconds",
            "The `freshness` of the schedule: how old the model may be.",
            {name: limit.total_seconds() for name, limit in allowed.items() if limit is not None},
        )
        yield _gauge(
            "spanwise_push_lag_seconds",
            "From the end of a span to the push of the model that has learnt from it; of the last tick that pushed.",
            {name: self._lags_s[name] for name in names if name in self._lags_s},
        )
        waiting = GaugeMetricFamily("spanwise_alerts_waiting", "Alerts in the outbox, on their way or to be grouped.")
        waiting.add_metric([], outbox.count_waiting(self._place))
        yield waiting


class MetricsRegistry(CollectorRegistry):
    """Leaves out when each series began: a third of the page, and rates do not need it."""

    def collect(self) -> Iterator[Metric]:
        for family in super().collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


class MetricsCollector(Collector):
    """Measurements that are made when they are asked for."""

    def __init__(self, measure: Callable[[], Iterator[Metric]]) -> None:
        self._measure = measure

    def collect(self) -> Iterator[Metric]:
        return self._measure()

    def describe(self) -> Iterator[Metric]:
        return iter(())  # or registering it would measure


def span_end(run: Run, timetable: Timetable) -> datetime | None:
    """When the span that a run was asked for was over, by the schedule's clock; None where spans are mere numbers."""
    calendar = Calendar.from_name(run.calendar)
    if run.span is None:
        return None
    hourly = calendar is Calendar.HOUR  # an hour lasts an hour, also where the clock is changed at its end
    shown = calendar.start_of(run.span if hourly else run.span + 1)
    if shown is None:
        return None
    moment = shown.replace(tzinfo=timetable.clock).astimezone(UTC)
    return moment + timedelta(hours=1) if hourly else moment


def _ended(run: Run | None) -> datetime | None:
    return None if run is None else run.ended


def _took_s(one: Run | Execution) -> float | None:
    if one.started is None or one.ended is None:
        return None
    return max(0.0, (one.ended - one.started).total_seconds())


def _gauge(name: str, says: str, by_pipeline: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, says, labels=["pipeline"])
    for pipeline, value in by_pipeline.items():
        family.add_metric([pipeline], value)
    return family
