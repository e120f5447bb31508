"""Runs a backfill: pauses the schedule, waits for the running run, makes the remaining runs, resumes the schedule."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal, Self

from spanwise.orchestrator import lease, process
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import Held, StoreError
from spanwise.orchestrator.executor import Executor
from spanwise.orchestrator.lease import Clock
from spanwise.orchestrator.pipeline import Pipeline, Selection
from spanwise.orchestrator.run import Run, State, Trigger
from spanwise.orchestrator.run_request import Observer, RunOutcome, RunRequest
from spanwise.orchestrator.runner import Controller
from spanwise.orchestrator.store import Store
from spanwise.scheduler.backfill.plan import select_ingest
from spanwise.scheduler.backfill.record import TRAIN, Backfill, BackfillStage, backfill_runs, set_stage
from spanwise.scheduler.ledger.missed import MissedTicks, list_missed
from spanwise.scheduler.ledger.pauses import (
    SchedulePause,
    continue_pause,
    current_pause,
    end_pause,
    extend_pause,
    newest_pause,
    pause_schedule,
)
from spanwise.scheduler.ledger.schedule_status import user_name
from spanwise.scheduler.ledger.schedules import list_keys
from spanwise.scheduler.ledger.ticks import OverrunCause, mark_overrun
from spanwise.scheduler.project.load import Loaded
from spanwise.scheduler.project.settings import Settings
from spanwise.scheduler.project.span_sources import list_span_sources
from spanwise.scheduler.run import openlineage, stop
from spanwise.scheduler.run.launch import ExecutionOptions, complete_request
from spanwise.scheduler.run.tick_recovery import AskedSpans, recover_ticks
from spanwise.scheduler.schedule.part import find_learned_choices, second_part
from spanwise.scheduler.schedule.schedule_key import parse_cause

PAUSE_S = 600.0
"""How long a schedule stays paused after the process of its backfill has died."""

RENEWED_S = 60.0

CONTINUED_S = 2.0
"""How long before its end the pause of somebody else is continued, so that no tick comes in between."""

POLL_S = 0.5
_WHO = "backfill "  # the prefix of the name of a backfill that has paused a schedule
_WHY = "its runs would interfere with the backfill"


@dataclass(frozen=True, kw_only=True)
class BackfillEvent:
    """A step of a backfill, for its progress."""

    what: Literal["paused", "waiting", "stopped", "began", "ran", "train-held-back", "resumed", "still-paused"]
    message: str = ""
    outcome: RunOutcome | None = None  #: of "ran"


@dataclass(frozen=True, kw_only=True)
class BackfillResult:
    """The result of a backfill."""

    backfill: Backfill
    done: tuple[int, ...]  #: spans whose runs are complete, including those of an earlier process
    failed: tuple[int, ...]
    left: tuple[int, ...]  #: not reached
    runs: Mapping[int | None, Run]  #: the newest of each span, and of the training part under `TRAIN`
    interrupted: str = ""  #: by which signal or command
    paused: str = ""  #: why the schedule is still paused; empty when it is not

    @property
    def complete(self) -> bool:
        """Whether nothing of it is left."""
        return not (self.failed or self.left) and (not self.backfill.train or _complete(self.runs.get(TRAIN)))


@dataclass(frozen=True, kw_only=True)
class BackfillContext:
    """What a backfill works with."""

    executor: Executor
    store: Store
    settings: Settings
    execution: ExecutionOptions
    kill: bool = False  #: stop the running run instead of waiting for it
    fail_fast: bool = False  #: start no other span after one has failed
    observe: Observer = lambda _event: None
    notify: Callable[[BackfillEvent], None] = lambda _event: None


class StopSignal:
    """Whether a signal to stop has arrived, such as Ctrl-C."""

    def __init__(self) -> None:
        self.name = ""  #: of the first signal

    def sleep(self, seconds: float) -> None:
        """Sleeps until the time is over or a signal arrives.

        Raises:
            KeyboardInterrupt: a signal has arrived.
        """
        deadline = time.monotonic() + seconds
        while not self.name and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
        if self.name:
            raise KeyboardInterrupt(self.name)


@contextlib.contextmanager
def catch_stop_signals() -> Iterator[StopSignal]:
    """Records signals to stop instead of obeying them, so that the backfill can clean up."""
    caught = StopSignal()

    def note(number: signal.Signals) -> None:
        caught.name = caught.name or number.name

    with process.catch_end_signals(note):
        yield caught


def run_backfill(
    backfill: Backfill, loaded: Loaded, context: BackfillContext, stop_signal: StopSignal
) -> BackfillResult:
    """Makes the runs of a backfill that are not complete yet, and records its stage.

    A stop signal stops the running run, and no other begins; completed runs are kept, and the schedule is always
    resumed. Missed ticks whose spans were run are recorded as recovered.
    """
    interrupted = ""
    with _PausedSchedule(backfill, context) as pause:
        try:
            with _controller(backfill, loaded, context, stop_signal) as controller:
                pause.take()
                runner = _BackfillRunner(controller, backfill, loaded, context)
                runner.run()
                interrupted = controller.stop_signal or runner.stopped
        except KeyboardInterrupt as by:
            interrupted = str(by)
    result = backfill_status(backfill, backfill_runs(context.store, backfill), loaded.pipeline)
    stage = (
        BackfillStage.COMPLETE
        if result.complete
        else BackfillStage.INTERRUPTED
        if interrupted
        else BackfillStage.FAILED
    )
    return replace(
        result,
        backfill=set_stage(context.store, backfill, stage, context.settings.root),
        interrupted="" if result.complete else interrupted,
        paused=pause.why,
    )


def backfill_status(backfill: Backfill, made: Mapping[int | None, Run], pipeline: Pipeline) -> BackfillResult:
    """The result of a backfill so far, from the newest run that it has made of each span.

    A complete one is left to run again where a span before it, of which models learn through it, is ingested later.
    """
    done: list[int] = []
    newest = 0.0  # the highest number of a run of the spans before
    reads_others = _reads_other_spans(backfill, pipeline)
    for span in backfill.spans:  # the oldest first
        run = made.get(span)
        if run is None or run.state is not State.COMPLETE or (reads_others and run.number < newest):
            newest = math.inf  # of a run that is to come
        else:
            done.append(span)
            newest = max(newest, run.number)
    failed = tuple(s for s in backfill.spans if s in made and made[s].state is State.FAILED)
    left = tuple(s for s in backfill.spans if s not in (*done, *failed))
    return BackfillResult(backfill=backfill, done=tuple(done), failed=failed, left=left, runs=made)


def _reads_other_spans(backfill: Backfill, pipeline: Pipeline) -> bool:
    """Whether what the run of a span makes for models to learn from is made of other spans too."""
    second = backfill.train or second_part(pipeline)
    return any(name not in second for name in find_learned_choices(pipeline, second))


class _BackfillRunner:
    def __init__(self, controller: Controller, backfill: Backfill, loaded: Loaded, context: BackfillContext) -> None:
        self.stopped = ""  #: by what a run was stopped from outside, which stops the backfill
        self._controller = controller
        self._backfill = backfill
        self._loaded = loaded
        self._context = context
        self._failed = False
        self._done = AskedSpans(context.store, loaded.pipeline)  # of complete runs
        lines = list_keys(context.store, backfill.pipeline)
        # A tick that is missed while this runs may mean data that has come since.
        self._missed = {span for line in lines for tick in list_missed(context.store, line) for span in tick.spans}
        self._missed_ticks = MissedTicks(context.store)

    def run(self) -> None:
        backfill = self._backfill
        made = backfill_runs(self._context.store, backfill)
        complete = {span: run for span, run in made.items() if _complete(run)}
        for run in complete.values():
            self._done.add(run)
        for run in complete.values():
            self._recover(run)  # its process may have died before it could
        done = backfill_status(backfill, made, self._loaded.pipeline).done
        todo = [span for span in backfill.spans if span not in done]
        for outcome in self._controller.run_all(self._requests(todo, again=complete), parallel=backfill.parallel):
            self._report(outcome)
        if not backfill.train or (TRAIN in complete and not todo) or self._is_stopping:
            return
        if self._failed:
            self._context.notify(BackfillEvent(what="train-held-back"))
            return
        self._report(self._controller.run(self._request(None, train=True)))

    def _report(self, outcome: RunOutcome) -> None:
        self._context.notify(BackfillEvent(what="ran", outcome=outcome))
        if outcome.succeeded:
            self._done.add(outcome.run)
            self._recover(outcome.run)
        elif outcome.run.state is State.CANCELED:
            self.stopped = (outcome.run.error or "").removeprefix("stopped by ") or "a request to stop"
        else:
            self._failed = True

    @property
    def _is_stopping(self) -> bool:
        return bool(self._controller.stop_signal or self.stopped)

    def _requests(self, spans: Sequence[int], *, again: Container[int | None]) -> Iterator[RunRequest]:
        for span in spans:
            if self._is_stopping or (self._failed and self._context.fail_fast):
                return
            if self._failed and span in again:
                continue  # it would read a span that has failed before it
            yield self._request(span, train=False)

    def _request(self, span: int | None, *, train: bool) -> RunRequest:
        backfill, pipeline = self._backfill, self._loaded.pipeline
        spans = _name_spans(pipeline, backfill, span)
        leading = next((s for s in list_span_sources(pipeline) if s.node in spans), None)
        request = RunRequest(
            selection=_selection(pipeline, backfill, train=train),
            trigger=Trigger.BACKFILL,
            cause=backfill.cause,
            span=span if leading is None else leading.calendar.parse(spans[leading.node]),
            calendar=backfill.calendar if leading is None else leading.calendar.value,
            spans=spans,
            from_scratch=backfill.from_scratch,
            # Parallel runs see the history as of the start, so none can read what another publishes.
            as_of=backfill.began if backfill.parallel > 1 and not train else None,
            base=self._newest_ingested() if train and not backfill.source_node else None,
            force_base=train and not backfill.source_node,
            typed=backfill.typed,
        )
        return complete_request(request, self._loaded, self._context.settings, self._context.execution)

    def _newest_ingested(self) -> int:
        made = backfill_runs(self._context.store, self._backfill)
        return made[max(self._backfill.spans)].number

    def _recover(self, run: Run) -> None:
        """Records the missed ticks that a complete run recovers, with those before it."""
        store, place, among = self._context.store, self._context.settings.place, self._missed
        recover_ticks(store, self._loaded.pipeline, run, self._done, place, among=among, missed=self._missed_ticks)


def _selection(pipeline: Pipeline, backfill: Backfill, *, train: bool) -> Selection | None:
    if not backfill.train and not backfill.source_node:
        return None
    if train:
        return pipeline.select(first=pipeline.first_of(backfill.train))
    return select_ingest(pipeline, backfill.train, backfill.source_node)


def _name_spans(pipeline: Pipeline, backfill: Backfill, span: int | None) -> dict[str, str]:
    """The spans of the nodes that ingest in a run, where each has its own; the leading one's first."""
    if span is None or not backfill.source_node:
        return {}
    joined = backfill.joined[backfill.spans.index(span)] if backfill.joined else {}
    named = {**joined, backfill.source_node: Calendar.from_name(backfill.calendar).label(span)}
    return {source.node: named[source.node] for source in list_span_sources(pipeline) if source.node in named}


