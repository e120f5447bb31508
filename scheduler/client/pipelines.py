"""Pipelines of a client: their runs, window, models, spans and schedule, and the plans of backfills."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import UsageError
from spanwise.scheduler.client.artifacts import ArtifactRecord, find_artifacts
from spanwise.scheduler.client.runs import STATES, TRIGGERS, RunRecord, record_of, select_runs
from spanwise.scheduler.client.session import Session
from spanwise.scheduler.formatting import Document, format_duration, format_span, format_time
from spanwise.scheduler.inspect import find

if TYPE_CHECKING:
    from spanwise.orchestrator.run import Run
    from spanwise.orchestrator.store import Address
    from spanwise.scheduler.backfill.command import BackfillRequest
    from spanwise.scheduler.backfill.plan import BackfillPlan
    from spanwise.scheduler.client.models import ModelRecord
    from spanwise.scheduler.client.spans import SpanRecord
    from spanwise.scheduler.inspect.span_history import SpanHistory
    from spanwise.scheduler.inspect.taint import TaintReport
    from spanwise.scheduler.inspect.window import ResolverWindow
    from spanwise.scheduler.ledger.schedule_status import ScheduleStatus
    from spanwise.scheduler.ledger.ticks import TickRecord
    from spanwise.scheduler.project.load import Loaded


@dataclass(frozen=True)
class WindowRecord:
    """What one resolver of a pipeline would choose now."""

    resolver: ResolverWindow
    calendar: Calendar

    @property
    def node(self) -> str:
        """The resolver."""
        return self.resolver.node

    @property
    def refusal(self) -> str:
        """Why a run would fail there; empty when it would not."""
        return self.resolver.refusal

    @property
    def spans(self) -> list[int]:
        """The spans that it would choose, ascending."""
        return [wanted.span for wanted in self.resolver.spans if wanted.chosen is not None]

    @property
    def labels(self) -> list[str]:
        """Those spans as people write them."""
        return [wanted.label for wanted in self.resolver.spans if wanted.chosen is not None]

    def document(self) -> Document:
        """As `spanwise window --json` prints it."""
        from spanwise.scheduler.inspect.window import window_document

        return window_document(self.resolver, self.calendar)

    def _repr_html_(self) -> str:
        from spanwise.scheduler.client import html

        spans = self.document()["spans"]
        assert isinstance(spans, list)
        rows = [(s["span_label"], s["state"], s["why"]) for s in spans if isinstance(s, dict)]
        head = html.heading(f"{self.node} chooses from {self.resolver.source}", "failed" if self.refusal else "")
        return head + html.table(("SPAN", "STATE", "WHY"), [tuple(map(str, row)) for row in rows])


@dataclass(frozen=True)
class PlannedBackfill:
    """A backfill that was planned and not started: `client.backfill(plan)` starts it."""

    plan: BackfillPlan
    request: BackfillRequest = field(repr=False)

    @property
    def spans(self) -> list[str]:
        """What would be run again, in this order."""
        return [self.plan.calendar.label(target.span) for target in self.plan.targets]

    @property
    def estimate_s(self) -> float | None:
        """How long it would take, from recent runs; None when its nodes have not run yet."""
        return self.plan.estimate_s

    def __str__(self) -> str:
        from spanwise.scheduler.backfill.formatting import format_plan

        return format_plan(self.plan)

    def _repr_html_(self) -> str:
        from spanwise.scheduler.client import html

        calendar = self.plan.calendar
        rows = [
            (
                calendar.label(target.span),
                ", ".join(f"{node} v{version}" for node, version in target.versions.items()),
                "; ".join(", ".join(format_span(s, calendar) for s, _ in w.spans) for w in target.windows) or "-",
            )
            for target in self.plan.targets
        ]
        took = f"about {format_duration(self.estimate_s)}" if self.estimate_s is not None else "an unknown time"
        head = html.heading(f"Backfill of {self.plan.pipeline}: {len(rows)} spans, {took}")
        return head + html.table(("SPAN", "VERSIONS", "LEARNS FROM"), rows)


@dataclass(frozen=True)
class PipelineRecord:
    """One pipeline, by its name in the metadata."""

    session: Session = field(repr=False, compare=False)
    name: str
    histories: dict[Address, SpanHistory] = field(default_factory=dict, repr=False, compare=False)

    def runs(
        self,
        *,
        state: str | None = None,
        trigger: str | None = None,
        span: str | None = None,
        before: int | None = None,
        limit: int = 20,
    ) -> list[RunRecord]:
        """The newest runs that fit, newest first; `before` is a number.

        Raises:
            UsageError: there is no such state or trigger.
        """
        for what, given, known in (("state", state, STATES), ("trigger", trigger, TRIGGERS)):
            if given is not None and given not in known:
                raise UsageError(f"There is no {what} {given!r} of runs; the {what}s are: {', '.join(known)}.")
        return select_runs(self.session, self.name, state=state, trigger=trigger, span=span, before=before, limit=limit)

    def run(self, number: int) -> RunRecord:
        """One run.

        Raises:
            NotRecorded: there is no run of that number.
        """
        return record_of(self.session, self.session.store.run(self.name, number))

    @property
    def latest(self) -> RunRecord | None:
        """The newest run."""
        return next(iter(self.runs(limit=1)), None)

    @property
    def source(self) -> str:
        """The file of the newest run that was started from one, `/path/file.py:name`; empty when none was."""
        newest = self._newest_from_file()
        return "" if newest is None else newest.source

    @property
    def typed(self) -> tuple[str, ...]:
        """The arguments that were typed for that run, as `name=value`."""
        newest = self._newest_from_file()
        return () if newest is None else newest.typed

    def _newest_from_file(self) -> Run | None:
        recent = itertools.islice(self.session.store.runs(self.name), find.LOOK_BACK)
        return next((run for run in recent if run.source), None)

    def load(self, *, params: Sequence[str] = ()) -> Loaded:
        """Loads the pipeline from its file, with the arguments of its newest run; this imports the file.

        Raises:
            UsageError: no run was started from a file, or the file cannot be loaded.
        """
        from spanwise.scheduler.project.load import load_again

        if not self.source:
            raise UsageError(f"No recent run of {self.name!r} was started from a file, so it cannot be loaded.")
        settings = self.session.settings.params
        return load_again(self.source, who=f"pipeline {self.name!r}", typed=[*self.typed, *params], settings=settings)

    def window(self, at: str | None = None) -> list[WindowRecord]:
        """What each resolver by span would choose now, or with `at` as the last span; this imports the file.

        Raises:
            UsageError: the pipeline has no such resolver, or cannot be loaded.
        """
        from spanwise.scheduler.inspect.window import find_windows

        loaded = self.load()
        end = None if at is None else loaded.calendar.parse(at)
        found = find_windows(loaded, self.session.store, at=end, as_of=None)
        return [WindowRecord(window, loaded.calendar) for window in found]

    def taint(self, span: str, *, version: int | None = None, source: str = "") -> TaintReport:
        """The models and other artifacts that learned from a span, `SPAN` or `NODE=SPAN`, as `spanwise tainted` says.

        `source` is the file that the commands of the report name, by default that of the newest run.

        Raises:
            UsageError: that is no span.
            NotRecorded: nothing was published for it, or not that version.
        """
        from spanwise.scheduler.inspect import taint
        from spanwise.scheduler.run.span_options import parse_span

        store = self.session.store
        node, label, calendar = taint.split_span(store, self.name, span)
        wrong = parse_span(label, calendar)
        return taint.trace_taint(store, self.name, wrong, node=node, version=version, source=source, calendar=calendar)

    def serving(self) -> ModelRecord | None:
        """The model that serves, of several the one that was pushed last; None when none does."""
        from spanwise.scheduler.client.models import find_serving

        return find_serving(self.session, self.name)

    def models(self, limit: int = 20) -> list[ModelRecord]:
        """The newest models, newest first."""
        from spanwise.scheduler.client.models import list_models

        return list_models(self.session, self.name, limit)

    def artifacts(self, kind: str | None = None, *, span: str | None = None, limit: int = 20) -> list[ArtifactRecord]:
        """The newest artifacts, newest first; of one type, or of one span."""
        return find_artifacts(self.session, self.name, kind=kind, span=span, limit=limit)

    def spans(self, first: str | None = None, last: str | None = None, *, node: str | None = None) -> list[SpanRecord]:
        """The spans of a range, gaps included, ascending; without ends, all from the first to the last.

        `node` is the one that ingests, where several do.

        Raises:
            NotRecorded: no recent run has ingested any.
        """
        from spanwise.scheduler.client.spans import list_spans

        history, calendar = self.span_history(node)
        ends = [None if text is None else calendar.parse(text) for text in (first, last)]
        return list(list_spans(self.session, history, calendar, *ends))

    def span(self, label: str, *, node: str | None = None) -> SpanRecord:
        """One span.

        Raises:
            NotRecorded: no recent run has ingested any.
        """
        (found,) = self.spans(label, label, node=node) or self._no_span(label)
        return found

    def _no_span(self, label: str) -> list[SpanRecord]:
        from spanwise.orchestrator.errors import NotRecorded

        raise NotRecorded(f"{self.name!r} has published no span, so not {label}. See:  spanwise runs {self.name}")

    def span_history(self, node: str | None = None) -> tuple[SpanHistory, Calendar]:
        """The state of all spans, which this client keeps; and what they count."""
        from spanwise.scheduler.client.spans import select_channel
        from spanwise.scheduler.inspect.span_history import SpanHistory

        address, calendar = select_channel(self.session, self.name, node)
        return self.histories.setdefault(address, SpanHistory(address, calendar)), calendar

    def find_waiting(self) -> list[int]:
        """The spans that were ingested and whose input has a newer version now.

        A process of its own imports the pipeline's file and lists its input, as `spanwise backfill --stale --dry-run`.

        Raises:
            UsageError: no recent run was started from a file, or the file cannot be loaded.
        """
        from spanwise.scheduler.client.commands import run_command
        from spanwise.scheduler.client.folders import locate

        if not self.source:
            raise UsageError(f"No recent run of {self.name!r} was started from a file, so its input is not known.")
        newest = self.latest
        typed = [f"--param={each}" for each in (newest.run.typed if newest is not None else ())]
        arguments = ["--stale", "--dry-run", *typed, "--", self.source]
        folder, _ = locate(self.session.store, ["backfill", *arguments], self.session.settings.root)
        plan = run_command(self.session, "backfill", arguments, folder=folder)
        targets = [*plan["targets"], *plan["outside"], *plan["alone"]]
        return sorted({span if isinstance(span := t, int) else int(t["span"]) for t in targets})

    def schedules(self) -> list[ScheduleStatus]:
        """How its schedules stand: one, or one of each part; none when it was never scheduled."""
        from spanwise.scheduler.ledger.schedule_status import read_status
        from spanwise.scheduler.ledger.schedules import list_keys

        store, now = self.session.store, datetime.now(UTC)
        return [read_status(store, key, now) for key in list_keys(store, self.name)]

    def missed(self) -> list[TickRecord]:
        """The ticks that need backfilling, oldest first."""
        from spanwise.scheduler.ledger.missed import list_missed
        from spanwise.scheduler.ledger.schedule_status import expand_keys

        store = self.session.store
        return [tick for key in expand_keys(store, [self.name]) for tick in list_missed(store, key)]

    def _repr_html_(self) -> str:
        from spanwise.scheduler.client import html

        rows = [
            (
                run.name,
                run.span_label or "-",
                run.trigger,
                run.state,
                format_time(run.started),
                format_duration(run.took_s),
            )
            for run in self.runs(limit=10)
        ]
        return html.heading(self.name) + html.table(("RUN", "SPAN", "TRIGGER", "STATE", "STARTED", "TOOK"), rows)


def load_file(session: Session, file: str, params: Sequence[str]) -> Loaded:
    """Loads the pipeline of a file; this imports the file."""
    from spanwise.scheduler.project.load import load

    return load(file, typed=params, settings=session.settings.params)
