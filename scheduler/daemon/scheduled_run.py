"""A scheduled run: one attempt at one tick, in a process of its own that outlives the scheduler which started it.

`python -m` of this module reads its job on stdin, waits for its input or ends the run before it where the job
says so, and runs the pipeline. The attempt is claimed in the transaction that begins the run, so however many processes
have the same job, one of them runs. What it says goes to its log; its exit code says how it ended.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, cast

from spanwise.orchestrator import lease, process
from spanwise.orchestrator.base_run import usable_executions
from spanwise.orchestrator.errors import Held, SpanNotFound, SpanwiseError, UsageError
from spanwise.orchestrator.lease import Holder
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run import Run, Trigger, format_source
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.store import AlreadyClaimed, Store
from spanwise.scheduler.formatting import format_time
from spanwise.scheduler.ledger.ticks import attempt_claim, mark_overrun, read_tick
from spanwise.scheduler.project import child_process, load, root, settings
from spanwise.scheduler.project.load import Loaded
from spanwise.scheduler.project.settings import Settings
from spanwise.scheduler.run import launch, resume, stop
from spanwise.scheduler.schedule.part import select_part
from spanwise.scheduler.schedule.schedule_key import DATA, WHOLE, format_cause, parse_cause, part_of, pipeline_of

HELD = Held.exit_code
TAKEN = 4
"""Exit code: another process has made this attempt, or the tick has ended."""

INGESTED = 5
"""Exit code: the data that the run was for was ingested by another meanwhile."""

BETWEEN_S = 60.0
"""How long a controller may hold a lease without a run, between two or before its first, when it is to make way."""

_POLL_S = 0.2
_SAID = "spanwise: "
_LONGEST_SAYING = 4000


@dataclass(frozen=True, kw_only=True)
class ScheduledJob:
    """What a child is to do. Moments are ISO 8601."""

    source: str  #: `/path/file.py:name`
    pipeline: str  #: or a part of it: `flights:ingest`
    tick: str
    span: int | None
    attempt: int
    root: str
    part: str = WHOLE  #: which nodes run
    from_scratch: bool = False
    config: str | None = None
    base: int | None = None  #: the run to take up where it stopped
    end_others: bool = False  #: whatever run holds the pipeline is ended first
    wait_until: str | None = None  #: the input is waited for until then
    poll_s: float = 60.0
    close: int | None = None  #: do nothing but put the records of this run right, whose controller is dead


def log_of(home: Path, pipeline: str, tick: str, attempt: int) -> Path:
    """The file with everything that an attempt prints."""
    name = ".".join(filter(None, [part_of(pipeline), tick, str(attempt)]))
    return home / pipeline_of(pipeline) / ".schedule" / f"{name}.log"


def start(job: ScheduledJob) -> subprocess.Popen[bytes]:
    """Starts a child for the job, in a session of its own.

    Raises:
        OSError: its log cannot be written, or the system starts no more processes.
    """
    log = log_of(Path(job.root), job.pipeline, job.tick, job.attempt)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return child_process.start("spanwise.scheduler.daemon.scheduled_run", asdict(job), stdout=file, stderr=file)


def last_error(log: Path) -> str:
    """The last error in a log, in our words; empty where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LONGEST_SAYING))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    _, found, words = text.rpartition(f"\n{_SAID}")
    return words.strip() if found else text.strip()[-_LONGEST_SAYING:]


# --- in the child


def main() -> int:
    """Does the job on stdin."""
    job = ScheduledJob(**child_process.read_document())  # type: ignore[arg-type]  # as `start` has written it
    known = settings.read(config=None if job.config is None else Path(job.config), root=Path(job.root))
    try:
        return _close_run(job, known) if job.close is not None else _run(job, known)
    except AlreadyClaimed:
        sys.stdout.write("Another process has made this attempt, or the tick has ended; nothing was done.\n")
        return TAKEN
    except AlreadyIngested:
        sys.stdout.write("Another run has ingested this meanwhile; nothing was done.\n")
        return INGESTED
    except SpanwiseError as error:
        sys.stderr.write(f"\n{_SAID}{error}\n")
        return error.exit_code
    except Exception as error:  # noqa: BLE001  here is where every error of the child ends
        traceback.print_exc()
        sys.stderr.write(f"\n{_SAID}{type(error).__name__}: {error}\n")
        return 1


def _run(job: ScheduledJob, known: Settings) -> int:
    loaded = load.load(job.source, settings=known.params)
    if job.end_others:
        with root.open_for_writing(known) as store:
            make_way(store, job, known)
    if job.wait_until is not None and job.span is not None:
        wait_for(loaded, job.span, job, known)

    def request(store: Store) -> RunRequest:
        if part_of(job.pipeline) == DATA and job.span is not None:
            _refuse_ingested(store, loaded.pipeline, job.span)
        return replace(
            _create_request(store, job, loaded.pipeline),
            trigger=Trigger.SCHEDULE,
            cause=format_cause(job.pipeline, job.tick),
            claims=(attempt_claim(job.pipeline, job.tick, job.attempt),),
        )

    outcome = launch.run_loaded(loaded, request, known, launch.ExecutionOptions(), json=False)
    sys.stdout.write(launch.format_run_outcome(outcome) + "\n")
    return launch.exit_code(outcome)