def _complete(run: Run | None) -> bool:
    return run is not None and run.state is State.COMPLETE


# --- exclusive access to the pipeline


@contextlib.contextmanager
def _controller(
    backfill: Backfill, loaded: Loaded, context: BackfillContext, stop_signal: StopSignal
) -> Iterator[Controller]:
    """Acquires the pipeline's lease once the running run has ended; with `kill`, stops that run.

    Raises:
        KeyboardInterrupt: a signal to stop arrived first.
    """
    controller = Controller(
        loaded.pipeline,
        executor=context.executor,
        store=context.store,
        root=context.settings.root,
        observe=context.observe,
        clock=Clock(sleep=stop_signal.sleep),
        purpose=f"backfill {backfill.number}",
    )
    reported = ""
    while True:
        stop_signal.sleep(0)
        try:
            controller.__enter__()
        except Held as held:
            if str(held) != reported:
                reported = str(held)
                context.notify(BackfillEvent(what="waiting", message=reported.partition(", so nothing")[0]))
            if context.kill:
                _stop_running(backfill, context)
            stop_signal.sleep(POLL_S)
            continue
        break
    with contextlib.ExitStack() as stack:
        stack.push(controller.__exit__)
        stop_signal.sleep(0)  # from here on, the controller handles the signals
        context.notify(BackfillEvent(what="began"))
        yield controller


