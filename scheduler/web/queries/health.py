"""The health of a pipeline in one word, why, and what a person should do about it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from spanwise.orchestrator.continuation import attempted_nodes
from spanwise.orchestrator.errors import SpanwiseError
from spanwise.orchestrator.run import Run, State, Trigger, go_to
from spanwise.orchestrator.store import Store
from spanwise.scheduler.formatting import elapsed_s, format_count, format_duration, single_line
from spanwise.scheduler.inspect import find
from spanwise.scheduler.ledger.holder import find_heard, listen
from spanwise.scheduler.ledger.missed import list_missed
from spanwise.scheduler.ledger.schedule_status import (
    ScheduleStatus,
    explain_lost,
    file_command,
    list_problems,
    list_recovery,
    read_status,
    recovery_command,
    recovery_commands,
)
from spanwise.scheduler.ledger.schedules import ScheduleRecord, list_keys, list_schedules
from spanwise.scheduler.ledger.status_formatting import describe_pause
from spanwise.scheduler.schedule.schedule_key import DATA, part_of, pipeline_of

LATEST = 14
"""How many of the last runs of a pipeline are looked at, and shown."""

_LONGER = 1.5  # times the median, from which a run is said to overrun
_ENOUGH = 3  # complete runs of the same nodes, from which there is a median


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """What to do about it: a command to copy, and the action of the page that does the same."""

    command: str
    action: str = ""  #: name of the action
    fields: tuple[tuple[str, str], ...] = ()  #: what it is given
    label: str = ""  #: of its button; the name of the action by default


@dataclass(frozen=True, kw_only=True)
class PipelineHealth:
    """How a pipeline stands."""

    word: str
    why: str = ""
    urgent: bool = False  #: it needs a person
    remedy: Remedy | None = None


def list_latest_runs(store: Store) -> dict[str, Sequence[Run]]:
    """The last runs of each pipeline, newest first; none of one that is scheduled and has never begun a run."""
    scheduled = {pipeline_of(key): () for key in list_schedules(store)}
    found = {**scheduled, **{name: runs for name, runs in store.latest_runs(LATEST).items() if runs}}
    listen(store, [name for name, runs in found.items() if runs and not runs[0].state.ended])
    return found


def find_pipeline(store: Store, name: str) -> str:
    """A pipeline that has run, or is scheduled.

    Raises:
        NotRecorded: there is none of that name.
    """
    return name if list_keys(store, name) else find.pipeline(store, name)


def read_schedules(store: Store, pipeline: str, now: datetime | None = None) -> list[ScheduleStatus]:
    """How the schedules of a pipeline stand; one that cannot be read is left out."""
    return [read_status(store, key, now or datetime.now(UTC)) for key in list_keys(store, pipeline)]


def read_health(store: Store, name: str, runs: Sequence[Run]) -> tuple[PipelineHealth, Sequence[ScheduleStatus]]:
    """The health of a pipeline, of which these are the last runs, and how its schedules stand."""
    try:
        schedules = read_schedules(store, name)
        return judge_health(store, runs, schedules), schedules
    except SpanwiseError as error:
        return PipelineHealth(word="unreadable", why=str(error), urgent=True), []


def judge_health(store: Store, runs: Sequence[Run], schedules: Sequence[ScheduleStatus]) -> PipelineHealth:
    """The health of a pipeline from its last runs, newest first, and its schedules."""
    newest = runs[0] if runs else None
    if newest is not None and newest.state is State.RUNNING:
        return _judge_running(store, newest, runs, schedules)
    if failed := _list_failures(store, runs):
        times = f"{format_count(len(failed), 'run')} without success; " if len(failed) > 1 else ""
        return PipelineHealth(
            word="failing", why=times + explain_failure(store, failed[0]), urgent=True, remedy=_find_remedy(failed[0])
        )
    return _judge_schedules(store, schedules) if schedules else PipelineHealth(word="not scheduled")


def _judge_schedules(store: Store, schedules: Sequence[ScheduleStatus]) -> PipelineHealth:
    problems = [problem for status in schedules for problem in list_problems(status)]
    if (pause := schedules[0].paused) is not None:  # it holds for all of them
        key = pipeline_of(schedules[0].schedule.key)
        return PipelineHealth(
            word="paused",
            why="; ".join([describe_pause(pause, schedules[0].schedule.timetable.clock), *problems]),
            urgent=bool(problems),
            remedy=Remedy(
                command=shlex.join(["spanwise", "schedule", "resume", key]),
                action="unpause",
                fields=(("pipeline", key),),
            ),
        )
    if ailing := sorted((s for s in schedules if not s.healthy), key=lambda s: s.overdue is None):
        word = "no scheduler" if ailing[0].overdue is not None else "late"
        return PipelineHealth(word=word, why="; ".join(problems), urgent=True, remedy=catch_up(ailing[0]))
    if behind := [status for status in schedules if status.missed]:
        more = "more than " if any(status.summed for status in behind) else ""
        missed = f"{more}{format_count(sum(status.missed for status in behind), 'missed tick')} to backfill"
        return PipelineHealth(word="late", why=missed, urgent=True, remedy=_recover(store, behind[0].schedule))
    return PipelineHealth(word="on time")


def _list_failures(store: Store, runs: Sequence[Run]) -> list[Run]:
    """The runs that have not succeeded, and that no later ones have succeeded in place of, newest first."""
    complete: list[Run] = []
    failed = []
    for run in runs:
        if run.state is State.COMPLETE:
            complete.append(run)
        elif run.state.ended and not _is_outdone(store, run, complete):
            failed.append(run)
    return failed


def _is_outdone(store: Store, failed: Run, complete: Sequence[Run]) -> bool:
    """Whether each node that a run has left has succeeded since, or its nodes were edited and a run has succeeded.

    Each run counts with what it continues. Not by a push by name or a replay, which succeed in nothing else; nor by a
    Pusher alone where nothing was trained.
    """
    apart = failed.trigger is Trigger.PUSH, failed.replay
    ordinary = (False, False)
    later = [run for run in complete if (run.trigger is Trigger.PUSH, run.replay) in (ordinary, apart)]
    wanted = set(failed.nodes)
    if any(not (set(run.nodes) <= wanted or wanted.isdisjoint(run.nodes)) for run in later):
        return True
    if not later:
        return False
    since = {node for run in later for node in attempted_nodes(store, run)}
    return wanted <= since or wanted <= since | {e.node for e in store.executions(failed) if e.state.succeeded}


def _recover(store: Store, schedule: ScheduleRecord) -> Remedy:
    """A backfill of what was missed; without a span, a run on the newest data; the list where no run recovers it."""
    source = schedule.source
    every = list_missed(store, schedule.key)
    missed = [record for record in every if not explain_lost(record, schedule)]
    if every and not missed:
        return Remedy(command=shlex.join(["spanwise", "schedule", "missed", schedule.key]))
    if missed and all(record.tick.span is None for record in missed):
        command, fields = recovery_command(missed[0], schedule), (("file", source),)
        match schedule.selection:
            case []:
                return Remedy(command=command, action="run", fields=fields)
            case ["--from", first]:
                return Remedy(command=command, action="run", fields=(*fields, ("first", first)))
            case _:  # more than the form asks for
                return Remedy(command=command)
    alone = schedule.selection and len(recovery_commands(missed, schedule)) == 1
    if alone or not any(map(schedule.backfills, missed)):
        commands = list_recovery(missed[0], schedule)
        listed = shlex.join(["spanwise", "schedule", "missed", schedule.key])
        return Remedy(command=commands[0] if len(commands) == 1 else listed)
    return Remedy(
        command=file_command(schedule, "backfill", "--missed"),
        action="backfill",
        fields=(("file", source), ("missed", "yes")),
    )


def catch_up(status: ScheduleStatus) -> Remedy:
    """A scheduler, or for once what it would run; a model that is too old, although all ticks ran, is trained again."""
    source = status.schedule.source
    if status.overdue is not None and part_of(status.schedule.key) == DATA:
        return Remedy(command=file_command(status.schedule, "watch"))
    if status.overdue is not None:
        start = file_command(status.schedule, "schedule start")
        return Remedy(command=start, action="tick", fields=(("file", source),), label="Run what is due")
    return Remedy(command=file_command(status.schedule, "run"), action="run", fields=(("file", source),))


def explain_failure(store: Store, run: Run) -> str:
    """Why a run did not complete: what it says, and the first line of what its failed node says."""
    said = single_line(run.error or run.state.value)
    failed = (e for e in store.executions_of([run]) if e.state is State.FAILED and e.error)
    cause = next((single_line((e.error or "").strip().split("\n")[0]) for e in failed), "")
    return f"{said}: {cause}" if cause and cause not in said else said


def _find_remedy(run: Run) -> Remedy:
    """What continues a run; a push has nothing to continue, so its log says what to do."""
    if run.trigger is Trigger.PUSH:
        return Remedy(command=shlex.join(["spanwise", "logs", run.name]))
    command = f"{go_to(run.folder)}{shlex.join(['spanwise', 'resume', run.name])}"
    return Remedy(command=command, action="resume", fields=(("run", run.name),))


def _judge_running(
    store: Store, newest: Run, runs: Sequence[Run], schedules: Sequence[ScheduleStatus]
) -> PipelineHealth:
    stop = Remedy(command=shlex.join(["spanwise", "stop", newest.name]), action="stop", fields=(("run", newest.name),))
    if find_heard(store, newest.pipeline) is None:
        why = f"run {newest.number} was left open by a process that is gone"
        return PipelineHealth(word="failing", why=why, urgent=True, remedy=stop)
    took = elapsed_s(newest, datetime.now(UTC)) or 0.0
    same = [run for run in runs if run.state is State.COMPLETE and set(run.nodes) == set(newest.nodes)]
    done = sorted(length for run in same if (length := elapsed_s(run)) is not None)
    usual = done[len(done) // 2] if len(done) >= _ENOUGH else None
    if usual is not None and took > _LONGER * usual and took > usual + 60:
        why = f"run {newest.number} has taken {format_duration(took)}; {format_duration(usual)} is usual"
        return PipelineHealth(word="overrunning", why=why, urgent=True, remedy=stop)
    problems = [problem for status in schedules for problem in list_problems(status)]
    why = "; ".join([f"run {newest.number} since {format_duration(took)}", *problems])
    return PipelineHealth(word="running", why=why, urgent=bool(problems))
