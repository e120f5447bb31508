"""The overview: a row for each pipeline, those that need a person first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from markupsafe import Markup

from spanwise.orchestrator.run import Run
from spanwise.scheduler.client import ModelRecord
from spanwise.scheduler.client.models import find_serving
from spanwise.scheduler.ledger.schedule_status import ScheduleStatus, read_forecast
from spanwise.scheduler.web.pictures.charts import draw_sparkline
from spanwise.scheduler.web.queries.health import PipelineHealth, list_latest_runs, read_health
from spanwise.scheduler.web.queries.model_metrics import headline, read_trained
from spanwise.scheduler.web.site import WebSite

PER_PAGE = 50
_MANY = 100  # pipelines, from which on their health is kept longer
_HORIZON_DAYS = 30


@dataclass(frozen=True, kw_only=True)
class OverviewRow:
    """One pipeline."""

    name: str
    runs: Sequence[Run]  #: the last, oldest first
    health: PipelineHealth
    schedules: Sequence[ScheduleStatus]
    serving: ModelRecord | None = None
    pushed: datetime | None = None
    metric: str = ""  #: name of the headline metric
    value: float | None = None
    spark: Markup = field(default_factory=Markup)
    overrun: datetime | None = None  #: when the first run is expected to overrun

    @property
    def next_tick(self) -> datetime | None:
        """The next tick of all schedules."""
        return min((s.next.at for s in self.schedules if s.next is not None), default=None)


@dataclass(frozen=True, kw_only=True)
class Overview:
    """One page of pipelines."""

    rows: Sequence[OverviewRow]
    count: int  #: of all pipelines
    urgent: int  #: of them need a person
    page: int
    pages: int


def read_overview(site: WebSite, page: int) -> Overview:
    """The pipelines of a page, those that need a person first, then by name."""
    latest = list_latest_runs(site.store)
    keep_s = 2.0 if len(latest) < _MANY else 30.0
    healths = {name: _health(site, name, runs, keep_s) for name, runs in latest.items()}
    order = sorted(healths, key=lambda name: (not healths[name][0].urgent, name))
    pages = max(1, -(-len(order) // PER_PAGE))
    page = min(max(page, 1), pages)
    shown = order[(page - 1) * PER_PAGE : page * PER_PAGE]
    return Overview(
        rows=[_row(site, name, latest[name], *healths[name]) for name in shown],
        count=len(order),
        urgent=sum(health.urgent for health, _ in healths.values()),
        page=page,
        pages=pages,
    )


def _health(
    site: WebSite, name: str, runs: Sequence[Run], keep_s: float
) -> tuple[PipelineHealth, Sequence[ScheduleStatus]]:
    newest = (runs[0].number, runs[0].state) if runs else (0, None)
    return site.memo.get(("health", name, *newest), lambda: read_health(site.store, name, runs), for_s=keep_s)


def _row(
    site: WebSite, name: str, runs: Sequence[Run], health: PipelineHealth, schedules: Sequence[ScheduleStatus]
) -> OverviewRow:
    if not runs:
        return OverviewRow(name=name, runs=(), health=health, schedules=schedules)
    newest = runs[0]
    serving = site.memo.get(
        ("serving", name, newest.number, newest.state), lambda: find_serving(site.client.session, name), for_s=60.0
    )
    trained = read_trained(site, runs[::-1], newest)
    known = [{} if serving is None else serving.metrics, *(each.metrics for each in reversed(trained))]
    figures = next(filter(None, known), {})
    metric = headline(figures)
    values = [each.metrics.get(metric) for each in trained]
    said = ", ".join(
        f"{each.label} {value:.4g}" for each, value in zip(trained, values, strict=True) if value is not None
    )
    return OverviewRow(
        name=name,
        runs=runs[::-1],
        health=health,
        schedules=schedules,
        serving=serving,
        pushed=serving.pushes[0].created if serving is not None and serving.pushes else None,
        metric=metric,
        value=figures.get(metric),
        spark=draw_sparkline(values, f"{metric}: {said}"),
        overrun=_first_overrun(site, newest, schedules),
    )


def _first_overrun(site: WebSite, newest: Run, schedules: Sequence[ScheduleStatus]) -> datetime | None:
    def read() -> datetime | None:
        now = datetime.now(UTC)
        found = [read_forecast(site.store, s.schedule.key, now).first_overrun for s in schedules]
        near = [moment for moment in found if moment is not None and moment < now + timedelta(days=_HORIZON_DAYS)]
        return min(near, default=None)

    if not schedules:
        return None
    return site.memo.get(("forecast", newest.pipeline, newest.number), read, for_s=600.0)
