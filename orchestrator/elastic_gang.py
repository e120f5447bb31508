"""Elastic gangs: rank 0 with workers that come and go. Unlike replicas in step they do not need each other.

Rank 0 says where it is, and each worker hears it when it starts, however late that is. A worker that dies is replaced,
up to three times for each, those not counted whose machine was taken away. What becomes of rank 0 becomes of the job.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from spanwise.orchestrator.active_gang import ActiveGang, LogCopy
from spanwise.orchestrator.job import GatherQuery, JobEnded, JobFailure, NodeJob

RESTARTS: Final = 3
"""How often each worker is replaced."""

MOST_PREEMPTIONS: Final = 20
"""How often it is replaced after its machine was taken away."""

log = logging.getLogger("spanwise.executor")


@dataclass
class ElasticGang(ActiveGang):
    """A job of a master and workers on its way."""

    announced: bool = False  #: whether rank 0 has said anything
    announcement: object = None  #: what it has said last; None when there is no work any more
    starts: Counter[int] = field(default_factory=Counter)
    losses: Counter[tuple[int, str]] = field(default_factory=Counter)  #: of each worker, by whether it was preempted
    deserted: bool = False  #: whether no worker is left that could be replaced
    last: tuple[int, JobFailure] | None = None  #: of the worker that was lost last

    def hear(self, event: GatherQuery) -> dict[int, object]:
        """Who is answered now, and what."""
        if self.members[event.id].replica.rank == 0:
            self.announced, self.announcement = True, event.value
            waiting, self.said = self.said, {}
            return dict.fromkeys((event.id, *waiting), (event.value,))
        if self.announced:
            return {event.id: (self.announcement,)}
        self.said[event.id] = event.value
        return {}

    def take_end(self, ended: JobEnded) -> NodeJob | None:
        """Notes the end of one; returns a job to start in its place."""
        self.running.remove(ended.id)
        self.said.pop(ended.id, None)
        member = self.members[ended.id]
        rank, failure = member.replica.rank, ended.failure
        if rank == 0:
            self.ended[ended.id] = ended
            self.over = True
            return None
        if failure is None or self.over or self.stopped is not None or (self.announced and self.announcement is None):
            return None
        self.last = (rank, failure)
        kind = "preempted" if failure.cause == "preempted" else ""
        self.losses[rank, kind] += 1
        most = MOST_PREEMPTIONS if kind else RESTARTS
        if self.losses[rank, kind] > most:
            self.over = self.deserted = len(self.running) == 1  # rank 0 would wait for ever
            return None
        log.warning("worker-replaced", extra={"node": self.job.node, "worker": rank, "reason": failure.message})
        return self._replacement(member)

    def is_hopeless(self) -> bool:
        return self.over

    def outcome(self) -> JobEnded:
        first = self.ended.get(next(iter(self.members)))
        if first is not None and (first.failure is None or self.last is None or not self.deserted):
            return replace(first, id=self.job.id)
        assert self.last is not None, "the only other way to be over"
        rank, failure = self.last
        message = (
            f"worker {rank} of {self.job.gang.size - 1} was the last that was left, and was replaced too often: "
            f"{failure.message} If memory ran out, use fewer workers or smaller batches."
        )
        return JobEnded(id=self.job.id, failure=replace(failure, message=message))

    def _replacement(self, member: NodeJob) -> NodeJob:
        rank, start = member.replica.rank, member.replica.start + 1
        source = self.logs / f"{rank}.{start}.log"
        again = replace(member, id=next(self.ids), replica=replace(member.replica, start=start), log=str(source))
        self.members[again.id] = again
        self.running.append(again.id)
        self.copies.append(LogCopy(source, Path(self.job.log), rank))
        return again
