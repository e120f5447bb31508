"""The work of a backfill: pause the schedule, wait for the running run, make the runs that are left, resume it."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal, Self

from spanwise.orchestrator import lease, process
from spanwise.orchestrator.errors import Held, StoreError
from spanwise.orchestrator.executor import Executor
from spanwise.orchestrator.lease import Clock
from spanwise.orchestrator.pipeline import Pipeline, Selection
from spanwise.orchestrator.run import Run, State, Trigger
from spanwise.orchestrator.run_request import Observer, RunOutcome, RunRequest
from spanwise.orchestrator.runner import Controller
from spanwise.orchestrator.store import Store
from spanwise.scheduler.alerts.recovery import record_recovery
from spanwise.scheduler.backfill.record import TRAIN, Backfill, Stage, enter, runs
from spanwise.scheduler.ledger.pauses import SchedulePause, current_pause, extend_pause, pause_schedule, resume_schedule
from spanwise.scheduler.ledger.schedules import list_keys
from spanwise.scheduler.ledger.ticks import list_missed
from spanwise.scheduler.project.load import Loaded
from spanwise.scheduler.project.settings import Settings
from spanwise.scheduler.run import stop
from spanwise.scheduler.run.launch import ExecutionOptions, complete_request

PAUSE_S = 600.0
"""A schedule stays paused for so long after the process of its backfill has died."""

RENEWED_S = 60.0
POLL_S = 0.5
_WHO = "backfill "  # so begins who has paused, when it was a backfill


@dataclass(frozen=True, kw_only=True)
class Happened:
    """Something that happened in a backfill, for whoever shows its progress."""

    what: Literal["paused", "waiting", "stopped", "began", "ran", "train-held-back", "resumed", "still-paused"]
    message: str = ""
    outcome: RunOutcome | None = None  #: of "ran"


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of a backfill."""

    backfill: Backfill
    done: tuple[int, ...]  #: spans whose runs are complete, also by an earlier process
    failed: tuple[int, ...]
    left: tuple[int, ...]  #: not reached
    runs: Mapping[int | None, Run]  #: the newest of each span, and of the second part under `TRAIN`
    interrupted: str = ""  #: by what
    paused: str = ""  #: why the schedule is still paused; empty when it is not

    @property
    def complete(self) -> bool:
        """Whether nothing of it is left."""
        return not (self.failed or self.left) and (not self.backfill.train or _complete(self.runs.get(TRAIN)))


@dataclass(frozen=True, kw_only=True)
class Means:
    """What a backfill is carried out with, and how."""

    executor: Executor
    store: Store
    settings: Settings
    effort: ExecutionOptions
    kill: bool = False  #: end the run that goes on, instead of waiting for it
    fail_fast: bool = False  #: after a failed span, begin no other
    observe: Observer = lambda _event: None
    tell: Callable[[Happened], None] = lambda _happened: None


class Asked:
    """Whether somebody has asked to end, such as by Ctrl-C."""

    def __init__(self) -> None:
        self.by = ""  #: who: the first signal that came

    def sleep(self, seconds: float) -> None:
        """Sleeps, and is woken by nobody but who asks to end.

        Raises:
            KeyboardInterrupt: somebody has asked.
        """
        deadline = time.monotonic() + seconds
        while not self.by and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
        if self.by:
            raise KeyboardInterrupt(self.by)


@contextlib.contextmanager
def asked() -> Iterator[Asked]:
    """Notes signals to end instead of obeying them, so that whatever goes on is left as it should be."""
    noted = Asked()

    def note(number: signal.Signals) -> None:
        noted.by = noted.by or number.name

    with process.asked_to_end(note):
        yield noted


