"""Alerts: the messages about a pipeline and the commands that they suggest. Pure; sends nothing."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeAlias

from spanwise.orchestrator.gate import printed_accept
from spanwise.orchestrator.run import Execution, Run
from spanwise.scheduler.formatting import (
    add_options,
    elapsed_s,
    format_duration,
    format_run_span,
    format_time,
    strip_control,
)
from spanwise.scheduler.project.settings import AlertKind
from spanwise.scheduler.schedule.schedule_key import pipeline_of

Facts: TypeAlias = Mapping[str, str]

_MOST_LINES, _MOST_LETTERS = 5, 450  # of an error; a pager shows 1,024 letters, and the commands must be among them
_MANY = 10


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where a command has to be typed to find the project again."""

    host: str
    folder: Path
    options: tuple[str, ...] = ()  #: `--root` and `--config`, as arguments

    def command(self, *arguments: str) -> str:
        """A command of ours, as it is typed there."""
        return shlex.join(["spanwise", *arguments, *self.options])


@dataclass(frozen=True, kw_only=True)
class Alert:
    """A message about a pipeline or a scheduler."""

    kind: AlertKind
    pipeline: str  #: empty when it concerns all
    cause: str  #: alerts of one cause are grouped, and ended by one recovery
    subject: str  #: one line: what happened, to which pipeline
    text: str = ""  #: the first lines of what went wrong
    facts: Facts = field(default_factory=dict)  #: by name, in the order in which they are read
    commands: Facts = field(default_factory=dict)  #: what to type next, by what it does
    at: datetime  #: when it happened


def local_site(options: Sequence[str] = ()) -> Site:
    """This host and this folder."""
    return Site(host=socket.gethostname(), folder=Path.cwd(), options=tuple(options))


# Alerts


def failure_alert(
    pipeline: str,
    *,
    at: datetime,
    site: Site,
    error: str,
    tick: str = "",
    span: str = "",
    run: Run | None = None,
    failed: Sequence[Execution] = (),
    attempts: int = 1,
    log: Path | None = None,
    resume: str = "",
) -> Alert:
    """A run failed and is not retried; `run` None: it could not start.

    `error` is used when no node has `failed`; `span` is the label of the tick's span, `resume` the command that
    resumes the run, which has no use while a gate refuses its span.
    """
    of_span = f" on span {span}" if span else ""
    accept = next((add_options(c, site.options) for e in failed if (c := printed_accept(e.error))), "")
    return Alert(
        kind="failure",
        pipeline=pipeline,
        cause=f"failure {pipeline}",
        subject=f"{pipeline} failed{of_span}" if run else f"{pipeline} could not start{of_span}",
        text=_first_lines("\n".join(f"{each.node} failed: {each.error}" for each in failed) or error),
        facts=_facts(
            tick=tick,
            span=span,
            run=run.name if run else "",
            started=format_time(run.started, at.tzinfo) if run and run.started else "",
            took=format_duration(elapsed_s(run, at)) if run and run.started else "",
            attempts=str(attempts) if attempts > 1 else "",
            log=str(log or ""),
            host=_host(run, site),
        ),
        commands=_facts(
            **_folder(site),
            **{"See what happened": site.command("show", run.name) if run else ""},
            **({"Accept the span as it is": accept} if accept else {"Resume it": resume}),
            **{"Missed ticks": site.command("schedule", "missed", pipeline)},
        ),
        at=at,
    )


def overrun_alert(
    pipeline: str,
    *,
    at: datetime,
    site: Site,
    tick: str,
    span: str,
    running: Run,
    killed_for: str = "",
    lost: str = "",
) -> Alert:
    """A run was going on; it was killed, for a tick or for what a person wanted, or the tick was skipped.

    `span` is the tick's, `lost` the span that is not trained for now, of the killed run or of the tick.
    """
    went = format_duration(elapsed_s(running, at))
    subject = (
        f"{pipeline} overran: {running.name} was killed after {went} for {killed_for}"
        if killed_for
        else f"{pipeline} overran: {running.name} goes on after {went}, so the tick {tick} was skipped"
    )
    return Alert(
        kind="overrun",
        pipeline=pipeline,
        cause=f"overrun {pipeline}",
        subject=subject,
        facts=_facts(
            tick=tick,
            **{"span of the tick": span, "span not trained": lost},
            run=running.name,
            started=format_time(running.started, at.tzinfo),
            host=_host(running, site),
        ),
        commands=_facts(
            **_folder(site),
            **{"What needs backfilling": site.command("schedule", "missed", pipeline)},
            **{"See how long runs take": site.command("schedule", "status", pipeline)},
        ),
        at=at,
    )


