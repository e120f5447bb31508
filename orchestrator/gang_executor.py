"""Gangs: an executor for jobs of several replicas, over one that knows only single jobs.

Each replica is a job of the executor below, wherever that is; here they become one again. What they say to each other
before and while they work goes over the lines that jobs have, so a gang needs nothing of an engine but that it starts
its jobs. When one fails all are ended; what rank 0 makes is what the job makes.
"""

from __future__ import annotations

import itertools
from typing import Self

from spanwise.orchestrator.active_gang import ActiveGang
from spanwise.orchestrator.elastic_gang import ElasticGang
from spanwise.orchestrator.executor import Executor, ExecutorEvent
from spanwise.orchestrator.job import GRACE_S, FenceQuery, GatherQuery, JobEnded, JobFailure, JobPlaced, NodeJob
from spanwise.orchestrator.process import Survivor


class GangExecutor:
    """Runs jobs, those of a gang included; see Executor."""

    def __init__(self, executor: Executor) -> None:
        self._below = executor
        self._gangs: dict[int, ActiveGang] = {}
        self._members: dict[int, ActiveGang] = {}  # by the jobs below
        self._ids = itertools.count(-1, -1)  # executions have positive ones

    def start(self, job: NodeJob) -> None:
        if job.gang.size == 1:
            self._below.start(job)
            return
        gang = (ElasticGang if job.gang.elastic else ActiveGang).of(job, self._ids)
        self._gangs[job.id] = gang
        for member in gang.members.values():
            self._start(gang, member)

    def _start(self, gang: ActiveGang, member: NodeJob) -> None:
        self._members[member.id] = gang
        self._below.start(member)

    def stop(self, job: int, why: str, *, timed_out: bool = False, grace_s: float = GRACE_S) -> None:
        if (gang := self._gangs.get(job)) is None:
            self._below.stop(job, why, timed_out=timed_out, grace_s=grace_s)
            return
        gang.stopped = gang.stopped or JobFailure(message=why, timed_out=timed_out)
        for member in gang.running:
            self._below.stop(member, why, timed_out=timed_out, grace_s=grace_s)

    def answer(self, job: int, reply: object) -> None:
        if (gang := self._gangs.get(job)) is None:
            self._below.answer(job, reply)
        elif gang.asking:
            self._below.answer(gang.asking.popleft(), reply)

    def wait(self, timeout_s: float) -> list[ExecutorEvent]:
        heard = self._below.wait(min([timeout_s, *(gang.wait_s() for gang in self._gangs.values())]))
        events = [event for each in heard if (event := self._hear(each)) is not None]
        for gang in list(self._gangs.values()):
            gang.copy_logs()
            if gang.is_hopeless() and not gang.ending:
                gang.ending = True
                for member in gang.running:
                    self._below.stop(member, "", grace_s=GRACE_S)
            if not gang.running:
                del self._gangs[gang.job.id]
                events.append(gang.end())
        return events

    def _hear(self, event: ExecutorEvent) -> ExecutorEvent | None:
        """What an event below means here."""
        if (gang := self._members.get(event.id)) is None:
            return event
        match event:
            case FenceQuery(member):
                gang.asking.append(member)
                return FenceQuery(gang.job.id)
            case JobPlaced(member, placement) if gang.members[member].replica.rank == 0:
                return JobPlaced(gang.job.id, placement)
            case GatherQuery():
                for member, reply in gang.hear(event).items():
                    self._below.answer(member, reply)
            case JobEnded():
                del self._members[event.id]
                if (again := gang.take_end(event)) is not None:
                    self._start(gang, again)
        return None

    @property
    def mark(self) -> int:
        return self._below.mark

    @property
    def engine(self) -> str:
        return self._below.engine

    @property
    def running(self) -> tuple[int, ...]:
        return (*(job for job in self._below.running if job not in self._members), *self._gangs)

    def has_room(self, node: str) -> bool:
        return self._below.has_room(node)

    def silence_s(self, node: str) -> float:
        return self._below.silence_s(node)

    def spare(self, node: str) -> None:
        self._below.spare(node)

    def wake(self) -> None:
        self._below.wake()

    def sweep(self) -> list[Survivor]:
        return self._below.sweep()

    def close(self) -> None:
        self._below.close()
        for gang in self._gangs.values():
            gang.copy_logs(last=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