def carry_out(backfill: Backfill, loaded: Loaded, means: Means, asked: Asked) -> Result:
    """Makes the runs of a backfill that are not complete yet, and notes what became of it.

    Whoever asks to end has the run that goes on stopped, and no other begins; what is done is kept, and the schedule
    is resumed on every way out. Ticks that a run makes good are noted as recovered.
    """
    interrupted = ""
    with _Pause(backfill, means) as pause:
        try:
            with _controller(backfill, loaded, means, asked) as controller:
                pause.take()
                work = _Work(controller, backfill, loaded, means)
                work.go()
                interrupted = controller.stop_signal or ("`spanwise stop`" if work.stopped else "")
        except KeyboardInterrupt as by:
            interrupted = str(by)
    result = standing(backfill, means.store)
    stage = Stage.COMPLETE if result.complete else Stage.INTERRUPTED if interrupted else Stage.FAILED
    return replace(
        result,
        backfill=enter(means.store, backfill, stage),
        interrupted="" if result.complete else interrupted,
        paused=pause.why,
    )


def standing(backfill: Backfill, store: Store) -> Result:
    """What has become of a backfill so far, as its runs are recorded."""
    made = runs(store, backfill)
    done = tuple(s for s in backfill.spans if _complete(made.get(s)))
    failed = tuple(s for s in backfill.spans if s in made and made[s].state is State.FAILED)
    left = tuple(s for s in backfill.spans if s not in (*done, *failed))
    return Result(backfill=backfill, done=done, failed=failed, left=left, runs=made)


class _Work:
    def __init__(self, controller: Controller, backfill: Backfill, loaded: Loaded, means: Means) -> None:
        self.stopped = False  #: a run was stopped from outside, and so all of it is
        self._controller = controller
        self._backfill = backfill
        self._loaded = loaded
        self._means = means
        self._failed = False
        lines = list_keys(means.store, backfill.pipeline)
        missed = [entry.tick.span for line in lines for entry in list_missed(means.store, line)]
        self._missed = {span for span in missed if span is not None}

    def go(self) -> None:
        backfill = self._backfill
        done = {span: run for span, run in runs(self._means.store, backfill).items() if _complete(run)}
        for run in done.values():
            self._make_good(run)  # its process may have been killed before it could
        todo = [span for span in backfill.spans if span not in done]
        for outcome in self._controller.run_all(self._each(todo), parallel=backfill.parallel):
            self._note(outcome)
        if not backfill.train or (TRAIN in done and not todo) or self._asked:
            return
        if self._failed:
            self._means.tell(Happened(what="train-held-back"))
            return
        self._note(self._controller.run(self._request(None, train=True)))

    def _note(self, outcome: RunOutcome) -> None:
        self._means.tell(Happened(what="ran", outcome=outcome))
        if outcome.succeeded:
            self._make_good(outcome.run)
        elif outcome.run.state is State.CANCELED:
            self.stopped = True
        else:
            self._failed = True

    @property
    def _asked(self) -> bool:
        return bool(self._controller.stop_signal or self.stopped)

    def _each(self, spans: Sequence[int]) -> Iterator[RunRequest]:
        for span in spans:
            if self._asked or (self._failed and self._means.fail_fast):
                return
            yield self._request(span, train=False)

    def _request(self, span: int | None, *, train: bool) -> RunRequest:
        backfill, pipeline = self._backfill, self._loaded.pipeline
        request = RunRequest(
            selection=_selection(pipeline, backfill, train=train),
            trigger=Trigger.BACKFILL,
            cause=backfill.cause,
            span=span,
            from_scratch=backfill.from_scratch,
            # Side by side, each sees the past as it was before the first of them: none can read what another makes.
            as_of=backfill.began if backfill.parallel > 1 and not train else None,
            base=self._newest_ingested() if train else None,
            typed=backfill.typed,
        )
        return complete_request(request, self._loaded, self._means.settings, self._means.effort)

    def _newest_ingested(self) -> int:
        made = runs(self._means.store, self._backfill)
        return made[max(self._backfill.spans)].number

    def _make_good(self, run: Run) -> None:
        """Notes which ticks a complete run has made good: one of the first part alone, none."""
        if self._backfill.train and run.span is not None:
            return
        made_good = self._backfill.spans if run.span is None else (run.span,)
        record_recovery(self._means.store, run, self._missed.intersection(made_good), self._means.settings.root)


def _selection(pipeline: Pipeline, backfill: Backfill, *, train: bool) -> Selection | None:
    if not backfill.train:
        return None
    if train:
        return pipeline.select(first=pipeline.first_of(backfill.train))
    return pipeline.select(last=pipeline.last_of(set(pipeline.order) - set(backfill.train)))