class AlreadyIngested(Exception):
    """What a run was to be for is no longer new."""


def _refuse_ingested(store: Store, pipeline: Pipeline, span: int) -> None:
    from spanwise.scheduler.backfill.inventory import arrived_versions, take_inventory

    sources = take_inventory(pipeline, store, [span])
    if all(span in source.ready for source in sources) and not arrived_versions(sources):
        raise AlreadyIngested


def _create_request(store: Store, job: ScheduledJob, pipeline: Pipeline) -> RunRequest:
    if job.base is not None:
        before = store.run(pipeline.name, job.base)
        with contextlib.suppress(UsageError):  # the pipeline has lost nodes of that run: all of it is run again
            return resume.resume_request(before, usable_executions(store, store.executions(before)), pipeline)
    return RunRequest(selection=select_part(pipeline, job.part), span=job.span, from_scratch=job.from_scratch)


def make_way(store: Store, job: ScheduledJob, known: Settings) -> None:
    """Ends whatever run holds the pipeline, and returns once none of its processes is left; of another part, waits.

    Raises:
        RunError: a run would not die.
        Held: something else than a run holds the pipeline for long.
    """
    deadline = time.monotonic() + BETWEEN_S
    while (holder := going(store, pipeline_of(job.pipeline))) is not None:
        run = run_of(store, holder)
        if run is not None and of_another_line(run, job.pipeline):
            time.sleep(_POLL_S)
            deadline = time.monotonic() + BETWEEN_S
        elif run is not None:
            if run.trigger is Trigger.SCHEDULE and run.cause != format_cause(job.pipeline, job.tick):
                mark_overrun(store, *parse_cause(run.pipeline, run.cause), by=job.tick)
            sys.stdout.write(f"{stop.stop(store, run, known.root, grace_s=known.grace_s)}\n")
        elif time.monotonic() > deadline:
            raise Held(lease.held_message(holder))
        else:
            time.sleep(_POLL_S)


def going(store: Store, pipeline: str, now: datetime | None = None) -> Holder | None:
    """Who holds a pipeline and is not known to be dead.

    A holder elsewhere whose heartbeat is old does not count: who tries to take its lease watches it first. Nor does a
    garbage collection: who tries waits for that second.
    """
    holder = lease.current(store, pipeline)
    if holder is None or holder.released or holder.purpose == lease.COLLECTING:
        return None
    lives = process.is_alive(holder.who)
    if lives is None:
        lives = abs((now or datetime.now(UTC)) - holder.last_beat).total_seconds() < lease.TTL_S
    return holder if lives else None


def of_another_line(run: Run, line: str) -> bool:
    """Whether a run is one of another cadence of its pipeline, which never overruns this one."""
    return run.trigger is Trigger.SCHEDULE and parse_cause(run.pipeline, run.cause)[0] != line


def run_of(store: Store, holder: Holder) -> Run | None:
    """The run that a lease's holder is making; None before its first, or between two."""
    for run in store.runs(holder.pipeline):
        if run.token < holder.token:
            return None
        if run.token == holder.token and not run.state.ended:
            return run
    return None


def wait_for(loaded: Loaded, span: int, job: ScheduledJob, known: Settings) -> None:
    """Waits until every ingesting node has its span.

    Raises:
        SpanNotFound: it has not come in time.
        AlreadyClaimed: the tick has ended meanwhile.
    """
    assert job.wait_until is not None
    until = datetime.fromisoformat(job.wait_until)
    told = False
    while absent := [node.name for node in loaded.pipeline if not _has_arrived(node, span)]:
        label = loaded.calendar.label(span)
        if datetime.now(UTC) >= until:
            raise SpanNotFound(
                f"{', '.join(absent)} found no span {label} up to {format_time(until)}, the end of `wait_for_input`. "
                f"Once it is there:  spanwise backfill {format_source(job.source)} --span {label}"
            )
        if not told:
            sys.stdout.write(f"{', '.join(absent)}: waiting for span {label}, until {format_time(until)}.\n")
            sys.stdout.flush()
            told = True
        with root.open_for_reading(known) as store:
            entry = read_tick(store, job.pipeline, job.tick)
        if entry is not None and entry.end is not None:
            raise AlreadyClaimed(entry.name)
        time.sleep(max(0.0, min(job.poll_s, (until - datetime.now(UTC)).total_seconds())))


class SpanSource(Protocol):
    """A node that knows which spans lie ready."""

    def available(self, spans: Collection[int] | None = None) -> Mapping[int, int | None]: ...


def _has_arrived(node: object, span: int) -> bool:
    """Whether a node that ingests has this span; one that does not ingest waits for nothing."""
    return not hasattr(node, "available") or span in cast("SpanSource", node).available([span])


def _close_run(job: ScheduledJob, known: Settings) -> int:
    assert job.close is not None
    with root.open_for_writing(known) as store:
        ended = stop.stop(store, store.run(pipeline_of(job.pipeline), job.close), known.root, grace_s=known.grace_s)
    sys.stdout.write(f"{ended}\n")
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # whatever threads the pipeline file has started
