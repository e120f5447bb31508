"""Executors on an engine: jobs are done by agents on other machines; each does one at a time, and is kept for the next.

A thread for each agent talks to it. The thread of the run only reads queues, so a machine that does not answer holds up
nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from spanwise.orchestrator.agents import code_bundle
from spanwise.orchestrator.agents.code_bundle import CodeBundle
from spanwise.orchestrator.agents.engine import AgentEngine, AgentLine, AgentLost, GangEngine, Reservation
from spanwise.orchestrator.agents.messages import (
    Answer,
    Asked,
    Close,
    Closed,
    Command,
    Ended,
    Hello,
    Prepare,
    Printed,
    Ready,
    Report,
    Said,
    StartJob,
    StopJob,
    Unfit,
)
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import NodeFailed, SpanwiseError
from spanwise.orchestrator.executor import ExecutorEvent
from spanwise.orchestrator.job import FenceQuery, GatherQuery, JobEnded, JobFailure, JobPlaced, NodeJob
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.placement import Placement
from spanwise.orchestrator.process import Survivor
from spanwise.orchestrator.resources import NOTHING_ASKED, Resources

log = logging.getLogger("spanwise.executor")

SILENCE_S = 60.0
"""An agent that hears nothing of its controller for so long ends itself, with its job."""

KEPT_S = 10.0
"""An agent without a job is kept for so long, since the next node may want one like it."""

_OUTLIVED_S = SILENCE_S + 15.0
"""After so long, an agent that is out of reach has ended itself."""

_POLL_S = 2.0
_START_POLL_S = 0.2
_CLOSE_S = 30.0


@dataclass
class _GangPlaces:
    """The places of a gang, asked for by the first of its agents that starts."""

    reserve: Callable[[], Reservation]
    left: int  #: of its agents, those that have not ended
    reservation: Reservation | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def launch(self, rank: int, number: int) -> AgentLine:
        with self.lock:
            self.reservation = self.reservation or self.reserve()
        return self.reservation.launch(rank, number)

    def leave(self) -> None:
        """Says that an agent has ended."""
        with self.lock:
            self.left -= 1
            if not self.left and self.reservation is not None:
                self.reservation.release()


@dataclass
class _Member:
    """What one thread does: it starts an agent, and passes messages on in both directions."""

    number: int
    asked: Resources
    outbox: queue.SimpleQueue[Command | None] = field(default_factory=queue.SimpleQueue)
    job: NodeJob | None = None  #: what it does, or is to do first
    stopped: JobFailure | None = None
    idle_since: float = 0.0
    ready: Ready | None = None
    placement: Placement | None = None  #: once it has answered
    ended: bool = False
    closing: bool = False
    unproven: bool = False  #: whether something of it may be left
    threads: list[threading.Thread] = field(default_factory=list)
    places: _GangPlaces | None = None  #: if it is one of a gang's, which are not kept
    rank: int = 0


class AgentExecutor:
    """Runs the jobs of a pipeline on an engine; see Executor. `report` is called, from any thread, with each event."""

    def __init__(
        self,
        pipeline: Pipeline,
        engine: AgentEngine,
        *,
        root: Path | None,
        mark: int,
        report: Callable[[], None],
        page_url: str = "",
        kept_s: float = KEPT_S,
    ) -> None:
        """`page_url` is that of an agent's page, with `{agent}` for its name; empty: the one that the engine says."""
        self._engine = engine
        self._page_url = page_url
        self._root = root
        self._mark = mark
        self._wake = report
        self._kept_s = kept_s
        self._asked = {node.name: node.resources for node in pipeline if isinstance(node, Component)}
        self._code: CodeBundle = code_bundle.pack(pipeline)
        self._agents: list[_Member] = []
        self._count = 0
        self._events: queue.SimpleQueue[ExecutorEvent] = queue.SimpleQueue()
        self._jobs: dict[int, _Member] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._left: list[Survivor] = []  # of the agents that have been ended
        self._token = secrets.token_hex(16)
        self._gang: _GangPlaces | None = None  # of the last gang, whose replicas start one after the other

    @property
    def running(self) -> tuple[int, ...]:
        return tuple(self._jobs)

    def start(self, job: NodeJob) -> None:
        """Starts a job on an agent that has none, or on a new one."""
        asked = self._asked.get(job.node, NOTHING_ASKED)
        Path(job.log).parent.mkdir(parents=True, exist_ok=True)
        places = self._places_of(job, asked)
        with self._lock:
            free = (a for a in self._agents if a.job is None and not a.ended and a.asked == asked and a.places is None)
            agent = None if places is not None else next(free, None)
            if agent is None:
                self._count += 1
                agent = _Member(self._count, asked, places=places, rank=job.replica.rank)
                self._agents.append(agent)
            agent.job, agent.stopped = job, None
            self._jobs[job.id] = agent
        if agent.placement is not None:
            self._tell(JobPlaced(job.id, agent.placement))
        agent.outbox.put(StartJob(job))
        if not agent.threads:
            self._run(agent, self._talk, agent)

    def _places_of(self, job: NodeJob, asked: Resources) -> _GangPlaces | None:
        """The places of the gang that a job is a part of, where the engine gives them together."""
        engine, replica = self._engine, job.replica
        if replica.count == 1 or job.gang.elastic or not isinstance(engine, GangEngine):
            return None
        if replica.rank == 0:
            self._gang = _GangPlaces(
                lambda: engine.reserve(self._mark, replica.job, asked, replica.count), left=replica.count
            )
        return self._gang

    def stop(self, job: int, why: str, *, timed_out: bool, grace_s: float) -> None:
        agent = self._jobs[job]
        if agent.stopped is None or not agent.stopped.message:
            agent.stopped = JobFailure(message=why, timed_out=timed_out)
            agent.outbox.put(StopJob(job=job, why=why, timed_out=timed_out, grace_s=grace_s))

    def answer(self, job: int, reply: object) -> None:
        if (agent := self._jobs.get(job)) is not None:
            agent.outbox.put(Answer(job, reply))

    def events(self) -> list[ExecutorEvent]:
        """What has happened since the last time."""
        found: list[ExecutorEvent] = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(event := self._events.get_nowait())
                if isinstance(event, JobEnded):
                    self._jobs.pop(event.id, None)
        return found

    def sweep(self) -> list[Survivor]:
        """Ends the agents, which have no jobs, and proves that nothing is left of them."""
        if not self._closed:
            self._left = [] if self._end_agents() and not self._left else self._prove()
        return self._left

    def close(self) -> None:
        """Ends all jobs and agents."""
        if self._closed:
            return
        if self.sweep():
            log.error("agents-left", extra={"engine": self._engine.name, "reason": ", ".join(map(str, self._left))})
        self._closed = True
        self._engine.close()

    def _prove(self) -> list[Survivor]:
        return [Survivor(0, "?", each) for each in self._ask(lambda: self._engine.end_all(self._mark))]

    def _ask(self, end: Callable[[], list[str]]) -> list[str]:
        """What is left after ending something, or why that is unknown."""
        try:
            return end()
        except NodeFailed as error:
            return [str(error)]
        except Exception as error:  # an engine may raise anything
            log.exception("agent-failed", extra={"engine": self._engine.name})
            return [f"{type(error).__name__}: {error}"]

    def _end_agents(self) -> bool:
        """Ends the agents; returns whether each has ended for certain, and all that it started."""
        agents, self._agents = self._agents, []
        for agent in agents:
            agent.closing = True
            agent.outbox.put(Close())
        deadline = time.monotonic() + _CLOSE_S
        for agent in agents:
            for thread in agent.threads:
                thread.join(max(0.0, deadline - time.monotonic()))
        return not any(agent.unproven or any(t.is_alive() for t in agent.threads) for agent in agents)

    def _run(self, agent: _Member, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name=f"agent-{agent.number}", daemon=True)
        agent.threads.append(thread)
        thread.start()

    # What follows is done in the threads of agents.

    def _talk(self, agent: _Member) -> None:
        line: AgentLine | None = None
        failure: JobFailure
        try:
            line = self._launch(agent)
            while not line.wait_started(_START_POLL_S):
                if agent.closing or agent.stopped is not None:
                    raise AgentLost("It was stopped while it waited for a machine.")  # noqa: TRY301
            self._prepare(agent, line)
            self._place(agent, line)
            self._run(agent, self._send_all, agent, line)
            self._listen(agent, line)
            failure = JobFailure(message="The agent was closed.")
        except AgentLost as lost:
            failure = JobFailure(message=str(lost), cause=lost.cause)
        except SpanwiseError as error:
            failure = JobFailure(message=str(error))
        except Exception as error:  # an engine may raise anything
            log.exception("agent-failed", extra={"engine": self._engine.name})
            failure = JobFailure(message=f"{self._engine.name}: {type(error).__name__}: {error}")
        agent.outbox.put(None)
        left = self._end(agent, line)
        if left:
            self._outlive(agent)
        if agent.places is not None:
            agent.places.leave()
        agent.unproven = bool(left)
        with self._lock:
            agent.ended = True
            job, agent.job = agent.job, None
        if job is not None:
            said = agent.stopped if agent.stopped is not None and agent.stopped.message else failure
            rest = f" This may be left: {', '.join(left)}." if left else ""
            self._tell(JobEnded(id=job.id, failure=replace(said, message=said.message + rest)))

    def _launch(self, agent: _Member) -> AgentLine:
        if agent.places is not None:
            return agent.places.launch(agent.rank, agent.number)
        return self._engine.launch(self._mark, agent.number, agent.asked)

    def _end(self, agent: _Member, line: AgentLine | None) -> list[str]:
        return [] if line is None else self._ask(lambda: line.end(agent.ready))

    def _outlive(self, agent: _Member) -> None:
        """Waits until an agent out of reach has ended itself: its job has a slot, and must not run beside the next."""
        deadline = time.monotonic() + _OUTLIVED_S
        while not agent.closing and time.monotonic() < deadline:
            time.sleep(_START_POLL_S)

    def _prepare(self, agent: _Member, line: AgentLine) -> None:
        """Compares the environments, then gives the agent the code."""
        assert agent.job is not None
        token = None
        if self._root is not None:
            name = f".agent-{self._mark}-{agent.number}"  # its own, since it is removed when this one has seen it
            token = self._root / agent.job.run.pipeline / ".runs" / name
            token.parent.mkdir(parents=True, exist_ok=True)
            token.write_text(self._token, encoding="ascii")
        try:
            line.send(
                Prepare(
                    code=self._code,
                    folder=agent.job.run.folder,
                    mark=self._mark,
                    root=str(self._root or ""),
                    token=self._token,
                    token_file=str(token or ""),
                    archived=agent.job.archive is not None,
                    silence_s=SILENCE_S,
                )
            )
            for report in self._first(agent, line):
                if isinstance(report, Hello):
                    self._compare(report)
                elif isinstance(report, Unfit):
                    raise NodeFailed(f"The agent at {line.place} cannot do the work: {report.why}")
                elif isinstance(report, Ready):
                    agent.ready = report
                    return
        finally:
            if token is not None:
                token.unlink(missing_ok=True)

    def _place(self, agent: _Member, line: AgentLine) -> None:
        assert agent.job is not None
        page_url = self._page_url.replace("{agent}", line.agent) or line.page_url
        name = self._engine.name.removesuffix(":")
        agent.placement = Placement(place=f"{name}: {line.place}", page_url=page_url)
        self._tell(JobPlaced(agent.job.id, agent.placement))

    def _first(self, agent: _Member, line: AgentLine) -> Iterator[Report]:
        while not (agent.closing or agent.stopped is not None):
            yield from line.receive(_POLL_S)
        raise AgentLost("It was stopped while its code was loaded.")

    def _compare(self, hello: Hello) -> None:
        wrong = code_bundle.differences(self._code.environment, hello.environment)
        if wrong:
            raise NodeFailed(
                f"{hello.host} ({self._engine.name}) has another environment than this machine: {'; '.join(wrong)}. "
                f"Nothing was started there. Install the same versions in both."
            )

    def _send_all(self, agent: _Member, line: AgentLine) -> None:
        with contextlib.suppress(AgentLost):  # the other thread says so
            while (command := agent.outbox.get()) is not None:
                line.send(command)

    def _listen(self, agent: _Member, line: AgentLine) -> None:
        while True:
            for report in line.receive(_POLL_S):
                if isinstance(report, Closed):
                    if report.survivors:
                        raise NodeFailed(f"Processes would not die: {', '.join(report.survivors)}.")
                    agent.ready = None  # it has ended all that it had started
                    return
                self._take(agent, report)
            self._close_idle(agent)

    def _close_idle(self, agent: _Member) -> None:
        with self._lock:
            idle = agent.job is None and not agent.ended and time.monotonic() - agent.idle_since > self._kept_s
            agent.ended = agent.ended or idle
        if idle:
            agent.outbox.put(Close())

    def _take(self, agent: _Member, report: Report) -> None:
        match report:
            case Printed(job, text) if agent.job is not None and agent.job.id == job:
                with Path(agent.job.log).open("ab") as file:
                    file.write(text)
            case Asked(job):
                self._tell(FenceQuery(job))
            case Said(job, value):
                self._tell(GatherQuery(job, value))
            case Ended(ended):
                stopped = agent.stopped
                with self._lock:
                    agent.job, agent.idle_since = None, time.monotonic()
                    agent.ended = agent.ended or agent.places is not None
                if agent.places is not None:
                    agent.outbox.put(Close())
                if stopped is not None and ended.failure is not None:
                    ended = replace(ended, failure=replace(ended.failure, timed_out=stopped.timed_out))
                self._tell(ended)

    def _tell(self, event: ExecutorEvent) -> None:
        self._events.put(event)
        self._wake()