def missed_alert(
    pipeline: str, *, at: datetime, site: Site, ticks: Sequence[str], why: str, more: int = 0, overdue: bool = False
) -> Alert:
    """Ticks passed and nothing ran; `more` are those beyond the named ones.

    With `overdue` no scheduler has recorded them, so the scheduler itself may be dead.
    """
    count = len(ticks) + more
    named = ", ".join(ticks[:_MANY]) + (f" and {count - _MANY} more" if count > _MANY else "")
    described = f"the tick {ticks[0]}" if count == 1 else f"{count} ticks"
    return Alert(
        kind="missed",
        pipeline=pipeline,
        cause=f"{'overdue' if overdue else 'missed'} {pipeline}",
        subject=f"{pipeline}: {described} {'overdue' if overdue else 'missed'}",
        text=_first_lines(why),
        facts=_facts(**{"tick" if count == 1 else "ticks": named}, host=site.host),
        commands=_facts(
            **_folder(site),
            **{"See which schedulers run": site.command("schedule", "status", pipeline) if overdue else ""},
            **{"What needs backfilling": site.command("schedule", "missed", pipeline)},
        ),
        at=at,
    )


def stall_alert(
    run: Run, *, at: datetime, site: Site, quiet: timedelta, tick: str = "", log: Path | None = None
) -> Alert:
    """A run goes on, but for `quiet` no node began or ended and nothing was printed."""
    span = format_run_span(run, "")
    return Alert(
        kind="stall",
        pipeline=run.pipeline,
        cause=f"stall {run.pipeline}",
        subject=f"{run.pipeline} stalled: {run.name} has made no progress for {format_duration(quiet.total_seconds())}",
        facts=_facts(
            tick=tick,
            span=span,
            run=run.name,
            started=format_time(run.started, at.tzinfo),
            log=str(log or ""),
            host=_host(run, site),
        ),
        commands={
            **_folder(site),
            "See what it does": site.command("logs", run.name),
            "Stop it": site.command("stop", run.name),
        },
        at=at,
    )


def freshness_alert(pipeline: str, *, at: datetime, site: Site, pushed: datetime | None, allowed: timedelta) -> Alert:
    """No model was pushed for longer than `allowed`; `pushed` is when the newest was, None: there never was one."""
    age = (
        "no model was ever pushed"
        if pushed is None
        else f"the model in service is {format_duration(_s(at - pushed))} old"
    )
    return Alert(
        kind="freshness",
        pipeline=pipeline,
        cause=f"freshness {pipeline}",
        subject=f"{pipeline} is stale: {age}",
        facts=_facts(
            **{"last push": format_time(pushed, at.tzinfo) if pushed else "none"},
            allowed=format_duration(_s(allowed)),
            host=site.host,
        ),
        commands={
            **_folder(site),
            "See the newest run": site.command("show", pipeline_of(pipeline)),
            "What needs backfilling": site.command("schedule", "missed", pipeline),
        },
        at=at,
    )


def forecast_alert(pipeline: str, *, at: datetime, site: Site, forecast: str, facts: Facts) -> Alert:
    """Runs take longer and longer and will overrun the next tick; `forecast` says when."""
    return Alert(
        kind="forecast",
        pipeline=pipeline,
        cause=f"forecast {pipeline}",
        subject=f"{pipeline} will overrun: {forecast}",
        facts={**facts, "host": site.host},
        commands={**_folder(site), "See how long runs and nodes take": site.command("schedule", "status", pipeline)},
        at=at,
    )


def trouble_alert(
    what: str, *, at: datetime, site: Site, error: str, pipeline: str = "", fixes: Facts | None = None
) -> Alert:
    """The scheduler has a problem, with one pipeline or with all; other pipelines go on.

    `what` is one line without varying parts, because repeats are grouped by it.
    """
    return Alert(
        kind="scheduler",
        pipeline=pipeline,
        cause=trouble_cause(what, site, pipeline),
        subject=f"scheduler: {what}{f' ({pipeline})' if pipeline else ''}",
        text=_first_lines(error),
        facts={"host": site.host},
        commands={**_folder(site), **(fixes or {}), "See all schedules": site.command("schedule", "status")},
        at=at,
    )


