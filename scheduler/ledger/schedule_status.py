"""Schedule status: what became of a schedule's ticks, how it stands, and what is wrong with it. Reads only."""

from __future__ import annotations

import getpass
import os
import shlex
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from spanwise.orchestrator import process
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import NotRecorded
from spanwise.orchestrator.run import Run, format_source, go_to
from spanwise.orchestrator.store import Store
from spanwise.scheduler.formatting import add_options, format_duration, format_few, format_time
from spanwise.scheduler.ledger.heartbeat import SchedulerRecord, read_scheduler
from spanwise.scheduler.ledger.holder import find_heard, find_run, is_left_open, newest_run
from spanwise.scheduler.ledger.missed import list_missed
from spanwise.scheduler.ledger.overdue import OverdueTicks, StaleModel, find_overdue, find_stale, last_push
from spanwise.scheduler.ledger.past_runs import list_past_runs
from spanwise.scheduler.ledger.pauses import SchedulePause, current_pause, list_pauses
from spanwise.scheduler.ledger.schedules import ScheduleRecord, is_over, list_keys, list_schedules, read_schedule
from spanwise.scheduler.ledger.ticks import TickRecord, list_ticks, list_untaken, newest_tick
from spanwise.scheduler.schedule.due import ON_TIME_S, WALKED
from spanwise.scheduler.schedule.forecast import Forecast, make_forecast
from spanwise.scheduler.schedule.outcome import TickClosure
from spanwise.scheduler.schedule.schedule_key import DATA, part_of, pipeline_of
from spanwise.scheduler.schedule.ticks import Tick, latest, starts, ticks
from spanwise.scheduler.schedule.timetable import Timetable

_FEW_COMMANDS = 5  # that are listed one by one

_MOST = 10_000
"""How many past ticks are explained at most, the newest."""


@dataclass(frozen=True, kw_only=True)
class ExplainedTick:
    """A past tick, with its outcome and the reason for it."""

    tick: Tick
    outcome: str  #: an outcome, or open, waiting, not taken
    why: str
    record: TickRecord | None = None  #: None: nobody has taken it, or another stands for it


@dataclass(frozen=True, kw_only=True)
class ScheduleStatus:
    """How a schedule stands."""

    schedule: ScheduleRecord
    next: Tick | None
    newest: TickRecord | None
    running: Run | None
    paused: SchedulePause | None
    missed: int  #: ticks that need backfilling
    summed: bool  #: one of these stands for several
    pushed: datetime | None
    overdue: OverdueTicks | None
    stale: StaleModel | None
    set_back: timedelta = timedelta(0)  #: how far the clock stands before the last tick; nothing is due until then

    @property
    def healthy(self) -> bool:
        """Whether nothing about it needs attention."""
        return self.overdue is None and self.stale is None and not self.set_back


def find_schedule(store: Store, key: str) -> ScheduleRecord:
    """The schedule of a pipeline, or of a part of it.

    Raises:
        NotRecorded: it was never scheduled here; the message lists those that were.
    """
    found = read_schedule(store, key)
    if found is None or is_over(store, found):
        others = list_schedules(store)
        known = (
            f"Scheduled are: {', '.join(others)}." if others else "Nothing is. Start one: spanwise schedule start FILE"
        )
        raise NotRecorded(f"{key!r} was never scheduled here. {known}")
    return found


def schedule_of(store: Store, record: TickRecord) -> ScheduleRecord:
    """The schedule of a tick that was taken, also one that is over."""
    found = read_schedule(store, record.key)
    assert found is not None, "it was scheduled when the tick was taken"
    return found


def expand_keys(store: Store, names: Sequence[str] | None) -> list[str]:
    """The schedule keys that were typed, each pipeline with its parts as they are scheduled; without names, all.

    `flights:` is the whole pipeline without its parts, as `format_key` writes it.
    """
    if not names:
        return list_schedules(store)
    return [key for name in names for key in ([] if ":" in name else list_keys(store, name)) or [name.rstrip(":")]]


def format_key(store: Store, key: str) -> str:
    """A schedule key as it is typed: the name of a pipeline alone stands for all of its keys, where there are more."""
    return key if part_of(key) or len(list_keys(store, key)) <= 1 else f"{key}:"


def list_keys_of_file(store: Store, reference: str) -> list[str]:
    """The schedule keys that were last loaded from a pipeline file, which need not be loaded again for that.

    `FILE:name` stands for those of the schedule, or the pipeline, of that name.

    Raises:
        NotRecorded: there are none.
    """
    found = [key for key in list_schedules(store) if _is_meant(reference, key, find_schedule(store, key).source)]
    if not found:
        raise NotRecorded(f"Nothing in {reference} was ever scheduled here. See: spanwise schedule status")
    return found


