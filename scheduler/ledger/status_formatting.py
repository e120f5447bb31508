"""Schedule status as text and as documents: ticks, missed ticks, schedules, schedulers and pauses."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from datetime import datetime, tzinfo

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.record import to_plain
from spanwise.orchestrator.run import format_source
from spanwise.orchestrator.store import Store
from spanwise.scheduler.formatting import (
    Document,
    elapsed_s,
    format_count,
    format_duration,
    format_span,
    format_table,
    format_time,
    iso_time,
    single_line,
    span_document,
)
from spanwise.scheduler.ledger.heartbeat import SchedulerRecord
from spanwise.scheduler.ledger.pauses import SchedulePause
from spanwise.scheduler.ledger.schedule_status import (
    ExplainedTick,
    ScheduleStatus,
    acknowledge_commands,
    explain_lost,
    format_closure,
    is_cut,
    join_reasons,
    list_problems,
    recovery_command,
    recovery_commands,
)
from spanwise.scheduler.ledger.schedules import ScheduleRecord
from spanwise.scheduler.ledger.ticks import TickRecord
from spanwise.scheduler.schedule.forecast import Forecast, format_forecast
from spanwise.scheduler.schedule.outcome import TickClosure, TickOutcome
from spanwise.scheduler.schedule.schedule_key import pipeline_of
from spanwise.scheduler.schedule.timetable import Timetable

_WIDTH = 100  # of a reason in a table
_FEW = 3  # ticks that nobody took, up to which each has a line of its own


# --- for people


def format_past_ticks(ticks: Sequence[ExplainedTick], timetable: Timetable, calendar: Calendar) -> str:
    """Past ticks as a table, times in the schedule's zone; those without a record share a line for each reason."""
    if not ticks:
        return f"{timetable.pipeline} had no tick in that time."
    rows = []
    for (outcome, why, taken), group in itertools.groupby(ticks, lambda e: (e.outcome, e.why, e.record is not None)):
        same = list(group)
        if not taken and len(same) > _FEW:
            first, last = (format_span(each.tick.span, calendar) for each in (same[0], same[-1]))
            span = first if first == last else f"{first}..{last}"
            came = f"{format_time(same[0].tick.at, timetable.clock)} and after"
            rows.append((f"{len(same)} ticks", came, span, outcome, _cut(why)))
            continue
        for each in same:
            came = format_time(each.tick.at, timetable.clock)
            reasons = _cut(join_reasons(why, each.tick.note))
            rows.append((each.tick.name, came, format_span(each.tick.span, calendar), outcome, reasons))
    table = format_table(("TICK", "CAME", "SPAN", "OUTCOME", "WHY"), rows)
    return f"{table}\n{_describe_cut(ticks, timetable)}" if is_cut(ticks) else table


def _describe_cut(ticks: Sequence[ExplainedTick], timetable: Timetable) -> str:
    pipeline = shlex.quote(pipeline_of(timetable.pipeline))
    return (
        f"These are the newest {len(ticks)} ticks, from {format_time(ticks[0].tick.at, timetable.clock)} on; earlier "
        "ones are left out. See their runs, and those that need backfilling:\n"
        f"  spanwise runs {pipeline} --limit N\n"
        "  spanwise schedule missed"
    )


def format_missed(
    store: Store, missed: Sequence[tuple[ScheduleRecord, Sequence[TickRecord]]], options: Sequence[str]
) -> str:
    """Missed ticks of each schedule, some of them closed, and the commands that close the others."""
    parts = []
    for schedule, records in missed:
        if not records:
            continue
        calendar = Calendar.from_name(schedule.calendar)
        rows = [(r.tick.name, format_tick_spans(r, calendar), _outcome(r), _cut(_why_missed(r))) for r in records]
        left = [record for record in records if record.closed is None]
        lines = [f"{schedule.key}: {count_missed(len(left), summed=any(r.is_summary for r in left))}"]
        lines.append(format_table(("TICK", "SPAN", "OUTCOME", "WHY"), rows))
        if left:
            commands = recovery_commands(left, schedule, options)
            lines += ["Recover them:", *(f"  {command}" for command in commands)] if commands else []
            lines += format_lost([(schedule, record) for record in left])
            lines += [
                "Or give them up:" if commands else "Give them up:",
                *(f"  {c}" for c in acknowledge_commands(store, left, schedule, options)),
            ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) or "No ticks need backfilling."


