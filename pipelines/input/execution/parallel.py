"""Parallel: elements taken and worked on ahead of their consumer, by threads or by worker processes.

One thread takes elements from the input, workers call the function, and the consumer finds the results in a window of
slots. The threads know the window and never the stream, so that a stream which nobody holds any more is closed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Literal

from spanwise.orchestrator.errors import NotPortable, WorkerLost
from spanwise.pipelines.input.element import Spec
from spanwise.pipelines.input.execution.process import Function, Process, portable
from spanwise.pipelines.input.execution.trial import Trial, Verdict, known, remember
from spanwise.pipelines.input.op import AUTOTUNE, Count, Element, Knob, Op, Opening, State, Stream
from spanwise.pipelines.input.rows import elements
from spanwise.pipelines.input.tuning.autotune import cores
from spanwise.pipelines.input.tuning.stats import Work, weight

if TYPE_CHECKING:
    from spanwise.pipelines.input.ops.interleave import Interleave
    from spanwise.pipelines.input.ops.map import Map

logger = logging.getLogger(__name__)

CHECKPOINT_ELEMENTS = 32  #: so many elements share one state of the input; what lies between is taken again
CLOSING_S = 5.0  #: how long closing waits for a function that is being called
MOST_THREADS = 64  #: that autotune lets call one function; those that wait for a disk or a network need no core

_ours = threading.local()  # marks our threads: they must not wait for one another when one of them closes a stream


class Slot:
    """One element on its way to the consumer."""

    __slots__ = ("at", "cpu_s", "element", "end", "error", "given", "origin", "paused", "ready", "stop", "took_s")

    def __init__(self, origin: Origin | None, at: int) -> None:
        self.origin = origin
        self.at = self.stop = at  # which rows or elements of the input it is made of, counted from the start
        self.element: Element = None
        self.error: BaseException | None = None
        self.end = False  # there is no more
        self.paused = False  # there is more, which the consumer is to take itself
        self.given = False
        self.took_s = self.cpu_s = 0.0
        self.ready = threading.Lock()
        self.ready.acquire()


@dataclass(frozen=True, eq=False)
class Origin:
    """A state of the input from which elements can be taken again."""

    state: State
    at: int  #: rows or elements before it, counted from the start


@dataclass(frozen=True, kw_only=True)
class Callers:
    """Who calls a function that is called side by side."""

    workers: Literal["threads", "processes"] = "threads"
    trial: Trial | None = None  #: finds it out; needs a function that can be called anywhere and any number of times
    most_processes: int = 1  #: if a trial finds that these are best


class Permits:
    """How many of several threads may take an element from their inputs at once: as many as a knob says."""

    def __init__(self, knob: Knob) -> None:
        self._knob = knob
        self._taken = 0
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        with self._changed:
            while self._taken >= self._knob.value:
                self._changed.wait()
            self._taken += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._taken -= 1
            self._changed.notify()


class Ahead(Stream):
    """Its input's elements, or a function of each, made before they are asked for.

    In the input's order, or with `ordered=False` in the order in which they are ready. What is on its way when the
    state is taken is taken from the input again.
    """

    def __init__(
        self,
        source: Stream,
        *,
        name: str,
        rows: bool,
        window: Callable[[], int],
        limit_bytes: float = float("inf"),
        function: Function | None = None,
        num_parallel: Knob | None = None,
        callers: Callers | None = None,
        ordered: bool = True,
        permits: Permits | None = None,
        work: Work | None = None,
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        """Nothing is started before the first element.

        Args:
            source: closed by us.
            name: the op's, for messages and the names of threads.
            rows: whether the input gives blocks of rows.
            window: how many elements may be on their way or wait for the consumer.
            limit_bytes: what they may hold together; one is always let through.
            function: called with each element and its position.
            num_parallel: how many calls at once.
            callers: what makes the calls; threads, if nothing is said.
            ordered: whether results keep the order of the input.
            permits: held while an element is taken from the input.
            work: where the time of calls is summed up, or with permits that of taking elements.
            on_ready: called when an element or the end can be taken without waiting.
        """
        self.work = Work() if work is None and function is not None else work
        self._num_parallel = num_parallel
        self._size = window
        self._window = _Window(source, rows=rows, size=window, limit_bytes=limit_bytes, ordered=ordered)
        self._window.name, self._window.permits, self._window.on_ready = name, permits, on_ready
        if function is not None and num_parallel is not None:
            self._window.team = _Team(function, num_parallel, callers or Callers(), self._window)
        self._closer = weakref.finalize(self, self._window.close)

    @property
    def watch(self) -> Callable[[int, int], None] | None:
        """Is told from when to when each call went, in ns."""
        return self._window.watch

    @watch.setter
    def watch(self, watch: Callable[[int, int], None] | None) -> None:
        self._window.watch = watch

    def __next__(self) -> Element:
        slot = self._window.take()
        if self.work is not None:
            self.work.add(slot.took_s, slot.cpu_s)
        if slot.error is not None:
            try:
                raise slot.error
            finally:
                slot.error = None  # or its traceback would hold this frame, and this frame the error
        element, slot.element = slot.element, None  # the thread that made it may be on its way to drop the slot
        return element

    def start(self) -> None:
        """Begins to take elements, before the first is asked for."""
        self._window.start()

    def state(self) -> State:
        return self._window.state()

    def restore(self, state: State) -> None:
        self._window.restore(state)

    def close(self) -> None:
        self._closer()

    @property
    def parallelism(self) -> int:
        """How many elements are worked on at once."""
        return 1 if self._num_parallel is None else self._num_parallel.value

    @property
    def buffer(self) -> int:
        """How many elements may be on their way or wait."""
        return self._size()

    @property
    def element_bytes(self) -> float:
        """What an element on its way holds."""
        return self._window.element_bytes

    @property
    def pulled(self) -> Work:
        """What it took to take elements from the input."""
        return self._window.pulled

    @property
    def lock_share(self) -> float:
        """Which share of a call holds Python's lock; 0 if it was not measured, or if other processes make the calls."""
        team = self._window.team
        return team.lock_share if team is not None else 0.0


