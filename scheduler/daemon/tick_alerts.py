"""Tick alerts: which alerts follow from the end of a tick."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.run import Execution, Run, State
from spanwise.orchestrator.store import Store
from spanwise.scheduler.alerts import alert
from spanwise.scheduler.alerts.alert import Alert, Site
from spanwise.scheduler.alerts.recovery import MISSING_KINDS
from spanwise.scheduler.ledger.missed import is_any_missed
from spanwise.scheduler.ledger.schedules import list_keys
from spanwise.scheduler.ledger.ticks import TickRecord, read_overrun, read_tick
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.schedule_key import pipeline_of


@dataclass(frozen=True, kw_only=True)
class EndedTickFacts:
    """What the alerts about a tick's end are made of."""

    record: TickRecord
    end: TickEnd
    run: Run | None  #: its last run
    running: Run | None = None  #: the run for which it was skipped
    killed_for: str = ""  #: for what its run was killed
    overrun_by: TickRecord | None = None  #: the tick for which it was, if it is one
    failed: Sequence[Execution] = ()  #: executions of its run
    missing: bool = False  #: ticks of the pipeline are missed
    log: Path  #: of its last attempt
    calendar: Calendar


def collect_facts(
    store: Store, record: TickRecord, end: TickEnd, *, log: Path, calendar: Calendar, running: Run | None = None
) -> EndedTickFacts:
    """What the metadata knows about the end of a tick."""
    pipeline = pipeline_of(record.key)
    run = None if end.run is None else store.run(pipeline, end.run)
    by = read_overrun(store, record.key, record.tick.name) if end.outcome is TickOutcome.KILLED else None
    executions = store.executions(run) if run is not None and end.outcome is TickOutcome.FAILED else []
    return EndedTickFacts(
        record=record,
        end=end,
        run=run,
        running=running,
        killed_for="" if by is None else by.by,
        overrun_by=None if by is None or not by.tick else read_tick(store, record.key, by.tick),
        failed=[execution for execution in executions if execution.state is State.FAILED],
        missing=any(is_any_missed(store, key) for key in list_keys(store, pipeline)),
        log=log,
        calendar=calendar,
    )


def alerts_of(facts: EndedTickFacts, at: datetime, site: Site) -> Iterator[Alert]:
    """The alerts; a recovery is sent only where something was alerted."""
    key, tick, run = facts.record.key, facts.record.tick, facts.run
    span = span_text(tick.span, facts.calendar)
    match facts.end.outcome:
        case TickOutcome.RAN:
            yield from _list_ended(facts, at, site)
        case TickOutcome.KILLED if run is not None:
            by = facts.overrun_by
            yield alert.overrun_alert(
                key,
                at=at,
                site=site,
                tick="" if by is None else by.tick.name,
                span="" if by is None else span_text(by.tick.span, facts.calendar),
                running=run,
                killed_for=facts.killed_for or "another run",
                lost=span,
            )
        case TickOutcome.SKIPPED if facts.running is not None:
            yield alert.overrun_alert(
                key, at=at, site=site, tick=tick.name, span=span, running=facts.running, lost=span
            )
        case TickOutcome.FAILED:
            yield alert.failure_alert(
                key,
                at=at,
                site=site,
                error=facts.end.why,
                tick=tick.name,
                span=span if tick.span is not None else "",
                run=run,
                failed=facts.failed,
                attempts=max(1, facts.record.attempts),
                log=facts.log,
                resume=site.command("resume", run.name) if run is not None else "",
            )
        case _:
            yield alert.missed_alert(key, at=at, site=site, ticks=[tick.name], why=facts.end.why)


def _list_ended(facts: EndedTickFacts, at: datetime, site: Site) -> Iterator[Alert]:
    """The recoveries that a tick brings that ran; those from lost ticks wait until none is left."""
    key = facts.record.key
    run = "another run" if facts.run is None else f"run {facts.run.number}"
    causes = [f"stall {pipeline_of(key)}", f"overdue {key}"]
    causes += [] if facts.missing else [f"{kind} {key}" for kind in MISSING_KINDS]
    for cause in causes:
        yield alert.recovery_alert(key, at=at, site=site, cause=cause, summary=f"{run} succeeded")


def span_text(span: int | None, calendar: Calendar) -> str:
    """A span as people write it."""
    return "the newest" if span is None else calendar.label(span)