def format_lost(missed: Sequence[tuple[ScheduleRecord, TickRecord]]) -> list[str]:
    """Which missed ticks no run recovers, and why."""
    reasons: dict[str, list[str]] = {}
    for schedule, record in missed:
        if why := explain_lost(record, schedule):
            reasons.setdefault(why, []).append(record.name)
    return [f"No run recovers {_list_few(names)}: {why}." for why, names in reasons.items()]


def _list_few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return f"{', '.join(names[:_FEW])}{more}"


def format_tick_spans(record: TickRecord, calendar: Calendar) -> str:
    """The span of a tick; several where it stands for several ticks."""
    spans: Sequence[int | None] = record.spans or [record.tick.span]
    first, last = format_span(spans[0], calendar), format_span(spans[-1], calendar)
    return first if first == last else f"{first}..{last}"


def _why_missed(record: TickRecord) -> str:
    closed = "" if record.closed is None else format_closure(record.closed, pipeline_of(record.key))
    return join_reasons(closed, _why(record))


def format_acknowledged(records: Sequence[TickRecord]) -> str:
    """What a person has given up, in a line."""
    names = ", ".join(record.name for record in records)
    return f"{format_count(len(records), 'missed tick')} acknowledged: {names}"


def count_missed(count: int, *, summed: bool) -> str:
    """`5 missed ticks need backfilling`; more, where one of them stands for several."""
    if not count:
        return "no missed ticks need backfilling"
    more = "more than " if summed else ""
    return f"{more}{format_count(count, 'missed tick')} {'needs' if count == 1 else 'need'} backfilling"


def format_status(status: ScheduleStatus, forecast: Forecast, now: datetime) -> str:
    """How a schedule stands, a line for each fact."""
    schedule, timetable = status.schedule, status.schedule.timetable
    zone, calendar = timetable.clock, Calendar.from_name(schedule.calendar)
    replaced = ", over: the pipeline has another schedule now, or none in its file" if schedule.replaced else ""
    facts = {
        "schedule": (f"{timetable.cron} ({timetable.zone})" if timetable.cron else "when data arrives") + replaced,
        **({"policy": f"{timetable.overrun.value}, catchup {timetable.catchup.value}"} if timetable.cron else {}),
        "file": format_source(schedule.source),
        "next tick": _format_next(status, calendar, now),
        "last tick": "none yet" if status.newest is None else _format_newest(status.newest, calendar),
        "running": "nothing"
        if status.running is None
        else f"{status.running.name}, for {format_duration(elapsed_s(status.running, now))}",
    }
    if status.paused is not None:
        facts["paused"] = describe_pause(status.paused, zone)
    if status.missed:
        facts["missed"] = (
            f"{count_missed(status.missed, summed=status.summed)}: spanwise schedule missed {schedule.key}"
        )
    if schedule.pushes:
        facts["last push"] = format_time(status.pushed, zone) if status.pushed else "none"
    facts |= format_forecast(forecast)
    if not status.healthy:
        facts["problems"] = "; ".join(list_problems(status))
    width = max(map(len, facts)) + 1
    lines = [f"  {name + ':':<{width}} {text}" for name, text in facts.items()]
    return "\n".join([schedule.key, *lines])


def _format_next(status: ScheduleStatus, calendar: Calendar, now: datetime) -> str:
    tick = status.next
    if tick is None:
        return "none"
    wait = format_duration((tick.at - now).total_seconds())
    note = f" ({tick.note})" if tick.note else ""
    return f"{format_time(tick.at, status.schedule.timetable.clock)}, in {wait}{_span(tick.span, calendar)}{note}"


def _format_newest(record: TickRecord, calendar: Calendar) -> str:
    why = f" ({text})" if (text := _cut(_why(record))) else ""
    return f"{record.tick.name}{_span(record.tick.span, calendar)}: {_outcome(record)}{why}"


def format_schedulers(schedulers: Sequence[SchedulerRecord], now: datetime) -> str:
    """The schedulers that run, a line for each."""
    if not schedulers:
        return "No scheduler is running."
    return "\n".join(
        f"Scheduler {one.number} on {one.who.host}, pid {one.who.pid}: since {format_time(one.began)}, "
        f"last heartbeat {format_duration(max(0.0, (now - one.beaten).total_seconds()))} ago"
        for one in schedulers
    )


