"""Plans, progress and results of backfills as text and as documents."""

from __future__ import annotations

import contextlib
import itertools
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from spanwise.orchestrator.calendar import Calendar, Version, format_versions
from spanwise.orchestrator.run import State, format_source
from spanwise.orchestrator.run_request import Event, RunOutcome
from spanwise.scheduler.backfill.execution import BackfillEvent, BackfillResult
from spanwise.scheduler.backfill.plan import LOWERED_FIX, BackfillPlan
from spanwise.scheduler.backfill.record import TRAIN, Backfill
from spanwise.scheduler.formatting import (
    FIX,
    Document,
    format_count,
    format_duration,
    format_few,
    format_spans,
    format_table,
    run_calendar,
    span_document,
    strip_control,
)
from spanwise.scheduler.inspect import artifact_summary, records
from spanwise.scheduler.inspect.window_forecast import ExpectedWindow
from spanwise.scheduler.schedule.outcome import TickOutcome

ABNORMAL = {outcome.value for outcome in TickOutcome if outcome.abnormal}


def format_plan(plan: BackfillPlan) -> str:
    """A plan as text."""
    calendar, asked = plan.calendar, plan.asked or plan.calendar
    lines = [_headline(plan)]
    if plan.targets:
        joined = any(t.joined for t in plan.targets)
        rows = [
            (
                f"{plan.source}={calendar.label(t.span)}" if joined else calendar.label(t.span),
                *([", ".join(f"{node}={label}" for node, label in t.joined.items())] if joined else []),
                _versions(t.versions.values()),
                _versions(t.replaces.values()) if t.replaces else "new",
                "; ".join(_window(w, calendar) for w in t.windows) or ("its own span" if not plan.train else ""),
            )
            for t in plan.targets
        ]
        headers = (
            "SPAN",
            *(["JOINED WITH"] if joined else []),
            "VERSION",
            "REPLACES",
            "" if plan.train else "LEARNS FROM",
        )
        lines += [f"  {line}" for line in format_table(headers, rows).splitlines()]
    if plan.train and plan.targets:
        lines.append(f"For each span: {', '.join(plan.ingest)}" + _format_parallel(plan))
        lines.append(f"Once at the end: {', '.join(plan.train)}")
        lines += [f"  {w.node}: {_window(w, calendar)}" for w in plan.windows if w.explained]
    if plan.targets:
        lines.append("Models are warm-started." if plan.warm_start else "Models train from scratch.")
    if plan.outside:
        lines.append(
            f"Skipped because no window reads them: {format_spans(plan.outside, calendar)}  (--force runs them)"
        )
    if plan.absent:
        lines.append(f"Skipped because they have no input: {format_spans(plan.absent, asked)}")
    if plan.alone:
        each = "".join(f"  --span {node}={calendar.label(span)}" for node, span in plan.alone)
        lines.append(f"Skipped because other nodes have no input of these spans. Backfill each by itself:{each}")
    if plan.lowered:
        lowered = format_spans(plan.lowered, asked)
        lines.append(f"Skipped because a higher version was ingested before: {lowered}. {LOWERED_FIX}")
    lines += _others(plan)
    if plan.estimate_s is not None and plan.targets:
        lines.append(f"Estimated duration: {format_duration(plan.estimate_s)}, based on recent runs.")
    return "\n".join(lines)


def _others(plan: BackfillPlan) -> Iterator[str]:
    """The missed ticks that no backfill of a span recovers, with the commands that do."""
    if plan.runs:
        several = plan.spanless > 1
        yield (
            f"{format_count(plan.spanless, 'missed tick')} {'have' if several else 'has'} no span. "
            f"A run on the newest data recovers {'them' if several else 'it'}:"
        )
        yield from (f"  {command}" for command in plan.runs)
    if plan.lost:
        yield from (*plan.lost, f"List them: spanwise schedule missed {plan.pipeline}")
    if plan.own:
        give = "give" if len(plan.own) > 1 else "gives"
        several = sum(map(len, plan.own)) > 1
        yield (
            f"{format_count(len(plan.own), 'missed tick')} {give} each node a span of its own. "
            f"{'Run these' if several else 'Run it'}:"
        )
        yield from (f"  {line}" for commands in plan.own for line in format_few(commands))


def _headline(plan: BackfillPlan) -> str:
    count = len(plan.targets)
    if not count:
        left = plan.runs or plan.own or plan.lost or plan.alone
        return f"{plan.pipeline} {'has no span to backfill' if left else 'needs no backfill'}."
    spans = f"{count} {'span' if count == 1 else 'spans'}"
    how = "then one model" if plan.train else "a full run" if count == 1 else "a full run each"
    return f"Backfill of {plan.pipeline}: {spans}, {how}."


