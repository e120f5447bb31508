"""Callers: the threads or worker processes that call a function with elements, several calls at once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Literal, TypeAlias

from spanwise.orchestrator.errors import WorkerLost
from spanwise.pipelines.input.execution.process import Function, Process, ship_function
from spanwise.pipelines.input.execution.slot import AheadSlot
from spanwise.pipelines.input.op import Element, Knob

Workers: TypeAlias = Literal["threads", "processes"]

thread_mark = threading.local()
"""`is_ours` marks our threads: they must not wait for one another when one of them closes a stream."""


class CallerTeam:
    """The threads that call a function, each by itself or through a worker process of its own."""

    def __init__(
        self,
        function: Function,
        size: Knob,
        workers: Workers,
        name: str,
        finish: Callable[[AheadSlot], None],
        permits: contextlib.AbstractContextManager[object] | None = None,
    ) -> None:
        self._permits = permits or contextlib.nullcontext()  # held during each call
        self.watch: Callable[[int, int], None] | None = None  #: receives the start and the end of each call, in ns
        self._function = function
        self._check = getattr(function, "check", None)  # of a result among those of all processes
        self._size = size
        self._workers = workers
        self._name = name
        self._finish = finish
        self._stopped = False
        self._todo: SimpleQueue[AheadSlot | None] = SimpleQueue()
        self._count = 0
        self._threads: list[threading.Thread] = []
        self._processes: set[Process] = set()

    def submit(self, slot: AheadSlot) -> None:
        wanted = max(1, min(self._size.value, self._size.maximum))  # it may be 0 by now, while the slot is waiting
        while self._count < wanted:
            self._threads = [*filter(threading.Thread.is_alive, self._threads)]
            thread = threading.Thread(target=self._work, name=f"{self._name}: {self._count}", daemon=True)
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
        self._stopped = True
        for process in tuple(self._processes):
            process.kill()

    def _work(self) -> None:
        thread_mark.is_ours = True
        process: Process | None = None
        try:
            while (slot := self._todo.get()) is not None:
                if self._stopped:
                    slot.element = None
                    continue
                process = self._process(slot, process)
                if slot.error is None:
                    self.call(slot, process)
                if isinstance(slot.error, WorkerLost):
                    self._close_process(process)
                    process = None
                self._finish(slot)
                del slot
        finally:
            self._close_process(process)

    def call(self, slot: AheadSlot, process: Process | None = None) -> None:
        """Puts the function's result, or its error, into the slot."""
        with self._permits:
            if not self._stopped:
                self._call(slot, process)

    def _call(self, slot: AheadSlot, process: Process | None) -> None:
        started, cpu, there = time.perf_counter(), time.thread_time(), process.cpu_s if process is not None else 0.0
        try:
            slot.element = self._result(slot, process)
        except BaseException as error:  # noqa: BLE001  whatever it is, it is the consumer's
            slot.error = error
        slot.took_s = time.perf_counter() - started
        slot.cpu_s = time.thread_time() - cpu + (process.cpu_s - there if process is not None else 0.0)
        if (watch := self.watch) is not None:
            watch(int(started * 1e9), int((started + slot.took_s) * 1e9))

    def _result(self, slot: AheadSlot, process: Process | None) -> Element:
        if process is not None:
            result = process(slot.element, slot.at)
            if self._check is not None:
                self._check(result, slot.at)
            return result
        return self._function(slot.element, slot.at)

    def _process(self, slot: AheadSlot, process: Process | None) -> Process | None:
        """The process of a thread: the one it has, or a new one; None if the thread makes the calls itself."""
        if self._workers == "threads" or process is not None:
            return process
        try:
            process = Process(ship_function(self._function, name=self._name), name=self._name)
        except Exception as error:  # noqa: BLE001  such as too many processes
            slot.error = error
            return None
        self._processes.add(process)
        if self._stopped:  # it may have come too late to be stopped with the others
            process.kill()
        return process

    def _close_process(self, process: Process | None) -> None:
        if process is not None:
            process.close()
            self._processes.discard(process)
