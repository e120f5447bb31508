"""Active gangs: the replicas of one job on their way, and what their ends say about the job. Ends nothing itself."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.job import GatherQuery, JobEnded, JobFailure, NodeJob
from spanwise.orchestrator.replica import Replica

SETTLE_S: Final = 1.0
"""When one raises an error, perhaps because another was killed, so much time passes before the others are ended."""

LOG_S: Final = 0.2
"""How often the logs of replicas are looked at."""

_CAUSES: Final = ("preempted", "memory", "died", "", "aborted")
"""What explains the failure of a gang, the best explanation first: JAX aborts the others when one raises an error."""


@dataclass
class ActiveGang:
    """A job of several replicas on its way."""

    job: NodeJob
    ids: Iterator[int]  #: of jobs of replicas, for all gangs of an executor
    members: dict[int, NodeJob]  #: the jobs of its replicas, by their ids, in the order of ranks
    logs: Path
    copies: list[LogCopy]
    running: list[int]
    said: dict[int, object] = field(default_factory=dict)  #: what those say that wait for all to say something
    asking: deque[int] = field(default_factory=deque)  #: those that wait to hear of the fence
    ended: dict[int, JobEnded] = field(default_factory=dict)
    failures: list[tuple[int, JobFailure]] = field(default_factory=list)  #: by rank, those that nobody has asked for
    stopped: JobFailure | None = None  #: why somebody has asked for its end
    ending: bool = False  #: whether those that still run were asked to end
    over: bool = False  #: whether those that still run are of no use
    failed_at: float | None = None  #: monotonic; when a failure was first heard of

    @classmethod
    def of(cls, job: NodeJob, ids: Iterator[int]) -> Self:
        logs = Path(job.scratch).with_name(f"{job.node}~logs.scratch")
        shutil.rmtree(logs, ignore_errors=True)  # of an attempt whose controller was killed
        members: dict[int, NodeJob] = {}
        for rank in range(job.gang.size):
            member = replace(
                job,
                id=next(ids),
                replica=Replica(rank=rank, count=job.gang.size, job=job.id),
                verify=_share_to_verify(job, rank),
                log=str(logs / f"{rank}.log"),
                scratch=job.scratch if rank == 0 else str(logs.with_name(f"{job.node}~{rank}.scratch")),
            )
            members[member.id] = member
        copies = [LogCopy(Path(each.log), Path(job.log), each.replica.rank) for each in members.values()]
        return cls(job, ids, members, logs, copies, list(members))

    def wait_s(self) -> float:
        return LOG_S if self.failed_at is None else min(LOG_S, max(0.0, self.failed_at + SETTLE_S - time.monotonic()))

    def hear(self, event: GatherQuery) -> dict[int, object]:
        """Who is answered now, and what."""
        self.said[event.id] = event.value
        if len(self.said) < len(self.members):
            return {}
        said, self.said = self.said, {}
        return dict.fromkeys(self.members, tuple(said[each] for each in self.members))

    def take_end(self, ended: JobEnded) -> NodeJob | None:
        """Notes the end of one; returns a job to start in its place, which there is none here."""
        self.running.remove(ended.id)
        self.ended[ended.id] = ended
        rank, failure = self.members[ended.id].replica.rank, ended.failure
        if failure is not None and (not self.ending or failure.cause in ("preempted", "memory")):
            self.failures.append((rank, failure))
        elif failure is None and self.said and not self.failures:
            waiting = ", ".join(str(self.members[each].replica.rank) for each in self.said)
            why = (
                f"It has returned, while rank {waiting} waits for all replicas. Each has to call `save_checkpoint` "
                f"as often as the others."
            )
            self.failures.append((rank, JobFailure(message=why)))
        if self.failures and self.failed_at is None:
            self.failed_at = time.monotonic()
        return None

    def is_hopeless(self) -> bool:
        """Whether one has failed, and what else has failed with it is known."""
        if self.failed_at is None:
            return False
        is_known = any(failure.cause not in ("", "aborted") for _, failure in self.failures)
        return is_known or time.monotonic() >= self.failed_at + SETTLE_S

    def end(self) -> JobEnded:
        """The end of the job, when all have ended."""
        self.copy_logs(last=True)
        shutil.rmtree(self.logs, ignore_errors=True)
        if self.stopped is not None:
            return JobEnded(id=self.job.id, failure=self.stopped)
        return self.outcome()

    def outcome(self) -> JobEnded:
        """The end of the job, when all have ended and nobody has stopped it."""
        if self.failures:
            rank, failure = min(self.failures, key=lambda each: _CAUSES.index(each[1].cause))
            named = f"rank {rank} of {self.job.gang.size}: {failure.message}"
            others = [f"rank {each}: {other.message}" for each, other in self.failures if other.cause == "aborted"]
            if failure.cause == "" and others:
                named += f" ({' '.join(others)})"
            return JobEnded(id=self.job.id, failure=replace(failure, message=named))
        return JobEnded(id=self.job.id, outputs=self.ended[next(iter(self.members))].outputs)

    def copy_logs(self, *, last: bool = False) -> None:
        for copy in self.copies:
            copy.go_on(last=last)


@dataclass
class LogCopy:
    """What a replica prints, in the log of its node: whole lines, with its rank."""

    source: Path
    target: Path
    rank: int
    position: int = 0
    begun: bytes = b""  #: the line of which the end has not come yet

    def go_on(self, *, last: bool) -> None:
        with contextlib.suppress(FileNotFoundError), self.source.open("rb") as file:
            file.seek(self.position)
            while text := file.read(1 << 20):
                self.position += len(text)
                *lines, self.begun = (self.begun + text).split(b"\n")
                self._write(lines)
        if last and self.begun:
            self._write([self.begun])
            self.begun = b""

    def _write(self, lines: list[bytes]) -> None:
        if lines:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            with self.target.open("ab") as log:
                log.write(b"".join(b"[rank %d] %s\n" % (self.rank, line) for line in lines))


def _share_to_verify(job: NodeJob, rank: int) -> tuple[Artifact, ...]:
    """The inputs that a replica verifies: together all, before any of them works."""
    if job.gang.elastic:
        return () if rank else job.verify
    count, size = len(job.verify), job.gang.size
    return job.verify[count * rank // size : count * (rank + 1) // size]  # in order, as shares are
