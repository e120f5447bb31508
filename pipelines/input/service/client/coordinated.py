"""A consumer of a coordinated read: it gives a round when all consumers have it in hand, each from the same worker."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spanwise.orchestrator.errors import FunctionFailed, ServiceError, SpanwiseError
from spanwise.pipelines.input.op import Element
from spanwise.pipelines.input.service.client.reader import BUFFER_BYTES, Reader
from spanwise.pipelines.input.service.dispatcher.rounds import Course, Plan
from spanwise.pipelines.input.service.worker.buffers import MOST_ROUNDS
from spanwise.pipelines.input.snapshot.encoding import Piece

if TYPE_CHECKING:
    from spanwise.pipelines.input.service.client.consumer import Distribute

_LOOK_S: Final = 0.5
_WARN_S: Final = 10.0

_log = logging.getLogger(__name__)


class CoordinatedReader(Reader):
    """Beside what a reader does, a thread that tells the dispatcher which rounds are in hand."""

    def __init__(self, op: Distribute, epoch: str) -> None:
        self._course = Course[Piece | SpanwiseError]()
        self._told = self._course.report  # what the dispatcher was told last
        super().__init__(op, epoch)
        threading.Thread(target=self._tell, name="service-rounds", daemon=True).start()

    def next(self) -> Element:
        """What this consumer gets in the next round; waits until all consumers have it in hand."""
        with self._changed:
            start = time.monotonic()
            while not self._changed.wait_for(self._may_go_on, _WARN_S):
                facts = {"round": self._course.given, "in_hand": self._course.ready, "agreed": self._course.agreed}
                _log.warning("service-waits-for-consumers", extra={"job": self._op.job_name, **facts})
            self._waited_s += time.monotonic() - start
            if self._closed.is_set():
                raise StopIteration
            if not self._course.may_give:
                assert self._error is not None
                raise self._error
            piece = self._course.give()
            self._changed.notify_all()
        if isinstance(piece, SpanwiseError):
            if not isinstance(piece, FunctionFailed):  # there is nothing behind it
                self._error = piece
            raise piece
        self._given += 1
        return piece

    def _may_go_on(self) -> bool:
        return self._course.may_give or self._error is not None or self._closed.is_set()

    # The dispatcher.

    def _look(self) -> None:
        answer = self._exchange(_LOOK_S)
        self._follow({str(task): address for task, address in answer["tasks"]})
        if answer["gone"] is not None:
            raise ServiceError(
                f"consumer {answer['gone']} of {self._op.num_consumers} has left job {self._op.job_name!r}, or was "
                f"silent for too long, after round {self._course.agreed}; a coordinated read goes on only with all of "
                f"them. End the others, and begin again."
            )

    def _tell(self) -> None:
        """Tells of what has come to hand at once, whatever `_look` still waits for."""
        try:
            while not self._closed.is_set() and self._error is None:
                with self._changed:
                    self._changed.wait_for(self._has_news, _LOOK_S)
                    if not self._has_news():
                        continue
                self._persistently(partial(self._exchange, 0.0))
        except SpanwiseError as error:
            self._end(error)

    def _has_news(self) -> bool:
        return self._joined and self._course.report != self._told and not self._closed.is_set()

    def _exchange(self, wait_s: float) -> Any:
        """Says how far this consumer has come, and hears how far all have."""
        with self._changed:
            self._told = report = self._course.report
        told = {"plans": report.plans, "ready": report.ready, "agreed": report.agreed}
        answer = self._seen(wait_s, rounds=told)
        plans = [Plan(first=first, tasks=tuple(tasks)) for first, tasks in answer["plans"]]
        with self._changed:
            self._course.hear(report.plans, plans, answer["agreed"])
            self._changed.notify_all()
        return answer

    # What comes.

    def _has_room(self, ticket: dict[str, Any]) -> bool:
        count, size_bytes = self._course.held(ticket["task"])
        return count < MOST_ROUNDS and size_bytes < BUFFER_BYTES // max(1, len(self._reading))

    def _keep(self, task: int, pieces: Sequence[Piece | SpanwiseError]) -> bool:
        with self._changed:
            if self._closed.is_set():
                return False
            self._course.add(task, [(piece, self._size_bytes(piece)) for piece in pieces])
            self._changed.notify_all()
        return True
