"""Accounts of schedules: what became of their ticks, how they stand, and what is wrong. Reads; starts nothing."""

from __future__ import annotations

import getpass
import itertools
import shlex
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import NotRecorded
from spanwise.orchestrator.run import Run, as_typed
from spanwise.orchestrator.store import Store
from spanwise.scheduler.daemon import scheduled_run
from spanwise.scheduler.formatting import (
    Document,
    elapsed_s,
    format_count,
    format_duration,
    format_span,
    format_table,
    format_time,
    iso_time,
    span_document,
)
from spanwise.scheduler.ledger import heartbeat
from spanwise.scheduler.ledger import overdue as guard
from spanwise.scheduler.ledger import ticks as ledger
from spanwise.scheduler.ledger.heartbeat import Present
from spanwise.scheduler.ledger.overdue import Overdue, Stale
from spanwise.scheduler.ledger.ticks import Entry, Outcome, Pause, Scheduled
from spanwise.scheduler.schedule import forecast, schedule
from spanwise.scheduler.schedule.forecast import Forecast
from spanwise.scheduler.schedule.part import TRAIN, part_of, pipeline_of
from spanwise.scheduler.schedule.schedule import Tick, Timetable, starts

_MOST = 10_000
"""So many ticks of the past are explained at most, the newest."""

_WIDTH = 100  # of a reason in a table
_FEW = 3  # ticks that nobody took, up to which each has a line of its own


@dataclass(frozen=True, kw_only=True)
class Explained:
    """A tick of the past, and why it came to what it came to."""

    tick: Tick
    outcome: str  #: an outcome, or open, waiting, not taken
    why: str
    entry: Entry | None = None  #: None: nobody has taken it


@dataclass(frozen=True, kw_only=True)
class Status:
    """How a schedule stands."""

    known: Scheduled
    next: Tick | None
    newest: Entry | None
    running: Run | None
    paused: Pause | None
    missed: int  #: ticks that nobody has made good
    pushed: datetime | None
    overdue: Overdue | None
    stale: Stale | None

    @property
    def good(self) -> bool:
        """Whether nothing of it calls for anybody."""
        return self.overdue is None and self.stale is None


def known(store: Store, pipeline: str) -> Scheduled:
    """The schedule of a pipeline.

    Raises:
        NotRecorded: it was never scheduled here; the message says which were.
    """
    found = ledger.schedule(store, pipeline)
    if found is None or found.given_up:
        others = ledger.scheduled(store)
        there = (
            f"Scheduled are: {', '.join(others)}." if others else "Nothing is. Start one: spanwise schedule start FILE"
        )
        raise NotRecorded(f"{pipeline!r} was never scheduled here. {there}")
    return found


def lines(store: Store, names: Sequence[str] | None) -> list[str]:
    """What was typed, each pipeline with its parts as they are scheduled; without names, all there are."""
    if not names:
        return ledger.scheduled(store)
    return [line for name in names for line in ([] if part_of(name) else ledger.lines(store, name)) or [name]]


def explain(
    store: Store, timetable: Timetable, scheduled_: Scheduled | None, since: datetime, now: datetime
) -> list[Explained]:
    """Every tick from `since` on, in order: those that came, and what was made of them."""
    pipeline = timetable.pipeline
    taken = {entry.tick.name: entry for entry in ledger.entries(store, pipeline, since=since, limit=_MOST)}
    came = {tick.name: tick for tick in _capped(timetable, since, now)}
    ticks = sorted({**came, **{name: entry.tick for name, entry in taken.items()}}.values(), key=lambda tick: tick.at)
    pauses = ledger.pauses(store, pipeline, since=since)
    newest = max((entry.tick.at for entry in taken.values()), default=None)
    return [_explained(store, tick, taken.get(tick.name), timetable, scheduled_, pauses, newest, now) for tick in ticks]


def _capped(timetable: Timetable, since: datetime, now: datetime) -> Sequence[Tick]:
    found: list[Tick] = []
    tick = schedule.latest(timetable, now)
    while tick is not None and tick.at >= since and len(found) < _MOST:
        found.append(tick)
        tick = schedule.latest(timetable, tick.at - timedelta(seconds=1))
    return found