def _is_meant(reference: str, key: str, source: str) -> bool:
    file, _, name = reference.partition(":")
    path, colon, called = source.rpartition(":")
    same = Path(path if colon else source).absolute() == Path(file).absolute()
    return same and (not name or not colon or name in (called, pipeline_of(key)))


def explain_ticks(
    store: Store, timetable: Timetable, schedule: ScheduleRecord | None, since: datetime, now: datetime
) -> list[ExplainedTick]:
    """Every tick from `since` on, in order, with what became of it; of very many, the newest: see `is_cut`."""
    key = timetable.pipeline
    taken = {record.tick.name: record for record in list_ticks(store, key, since=since, limit=_MOST)}
    came = {tick.name: tick for tick in _past_ticks(timetable, since, now)}
    every = sorted({**came, **{name: record.tick for name, record in taken.items()}}.values(), key=lambda t: t.at)
    every = every[-_MOST:]
    pauses = list_pauses(store, key, since=since)
    newest = max((record.tick.at for record in taken.values()), default=None)
    summaries = [record for record in taken.values() if record.end is not None and record.end.first_at is not None]
    return [
        _explain_taken(store, record)
        if (record := taken.get(tick.name)) is not None
        else _explain_summed(tick, store, summaries) or _explain_untaken(tick, timetable, schedule, pauses, newest, now)
        for tick in every
    ]


def is_cut(explained: Sequence[ExplainedTick]) -> bool:
    """Whether so many ticks were explained that earlier ones are left out."""
    return len(explained) >= _MOST


def _past_ticks(timetable: Timetable, since: datetime, now: datetime) -> Sequence[Tick]:
    found: list[Tick] = []
    tick = latest(timetable, now)
    while tick is not None and tick.at >= since and len(found) < _MOST:
        found.append(tick)
        tick = latest(timetable, tick.at - timedelta(seconds=1))
    return found


def _explain_summed(tick: Tick, store: Store, summaries: Sequence[TickRecord]) -> ExplainedTick | None:
    """What became of a tick for which another stands, of a long gap; None where none does."""
    for record in summaries:
        assert record.end is not None
        assert record.end.first_at is not None
        if record.end.first_at <= tick.at < record.tick.at:
            explained = _explain_taken(store, record)
            return replace(explained, tick=tick, why=f"{record.tick.name} stands for it: {explained.why}", record=None)
    return None


def _explain_untaken(
    tick: Tick,
    timetable: Timetable,
    schedule: ScheduleRecord | None,
    pauses: Sequence[SchedulePause],
    newest: datetime | None,
    now: datetime,
) -> ExplainedTick:
    held = next((pause for pause in pauses if pause.holds(tick.at)), None)
    outcome = "waiting"
    if schedule is None:
        outcome, why = "not taken", "no scheduler has ever loaded this schedule"
    elif tick.at <= schedule.since:
        loaded = format_time(schedule.since, timetable.clock)
        outcome, why = "not taken", f"the schedule counts from {loaded}, when it was loaded"
    elif schedule.replaced:
        outcome, why = "not taken", "the pipeline has another schedule now, or none in its file"
    elif newest is not None and tick.at <= newest:
        outcome, why = "not taken", "the schedule, as it was then, had no such tick"
    elif held is not None:
        why = f"the schedule was paused by {held.who}: {held.why}"
    elif now < starts(timetable, tick):
        why = f"with its jitter, its run starts {format_time(starts(timetable, tick), timetable.clock)}"
    else:
        why = "no scheduler has looked since, or the run before it is still going"
    return ExplainedTick(tick=tick, outcome=outcome, why=why)


def _explain_taken(store: Store, record: TickRecord) -> ExplainedTick:
    late_s = (record.taken - record.tick.at).total_seconds()
    late = f"taken {format_duration(late_s)} late" if late_s > 1 else ""
    if record.end is None:
        holder = read_scheduler(store, record.holder)
        who = f"scheduler {record.holder}" if holder is None else _describe_holder(holder)
        why = join_reasons(_describe_attempt(store, record), who, late)
        return ExplainedTick(tick=record.tick, outcome="open", why=why, record=record)
    whole = pipeline_of(record.key)
    run = f"{whole}/{record.end.run}" if record.end.run is not None else ""
    attempts = f"{record.attempts} attempts" if record.attempts > 1 else ""
    closed = "" if record.closed is None else format_closure(record.closed, whole)
    why = join_reasons(run, record.end.why, attempts, late, closed)
    return ExplainedTick(tick=record.tick, outcome=record.end.outcome.value, why=why, record=record)