def _stop_running(backfill: Backfill, context: BackfillContext) -> None:
    """Stops the run that holds the pipeline; its tick, if it is one of a schedule, was killed for the backfill."""
    holder = lease.current(context.store, backfill.pipeline)
    newest = next(iter(context.store.runs(backfill.pipeline)), None)
    if holder is None or newest is None or newest.token != holder.token:
        return  # it is just beginning or ending
    by = f"{backfill.cause} (--kill by {user_name()})"
    if newest.trigger is Trigger.SCHEDULE:
        mark_overrun(context.store, *parse_cause(newest.pipeline, newest.cause), OverrunCause(by=by))
    stopped = stop.stop(context.store, newest, context.settings.root, grace_s=context.settings.grace_s, by=by)
    if stopped.closed:
        openlineage.send_end(context.settings, context.store, stopped.run)
    if stopped.how != "already ended":
        context.notify(BackfillEvent(what="stopped", message=str(stopped)))


class _PausedSchedule:
    """Keeps the schedule of a pipeline paused, unless somebody else has already paused it.

    The pause expires some time after this process has died. One of somebody else that ends by itself is continued; one
    that a person ends is over.
    """

    def __init__(self, backfill: Backfill, context: BackfillContext) -> None:
        self.why = ""  #: afterwards: why the schedule is still paused; empty when it is not
        self._who = backfill.cause
        self._pipeline = backfill.pipeline
        self._store = context.store
        self._notify = context.notify
        self._mine: SchedulePause | None = None
        self._ended = threading.Event()
        self._changing = threading.Lock()
        self._renewing = threading.Thread(target=self._renew, name="pause", daemon=True)

    def __enter__(self) -> Self:
        if self._held() is None:
            self.take()
        self._renewing.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended.set()
        self._renewing.join()
        try:
            held = self._held()
            if held is not None and self._mine is not None and held.number == self._mine.number:
                end_pause(self._store, self._pipeline, self._mine, who=self._who, now=_now())
                self._notify(BackfillEvent(what="resumed"))
            elif held is not None and held.who.startswith(_WHO):
                self._notify(BackfillEvent(what="still-paused", message=f"{held.who} has not ended"))
            elif held is not None:
                self.why = f"{held.who} paused it: {held.why}"
        except StoreError as error:
            self.why = f"it could not be resumed ({error}); the pause expires within {PAUSE_S / 60:g} minutes"
        if self.why and kind is not None:  # the result will not be printed
            self._notify(BackfillEvent(what="still-paused", message=self.why))

    def take(self) -> None:
        """Pauses the schedule, also when another backfill has: whoever holds the lease knows that the other ended."""
        with self._changing:
            held = self._held()
            by_backfill = held is not None and held.who.startswith(_WHO)
            ours = held is not None and self._mine is not None and held.number == self._mine.number
            if ours or not (held is None or by_backfill) or not list_keys(self._store, self._pipeline):
                return
            now = _now()
            until = now + timedelta(seconds=PAUSE_S)
            self._mine = pause_schedule(self._store, self._pipeline, who=self._who, why=_WHY, now=now, until=until)
        self._notify(BackfillEvent(what="paused"))

    def look(self, now: datetime) -> float:
        """Extends the pause, or continues one of somebody else right before it ends; in how many seconds to look again.

        Not earlier: the newest pause is the one that holds, and this backfill may be over before the other.
        """
        with self._changing:
            newest = newest_pause(self._store, self._pipeline)
            if newest is None or newest.resumed is not None:
                return RENEWED_S
            if self._mine is not None and newest.number == self._mine.number:
                extend_pause(self._store, self._pipeline, newest, until=now + timedelta(seconds=PAUSE_S))
            elif newest.until is not None:
                left_s = (newest.until - now).total_seconds() - CONTINUED_S
                if left_s > 0:
                    return min(left_s, RENEWED_S)
                if list_keys(self._store, self._pipeline):
                    until = now + timedelta(seconds=PAUSE_S)
                    self._mine = continue_pause(
                        self._store, self._pipeline, newest, who=self._who, why=_WHY, now=now, until=until
                    )
            return RENEWED_S

    def _held(self) -> SchedulePause | None:
        return current_pause(self._store, self._pipeline, _now())

    def _renew(self) -> None:
        wait_s = RENEWED_S if self._mine is not None else 0.0
        while not self._ended.wait(wait_s):
            wait_s = RENEWED_S
            with contextlib.suppress(StoreError):  # try again next time; otherwise the pause expires
                wait_s = self.look(_now())


def _now() -> datetime:
    return datetime.now(UTC)
