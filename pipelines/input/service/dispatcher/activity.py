"""Activity: when workers and consumers were last heard of, how they are doing, and so who and what is to be removed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, TypeVar

from spanwise.pipelines.input.service.dispatcher.decisions import collect, is_finished
from spanwise.pipelines.input.service.dispatcher.leasing import Exchanges
from spanwise.pipelines.input.service.dispatcher.load import RecentLoad
from spanwise.pipelines.input.service.dispatcher.records import Record, ReleaseClient, RemoveWorker
from spanwise.pipelines.input.service.dispatcher.state import ServiceState
from spanwise.pipelines.input.service.wire.config import DispatcherConfig
from spanwise.pipelines.input.service.wire.requests import PollJob, RoundReport, WorkerLoad

_STEP_S: Final = 0.25

_Key = TypeVar("_Key", str, int)


@dataclass(slots=True)
class ConsumerRate:
    """How fast a consumer reads, computed from its reports."""

    waited_s: float = 0.0
    given: int = 0
    at: float = 0.0
    starved: float = 0.0  #: the share of its time that it has recently spent waiting
    rate: float = 0.0  #: elements and blocks per second

    def update(self, request: PollJob, now: float) -> None:
        span_s = now - self.at
        if span_s <= _STEP_S:
            return
        self.starved = min(1.0, max(0.0, (request.waited_s - self.waited_s) / span_s))
        self.rate = max(0.0, (request.given - self.given) / span_s)
        self.waited_s, self.given, self.at = request.waited_s, request.given, now


@dataclass
class Activity:
    """What a dispatcher observes of the members of its service. It is lost when the dispatcher stops."""

    workers_seen: dict[str, float] = field(default_factory=dict)
    clients_seen: dict[int, float] = field(default_factory=dict)
    idle_since: dict[int, float] = field(default_factory=dict)  #: jobs without clients
    rates: dict[int, ConsumerRate] = field(default_factory=dict)  #: of clients
    loads: dict[str, RecentLoad] = field(default_factory=dict)  #: of workers
    exchanges: Exchanges = field(default_factory=Exchanges)  #: of clients that lease splits
    rounds: dict[int, RoundReport] = field(default_factory=dict)  #: of clients that read in coordination

    def note_load(self, worker: str, load: WorkerLoad, now: float) -> None:
        self.loads.setdefault(worker, RecentLoad(load, now)).update(load, now)

    def note_poll(self, request: PollJob, now: float) -> None:
        self.clients_seen[request.client] = now
        self.rates.setdefault(request.client, ConsumerRate(at=now)).update(request, now)

    def forget_gone(self, state: ServiceState, now: float) -> None:
        """Drops what is no longer part of the state, and starts to watch what is new in it."""
        seated = {seat.client for job in state.jobs.values() for seat in job.seats.values()}
        idle = {number for number, job in state.jobs.items() if not job.clients}
        self.workers_seen = _only(self.workers_seen, state.workers, now)
        self.clients_seen = _only(self.clients_seen, state.clients, now)
        self.idle_since = _only(self.idle_since, idle, now)
        self.rates = {client: rate for client, rate in self.rates.items() if client in state.clients}
        self.exchanges.forget_gone(state)
        self.loads = {worker: load for worker, load in self.loads.items() if worker in state.workers}
        self.rounds = {client: report for client, report in self.rounds.items() if client in seated}

    def excuse_all(self, silent_s: float, now: float) -> None:
        """For so long the dispatcher could not listen, so nobody was silent."""
        self.workers_seen = _later(self.workers_seen, silent_s, now)
        self.clients_seen = _later(self.clients_seen, silent_s, now)
        self.idle_since = _later(self.idle_since, silent_s, now)

    def silent_members(self, config: DispatcherConfig, now: float) -> list[Record]:
        """Removes workers and clients that have been silent for too long."""
        workers = _before(self.workers_seen, now - config.worker_timeout_s)
        clients = _before(self.clients_seen, now - config.client_timeout_s)
        return [*(RemoveWorker(worker=each) for each in workers), *(ReleaseClient(client=each) for each in clients)]

    def idle_jobs(self, state: ServiceState, config: DispatcherConfig, now: float) -> list[Record]:
        """Collects jobs that nobody has read for too long; at once those that nobody can join."""

        def is_due(number: int, since: float) -> bool:
            job = state.jobs[number]
            if job.create.private and job.kept and not is_finished(state, number):
                return since <= now - config.kept_job_timeout_s
            return (
                not job.create.name or job.create.private or bool(job.seats) or since <= now - config.job_gc_timeout_s
            )

        due = [number for number, since in self.idle_since.items() if is_due(number, since)]
        return collect(state, due, dynamic=config.gc_dynamic_sharding_jobs)


def _only(seen: dict[_Key, float], members: Collection[_Key], now: float) -> dict[_Key, float]:
    return {each: seen.get(each, now) for each in members}


def _later(seen: dict[_Key, float], by_s: float, now: float) -> dict[_Key, float]:
    return {each: min(now, at + by_s) for each, at in seen.items()}


def _before(seen: dict[_Key, float], moment: float) -> list[_Key]:
    return [each for each, at in seen.items() if at < moment]
