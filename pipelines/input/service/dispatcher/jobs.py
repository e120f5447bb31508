"""How a dispatcher answers consumers: they join a job, ask what there is to read, lease splits, and leave."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

from spanwise.orchestrator.errors import ServiceError
from spanwise.pipelines.input.service.dispatcher import decisions, leasing, rounds
from spanwise.pipelines.input.service.dispatcher.activity import Activity
from spanwise.pipelines.input.service.dispatcher.keeper import StateKeeper
from spanwise.pipelines.input.service.dispatcher.records import (
    AcquireClient,
    CreateJob,
    Record,
    RegisterWorker,
    ReleaseClient,
)
from spanwise.pipelines.input.service.dispatcher.state import JobState, ServiceState
from spanwise.pipelines.input.service.wire.config import DispatcherConfig
from spanwise.pipelines.input.service.wire.requests import (
    Done,
    ExchangeSplits,
    JobView,
    JoinJob,
    LeaveJob,
    Membership,
    PollJob,
    Request,
    RoundReport,
)
from spanwise.pipelines.input.service.wire.server import Action, Answer, WaitingPlaces

POLLS_PER_S: Final = 200
"""How often consumers that find no place to wait may poll, all together."""


class JobHandler:
    """Answers the requests of consumers."""

    def __init__(self, keeper: StateKeeper, activity: Activity, config: DispatcherConfig) -> None:
        self._keeper = keeper
        self._activity = activity
        self._config = config
        self._waiting = WaitingPlaces()
        handlers: dict[type[Request[Any]], Callable[[Any, bytes], Answer]] = {
            JoinJob: self._join,
            PollJob: self._poll,
            LeaveJob: self._leave,
            ExchangeSplits: self._exchange,
        }
        self.actions: dict[str, Action] = {kind.kind: (kind, handler) for kind, handler in handlers.items()}

    def _join(self, request: JoinJob, _: bytes) -> Answer:
        wanted = CreateJob(
            job=0,
            dataset=request.dataset,
            mode=request.mode,
            name=request.name,
            epoch=request.epoch,
            shards=len(self._config.worker_addresses) if request.mode.is_static else 0,
            seed=secrets.randbits(53),
            consumers=request.consumers,
            cached=request.cached,
            private=request.private,
        )
        client = 0

        def decide(state: ServiceState) -> list[Record]:
            nonlocal client
            number = state.names.get((request.name, request.dataset, request.epoch))
            reached = 0 if number is None else self._agreed(state.jobs[number]) or 0
            records = decisions.join(
                state, wanted, request.index, request.key, reached, request.holder, resumes=request.resumes
            )
            client = next(each.client for each in records if isinstance(each, AcquireClient))
            self._activity.clients_seen[client] = time.monotonic()
            return records

        self._keeper.change(decide)
        with self._keeper.changed:
            return Membership(client=client, seed=self._job_of(client).create.seed), b""

    def _leave(self, request: LeaveJob, _: bytes) -> Answer:
        self._keeper.change(
            lambda state: [ReleaseClient(client=request.client)] if self._is_own(state, request) else []
        )
        return Done(), b""

    def _exchange(self, request: ExchangeSplits, _: bytes) -> Answer:
        exchanges = self._activity.exchanges

        def decide(state: ServiceState) -> list[Record]:
            self._check_key(request)
            self._activity.clients_seen[request.client] = time.monotonic()
            return leasing.exchange(state, exchanges, request)

        self._keeper.change(decide, news=False)
        with self._keeper.changed:
            job = self._job_of(request.client)
            if (request.done or request.at_end) and not leasing.has_more(self._keeper.state, job):
                self._keeper.changed.notify_all()  # others wait for its end
            return leasing.answer(self._keeper.state, exchanges, request), b""

    # Polling.

    def _poll(self, request: PollJob, _: bytes) -> Answer:
        keeper = self._keeper
        with self._waiting.place() as waits, keeper.changed:
            deadline = time.monotonic() + min(request.wait_s if waits else 0.0, self._config.client_timeout_s / 3)
            self._note(request)
            while True:
                number = self._plan_rounds(request.client)
                view = self._view(request)
                left_s = deadline - time.monotonic()
                if _is_news(request, view) or left_s <= 0 or keeper.is_closed:
                    self._activity.clients_seen[request.client] = time.monotonic()
                    break
                keeper.changed.wait(left_s)
            crowd = 0 if waits else len(keeper.state.clients)
        keeper.sync(number)
        if not crowd or view.finished:
            return view, b""
        # most of many consumers wait on their side: a thread here for each would be too much
        again_s = max(request.wait_s, min(crowd / POLLS_PER_S, self._config.client_timeout_s / 4))
        return view.model_copy(update={"again_s": again_s}), b""

    def _view(self, request: PollJob) -> JobView:
        state = self._keeper.state
        job = self._job_of(request.client)
        chosen = [worker for worker in state.workers.values() if _is_target(worker, request)]
        addresses = {worker.worker: worker.address for worker in chosen}
        tasks = [(each, state.tasks[each].worker) for each in sorted(job.tasks)]
        readable = None if request.targets == "any" else addresses
        view = JobView(
            tasks=tuple((each, addresses[worker]) for each, worker in tasks if worker in addresses),
            workers=tuple(addresses.values()) if job.create.mode.is_leased else (),
            leasable=job.create.mode.is_leased and self._has_leases(job, request.client),
            finished=not job.create.consumers and decisions.is_finished(state, job.create.job, readable),
            failures=tuple(job.failures) if readable is None else (),  # of others it reads nothing
            poisoned=decisions.poisoned_split(job),
        )
        if request.rounds is None:
            return view
        changes = {
            "plans": tuple(job.plans[request.rounds.plans :]),
            "agreed": self._agreed(job) or 0,
            "gone": job.gone,
        }
        return view.model_copy(update=changes)

    def _has_leases(self, job: JobState, client: int) -> bool:
        """Whether a consumer that waits for splits need not wait."""
        state = self._keeper.state
        return leasing.has_more(state, job) or leasing.has_ended(state, client, self._activity.exchanges)

    def _note(self, request: PollJob) -> None:
        job = self._check_key(request)
        self._activity.note_poll(request, time.monotonic())
        if request.rounds is not None:
            self._note_rounds(job, request.client, request.rounds)

    def _check_key(self, request: PollJob | ExchangeSplits | LeaveJob) -> JobState:
        """The job of who sends a request; refuses what comes from somebody else than the client."""
        job = self._job_of(request.client)
        if not hmac.compare_digest(self._keeper.state.keys[request.client], request.key):
            raise ServiceError(
                f"refused the request {request.kind!r}: client {request.client} has joined with another key."
            )
        return job

    def _is_own(self, state: ServiceState, request: LeaveJob) -> bool:
        return request.client in state.clients and bool(self._check_key(request))

    def _job_of(self, client: int) -> JobState:
        state = self._keeper.state
        if client not in state.clients:
            raise ServiceError(
                f"the dispatcher does not know client {client} and its job: it was silent for more than "
                f"{self._config.client_timeout_s:g} s, a consumer that was restored from its state has taken over, or "
                f"the dispatcher was restarted without fault_tolerant_mode. "
                f"Start the pass again."
            )
        return state.jobs[state.clients[client]]

    # Coordinated reads.

    def _agreed(self, job: JobState) -> int | None:
        """All consumers of a job hold the rounds below, as far as they have reported."""
        if not job.create.consumers:
            return None
        seats = [job.seats.get(index) for index in range(job.create.consumers)]
        return rounds.agreed(job.plans, [self._activity.rounds.get(seat.client) if seat else None for seat in seats])

    def _plan_rounds(self, client: int) -> int:
        """Plans the rounds of the client's job again if its workers have changed; returns what is to be synced."""
        job = self._job_of(client)
        if not job.create.consumers:
            return 0
        records = decisions.plan_rounds(self._keeper.state, job.create.job, self._agreed(job))
        return self._keeper.apply(records, news=True)

    def _note_rounds(self, job: JobState, client: int, report: RoundReport) -> None:
        """Records how far a consumer has come, and wakes the others if they agree upon more."""
        before = self._agreed(job)
        self._activity.rounds[client] = rounds.later(self._activity.rounds.get(client), report)
        if self._agreed(job) != before:
            self._keeper.changed.notify_all()


def _is_news(request: PollJob, view: JobView) -> bool:
    if view.finished or view.poisoned is not None or {task for task, _ in view.tasks} != set(request.tasks):
        return True
    if view.workers and view.leasable:
        return True
    known = request.rounds
    return known is not None and (bool(view.plans) or view.agreed > known.agreed or view.gone is not None)


def _is_target(worker: RegisterWorker, request: PollJob) -> bool:
    if request.targets == "any":
        return True
    if request.targets == "local":
        return worker.process == request.process
    return worker.address in request.targets