def _format_parallel(plan: BackfillPlan) -> str:
    return f"  ({plan.parallel} spans in parallel)" if plan.parallel > 1 else ""


def _versions(versions: Iterable[Version]) -> str:
    return ", ".join(dict.fromkeys("-" if v is None else f"v{v}" for v in versions))


def _window(window: ExpectedWindow, calendar: Calendar) -> str:
    if not window.explained:
        return f"what {window.node} chooses"
    text = format_versions(window.spans, calendar) or "nothing"
    if window.absent:
        text += f"; missing {format_spans(window.absent, calendar)}"
    return f"{text}; a run would fail there" if window.refusal else text


def plan_document(plan: BackfillPlan) -> Document:
    """A plan for programs."""
    calendar, asked = plan.calendar, plan.asked or plan.calendar
    return {
        "pipeline": plan.pipeline,
        "targets": [
            {
                **span_document(t.span, calendar),
                "versions": dict(t.versions),
                "replaces": dict(t.replaces),
                "joined": dict(t.joined),
                "windows": [_window_document(w, calendar) for w in t.windows],
            }
            for t in plan.targets
        ],
        "outside": [span_document(s, calendar) for s in plan.outside],
        "absent": [span_document(s, asked) for s in plan.absent],
        "lowered": [span_document(s, asked) for s in plan.lowered],
        "alone": [{"node": node, **span_document(span, calendar)} for node, span in plan.alone],
        "runs": [*plan.runs, *itertools.chain(*plan.own)],
        "ingest": list(plan.ingest),
        "train": list(plan.train),
        "windows": [_window_document(w, calendar) for w in plan.windows],
        "parallel": plan.parallel,
        "warm_start": plan.warm_start,
        "estimate_s": plan.estimate_s,
    }


def _window_document(window: ExpectedWindow, calendar: Calendar) -> Document:
    return {
        "node": window.node,
        "spans": [{**span_document(s, calendar), "version": v} for s, v in window.spans],
        "absent": [span_document(s, calendar) for s in window.absent],
        "refusal": window.refusal or None,
        "explained": window.explained,
    }


# --- the progress


def format_event(event: BackfillEvent, backfill: Backfill) -> str:
    """An event as a line; a run as several, with what became of its model and why it failed."""
    if event.outcome is not None:
        return _format_run(event.outcome)
    return {
        "paused": f"The schedule of {backfill.pipeline} is paused.",
        "resumed": f"The schedule of {backfill.pipeline} is resumed.",
        "waiting": f"Waiting: {event.message}.",
        "stopped": event.message,
        "began": f"Backfill {backfill.name} started.",
        "train-held-back": "No model was trained because a span that it needs has failed.",
        "still-paused": f"The schedule of {backfill.pipeline} is still paused: {event.message}.",
    }[event.what]


def _format_run(outcome: RunOutcome) -> str:
    lines = artifact_summary.format_verdict(outcome.run, outcome.executions.values())
    lines.append(records.summarize_run(outcome.run, outcome.executions, outcome.skipped))
    for node in outcome.failed:
        first, *rest = strip_control(outcome.executions[node].error or "").strip().splitlines() or [""]
        lines.append(f"  {node} failed: {first}")
        lines += [f"    {line.strip()}" for line in rest if FIX in line]
    return "\n".join(lines)


@contextlib.contextmanager
def show_progress(
    backfill: Backfill, done: int, out: TextIO, *, live: bool
) -> Iterator[tuple[Callable[[Event], None], Callable[[BackfillEvent], None]]]:
    """Yields an observer of the runs and one of the backfill. They draw a progress bar with `live`, else lines."""
    if not live:

        def notify(event: BackfillEvent) -> None:
            if text := format_event(event, backfill):
                with contextlib.suppress(OSError):  # the reader is gone; the records are complete
                    out.write(text + "\n")
                    out.flush()

        yield (lambda _event: None), notify
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[failed]}"))
    with Progress(*columns, TimeRemainingColumn()) as progress:
        total = len(backfill.spans) + bool(backfill.train)
        task = progress.add_task(backfill.name, total=total, completed=done, failed="")
        failed = 0

        def observe(event: Event) -> None:
            if event.what == "node-started":
                calendar = run_calendar(event.run)
                span = "training" if event.run.span is None else calendar.label(event.run.span)
                progress.update(task, description=f"{span}: {event.node}")

        def notify_live(event: BackfillEvent) -> None:
            nonlocal failed
            if text := format_event(event, backfill):
                with contextlib.suppress(OSError):
                    progress.console.print(text, markup=False, highlight=False)
            if event.outcome is not None:
                failed += not event.outcome.succeeded
                progress.update(task, advance=1, failed=f"{failed} failed" if failed else "")

        yield observe, notify_live