def _describe_attempt(store: Store, record: TickRecord) -> str:
    run = newest_run(store, record)
    if run is None:
        return "its run has not begun"
    if run.state.ended:
        return f"attempt {record.attempts} has ended: {run.state.value}"
    return f"attempt {record.attempts} {'was left open' if is_left_open(store, run) else 'is running'}"


def _describe_holder(holder: SchedulerRecord) -> str:
    if holder.ended or process.is_alive(holder.who) is False:
        return f"scheduler {holder.number} on {holder.who.host} has ended; the next one takes the tick over"
    return f"scheduler {holder.number} on {holder.who.host}, pid {holder.who.pid}"


def format_closure(closure: TickClosure, pipeline: str) -> str:
    """Why a missed tick needs no backfill any more, in a few words."""
    run = "" if closure.run is None else f"{pipeline}/{closure.run}"
    by = f" by {closure.who or run}" if closure.who or run else ""
    return f"{closure.how.value}{by}{': ' * bool(closure.because)}{closure.because}"


def join_reasons(*parts: str) -> str:
    """Reasons in one line, without the empty ones."""
    return "; ".join(part for part in parts if part)


def read_status(store: Store, key: str, now: datetime) -> ScheduleStatus:
    """How a schedule stands.

    Raises:
        NotRecorded: it was never scheduled here.
    """
    schedule = find_schedule(store, key)
    holder, newest, paused = (
        find_heard(store, pipeline_of(key), now),
        newest_tick(store, key),
        current_pause(store, key, now),
    )
    set_back, missed = timedelta(0), list_missed(store, key)
    if newest is not None and not schedule.replaced and part_of(key) != DATA:
        set_back = max(newest.tick.at - now, set_back)
    return ScheduleStatus(
        schedule=schedule,
        next=None
        if schedule.replaced
        else next(list_untaken(store, key, ticks(schedule.timetable, now + set_back)), None),
        newest=newest,
        running=None if holder is None else find_run(store, holder),
        paused=paused,
        missed=len(missed),
        summed=any(record.is_summary for record in missed),
        pushed=last_push(store, schedule),
        overdue=None
        if schedule.replaced
        else find_overdue(store, schedule, now, newest=newest, paused=paused, holder=holder),
        stale=None if schedule.replaced else find_stale(store, schedule, now),
        set_back=set_back if set_back.total_seconds() > ON_TIME_S else timedelta(0),
    )


def read_forecast(store: Store, key: str, now: datetime) -> Forecast:
    """How long a schedule's runs and their nodes take, and what follows from that; no overrun once it is over."""
    schedule = find_schedule(store, key)
    found = make_forecast(schedule.timetable, list_past_runs(store, key), now)
    return replace(found, interval=None, overran=0) if schedule.replaced else found


def explain_lost(record: TickRecord, schedule: ScheduleRecord) -> str:
    """Why no run recovers a missed tick, so that it is only given up; empty where one does."""
    if record.tick.span_unknown:
        return "the span rule of its file has not given its span. Backfill the span that was meant, then give it up"
    if schedule.renamed:
        return (
            f"in place of {pipeline_of(schedule.key)!r}, its file has {schedule.renamed!r} now, whose runs are others"
        )
    return ""


def recovery_command(record: TickRecord, schedule: ScheduleRecord, options: Sequence[str] = ()) -> str:
    """The commands that recover a tick, in one line; empty where none does."""
    return " && ".join(list_recovery(record, schedule, options))


def list_recovery(record: TickRecord, schedule: ScheduleRecord, options: Sequence[str] = ()) -> Sequence[str]:
    """The commands that recover a tick, none where none does: without a span, a run on the newest data.

    One that gives each node that ingests a span of its own is recovered by a run of these, for each tick for which it
    stands; spans that are not known are left to be filled in. What a part has missed, a run of this part alone
    recovers, unless it has several spans.
    """
    if explain_lost(record, schedule):
        return []
    if record.tick.span is None:
        return [file_command(schedule, "run", *schedule.selection, options=options)]
    if schedule.selection and len(record.spans) == 1 and not schedule.timetable.sources:
        span = _format_range([record], schedule)
        return [file_command(schedule, "run", "--span", span, *schedule.selection, options=options)]
    if not schedule.ingests or schedule.backfills(record):
        command = "backfill" if schedule.ingests else "run"
        return [file_command(schedule, command, "--span", _format_range([record], schedule), options=options)]
    named = [[word for each in spans for word in ("--span", each)] for spans in _list_source_spans(record, schedule)]
    return [file_command(schedule, "run", *words, *schedule.selection, options=options) for words in named]


