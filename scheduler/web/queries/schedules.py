"""The schedules of a pipeline: ticks past and to come, missed ones with what recovers them, and simulations."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from markupsafe import Markup

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import UsageError
from spanwise.scheduler.formatting import format_span
from spanwise.scheduler.ledger.missed import list_missed
from spanwise.scheduler.ledger.past_runs import list_past_runs
from spanwise.scheduler.ledger.schedule_status import (
    ExplainedTick,
    ScheduleStatus,
    acknowledge_commands,
    explain_ticks,
    format_key,
    list_problems,
    read_forecast,
    recovery_commands,
)
from spanwise.scheduler.ledger.status_formatting import describe_pause, format_lost, format_tick_spans
from spanwise.scheduler.ledger.ticks import TickRecord, list_untaken
from spanwise.scheduler.schedule.duration import Duration
from spanwise.scheduler.schedule.forecast import format_forecast
from spanwise.scheduler.schedule.simulate import Simulation, list_lost, simulate
from spanwise.scheduler.schedule.span_rule import CustomSpanRule
from spanwise.scheduler.schedule.ticks import Tick, ticks
from spanwise.scheduler.web.pictures.svg import element, picture
from spanwise.scheduler.web.queries.health import Remedy, catch_up, read_schedules
from spanwise.scheduler.web.site import WebSite

COMING = 8
DAYS = 7
_MOST_PAST = 200
_LAST_RUNS = 60
_MOST_SIMULATED = 400  # ticks that are drawn


@dataclass(frozen=True, kw_only=True)
class ScheduleView:
    """One schedule."""

    key: str  #: as it is typed
    status: ScheduleStatus
    calendar: Calendar
    pause: str  #: by whom, until when and why; empty where it is not paused
    problems: Sequence[str]
    overdue: Remedy | None  #: of ticks that nobody has taken
    coming: Sequence[Tick]
    past: Sequence[ExplainedTick]  #: newest first
    missed: Sequence[TickRecord]  #: the newest of them
    missed_spans: str  #: of all, from the first to the last, as a form takes them; empty where none has one
    recover: Sequence[str]
    lost: Sequence[str]  #: which of them no run recovers, and why
    acknowledge: Sequence[str]
    forecast: Mapping[str, str]

    def label_missed(self, record: TickRecord) -> str:
        """The span of a missed tick; several where it stands for several ticks."""
        return format_tick_spans(record, self.calendar)

    def label(self, span: int | None) -> str:
        return format_span(span, self.calendar)


def list_schedule_views(site: WebSite, pipeline: str) -> list[ScheduleView]:
    """The schedules of a pipeline; none when it was never scheduled."""
    return [_view(site, status) for status in read_schedules(site.store, pipeline)]


def _view(site: WebSite, status: ScheduleStatus) -> ScheduleView:
    now = datetime.now(UTC)
    schedule = status.schedule
    table = schedule.timetable
    calendar = Calendar.from_name(schedule.calendar)
    missed = list_missed(site.store, schedule.key)
    spans = [span for record in missed for span in record.spans]
    coming = list_untaken(site.store, schedule.key, ticks(table, now))
    past = explain_ticks(site.store, table, schedule, now - timedelta(days=DAYS), now)
    key = ("schedule forecast", schedule.key, None if status.newest is None else status.newest.number)
    return ScheduleView(
        key=format_key(site.store, schedule.key),
        status=status,
        calendar=calendar,
        pause="" if status.paused is None else describe_pause(status.paused, table.clock),
        problems=list_problems(status),
        overdue=None if status.overdue is None else catch_up(status),
        coming=[] if schedule.replaced else list(itertools.islice(coming, COMING)),
        past=past[-_MOST_PAST:][::-1],
        missed=missed[-_MOST_PAST:],
        missed_spans=f"{calendar.label(min(spans))}..{calendar.label(max(spans))}" if spans else "",
        recover=recovery_commands(missed, schedule) if missed else [],
        lost=format_lost([(schedule, record) for record in missed]),
        acknowledge=acknowledge_commands(site.store, missed, schedule) if missed else [],
        forecast=site.memo.get(key, lambda: format_forecast(read_forecast(site.store, schedule.key, now)), for_s=60.0),
    )


@dataclass(frozen=True, kw_only=True)
class SimulationView:
    """What a schedule would do."""

    simulation: Simulation
    totals: Sequence[tuple[str, int]]
    picture: Markup
    lost: Sequence[str]


def read_simulation(site: WebSite, status: ScheduleStatus, wanted: Mapping[str, str]) -> SimulationView:
    """Plays a schedule from a time to another.

    Raises:
        UsageError: a time or a duration cannot be read, the range is too long, or its spans are a function of the file.
    """
    from spanwise.scheduler.run.launch import parse_time  # all that a run needs comes with it, 0.1 s of the start

    table = status.schedule.timetable
    if isinstance(table.span, CustomSpanRule):
        raise UsageError(
            "The spans of this schedule are computed by its file, which the page does not load. Type:  spanwise "
            f"schedule simulate {shlex.quote(status.schedule.source)} --from … --to … --duration …"
        )
    begin, end = parse_time(wanted.get("from", ""), table.clock), parse_time(wanted.get("to", ""), table.clock)
    if end - begin > timedelta(days=366):
        raise UsageError("The page simulates up to a year; the command simulates more.")
    typed = wanted.get("duration", "").strip()
    length = Duration.parse(typed) if typed else _past_durations(site, status)
    found = simulate(table, begin, end, length, 0)
    calendar = Calendar.from_name(status.schedule.calendar)
    return SimulationView(
        simulation=found,
        totals=[(outcome.value, count) for outcome, count in found.totals.items()],
        picture=_draw(found),
        lost=[f"{node} {label}".strip() for node, _, label in list_lost(found, calendar)[:50]],
    )


def _past_durations(site: WebSite, status: ScheduleStatus) -> Duration:
    took = [run.took_s for run in list_past_runs(site.store, status.schedule.key, _LAST_RUNS, nodes=False)]
    if not took:
        raise UsageError("No run has completed yet, so give a duration, such as 2h or normal(2h,30m).")
    return Duration.of(took)


def _draw(found: Simulation) -> Markup:
    """A bar for each run, and a mark for each tick that did not run."""
    width, whole = 720.0, (found.end - found.start).total_seconds()
    parts = []
    for play in found.plays[:_MOST_SIMULATED]:
        at = (play.tick.at - found.start).total_seconds() / whole * width
        label = f"{play.tick.name}: {play.outcome.value}{f', {play.why}' if play.why else ''}"
        title = element("title", label)
        if play.began is not None and play.ended is not None:
            x = (play.began - found.start).total_seconds() / whole * width
            long = max(1.5, (play.ended - play.began).total_seconds() / whole * width)
            state = "complete" if play.outcome.value == "ran" else "canceled"
            parts.append(element("rect", title, x=x, y=10.0, width=long, height=18.0, class_=f"bar {state}"))
        else:
            parts.append(element("rect", title, x=at, y=32.0, width=2.0, height=10.0, class_="bar failed"))
    text = f"{len(found.plays)} ticks, {found.busy:.0%} of the time busy; the counts are in the text above"
    axis = element("line", x1=0.0, y1=30.0, x2=width, y2=30.0, class_="grid")
    return picture(width, 44.0, text, axis, *parts, class_="chart", scale=True)