def _complete(run: Run | None) -> bool:
    return run is not None and run.state is State.COMPLETE


# --- having the pipeline to itself


@contextlib.contextmanager
def _controller(backfill: Backfill, loaded: Loaded, means: Means, asked: Asked) -> Iterator[Controller]:
    """The pipeline's lease, once the run that goes on has ended; with `kill`, it is ended.

    Raises:
        KeyboardInterrupt: somebody has asked to end before it could be had.
    """
    controller = Controller(
        loaded.pipeline,
        executor=means.executor,
        store=means.store,
        root=means.settings.root,
        observe=means.observe,
        clock=Clock(sleep=asked.sleep),
        purpose=f"backfill {backfill.number}",
    )
    said = ""
    while True:
        asked.sleep(0)
        try:
            controller.__enter__()
        except Held as held:
            if str(held) != said:
                said = str(held)
                means.tell(Happened(what="waiting", message=said.partition(", so nothing")[0]))
            if means.kill:
                _end(backfill.pipeline, means)
            asked.sleep(POLL_S)
            continue
        break
    with contextlib.ExitStack() as stack:
        stack.push(controller.__exit__)
        asked.sleep(0)  # from here on, the controller takes the signals
        means.tell(Happened(what="began"))
        yield controller


def _end(pipeline: str, means: Means) -> None:
    """Ends the run that holds the pipeline."""
    holder = lease.current(means.store, pipeline)
    newest = next(iter(means.store.runs(pipeline)), None)
    if holder is None or newest is None or newest.token != holder.token:
        return  # it has just begun, or has just ended
    stopped = stop.stop(means.store, newest, means.settings.root, grace_s=means.settings.grace_s)
    if stopped.how != "already ended":
        means.tell(Happened(what="stopped", message=str(stopped)))


class _Pause:
    """Keeps the schedule of a pipeline paused, unless somebody has paused it already.

    It ends by itself a while after this process has died.
    """

    def __init__(self, backfill: Backfill, means: Means) -> None:
        self.why = ""  #: afterwards: why the schedule is still paused; empty when it is not
        self._who = backfill.cause
        self._pipeline = backfill.pipeline
        self._store = means.store
        self._tell = means.tell
        self._mine: SchedulePause | None = None
        self._ended = threading.Event()
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
                resume_schedule(self._store, self._pipeline, who=self._who, now=_now())
                self._tell(Happened(what="resumed"))
            elif held is not None and held.who.startswith(_WHO):
                self._tell(Happened(what="still-paused", message=f"{held.who} has not ended"))
            elif held is not None:
                self.why = f"{held.who} paused it: {held.why}"
        except StoreError as error:
            self.why = f"it could not be resumed ({error}); it is by itself within {PAUSE_S / 60:g} minutes"
        if self.why and kind is not None:  # nobody will ask
            self._tell(Happened(what="still-paused", message=self.why))

    def take(self) -> None:
        """Pauses the schedule, also where another backfill has: whoever has the lease knows that it has ended."""
        held = self._held()
        by_backfill = held is not None and held.who.startswith(_WHO)
        ours = held is not None and self._mine is not None and held.number == self._mine.number
        if ours or not (held is None or by_backfill) or not list_keys(self._store, self._pipeline):
            return
        why, now = "its runs would come between those of the backfill", _now()
        until = now + timedelta(seconds=PAUSE_S)
        self._mine = pause_schedule(self._store, self._pipeline, who=self._who, why=why, now=now, until=until)
        self._tell(Happened(what="paused"))

    def _held(self) -> SchedulePause | None:
        return current_pause(self._store, self._pipeline, _now())

    def _renew(self) -> None:
        while not self._ended.wait(RENEWED_S):
            if self._mine is None:
                continue
            with contextlib.suppress(StoreError):  # the next time, or it ends and is said to have ended
                extend_pause(self._store, self._pipeline, self._mine, until=_now() + timedelta(seconds=PAUSE_S))


def _now() -> datetime:
    return datetime.now(UTC)