# --- the result


@dataclass(frozen=True, kw_only=True)
class PassedTick:
    """A tick that was due while a backfill ran."""

    tick: str  #: its name
    outcome: str


def format_result(result: BackfillResult, passed: Sequence[PassedTick], elsewhere: Sequence[str] = ()) -> str:
    """The result of a backfill, and the command that continues it."""
    backfill = result.backfill
    calendar = Calendar.from_name(backfill.calendar)
    lines = [_summarize(result)]
    for span in result.failed:
        run = result.runs[span]
        lines.append(f"  {calendar.label(span)}: {run.error or 'failed'}  (spanwise show {run.name})")
    trained = result.runs.get(TRAIN)
    if trained is not None and trained.state is not State.COMPLETE:
        lines.append(f"  the model: {trained.error or trained.state.value}  (spanwise show {trained.name})")
    if passed:
        lines.append(f"Ticks that were due in the meantime: {', '.join(f'{p.tick} ({p.outcome})' for p in passed)}")
        if any(p.outcome in ABNORMAL for p in passed):
            lines.append(f"Backfill them:  {_command('backfill', backfill.source, '--missed', elsewhere=elsewhere)}")
    if result.paused:
        resume = _command("schedule", "resume", backfill.pipeline, elsewhere=elsewhere)
        lines.append(f"The schedule of {backfill.pipeline} is still paused: {result.paused}. Resume it:  {resume}")
    if not result.complete:
        command = resume_command(backfill, elsewhere)
        again = "Resume it" if result.interrupted else "Once the causes are fixed, retry it"
        lines.append(f"{again}:  {command}")
    return "\n".join(lines)


def resume_command(backfill: Backfill, elsewhere: Sequence[str] = ()) -> str:
    """The command that continues a backfill."""
    return _command("backfill", "--resume", backfill.name, elsewhere=elsewhere)


def format_remaining(result: BackfillResult) -> str:
    """What resuming a backfill would do."""
    backfill = result.backfill
    calendar = Calendar.from_name(backfill.calendar)
    lines = [_summarize(result)]
    if todo := [s for s in backfill.spans if s not in result.done]:
        lines.append(f"To run{' before training' if backfill.train else ''}: {format_spans(todo, calendar)}")
    if backfill.train and not result.complete:
        lines.append(f"Once at the end: {', '.join(backfill.train)}")
    return "\n".join(lines)


def _summarize(result: BackfillResult) -> str:
    backfill = result.backfill
    parts = [f"{len(result.done)} of {len(backfill.spans)} spans done"]
    if result.failed:
        parts.append(f"{len(result.failed)} failed")
    if result.left:
        parts.append(f"{len(result.left)} left")
    if backfill.train:
        trained = result.runs.get(TRAIN)
        parts.append("trained" if trained is not None and trained.state is State.COMPLETE else "not trained")
    verdict = f"interrupted by {result.interrupted}" if result.interrupted else backfill.stage.value
    return f"Backfill {backfill.name}: {verdict}; {', '.join(parts)}."


def _command(*arguments: str, elsewhere: Sequence[str]) -> str:
    return shlex.join(["spanwise", *(format_source(w) if w.startswith("/") else w for w in arguments), *elsewhere])


def result_document(result: BackfillResult, passed: Sequence[PassedTick] = ()) -> Document:
    """The result for programs."""
    backfill = result.backfill
    calendar = Calendar.from_name(backfill.calendar)
    return {
        "backfill": backfill.name,
        "pipeline": backfill.pipeline,
        "stage": backfill.stage.value,
        "done": [span_document(s, calendar) for s in result.done],
        "failed": [span_document(s, calendar) for s in result.failed],
        "left": [span_document(s, calendar) for s in result.left],
        "runs": [records.run_document(run) for run in sorted(result.runs.values(), key=lambda r: r.number)],
        "interrupted": result.interrupted or None,
        "paused": result.paused or None,
        "ticks": [{"tick": p.tick, "outcome": p.outcome} for p in passed],
    }