def _explained(
    store: Store,
    tick: Tick,
    entry: Entry | None,
    timetable: Timetable,
    scheduled_: Scheduled | None,
    pauses: Sequence[Pause],
    newest: datetime | None,
    now: datetime,
) -> Explained:
    if entry is not None:
        return _of_entry(store, entry)
    held = next((pause for pause in pauses if pause.holds(tick.at)), None)
    if scheduled_ is None:
        outcome, why = "not taken", "no scheduler has ever loaded this schedule"
    elif tick.at <= scheduled_.since:
        outcome, why = (
            "not taken",
            f"the schedule was first loaded {format_time(scheduled_.since, timetable.clock)}, and counts from then",
        )
    elif newest is not None and tick.at < newest:
        outcome, why = "not taken", "the schedule, as it was then, had no such tick"
    elif held is not None:
        outcome, why = "waiting", f"the schedule was paused by {held.who}: {held.why}"
    elif now < starts(timetable, tick):
        outcome, why = (
            "waiting",
            f"its jitter has its run begin {format_time(starts(timetable, tick), timetable.clock)}",
        )
    else:
        outcome, why = "waiting", "no scheduler has looked since, or the run before it goes on"
    return Explained(tick=tick, outcome=outcome, why=why)


def _of_entry(store: Store, entry: Entry) -> Explained:
    late_s = (entry.taken - entry.tick.at).total_seconds()
    late = f"taken {format_duration(late_s)} late" if late_s > 1 else ""
    if entry.ending is None:
        holder = heartbeat.read(store, entry.holder)
        who = "" if holder is None else f"scheduler {entry.holder} on {holder.who.host}, pid {holder.who.pid}"
        doing = f"attempt {entry.attempts} runs" if entry.attempts else "its run has not begun"
        return Explained(tick=entry.tick, outcome="open", why=_joined(doing, who, late), entry=entry)
    whole = pipeline_of(entry.pipeline)
    run = f"{whole}/{entry.ending.run}" if entry.ending.run is not None else ""
    attempts = f"{entry.attempts} attempts" if entry.attempts > 1 else ""
    made_good = f"made good by {whole}/{entry.recovered}" if entry.recovered is not None else ""
    why = _joined(run, entry.ending.why, attempts, late, made_good)
    return Explained(tick=entry.tick, outcome=entry.ending.outcome.value, why=why, entry=entry)


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def status(store: Store, pipeline: str, now: datetime) -> Status:
    """How a schedule stands.

    Raises:
        NotRecorded: it was never scheduled here.
    """
    found = known(store, pipeline)
    timetable = Timetable.read(found.timetable)
    holder = scheduled_run.going(store, pipeline_of(pipeline), now)
    return Status(
        known=found,
        next=next(schedule.ticks(timetable, now), None),
        newest=ledger.newest(store, pipeline),
        running=None if holder is None else scheduled_run.run_of(store, holder),
        paused=ledger.paused(store, pipeline, now),
        missed=len(ledger.missed(store, pipeline)),
        pushed=guard.pushed(store, found),
        overdue=guard.overdue(store, found, now),
        stale=guard.stale(store, found, now),
    )


def outlook(store: Store, pipeline: str, now: datetime) -> Forecast:
    """How long a schedule's runs and their nodes take, and what is to be expected of that."""
    timetable = Timetable.read(known(store, pipeline).timetable)
    return forecast.forecast(timetable, forecast.recent(store, pipeline), now)


def recovering(entry: Entry, of: Scheduled, elsewhere: Sequence[str] = ()) -> str:
    """The command that makes a tick good; empty where it has no span of its own."""
    if entry.tick.span is None and entry.tick.part == TRAIN:
        return shlex.join(["spanwise", "run", as_typed(of.source), *elsewhere])
    if entry.tick.span is None:
        return ""
    label = Calendar.from_name(of.calendar).label(entry.tick.span)
    return shlex.join(["spanwise", "backfill", as_typed(of.source), "--span", label, *elsewhere])


# --- for people


def ticks_told(found: Sequence[Explained], of: Timetable, calendar: Calendar) -> str:
    """Ticks of the past as a table, times in the schedule's zone; those nobody took for one reason are one line."""
    if not found:
        return f"{of.pipeline} had no tick in that time."
    rows = []
    for (outcome, why, taken), group in itertools.groupby(found, lambda e: (e.outcome, e.why, e.entry is not None)):
        same = list(group)
        if not taken and len(same) > _FEW:
            first, last = (format_span(each.tick.span, calendar) for each in (same[0], same[-1]))
            span = first if first == last else f"{first}..{last}"
            names = f"{len(same)} ticks"
            rows.append((names, f"{format_time(same[0].tick.at, of.clock)} and after", span, outcome, _cut(why)))
            continue
        for each in same:
            row = (
                each.tick.name,
                format_time(each.tick.at, of.clock),
                format_span(each.tick.span, calendar),
            )
            rows.append((*row, outcome, _cut(_joined(why, each.tick.note))))
    return format_table(("TICK", "CAME", "SPAN", "OUTCOME", "WHY"), rows)


