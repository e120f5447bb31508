"""A scheduled run: one attempt at one tick, in a process of its own that outlives the scheduler which started it.

`python -m` of this module reads its job on stdin, waits for its input or stops the run before it if the job says so,
and runs the pipeline. The attempt is claimed in the transaction that creates the run, so of several processes with the
same job one runs. Its output goes to its log; its exit code is its result.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, cast

from spanwise.orchestrator import lease
from spanwise.orchestrator.base_run import find_base_run
from spanwise.orchestrator.errors import Held, ScheduleError, SpanNotFound, SpanwiseError, StoreUnavailable, UsageError
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run import Trigger, format_source, go_to
from spanwise.orchestrator.run_dir import set_aside
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.store import AlreadyClaimed, Store
from spanwise.scheduler.formatting import format_time
from spanwise.scheduler.ledger.holder import find_living, find_run, is_of_another_key
from spanwise.scheduler.ledger.pauses import current_pause, format_pause
from spanwise.scheduler.ledger.schedules import ScheduleRecord, read_schedule
from spanwise.scheduler.ledger.ticks import OverrunCause, attempt_claim, mark_overrun, read_tick
from spanwise.scheduler.project import child_process, load, root, settings
from spanwise.scheduler.project.load import Loaded
from spanwise.scheduler.project.settings import Settings
from spanwise.scheduler.project.span_sources import list_span_sources
from spanwise.scheduler.run import launch, openlineage, resume, stop
from spanwise.scheduler.schedule.division import HALVES, PartStart
from spanwise.scheduler.schedule.overrun import describe_overrun
from spanwise.scheduler.schedule.part import nodes_behind, select_part
from spanwise.scheduler.schedule.schedule_key import DATA, WHOLE, format_cause, parse_cause, part_of, pipeline_of

HELD = Held.exit_code
TAKEN = 4
"""Exit code: another process has made this attempt, or the tick has ended."""

UNAVAILABLE = 6
"""Exit code: the metadata were away for longer than they are waited for."""

INGESTED = 5
"""Exit code: another run has ingested the data meanwhile."""

PAUSED = 7
"""Exit code: the schedule was paused before the run began."""

BETWEEN_S = 60.0
"""How long a controller may hold a lease without a run, between two or before its first, when it is to be stopped."""

_POLL_S = 0.2
_ERROR_PREFIX = "spanwise: "
_HEADER = "Tick taken at "  # the first line of a log, which tells histories apart
_LONGEST_ERROR = 4000


@dataclass(frozen=True, kw_only=True)
class ScheduledJob:
    """The job of a child. Moments are ISO 8601."""

    source: str  #: `/path/file.py:name`
    pipeline: str  #: or a part of it: `flights:ingest`
    tick: str
    span: int | None
    attempt: int
    root: str
    taken: str = ""  #: when the tick was taken
    by_node: Mapping[str, int] | None = field(default_factory=dict)  #: as `Tick.by_node`; None: not all are known
    part: str = WHOLE  #: which nodes run
    division: Sequence[tuple[str, Sequence[str]]] = ()  #: where the parts of its schedule begin, in order
    from_scratch: bool = False
    config: str | None = None
    base: int | None = None  #: the run to resume
    end_others: bool = False  #: stop the run that holds the pipeline first
    wait_until: str | None = None  #: wait for the input until then
    poll_s: float = 60.0
    close: int | None = None  #: only stop this run, or close its records where its controller is dead
    closed_by: str = "the scheduler"  #: who or what stops it
    spare_living: bool = False  #: only close the records of a dead one; it may have been out of reach for a while


def log_path(home: Path, pipeline: str, tick: str, attempt: int) -> Path:
    """The file with everything that an attempt prints."""
    name = ".".join(filter(None, [part_of(pipeline), tick, str(attempt)]))
    return home / pipeline_of(pipeline) / ".schedule" / f"{name}.log"


def start(job: ScheduledJob) -> subprocess.Popen[bytes]:
    """Starts a child for the job, in a session of its own.

    Raises:
        OSError: its log cannot be written, or the system starts no more processes.
    """
    log = log_path(settings.root_folder(job.root), job.pipeline, job.tick, job.attempt)
    log.parent.mkdir(parents=True, exist_ok=True)
    header = f"{_HEADER}{job.taken}\n".encode()
    if job.taken and _first_line(log) not in (b"", header):
        set_aside(log)  # of the same tick in a history before the metadata were restored
    with log.open("ab") as file:
        if job.taken and not file.tell():
            file.write(header)
            file.flush()
        return child_process.start("spanwise.scheduler.daemon.scheduled_run", asdict(job), stdout=file, stderr=file)


def _first_line(log: Path) -> bytes:
    try:
        with log.open("rb") as file:
            return file.readline()
    except FileNotFoundError:
        return b""


def last_error(log: Path) -> str:
    """The last error message in a log, or its last lines; empty if it has none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LONGEST_ERROR))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith(_HEADER))
    _, found, message = text.rpartition(f"\n{_ERROR_PREFIX}")
    return message.strip() if found else text.strip()[-_LONGEST_ERROR:]