class _Window:
    """What the consumer and the threads of an `Ahead` have in common.

    The last slot is the one whose element is being taken from the input; those before it are on their way or ready.
    Python's own queues and deques need no further lock; a slot's lock is held until its element is there.
    """

    name = ""
    team: _Team | None = None
    permits: Permits | None = None
    on_ready: Callable[[], None] | None = None
    watch: Callable[[int, int], None] | None = None

    def __init__(
        self, source: Stream, *, rows: bool, size: Callable[[], int], limit_bytes: float, ordered: bool
    ) -> None:
        self.stopped = False
        self.element_bytes = 0.0
        self._source = source
        self._rows = rows
        self._size = size
        self._limit_bytes = limit_bytes
        self._ready: SimpleQueue[Slot] | None = None if ordered else SimpleQueue()
        self._slots: deque[Slot] = deque()
        self._room = threading.Lock()  # released when the consumer has made room
        self._room.acquire()
        self._origin: Origin | None = None
        self._at = 0  # rows or elements of the input that were taken
        self._given: tuple[tuple[int, int], ...] = ()  # of them, those that another life of the stream has given
        self._done: tuple[tuple[int, int], ...] = ()  # the same, until the last of them has been passed
        self._pieces: deque[tuple[Element, int, int]] = deque()  # of a block part of which was given
        self._runner: threading.Thread | None = None
        self.pulled = Work()
        self._weighed = 0
        self._last: Slot | None = None  # the end, if it came before others that are still worked on
        self._ended = False

    # The consumer's side

    def take(self) -> Slot:
        while not (self._ended or self.stopped):
            if self._runner is None and (not self._size() or (self.team is not None and self.team.trial is not None)):
                slot = self._made_here()
            else:
                self.start()
                slot = self._first_in_order() if self._ready is None else self._first_ready(self._ready)
            if not slot.paused:
                self._ended = slot.end
                if not slot.end:
                    return slot
                self.close()
                if slot.error is not None:
                    return slot
            else:
                self._stand()
        raise StopIteration

    def _made_here(self) -> Slot:
        slot = Slot(None, self._at)
        self._fill(slot)
        if self.team is not None and not slot.end and slot.error is None:
            self.team.call(slot)
        if not slot.end and slot.error is None:
            self._weigh(slot.element)
        return slot

    def _first_in_order(self) -> Slot:
        slot = self._slots[0]
        slot.ready.acquire()
        self._slots.popleft()
        self._make_room()
        return slot

    def _first_ready(self, ready: SimpleQueue[Slot]) -> Slot:
        while self._last is None or len(self._slots) > 1:
            slot = ready.get()
            if slot.end or slot.paused:  # others may still be worked on
                self._last = slot
                continue
            slot.given = True
            while self._slots[0].given:
                self._slots.popleft()
            self._make_room()
            return slot
        return self._last

    def _make_room(self) -> None:
        if self._room.locked():
            with contextlib.suppress(RuntimeError):  # close() was faster
                self._room.release()

    def state(self) -> State:
        slots = list(self._slots)
        if self._ended:
            return {"at": self._at, "done": [], "input": None}
        if not slots and not self._replays:
            return {"at": self._at, "done": [], "input": self._source.state()}
        head = next((slot for slot in slots if not slot.given), None)
        origin = self._origin if head is None else head.origin
        next_ = self._next if head is None else head.at
        assert origin is not None
        done = [(origin.at, next_)]
        done += [(slot.at, slot.stop) for slot in slots if slot.given and slot.at >= next_]
        done += [(max(first, next_), stop) for first, stop in self._given if stop > next_]
        return {
            "at": origin.at,
            "done": [[first - origin.at, stop - origin.at] for first, stop in sorted(done) if stop > first],
            "input": origin.state,
        }

    def restore(self, state: State) -> None:
        self._at = state["at"]
        if state["input"] is None:
            self._ended = True
            return
        self._source.restore(state["input"])
        self._origin = Origin(state["input"], self._at)
        self._given = self._done = tuple((self._at + first, self._at + stop) for first, stop in state["done"])

    @property
    def _replays(self) -> bool:
        """Whether elements that another life of the stream has given still lie ahead."""
        return bool(self._done or self._pieces)

    @property
    def _next(self) -> int:
        """Which row or element comes next; only while no thread takes any."""
        return self._pieces[0][1] if self._pieces else self._at

    def start(self) -> None:
        if self._runner is not None:
            return
        if self._origin is None or not self._replays:
            self._origin = Origin(self._source.state(), self._at)
        self._slots.append(Slot(self._origin, self._next))
        self._runner = threading.Thread(target=self._run, name=f"{self.name}: input", daemon=True)
        self._runner.start()

    def _stand(self) -> None:
        """Goes back to where nothing was started: the thread has taken what it was to take."""
        assert self._runner is not None
        self._runner.join()
        self._runner, self._last = None, None
        self._slots.clear()

    def close(self) -> None:
        """Stops the threads and closes the input; waits for them, unless they are ours to be waited for by others."""
        self.stopped = True
        self._make_room()
        if self._runner is None:
            self._source.close()
            return
        if self.team is not None:
            self.team.stop()
        threads = [self._runner, *(self.team.threads() if self.team is not None else [])]
        if getattr(_ours, "thread", False):
            return
        deadline = time.monotonic() + CLOSING_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            logger.warning("input.closing", extra={"op": self.name, "reason": "a function is still being called"})
            return
        for slot in self._slots:  # these stay, to tell the state
            slot.element = None

    # The threads' side

    def _run(self) -> None:
        _ours.thread = True
        try:
            while self._wait_for_room():
                slot = self._slots[-1]
                if not self._size():
                    slot.paused = True
                    self.finish(slot)
                    break
                self._fill(slot)
                if not slot.end:
                    self._append(slot)
                ended = slot.end  # the slot may be the consumer's, once it is finished
                if ended or slot.error is not None or self.team is None:
                    self.finish(slot)
                else:
                    self.team.submit(slot)
                del slot  # which may be the last to hold the element
                if ended:
                    break
        finally:
            if self.stopped or not self._slots or not self._slots[-1].paused:
                self._source.close()
            if self.team is not None:
                self.team.end()

    def _wait_for_room(self) -> bool:
        while not self.stopped:
            waiting = len(self._slots) - 1  # those that were given out of turn count too: it keeps the state small
            if waiting <= 0 or (waiting < self._size() and (waiting + 1) * self.element_bytes <= self._limit_bytes):
                return True
            self._room.acquire()
        return False

    def _fill(self, slot: Slot) -> None:
        """Takes the slot's element from the input, or what comes instead of it."""
        try:
            if self.permits is None:
                started = time.perf_counter()
                slot.element, slot.at, slot.stop = self._pull()
                self.pulled.add(time.perf_counter() - started)
            else:
                with self.permits:
                    started, cpu = time.perf_counter(), time.thread_time()
                    slot.element, slot.at, slot.stop = self._pull()
                    slot.took_s, slot.cpu_s = time.perf_counter() - started, time.thread_time() - cpu
        except StopIteration:
            slot.end = True
        except BaseException as error:  # noqa: BLE001  it is the consumer's
            slot.error = error
            slot.at, slot.stop = self._at - (not self._rows), self._at

    def _append(self, slot: Slot) -> None:
        """Makes the slot of the next element: as soon as this one's has been taken, for the consumer to wait for."""
        try:
            assert self._origin is not None
            step = 1 if self._rows else CHECKPOINT_ELEMENTS
            if not self._pieces and (self._at - self._origin.at >= step or slot.error is not None):
                self._origin = Origin(self._source.state(), self._at)
            self._slots.append(Slot(self._origin, self._at))
        except Exception as error:  # noqa: BLE001  or the consumer would wait for ever
            slot.error, slot.end = error, True

    def _pull(self) -> tuple[Element, int, int]:
        while True:
            if self._pieces:
                return self._pieces.popleft()
            first = self._at
            try:
                element = next(self._source)
            except StopIteration:
                raise
            except Exception:
                self._at += not self._rows  # it has used up an element
                if any(start <= first < stop for start, stop in self._done):
                    continue
                raise
            self._at += element.num_rows if self._rows else 1
            if not self._done:
                return element, first, self._at
            self._pieces.extend(_pieces(element, first, self._at, self._done, rows=self._rows))
            if self._at >= max(stop for _, stop in self._done):
                self._done = ()

    def finish(self, slot: Slot) -> None:
        """Lets the consumer have it."""
        if not slot.end and slot.error is None:
            self._weigh(slot.element)
        if self._ready is None:
            slot.ready.release()
        else:
            self._ready.put(slot)
        if self.on_ready is not None:
            self.on_ready()

    def _weigh(self, element: Element) -> None:
        if self._weighed % 64 == 0:  # weighing takes longer than passing on
            self.element_bytes = weight(element)
        self._weighed += 1