def missed_told(store: Store, pipelines: Sequence[str], elsewhere: Sequence[str]) -> str:
    """What has to be made good, and how."""
    parts = []
    for pipeline in pipelines:
        of = known(store, pipeline)
        entries = ledger.missed(store, pipeline)
        if not entries:
            continue
        calendar = Calendar.from_name(of.calendar)
        rows = [(e.tick.name, format_span(e.tick.span, calendar), _outcome(e), _cut(_why(e))) for e in entries]
        commands = list(dict.fromkeys(command for e in entries if (command := recovering(e, of, elsewhere))))
        lines = [f"{pipeline}: {format_count(len(entries), 'tick')} to make good"]
        lines.append(format_table(("TICK", "SPAN", "OUTCOME", "WHY"), rows))
        lines += ["Make them good:", *(f"  {command}" for command in commands)] if commands else []
        parts.append("\n".join(lines))
    return "\n\n".join(parts) or "Nothing is missing."


def status_told(found: Status, ahead: Forecast, now: datetime) -> str:
    """How a schedule stands, a line for each fact."""
    timetable = Timetable.read(found.known.timetable)
    zone, calendar = timetable.clock, Calendar.from_name(found.known.calendar)
    facts = {
        "schedule": f"{timetable.cron} ({timetable.zone})" if timetable.cron else "when data comes",
        **({"policy": f"{timetable.overrun.value}, catchup {timetable.catchup.value}"} if timetable.cron else {}),
        "file": as_typed(found.known.source),
        "next tick": "none" if found.next is None else _next_told(found.next, timetable, calendar, now),
        "last tick": "none yet" if found.newest is None else _newest_told(found.newest, calendar),
        "running": "nothing" if found.running is None else _running_told(found.running, now),
    }
    if found.paused is not None:
        until = (
            "until it is resumed" if found.paused.until is None else f"until {format_time(found.paused.until, zone)}"
        )
        facts["paused"] = f"by {found.paused.who}, {until}: {found.paused.why}"
    if found.missed:
        facts["to make good"] = f"{format_count(found.missed, 'tick')}: spanwise schedule missed {found.known.pipeline}"
    if found.known.pushes:
        facts["last push"] = format_time(found.pushed, zone) if found.pushed else "none"
    facts |= forecast.facts(ahead)
    if not found.good:
        facts["wrong"] = "; ".join(problems(found))
    width = max(map(len, facts)) + 1
    lines = [f"  {name + ':':<{width}} {text}" for name, text in facts.items()]
    return "\n".join([found.known.pipeline, *lines])


def _next_told(tick: Tick, timetable: Timetable, calendar: Calendar, now: datetime) -> str:
    wait = format_duration((tick.at - now).total_seconds())
    span = f", span {format_span(tick.span, calendar)}" if tick.span is not None else ""
    return f"{format_time(tick.at, timetable.clock)}, in {wait}{span}{f' ({tick.note})' if tick.note else ''}"


def _newest_told(entry: Entry, calendar: Calendar) -> str:
    span = f", span {format_span(entry.tick.span, calendar)}" if entry.tick.span is not None else ""
    return f"{entry.tick.name}{span}: {_outcome(entry)}{f' ({why})' if (why := _cut(_why(entry))) else ''}"


def _running_told(run: Run, now: datetime) -> str:
    return f"{run.name}, for {format_duration(elapsed_s(run, now))}"


def problems(found: Status) -> list[str]:
    """What calls for somebody, a sentence for each."""
    said = []
    if found.overdue is not None:
        late = found.overdue
        what = "was left open by a scheduler that is gone" if late.abandoned else "is overdue, so no scheduler runs"
        more = f", and {late.count - 1} after it" if late.count > 1 else ""
        said.append(f"the tick {late.first.name} {what}{more}")
    if found.stale is not None:
        pushed = found.stale.pushed
        age = "no model was ever pushed" if pushed is None else f"no model was pushed since {format_time(pushed)}"
        said.append(f"{age}; {format_duration(found.stale.allowed.total_seconds())} are allowed")
    return said