# --- in the child


def main() -> int:
    """Does the job on stdin."""
    job = ScheduledJob(**child_process.read_document())  # type: ignore[arg-type]  # as `start` wrote it
    known = settings.read(config=None if job.config is None else Path(job.config), root=job.root)
    try:
        return _close_run(job, known) if job.close is not None else _run(job, known)
    except AlreadyClaimed:
        sys.stdout.write("Another process has made this attempt, or the tick has ended; nothing was done.\n")
        return TAKEN
    except AlreadyIngested:
        sys.stdout.write("Another run has ingested this meanwhile; nothing was done.\n")
        return INGESTED
    except PausedMeanwhile as error:
        sys.stdout.write(f"The schedule is {error}; nothing was done.\n")
        return PAUSED
    except SpanwiseError as error:
        sys.stderr.write(f"\n{_ERROR_PREFIX}{error}\n")
        return UNAVAILABLE if isinstance(error, StoreUnavailable) else error.exit_code
    except Exception as error:  # noqa: BLE001  every error of the child ends here
        traceback.print_exc()
        sys.stderr.write(f"\n{_ERROR_PREFIX}{type(error).__name__}: {error}\n")
        return 1


def _run(job: ScheduledJob, known: Settings) -> int:
    loaded = load.load(job.source, settings=known.params)
    if job.end_others:
        with root.open_for_writing(known) as store:
            _refuse_paused(store, job)
            stop_others(store, job, known)
    spans = _spans_by_node(job, loaded.pipeline)
    if job.wait_until is not None and job.span is not None:
        wait_for_input(loaded, {**dict.fromkeys(loaded.pipeline.order, job.span), **spans}, job, known)

    def request(store: Store) -> RunRequest:
        _refuse_paused(store, job)
        if part_of(job.pipeline) == DATA and job.span is not None:
            _refuse_ingested(store, loaded.pipeline, job.span)
        return replace(
            _create_request(store, job, loaded, spans),
            trigger=Trigger.SCHEDULE,
            cause=format_cause(job.pipeline, job.tick),
            claims=(attempt_claim(job.pipeline, job.tick, job.attempt),),
        )

    outcome = launch.run_loaded(loaded, request, known, launch.ExecutionOptions(), json=False)
    sys.stdout.write(launch.format_run_outcome(outcome) + "\n")
    return launch.exit_code(outcome)


class AlreadyIngested(Exception):
    """Another run has ingested the data meanwhile."""


class PausedMeanwhile(Exception):
    """The schedule was paused while the attempt waited for its input, or was about to begin."""


def _refuse_paused(store: Store, job: ScheduledJob) -> None:
    pause = current_pause(store, job.pipeline, datetime.now(UTC))
    if pause is not None:
        raise PausedMeanwhile(format_pause(pause))


def _refuse_ingested(store: Store, pipeline: Pipeline, span: int) -> None:
    from spanwise.scheduler.backfill.inventory import arrived_versions, take_inventory

    sources = take_inventory(pipeline, store, [span])
    if all(span in source.ready for source in sources) and not arrived_versions(sources):
        raise AlreadyIngested


def _spans_by_node(job: ScheduledJob, pipeline: Pipeline) -> dict[str, int]:
    """The span of each node that ingests, where each has its own.

    Raises:
        ScheduleError: that of a node is not known.
    """
    known = job.by_node or {}
    if job.by_node is not None and not known:
        return {}
    sources = list_span_sources(pipeline)
    if unknown := [source.node for source in sources if source.node not in known]:
        each = [f"{s.node}={s.calendar.label(known[s.node]) if s.node in known else 'SPAN'}" for s in sources]
        raise ScheduleError(
            f"The tick {job.tick} gives each node that ingests a span of its own, and that of {', '.join(unknown)} is "
            f"not known: its file was edited since. Say which it is:  "
            f"spanwise run {shlex.quote(format_source(job.source))} {' '.join(f'--span {word}' for word in each)}"
        )
    return {source.node: known[source.node] for source in sources}


def _create_request(store: Store, job: ScheduledJob, loaded: Loaded, spans: Mapping[str, int]) -> RunRequest:
    pipeline = loaded.pipeline
    before = None if job.base is None else store.run(pipeline.name, job.base)
    if before is not None and not go_to(before.folder):  # in another folder is other data: run it all
        with contextlib.suppress(UsageError):  # nodes of that run are gone, or what it read is out of date: run it all
            request = resume.resume_request(before, resume.find_finished(store, before), pipeline)
            find_base_run(store, pipeline, request.selection or pipeline.select(), request)
            return request
    calendars = {source.node: source.calendar for source in list_span_sources(pipeline)}
    division = tuple(PartStart(name, tuple(at)) for name, at in job.division) or HALVES
    return RunRequest(
        selection=select_part(pipeline, job.part, division),
        behind=nodes_behind(pipeline, job.part, division),
        span=job.span,
        calendar=loaded.calendar.value,
        spans={node: calendars[node].label(span) for node, span in spans.items()},
        from_scratch=job.from_scratch,
    )


