"""The work of a backfill: pause the schedule, wait for the running run, make the runs that are left, resume it."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Literal

from orchestrator import lease
from orchestrator.errors import Held, StoreError
from orchestrator.executor import Executor
from orchestrator.pipeline import Pipeline, Selection
from orchestrator.run import Run, State, Trigger
from orchestrator.runner import Controller, Observer, Outcome, Request
from orchestrator.store import Store
from scheduler import ledger, stop
from scheduler.backfill.record import TRAIN, Backfill, Stage, enter, runs
from scheduler.launch import Effort, filled
from scheduler.load import Loaded
from scheduler.settings import Settings

PAUSE_S = 600.0
"""A schedule stays paused for so long after the process of its backfill has died."""

RENEWED_S = 60.0
POLL_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Happened:
    """Something that happened in a backfill, for whoever shows its progress."""

    what: Literal["paused", "waiting", "stopped", "began", "ran", "train-held-back", "resumed"]
    message: str = ""
    outcome: Outcome | None = None  #: of "ran"


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


@dataclass(frozen=True, kw_only=True)
class Means:
    """What a backfill is carried out with, and how."""

    executor: Executor
    store: Store
    settings: Settings
    effort: Effort
    kill: bool = False  #: end the run that goes on, instead of waiting for it
    fail_fast: bool = False  #: after a failed span, begin no other
    observe: Observer = lambda _event: None
    tell: Callable[[Happened], None] = lambda _happened: None


def carry_out(backfill: Backfill, loaded: Loaded, means: Means) -> Result:
    """Makes the runs of a backfill that are not complete yet, and notes what became of it.

    Ctrl-C, or a signal to end, stops the run that goes on and keeps what is done; the schedule is resumed on every
    way out. Ticks that a run makes good are noted as recovered.
    """
    interrupted = ""
    with _interruptible(), paused(backfill, means) as still_paused:
        try:
            with _controller(backfill, loaded, means) as controller:
                _Work(controller, backfill, loaded, means).go()
                interrupted = controller.asked
        except KeyboardInterrupt:
            interrupted = "SIGINT"
    made = runs(means.store, backfill)
    done, failed, left = _sorted(backfill, made)
    complete = not (failed or left) and (not backfill.train or _complete(made.get(TRAIN)))
    stage = Stage.COMPLETE if complete else Stage.INTERRUPTED if interrupted else Stage.FAILED
    return Result(
        backfill=enter(means.store, backfill, stage),
        done=done,
        failed=failed,
        left=left,
        runs=made,
        interrupted=interrupted,
        paused=still_paused(),
    )


class _Work:
    def __init__(self, controller: Controller, backfill: Backfill, loaded: Loaded, means: Means) -> None:
        self._controller = controller
        self._backfill = backfill
        self._loaded = loaded
        self._means = means
        self._failed = False

    def go(self) -> None:
        backfill = self._backfill
        done = {span for span, run in runs(self._means.store, backfill).items() if _complete(run)}
        todo = [span for span in backfill.spans if span not in done]
        for outcome in self._controller.together(self._each(todo), at_once=backfill.parallel):
            self._failed |= not outcome.succeeded
            self._means.tell(Happened(what="ran", outcome=outcome))
            if outcome.succeeded and not backfill.train:
                self._made_good(outcome.run, [outcome.run.span])
        if not backfill.train or (TRAIN in done and not todo) or self._controller.asked:
            return
        if self._failed:
            self._means.tell(Happened(what="train-held-back"))
            return
        outcome = self._controller.run(self._request(None, train=True))
        self._means.tell(Happened(what="ran", outcome=outcome))
        if outcome.succeeded:
            self._made_good(outcome.run, backfill.spans)

    def _each(self, spans: Sequence[int]) -> Iterator[Request]:
        for span in spans:
            if self._failed and self._means.fail_fast:
                return
            yield self._request(span, train=False)

    def _request(self, span: int | None, *, train: bool) -> Request:
        backfill, pipeline = self._backfill, self._loaded.pipeline
        request = Request(
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
        return filled(request, self._loaded, self._means.settings, self._means.effort)

    def _newest_ingested(self) -> int:
        made = runs(self._means.store, self._backfill)
        return made[max(self._backfill.spans)].number

    def _made_good(self, run: Run, spans: Sequence[int | None]) -> None:
        for span in spans:
            if span is not None:
                ledger.recover(self._means.store, run.pipeline, span, run.number)


def _selection(pipeline: Pipeline, backfill: Backfill, *, train: bool) -> Selection | None:
    if not backfill.train:
        return None
    if train:
        return pipeline.select(first=pipeline.first_of(backfill.train))
    return pipeline.select(last=pipeline.last_of(set(pipeline.order) - set(backfill.train)))


def _sorted(
    backfill: Backfill, made: dict[int | None, Run]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    done = tuple(s for s in backfill.spans if _complete(made.get(s)))
    failed = tuple(s for s in backfill.spans if s in made and made[s].state is State.FAILED)
    return done, failed, tuple(s for s in backfill.spans if s not in (*done, *failed))


def _complete(run: Run | None) -> bool:
    return run is not None and run.state is State.COMPLETE


# --- having the pipeline to itself


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Has SIGTERM and SIGHUP do what Ctrl-C does, while no run is there to take them."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _controller(backfill: Backfill, loaded: Loaded, means: Means) -> Iterator[Controller]:
    """The pipeline's lease, once the run that goes on has ended; with `kill`, it is ended."""
    controller = Controller(
        loaded.pipeline,
        executor=means.executor,
        store=means.store,
        root=means.settings.root,
        observe=means.observe,
        doing=f"backfill {backfill.number}",
    )
    said = ""
    while True:
        try:
            controller.__enter__()
        except Held as held:
            if str(held) != said:
                said = str(held)
                means.tell(Happened(what="waiting", message=said.partition(", so nothing")[0]))
            if means.kill:
                _end(backfill.pipeline, means)
            time.sleep(POLL_S)
            continue
        break
    with contextlib.ExitStack() as stack:
        stack.push(controller.__exit__)
        means.tell(Happened(what="began"))
        yield controller


