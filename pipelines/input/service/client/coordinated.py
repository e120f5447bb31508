"""A consumer of a coordinated read: it yields a round when all consumers hold it, from one worker."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from spanwise.orchestrator.errors import FunctionFailed, ServiceError, SpanwiseError
from spanwise.pipelines.input.op import Element
from spanwise.pipelines.input.service.client.course import RoundCourse
from spanwise.pipelines.input.service.client.feed import WorkerFeed
from spanwise.pipelines.input.service.client.job import JobSettings
from spanwise.pipelines.input.service.client.reader import BUFFER_BYTES, Item, JobReader
from spanwise.pipelines.input.service.wire.requests import MAX_ROUNDS_AHEAD, JobView

_POLL_S: Final = 0.5
_WARN_S: Final = 10.0

_log = logging.getLogger("spanwise.service.consumer")


class CoordinatedReader(JobReader):
    """A reader with one more thread, which tells the dispatcher which rounds it holds."""

    def __init__(self, job: JobSettings, epoch: str) -> None:
        self._course = RoundCourse[Item]()
        self._reported = self._course.report  # what the dispatcher knows
        super().__init__(job, epoch)
        threading.Thread(target=self._report_rounds, name="service-rounds", daemon=True).start()

    def next(self) -> Element:
        """What this consumer gets in the next round; waits until all consumers hold it."""
        with self._changed:
            start = time.monotonic()
            while not self._changed.wait_for(self._may_continue, _WARN_S):
                facts = {"round": self._course.next_round, "held": self._course.ready, "agreed": self._course.agreed}
                _log.warning("consumers-awaited", extra={"job": self._job.job_name, **facts})
            self._waited_s += time.monotonic() - start
            if self._closed.is_set():
                raise StopIteration
            if not self._course.may_yield:
                assert self._error is not None
                raise self._error
            piece = self._course.pop()
            self._changed.notify_all()
        if isinstance(piece, SpanwiseError):
            if not isinstance(piece, FunctionFailed):  # nothing follows
                self._error = piece
            raise piece
        self._yielded += 1
        return piece

    def _may_continue(self) -> bool:
        return self._course.may_yield or self._error is not None or self._closed.is_set()

    # The dispatcher.

    def _poll(self) -> None:
        view = self._exchange(_POLL_S)
        self._follow({str(task): address for task, address in view.tasks})
        if view.gone is not None:
            raise ServiceError(
                f"consumer {view.gone} of {self._job.num_consumers} has left job {self._job.job_name!r}, or was silent "
                f"for too long, after round {self._course.agreed}; a coordinated read continues only with all of its "
                f"consumers. Stop the others and start again."
            )

    def _report_rounds(self) -> None:
        """Reports new rounds at once, whatever `_poll` still waits for."""
        try:
            while not self._closed.is_set() and self._error is None:
                with self._changed:
                    self._changed.wait_for(self._has_news, _POLL_S)
                    if not self._has_news():
                        continue
                self._retry(partial(self._exchange, 0.0))
        except Exception as error:  # noqa: BLE001  as in `_run`
            self._end(error)

    def _has_news(self) -> bool:
        return self._joined and self._course.report != self._reported and not self._closed.is_set()

    def _exchange(self, wait_s: float) -> JobView:
        """Reports how far this consumer has come, and learns how far all have."""
        with self._changed:
            self._reported = report = self._course.report
        view = self._ask(wait_s, report)
        with self._changed:
            self._course.update(report.plans, view.plans, view.agreed)
            self._changed.notify_all()
        return view

    # Workers.

    def _read(self, source: str, feed: WorkerFeed, over: threading.Event) -> None:
        self._read_task(int(source), feed, over)

    def _has_room(self, task: int | None) -> bool:
        assert task is not None
        count, size_bytes = self._course.held(task)
        return count < MAX_ROUNDS_AHEAD and size_bytes < BUFFER_BYTES // max(1, len(self._sources))

    def _keep(self, task: int, items: Sequence[Item]) -> bool:
        with self._changed:
            if self._closed.is_set():
                return False
            self._course.add(task, [(one, self._size_bytes(one)) for item in items for one in self._each(item)])
            self._changed.notify_all()
        return True

    def _each(self, item: Item) -> Iterator[Item]:
        """An item for each round: rows are sent several to a block."""
        if isinstance(item, SpanwiseError):
            yield item
            return
        for at in range(self._encoding.count(item)):
            yield self._encoding.cut(item, at, at + 1)