def _list_source_spans(record: TickRecord, schedule: ScheduleRecord) -> Sequence[Sequence[str]]:
    """The spans of all nodes for each run of a tick, as they are typed."""
    every = schedule.source_spans(record)
    if every is not None:
        return [[f"{node}={schedule.label(node, span)}" for node, span in each.items()] for each in every]
    recorded = record.tick.by_node or {}
    first, *others = schedule.calendars or [each.node for each in schedule.timetable.sources] or recorded
    given = recorded if len(record.spans) == 1 else {}
    more = [f"{node}={schedule.label(node, given[node]) if node in given else 'SPAN'}" for node in others]
    return [[f"{first}={schedule.label(first, span)}", *more] for span in record.spans[:WALKED]]


def recovery_commands(
    records: Sequence[TickRecord], schedule: ScheduleRecord, options: Sequence[str] = ()
) -> Sequence[str]:
    """The commands that recover ticks, one for all that a backfill recovers where there are many."""
    records = [record for record in records if not explain_lost(record, schedule)]
    every = list(dict.fromkeys(command for record in records for command in list_recovery(record, schedule, options)))
    if len(every) <= _FEW_COMMANDS or not schedule.ingests:
        return every
    by_run = [record for record in records if not schedule.backfills(record)]
    together = [file_command(schedule, "backfill", "--missed", options=options)] if len(by_run) < len(records) else []
    few = [line for record in by_run for line in format_few(list_recovery(record, schedule, options))]
    return [*together, *dict.fromkeys(few)]


def file_command(schedule: ScheduleRecord, command: str, *arguments: str, options: Sequence[str] = ()) -> str:
    """A command about the file of a schedule, which goes to its folder first, where that is not the current one."""
    go = go_to(schedule.folder)
    source = format_source(schedule.source, schedule.folder if go else ".")
    return add_options(f"{go}{shlex.join(['spanwise', *command.split(), source, *arguments])}", options)


def acknowledge_commands(
    store: Store, records: Sequence[TickRecord], schedule: ScheduleRecord, options: Sequence[str] = ()
) -> Sequence[str]:
    """The commands that give ticks up: all that have a span at once, each of the others by its name."""
    start = ["spanwise", "schedule", "acknowledge", format_key(store, schedule.key)]
    because = ["--because", "not needed", *options]
    spans = [record for record in records if record.tick.span is not None]
    every = [shlex.join([*start, "--span", _format_range(spans, schedule), *because])] if spans else []
    named = [record.tick.name for record in records if record.tick.span is None]
    return [*every, *format_few([shlex.join([*start, "--tick", name, *because]) for name in named], _FEW_COMMANDS)]


def _format_range(records: Sequence[TickRecord], schedule: ScheduleRecord) -> str:
    """The spans of ticks, from the first to the last, as they are typed."""
    spans = [span for record in records for span in record.spans]
    first, last = map(Calendar.from_name(schedule.calendar).label, (min(spans), max(spans)))
    return first if first == last else f"{first}..{last}"


def list_problems(status: ScheduleStatus) -> list[str]:
    """What needs attention, a sentence for each."""
    problems = []
    if status.overdue is not None:
        late = status.overdue
        what = "was left open by a scheduler that is gone" if late.abandoned else "is overdue, so no scheduler runs"
        more = f", and {late.count - 1} after it" if late.count > 1 else ""
        problems.append(f"the tick {late.first.name} {what}{more}")
    if status.set_back:
        behind = format_duration(status.set_back.total_seconds())
        problems.append(f"the clock is {behind} behind the last tick that was taken, and nothing is due until then")
    if status.stale is not None:
        pushed = status.stale.pushed
        age = "no model was ever pushed" if pushed is None else f"no model was pushed since {format_time(pushed)}"
        problems.append(f"{age}; {format_duration(status.stale.allowed.total_seconds())} are allowed")
    return problems


def user_name() -> str:
    """Who decides, as others know them: `user@host`, or who SPANWISE_USER says."""
    return os.environ.get("SPANWISE_USER") or f"{getpass.getuser()}@{socket.gethostname()}"


def is_file(reference: str) -> bool:
    """Whether what was typed is a pipeline file, and not the name of a pipeline."""
    return reference.partition(":")[0].endswith(".py") or Path(reference).is_file()