def freshness_recovery(pipeline: str, *, at: datetime, site: Site) -> Alert:
    """The end of a freshness alert: a model was pushed, or the limit was raised."""
    cause, summary = f"freshness {pipeline}", "the model that serves is no longer too old"
    return recovery_alert(pipeline, at=at, site=site, cause=cause, summary=summary)


CLOCK_SET_BACK = "the clock was set back"


def clock_alert(pipeline: str, *, at: datetime, site: Site, set_back: timedelta) -> Alert:
    """The clock stands before the last tick that was taken, so nothing is due."""
    error = f"The clock is {set_back} behind the last tick that was taken; nothing is due until then."
    return trouble_alert(CLOCK_SET_BACK, at=at, site=site, error=error, pipeline=pipeline)


def clock_recovery(pipeline: str, *, at: datetime, site: Site) -> Alert:
    """The end of that."""
    summary = "the clock has caught up with the last tick that was taken"
    cause = trouble_cause(CLOCK_SET_BACK, site, pipeline)
    return recovery_alert(pipeline, at=at, site=site, cause=cause, summary=summary)


def trouble_cause(what: str, site: Site, pipeline: str = "") -> str:
    """The cause of an alert about a scheduler: that of another host may be well, and does not end it."""
    return f"scheduler {pipeline} {what} on {site.host}"


def recovery_alert(
    pipeline: str, *, at: datetime, site: Site, cause: str, summary: str, facts: Facts | None = None
) -> Alert:
    """The cause of an earlier alert has recovered; `summary` says how."""
    return Alert(
        kind="recovery",
        pipeline=pipeline,
        cause=cause,
        subject=f"{pipeline or 'scheduler'} recovered: {summary}",
        facts={**(facts or {}), "host": site.host},
        at=at,
    )


def trial_alert(*, at: datetime, site: Site) -> Alert:
    """A message that shows that a channel works."""
    return Alert(
        kind="test",
        pipeline="",
        cause="test",
        subject=f"test: alerts from spanwise on {site.host} reach you",
        text="Nothing is wrong. This message was sent on request.",
        facts={"sent": format_time(at, at.tzinfo), "host": site.host, "folder": str(site.folder)},
        at=at,
    )


# Text


def format_title(alert: Alert, count: int = 1) -> str:
    """The first line: what happened, to which pipeline, and how often."""
    return alert.subject if count == 1 or alert.kind == "recovery" else f"{alert.subject} ({count} times)"


def format_body(alert: Alert, *, count: int = 1, since: datetime | None = None, complaint: str = "") -> str:
    """The text below the title: what went wrong, the facts, and the commands.

    `since` is when the first of `count` alerts was raised; `complaint` is the alert that a recovery ends.
    """
    times = f"{count} since {format_time(since, alert.at.tzinfo)}" if since and count > 1 else ""
    facts = _facts(
        **{"what was wrong": complaint},
        **alert.facts,
        **{"alerts" if alert.kind == "recovery" else "times, this is the latest": times},
        at=format_time(alert.at, alert.at.tzinfo),
    )
    parts = [
        alert.text,
        "\n".join(f"{name}: {value}" for name, value in facts.items()),
        "\n".join(f"{what}:\n  {command}" for what, command in alert.commands.items()),
    ]
    return "\n\n".join(part for part in parts if part)


def _facts(**facts: str) -> Facts:
    """Facts without the empty ones."""
    return {name: value for name, value in facts.items() if value}


def _host(run: Run | None, site: Site) -> str:
    return f"{run.host}, pid {run.pid}" if run and run.host else site.host


def _folder(site: Site) -> Facts:
    return {f"On {site.host}": f"cd {shlex.quote(str(site.folder))}"}


def _first_lines(text: str) -> str:
    lines = [line.rstrip() for line in strip_control(text).splitlines() if line.strip()]
    first = "\n".join([*lines[:_MOST_LINES], *(["…"] if len(lines) > _MOST_LINES else [])])
    return first if len(first) <= _MOST_LETTERS else f"{first[: _MOST_LETTERS - 1]}…"


def _s(length: timedelta) -> float:
    return length.total_seconds()
