"""Runs of a client: their nodes, logs and artifacts, why a node was executed, what differs from another run."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.placement import find_placements
from spanwise.orchestrator.run import Execution, Run, State, Trigger
from spanwise.scheduler.client.artifacts import ArtifactRecord, records_of
from spanwise.scheduler.client.session import Session
from spanwise.scheduler.formatting import (
    Document,
    elapsed_s,
    format_duration,
    format_run_span,
    format_time,
    run_calendar,
    single_line,
)
from spanwise.scheduler.inspect import artifact_summary, find, records, verdicts
from spanwise.scheduler.inspect.artifact_pages import PageFinder
from spanwise.scheduler.ledger.holder import note_left_open

if TYPE_CHECKING:
    from spanwise.scheduler.inspect.diff import Difference
    from spanwise.scheduler.inspect.why import Explanation
    from spanwise.scheduler.run.logs import NodeLog


@dataclass(frozen=True, repr=False)
class ExecutionRecord:
    """One attempt at one node in one run."""

    session: Session = field(compare=False)
    execution: Execution

    def __repr__(self) -> str:
        return f"ExecutionRecord({self.execution.name!r}, {self.state})"

    @property
    def node(self) -> str:
        """The node."""
        return self.execution.node

    @property
    def component(self) -> str:
        """The class of the node."""
        return self.execution.component

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self.execution.attempt

    @property
    def state(self) -> str:
        """running, complete, cached, failed or canceled."""
        return self.execution.state.value

    @property
    def reason(self) -> str | None:
        """Why it was reused, or executed."""
        return self.execution.reason

    @property
    def error(self) -> str | None:
        """Why it failed."""
        return self.execution.error

    @property
    def started(self) -> datetime | None:
        """When it began, UTC."""
        return self.execution.started

    @property
    def ended(self) -> datetime | None:
        """When it ended, UTC; None while it runs."""
        return self.execution.ended

    @property
    def took_s(self) -> float | None:
        """How long it took, or has taken so far."""
        return elapsed_s(self.execution, datetime.now(UTC))

    @property
    def inputs(self) -> Mapping[str, tuple[ArtifactRecord, ...]]:
        """What it read, by input."""
        return self._sides(self.execution.inputs)

    @property
    def outputs(self) -> Mapping[str, tuple[ArtifactRecord, ...]]:
        """What it published, reused or chose, by output."""
        return self._sides(self.execution.outputs)

    def _sides(self, sides: Mapping[str, Sequence[Artifact]]) -> Mapping[str, tuple[ArtifactRecord, ...]]:
        return {key: tuple(ArtifactRecord(self.session, a) for a in row) for key, row in sides.items()}


@dataclass(frozen=True, repr=False)
class RunRecord:
    """One run, as it was recorded when it was asked for; `refresh` asks again."""

    session: Session = field(compare=False)
    run: Run

    def __repr__(self) -> str:
        return f"RunRecord({self.name!r}, {self.state})"

    @property
    def name(self) -> str:
        """`pipeline/number`, unique."""
        return self.run.name

    @property
    def pipeline(self) -> str:
        """The pipeline."""
        return self.run.pipeline

    @property
    def number(self) -> int:
        """Counts from 1 within the pipeline."""
        return self.run.number

    @property
    def state(self) -> str:
        """running, complete, failed or canceled."""
        return self.run.state.value

    @property
    def succeeded(self) -> bool:
        """Whether it is complete."""
        return self.run.state.succeeded

    @property
    def trigger(self) -> str:
        """Why it was started: manual, schedule, backfill, resume or push."""
        return self.run.trigger.value

    @property
    def span(self) -> int | None:
        """The span that was requested."""
        return self.run.span

    @property
    def span_label(self) -> str | None:
        """The span as people write it, or that of each node that ingests."""
        return format_run_span(self.run, "") or None

    @property
    def started(self) -> datetime | None:
        """When it began, UTC."""
        return self.run.started

    @property
    def ended(self) -> datetime | None:
        """When it ended, UTC; None while it runs."""
        return self.run.ended

    @property
    def took_s(self) -> float | None:
        """How long it took, or has taken so far."""
        return elapsed_s(self.run, datetime.now(UTC))

    @property
    def error(self) -> str | None:
        """Why it did not complete, or, while it is recorded as running, that its controller is gone."""
        return self.run.error

    @property
    def verdict(self) -> str:
        """Whether its outputs were blessed and pushed, and why not; empty when no output says."""
        return artifact_summary.describe_verdict(self.run, self.session.store.executions(self.run))

    def refresh(self) -> RunRecord:
        """The run as it is recorded now."""
        return record_of(self.session, self.session.store.run(self.pipeline, self.number))

    def executions(self) -> list[ExecutionRecord]:
        """Its nodes, every attempt, in the order in which they began."""
        return [ExecutionRecord(self.session, e) for e in self.session.store.executions(self.run)]

    def execution(self, node: str) -> ExecutionRecord:
        """The last attempt at a node.

        Raises:
            NotRecorded: the run has no such node, or has not reached it.
        """
        return ExecutionRecord(self.session, find.execution(self.session.store, self.run, node))

    def artifacts(self, kind: str | None = None) -> list[ArtifactRecord]:
        """What its nodes published, reused or chose, each once; all, or of one type."""
        made = (row for e in self.session.store.executions(self.run) for row in e.outputs.values())
        return [a for a in records_of(self.session, made) if kind is None or a.artifact.has_kind(kind)]

    def logs(self, node: str | None = None) -> list[NodeLog]:
        """What its nodes printed, or one of them.

        Raises:
            NotRecorded: it has no such node, or the node has no log.
        """
        from spanwise.scheduler.run.logs import read_logs

        return read_logs(self.session.store, self.run, node)

    def why(self, node: str) -> Explanation:
        """Why a node was executed or reused, and what had changed since."""
        from spanwise.scheduler.inspect.why import explain

        return explain(self.session.store, self.run, node)

    def diff(self, other: RunRecord | None = None) -> list[Difference]:
        """What differs from another run, by default the one before it; empty when there is none."""
        from spanwise.scheduler.inspect.diff import compare_runs

        store = self.session.store
        before = other.run if other is not None else next(iter(store.runs(self.pipeline, before=self.number)), None)
        return [] if before is None else compare_runs(store, before, self.run)

    def document(self) -> Document:
        """As `spanwise show --json` prints it."""
        executions = self.session.store.executions(self.run)
        placements = find_placements(self.session.store, executions)
        calendar, pages = run_calendar(self.run), PageFinder()
        return {
            **records.run_document(self.run),
            "executions": [
                records.execution_document(e, calendar, placements.get(e.name), pages=pages) for e in executions
            ],
            "verdicts": verdicts.list_verdicts(self.session.store, verdicts.published(executions)),
        }

    def _repr_html_(self) -> str:
        from spanwise.scheduler.client import html

        span = f" of {self.span_label}" if self.span_label else ""
        rows = [
            (
                e.node,
                "reused" if e.execution.reused is not None else "chosen" if e.execution.chosen else e.state,
                format_duration(e.took_s),
                single_line(e.error or e.reason or ""),
            )
            for e in self.executions()
        ]
        facts = f"<p>{self.trigger}, started {format_time(self.started)}, took {format_duration(self.took_s)}</p>"
        return (
            html.heading(f"{self.name}{span}", self.state) + facts + html.table(("NODE", "STATE", "TOOK", "WHY"), rows)
        )


def record_of(session: Session, run: Run) -> RunRecord:
    """The record of a run, with what is known where it is recorded as running."""
    return RunRecord(session, note_left_open(session.store, run))


def select_runs(
    session: Session,
    pipeline: str,
    *,
    state: str | None = None,
    trigger: str | None = None,
    span: str | None = None,
    before: int | None = None,
    limit: int = 20,
) -> list[RunRecord]:
    """The newest runs of a pipeline that fit, newest first."""
    wanted = (
        run
        for run in session.store.runs(find.pipeline(session.store, pipeline), before=before)
        if state in (None, run.state.value)
        and trigger in (None, run.trigger.value)
        and (span is None or span in (format_run_span(run), str(run.span), *run.spans.values()))
    )
    return [record_of(session, run) for run in itertools.islice(wanted, limit)]


STATES = tuple(state.value for state in State if state is not State.CACHED)
"""The states of runs."""

TRIGGERS = tuple(trigger.value for trigger in Trigger)
"""Why runs are started."""