def schedulers_told(found: Sequence[Present], now: datetime) -> str:
    """Which schedulers there are."""
    if not found:
        return "No scheduler runs."
    return "\n".join(
        f"Scheduler {one.number} on {one.who.host}, pid {one.who.pid}: since {format_time(one.began)}, "
        f"last heard of {format_duration(max(0.0, (now - one.beaten).total_seconds()))} ago"
        for one in found
    )


def ended_told(entry: Entry, of: Scheduled) -> str:
    """What became of one tick, in a line."""
    span = (
        f", span {format_span(entry.tick.span, Calendar.from_name(of.calendar))}" if entry.tick.span is not None else ""
    )
    number = None if entry.ending is None else entry.ending.run
    run = "" if number is None else f", {pipeline_of(entry.pipeline)}/{number}"
    why = f": {text}" if (text := _why(entry)) else ""
    return f"{entry.pipeline} {entry.tick.name}{span}: {_outcome(entry)}{run}{why}"


def checked_told(found: Status) -> str:
    """Whether a schedule is kept, in a line."""
    return f"{found.known.pipeline}: {'; '.join(problems(found)) or 'good'}"


def _outcome(entry: Entry) -> str:
    return "open" if entry.ending is None else entry.ending.outcome.value


def _why(entry: Entry) -> str:
    return "" if entry.ending is None or entry.ending.outcome is Outcome.RAN else entry.ending.why


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"


# --- for programs


def entry_document(entry: Entry, of: Scheduled, elsewhere: Sequence[str] = ()) -> Document:
    """A tick that was taken."""
    calendar = Calendar.from_name(of.calendar)
    ending = entry.ending
    return {
        "pipeline": entry.pipeline,
        "tick": entry.tick.name,
        "at": iso_time(entry.tick.at),
        **span_document(entry.tick.span, calendar),
        "outcome": _outcome(entry),
        "why": "" if ending is None else ending.why,
        "run": None if ending is None or ending.run is None else f"{pipeline_of(entry.pipeline)}/{ending.run}",
        "attempts": entry.attempts,
        "taken": iso_time(entry.taken),
        "ended": iso_time(entry.ended),
        "recovered_by": None if entry.recovered is None else f"{pipeline_of(entry.pipeline)}/{entry.recovered}",
        "recover": recovering(entry, of, elsewhere) if ending is not None and ending.outcome.abnormal else "",
    }


def explained_document(each: Explained, calendar: Calendar) -> Document:
    """A tick of the past."""
    return {
        "tick": each.tick.name,
        "at": iso_time(each.tick.at),
        **span_document(each.tick.span, calendar),
        "outcome": each.outcome,
        "why": each.why,
        "note": each.tick.note,
    }


def status_document(found: Status, ahead: Document | None = None) -> Document:
    """How a schedule stands."""
    calendar = Calendar.from_name(found.known.calendar)
    paused = found.paused
    return {
        "pipeline": found.known.pipeline,
        "file": as_typed(found.known.source),
        "timetable": dict(found.known.timetable),
        "next": None
        if found.next is None
        else {
            "tick": found.next.name,
            "at": iso_time(found.next.at),
            **span_document(found.next.span, calendar),
            "note": found.next.note,
        },
        "last": None if found.newest is None else entry_document(found.newest, found.known),
        "running": None if found.running is None else found.running.name,
        "paused": None if paused is None else pause_document(found.known.pipeline, paused),
        "to_make_good": found.missed,
        "pushed": iso_time(found.pushed),
        "problems": [*problems(found)],
        **({} if ahead is None else {"forecast": ahead}),
    }


def scheduler_document(one: Present) -> Document:
    """A scheduler that has not ended."""
    return {
        "scheduler": one.number,
        "host": one.who.host,
        "pid": one.who.pid,
        "began": iso_time(one.began),
        "beaten": iso_time(one.beaten),
    }


def pause_document(pipeline: str, pause: Pause) -> Document:
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


def me() -> str:
    """Who types, as others are to know them."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def is_file(reference: str) -> bool:
    """Whether what was typed is a pipeline file, and not the name of a pipeline."""
    return reference.partition(":")[0].endswith(".py") or Path(reference).is_file()