class _Team:
    """The threads that call a function, each by itself or in a worker process of its own."""

    def __init__(self, function: Function, size: Knob, callers: Callers, window: _Window) -> None:
        self.lock_share = 0.0
        self.trial = callers.trial  #: goes on in the consumer's thread, until it has found something
        self._function = function
        self._size = size
        self._workers: Literal["threads", "processes"] = callers.workers
        self._tried = callers.trial  # if any, a thread may call too: while its process starts, or if that cannot
        self._most_processes = callers.most_processes
        self._window = window
        self._todo: SimpleQueue[Slot | None] = SimpleQueue()
        self._count = 0
        self._threads: list[threading.Thread] = []
        self._processes: set[Process] = set()
        if self.trial is not None and self.trial.verdict is not None:
            self.settle(self.trial.verdict)

    def submit(self, slot: Slot) -> None:
        wanted = max(1, min(self._size.value, self._size.maximum))  # it may be 0 by now, and the slot waits
        while self._count < wanted:
            self._threads = [*filter(threading.Thread.is_alive, self._threads)]
            thread = threading.Thread(target=self._work, name=f"{self._window.name}: {self._count}", daemon=True)
            thread.start()
            self._threads.append(thread)
            self._count += 1
        while self._count > wanted:
            self._todo.put(None)
            self._count -= 1
        self._todo.put(slot)

    def threads(self) -> list[threading.Thread]:
        return self._threads

    def end(self) -> None:
        """Lets the threads end when there is nothing left to do."""
        for _ in range(self._count):
            self._todo.put(None)
        self._count = 0

    def stop(self) -> None:
        """Ends the processes, so that no thread waits for one."""
        for process in tuple(self._processes):
            process.kill()

    def settle(self, verdict: Verdict) -> None:
        """Lets those make the calls that a trial has found best."""
        self.trial, self._workers, self.lock_share = None, verdict.workers, verdict.lock_share
        if verdict.workers == "processes":
            size, self.lock_share = self._size, 0.0
            size.minimum = max(1, size.minimum)
            size.maximum = max(size.minimum, min(size.maximum, self._most_processes))
            size.value = max(size.value, size.minimum)

    def _work(self) -> None:
        _ours.thread = True
        process: Process | None = None
        try:
            while (slot := self._todo.get()) is not None:
                if self._window.stopped:
                    continue
                process = self._process(slot, process)
                if slot.error is None:
                    self.call(slot, process)
                if isinstance(slot.error, WorkerLost):
                    self._ended(process)
                    process = None
                self._window.finish(slot)
                del slot
        finally:
            self._ended(process)

    def call(self, slot: Slot, process: Process | None = None) -> None:
        """Puts the function's result, or its error, into the slot."""
        started, cpu, there = time.perf_counter(), time.thread_time(), process.cpu_s if process is not None else 0.0
        try:
            slot.element = self._result(slot, process)
        except BaseException as error:  # noqa: BLE001  whatever it is, it is the consumer's
            slot.error = error
        slot.took_s = time.perf_counter() - started
        slot.cpu_s = time.thread_time() - cpu + (process.cpu_s - there if process is not None else 0.0)
        if (watch := self._window.watch) is not None:
            watch(int(started * 1e9), int((started + slot.took_s) * 1e9))

    def _result(self, slot: Slot, process: Process | None) -> Element:
        if self.trial is not None:
            made = self.trial(slot.element, slot.at)
            if self.trial.verdict is not None:
                self.settle(self.trial.verdict)
            return made
        if process is not None:
            try:
                if self._tried is None or process.loaded:
                    return process(slot.element, slot.at)
            except NotPortable as error:
                if self._tried is None:
                    raise
                self._stay(self._tried, error)
        return self._function(slot.element, slot.at)

    def _stay(self, tried: Trial, reason: Exception) -> None:
        """Lets threads make the calls, now and in later passes: processes cannot."""
        logger.info("input.workers", extra={"op": self._window.name, "workers": "threads", "reason": str(reason)})
        self._workers = "threads"
        remember(tried.functions, Verdict(workers="threads"))

    def _process(self, slot: Slot, process: Process | None) -> Process | None:
        """The process of a thread: the one it has, or a new one; none if the thread makes the calls itself."""
        if self._workers == "threads":
            self._ended(process)
            return None
        if process is not None:
            return process
        try:
            process = Process(portable(self._function, name=self._window.name), name=self._window.name)
        except Exception as error:  # noqa: BLE001  such as too many processes
            if self._tried is None:
                slot.error = error
            else:
                self._stay(self._tried, error)
            return None
        self._processes.add(process)
        if self._window.stopped:  # it may have come too late to be stopped with the others
            process.kill()
        return process

    def _ended(self, process: Process | None) -> None:
        if process is not None:
            process.close()
            self._processes.discard(process)