def stop_others(store: Store, job: ScheduledJob, known: Settings) -> None:
    """Stops the run that holds the pipeline, and returns once no process of it is left; waits for one of another part.

    Raises:
        RunError: a run could not be killed.
        Held: something other than a run holds the pipeline for long.
    """
    deadline = time.monotonic() + BETWEEN_S
    while (holder := find_living(store, pipeline_of(job.pipeline))) is not None:
        run = find_run(store, holder)
        if run is not None and is_of_another_key(store, run, job.pipeline):
            time.sleep(_POLL_S)
            deadline = time.monotonic() + BETWEEN_S
        elif run is not None:
            if run.trigger is Trigger.SCHEDULE and run.cause != format_cause(job.pipeline, job.tick):
                cause = OverrunCause(by=describe_overrun(job.tick), tick=job.tick)
                mark_overrun(store, *parse_cause(run.pipeline, run.cause), cause)
            by = f"the scheduler, for {describe_overrun(job.tick)}"
            stopped = stop.stop(store, run, known.root, grace_s=known.grace_s, by=by)
            sys.stdout.write(f"{stopped}\n")
            if stopped.closed:
                openlineage.send_end(known, store, stopped.run)
        elif time.monotonic() > deadline:
            raise Held(lease.held_message(holder))
        else:
            time.sleep(_POLL_S)


def wait_for_input(loaded: Loaded, spans: Mapping[str, int], job: ScheduledJob, known: Settings) -> None:
    """Waits until every ingesting node has its span; `spans` has that of each node.

    Raises:
        SpanNotFound: it did not arrive in time.
        AlreadyClaimed: the tick has ended meanwhile.
    """
    assert job.wait_until is not None
    until = datetime.fromisoformat(job.wait_until)
    announced = False
    while absent := [node for node in loaded.pipeline if not _has_arrived(node, spans[node.name])]:
        labels = [getattr(node, "calendar", loaded.calendar).label(spans[node.name]) for node in absent]
        names, label = ", ".join(node.name for node in absent), ", ".join(dict.fromkeys(labels))
        if datetime.now(UTC) >= until:
            with root.open_for_reading(known) as store:
                schedule = read_schedule(store, job.pipeline)
            raise SpanNotFound(
                f"{names} found no span {label} until {format_time(until)}, the end of `wait_for_input`. "
                f"Once it is there:  {_again(loaded, spans, job, schedule)}"
            )
        if not announced:
            sys.stdout.write(f"{names}: waiting for span {label}, until {format_time(until)}.\n")
            sys.stdout.flush()
            announced = True
        with root.open_for_reading(known) as store:
            entry = read_tick(store, job.pipeline, job.tick)
        if entry is not None and entry.end is not None:
            raise AlreadyClaimed(entry.name)
        time.sleep(max(0.0, min(job.poll_s, (until - datetime.now(UTC)).total_seconds())))


def _again(loaded: Loaded, spans: Mapping[str, int], job: ScheduledJob, schedule: ScheduleRecord | None) -> str:
    """The command that runs the spans of a tick, once they have come: of a part, of this part alone."""
    part = "" if schedule is None else "".join(f" {shlex.quote(word)}" for word in schedule.selection)
    sources, file = list_span_sources(loaded.pipeline), shlex.quote(format_source(job.source))
    if len(set(spans.values())) == 1:
        command = "run" if part else "backfill"
        return f"spanwise {command} {file} --span {loaded.calendar.label(next(iter(spans.values())))}{part}"
    each = " ".join(f"--span {source.node}={source.calendar.label(spans[source.node])}" for source in sources)
    return f"spanwise run {file} {each}{part}"


class SpanSource(Protocol):
    """A node that knows which spans have input."""

    def available(self, spans: Collection[int] | None = None) -> Mapping[int, int | None]: ...


def _has_arrived(node: object, span: int) -> bool:
    """Whether a node has the input of this span; always true for one that ingests no spans."""
    counts = hasattr(node, "available") and getattr(node, "takes_span", True)
    return not counts or span in cast("SpanSource", node).available([span])


def _close_run(job: ScheduledJob, known: Settings) -> int:
    assert job.close is not None
    with root.open_for_writing(known) as store:
        run = store.run(pipeline_of(job.pipeline), job.close)
        if job.spare_living:
            closed = stop.close_if_gone(store, run, known.root)
            if closed is not None and closed.closed:
                openlineage.send_end(known, store, closed.run)
            sys.stdout.write(f"{closed or f'The controller of run {run.name} is not dead; nothing was done.'}\n")
            return 0
        ended = stop.stop(store, run, known.root, grace_s=known.grace_s, by=job.closed_by)
        if ended.closed:
            openlineage.send_end(known, store, ended.run)
    sys.stdout.write(f"{ended}\n")
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # whatever threads the pipeline file has started