def _end(pipeline: str, means: Means) -> None:
    """Ends the run that holds the pipeline."""
    holder = lease.current(means.store, pipeline)
    newest = next(iter(means.store.runs(pipeline)), None)
    if holder is None or newest is None or newest.token != holder.token:
        return  # it has just begun, or has just ended
    stopped = stop.stop(means.store, newest, means.settings.root, grace_s=means.settings.grace_s)
    means.tell(Happened(what="stopped", message=str(stopped)))


@contextlib.contextmanager
def paused(backfill: Backfill, means: Means) -> Iterator[Callable[[], str]]:
    """Keeps the schedule of the pipeline paused, unless somebody has paused it already.

    The pause ends by itself a while after this process has died. What is yielded tells afterwards why it is still
    paused; an empty text when it is not.
    """
    store, tell = means.store, means.tell
    pipeline = backfill.pipeline
    if ledger.schedule(store, pipeline) is None:
        yield lambda: ""
        return
    theirs = ledger.paused(store, pipeline, _now())
    if theirs is not None:
        yield lambda: f"{theirs.who} paused it: {theirs.why}"
        return
    who = f"backfill {backfill.name}"
    why = "its runs would come between those of the backfill"
    pause = ledger.pause(store, pipeline, who=who, why=why, now=_now(), until=_now() + timedelta(seconds=PAUSE_S))
    tell(Happened(what="paused"))
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(RENEWED_S):
            with contextlib.suppress(StoreError):  # the next time, or it ends and is said to have ended
                ledger.prolong(store, pipeline, pause, until=_now() + timedelta(seconds=PAUSE_S))

    renewing = threading.Thread(target=renew, name="pause", daemon=True)
    renewing.start()
    left = [""]
    try:
        yield lambda: left[0]
    finally:
        ended.set()
        renewing.join()
        try:
            held = ledger.paused(store, pipeline, _now())
            if held is not None and held.number == pause.number:
                ledger.resume(store, pipeline, who=who, now=_now())
                tell(Happened(what="resumed"))
        except StoreError as error:
            left[0] = f"it could not be resumed ({error}); it is by itself within {PAUSE_S / 60:g} minutes"


def _now() -> datetime:
    return datetime.now(UTC)