def open_map(op: Map, opening: Opening) -> Stream:
    """The stream of a map whose calls run side by side."""
    source = opening.open(op.input) if op.vectorized else elements(opening, op.input)
    most_processes = opening.options.cpu_budget or cores()
    knob = _num_parallel(op, opening, most_processes if op.workers == "processes" else MOST_THREADS)
    function = (replace(op, input=_Described(like=op.input.spec)) if op.may_travel else op).applied()
    trial = None
    if op.workers == "auto" and op.may_travel:
        trial = Trial(function=function, functions=op.functions, name=op.name, verdict=known(op.functions))
    workers: Literal["threads", "processes"] = "processes" if op.workers == "processes" else "threads"
    stream = Ahead(
        source,
        name=op.name,
        rows=op.vectorized,
        window=lambda: 2 * knob.value,
        function=function,
        num_parallel=knob,
        callers=Callers(workers=workers, trial=trial, most_processes=most_processes),
        ordered=_ordered(op, opening),
    )
    if op.num_parallel == AUTOTUNE and opening.tuner is not None:
        opening.tuner.register(knob, stream)
    return stream


def open_interleave(op: Interleave, opening: Opening) -> Stream:
    """The stream of an interleave whose datasets are read side by side."""
    from spanwise.pipelines.input.execution.lanes import LanesStream

    knob = _num_parallel(op, opening, op.cycle)
    stream = LanesStream(op, opening, knob, ordered=_ordered(op, opening))
    if op.num_parallel == AUTOTUNE and opening.tuner is not None:
        opening.tuner.register(knob, stream)
    return stream