def format_ended_tick(record: TickRecord, schedule: ScheduleRecord) -> str:
    """What became of one tick, in a line."""
    span = _span(record.tick.span, Calendar.from_name(schedule.calendar))
    number = None if record.end is None else record.end.run
    run = "" if number is None else f", {pipeline_of(record.key)}/{number}"
    why = f": {text}" if (text := _why(record)) else ""
    return f"{record.key} {record.tick.name}{span}: {_outcome(record)}{run}{why}"


def format_check(status: ScheduleStatus) -> str:
    """Whether a schedule is healthy, in a line."""
    return f"{status.schedule.key}: {'; '.join(list_problems(status)) or 'healthy'}"


def _span(span: int | None, calendar: Calendar) -> str:
    return "" if span is None else f", span {format_span(span, calendar)}"


def _outcome(record: TickRecord) -> str:
    return "open" if record.end is None else record.end.outcome.value


def _why(record: TickRecord) -> str:
    return "" if record.end is None or record.end.outcome is TickOutcome.RAN else record.end.why


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"


# --- for programs


def tick_document(record: TickRecord, schedule: ScheduleRecord, options: Sequence[str] = ()) -> Document:
    """A tick that was taken."""
    end = record.end
    return {
        "pipeline": record.key,
        "tick": record.tick.name,
        "at": iso_time(record.tick.at),
        **span_document(record.tick.span, Calendar.from_name(schedule.calendar)),
        "outcome": _outcome(record),
        "why": "" if end is None else end.why,
        "run": None if end is None or end.run is None else f"{pipeline_of(record.key)}/{end.run}",
        "attempts": record.attempts,
        "taken": iso_time(record.taken),
        "ended": iso_time(record.ended),
        "closed": None if record.closed is None else _closure_document(record.closed, pipeline_of(record.key)),
        "recover": recovery_command(record, schedule, options) if end is not None and end.outcome.abnormal else "",
    }


def _closure_document(closure: TickClosure, pipeline: str) -> Document:
    """Why a missed tick needs no backfill any more."""
    return {
        "how": closure.how.value,
        "run": None if closure.run is None else f"{pipeline}/{closure.run}",
        "who": closure.who or None,
        "because": closure.because,
        "at": iso_time(closure.at),
    }


def past_tick_document(tick: ExplainedTick, calendar: Calendar) -> Document:
    """A past tick."""
    return {
        "tick": tick.tick.name,
        "at": iso_time(tick.tick.at),
        **span_document(tick.tick.span, calendar),
        "outcome": tick.outcome,
        "why": tick.why,
        "note": tick.tick.note,
    }


def status_document(status: ScheduleStatus, forecast: Document | None = None) -> Document:
    """How a schedule stands."""
    schedule, calendar = status.schedule, Calendar.from_name(status.schedule.calendar)
    return {
        "pipeline": schedule.key,
        "file": format_source(schedule.source),
        "timetable": to_plain(schedule.timetable),
        "replaced": schedule.replaced,
        "next": None
        if status.next is None
        else {
            "tick": status.next.name,
            "at": iso_time(status.next.at),
            **span_document(status.next.span, calendar),
            "note": status.next.note,
        },
        "last": None if status.newest is None else tick_document(status.newest, schedule),
        "running": None if status.running is None else status.running.name,
        "paused": None if status.paused is None else pause_document(schedule.key, status.paused),
        "missed": status.missed,
        "pushed": iso_time(status.pushed),
        "problems": [*list_problems(status)],
        **({} if forecast is None else {"forecast": forecast}),
    }


def scheduler_document(scheduler: SchedulerRecord) -> Document:
    """A scheduler that is not known to be dead."""
    return {
        "scheduler": scheduler.number,
        "host": scheduler.who.host,
        "pid": scheduler.who.pid,
        "began": iso_time(scheduler.began),
        "beaten": iso_time(scheduler.beaten),
    }


def describe_pause(pause: SchedulePause, zone: tzinfo) -> str:
    """Who has paused a schedule, until when, and why."""
    until = "until it is resumed" if pause.until is None else f"until {format_time(pause.until, zone)}"
    return f"by {pause.who}, {until}: {single_line(pause.why)}"


def pause_document(pipeline: str, pause: SchedulePause) -> Document:
    """A pause."""
    return {
        "pipeline": pipeline,
        "who": pause.who,
        "why": pause.why,
        "since": iso_time(pause.since),
        "until": iso_time(pause.until),
        "resumed": iso_time(pause.resumed),
        "resumed_by": pause.resumed_by or None,
    }