def _num_parallel(op: Map | Interleave, opening: Opening, most: int) -> Knob:
    """At first the consumer does the work, if it is to be found out: threads would cost more than a quick function."""
    name = f"{op.name}.num_parallel"
    if op.num_parallel != AUTOTUNE:
        value = op.num_parallel or 1
        return Knob(name=name, kind="parallelism", value=value, minimum=value, maximum=value)
    least = int(getattr(op, "workers", "processes") == "processes")  # threads read the datasets of an interleave
    value = least if opening.tuner is not None else min(most, cores())
    return Knob(name=name, kind="parallelism", value=value, minimum=least, maximum=most)


def _ordered(op: Map | Interleave, opening: Opening) -> bool:
    return opening.options.deterministic if op.deterministic is None else op.deterministic


@dataclass(frozen=True, kw_only=True, eq=False)
class _Described(Op):
    """Stands for an op's input where the op goes to another process, which needs to know only what the elements are."""

    like: Spec

    @property
    def spec(self) -> Spec:
        return self.like

    @property
    def cardinality(self) -> Count:
        return None

    def open(self, opening: Opening) -> Stream:
        raise NotImplementedError("the elements come from the process that sent the function")


def _pieces(
    element: Element, first: int, last: int, done: Sequence[tuple[int, int]], *, rows: bool
) -> Iterator[tuple[Element, int, int]]:
    """What is left of an element, or of a block of rows, of which some intervals have been given."""
    at = first
    for start, stop in [*sorted(done), (last, last)]:
        if start > at and at < last:
            end = min(start, last)
            yield (element.slice(at - first, end - at) if rows else element), at, end
        at = max(at, stop)
