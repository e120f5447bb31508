"""The dispatcher's state: datasets, workers, jobs, clients, tasks and splits. Pure: it follows from its records.

Every change is a record. `decisions` looks at the state and returns records; `ServiceState.apply` applies one. So a
journal of records is the state, and `records_of` is the shortest journal that leads to it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from spanwise.pipelines.input.service.dispatcher.records import (
    AcquireClient,
    CollectJob,
    ContinueNumbers,
    CreateJob,
    CreateTask,
    FinishedJob,
    FinishTask,
    JobProgress,
    KeepJob,
    LeaseSplits,
    LostTask,
    PlanRounds,
    ProduceSplits,
    Record,
    RegisterWorker,
    ReleaseClient,
    RemoveWorker,
    StoreGraph,
)
from spanwise.pipelines.input.service.saves.state import RunningSaves
from spanwise.pipelines.input.service.wire.requests import RegisterDataset, RoundPlan, TaskFailure

MAX_LOST: Final = 3
"""How many tasks that were lost in a row are remembered of a job; with as many, it may be a split that ends workers."""

MAX_RECENT: Final = 4
"""How many answers of a task are remembered, for the splits that it may be producing."""

MAX_FINISHED: Final = 100_000
"""How many names of jobs are remembered that were read to their end."""


@dataclass(slots=True)
class SourceProgress:
    """How many splits of one source tasks have taken, in each repetition of the `repeat`s around it."""

    below: int = 0  #: repetitions before this one have no splits left
    taken: dict[int, int] = field(default_factory=dict)  #: splits, in later repetitions


@dataclass(slots=True)
class TaskState:
    job: int
    worker: str
    finished: bool = False
    recent: list[ProduceSplits] = field(default_factory=list)  #: the last ones, in order

    @property
    def last(self) -> ProduceSplits | None:
        return self.recent[-1] if self.recent else None


@dataclass(slots=True)
class JobState:
    create: CreateJob
    clients: set[int] = field(default_factory=set)
    tasks: set[int] = field(default_factory=set)
    shards_done: set[int] = field(default_factory=set)
    failures: list[TaskFailure] = field(default_factory=list)  #: that have ended passes, also of workers that are gone
    ever_finished: bool = False  #: whether one of its tasks has finished
    sources: list[SourceProgress] = field(default_factory=list)
    cursor: int = 0  #: splits below were leased at least once
    returned: list[int] = field(default_factory=list)  #: splits to lease again; a heap
    leased: dict[int, int] = field(default_factory=dict)  #: split, and the client that holds it
    progress: dict[int, int] = field(default_factory=dict)  #: committed elements of splits that are not done
    forfeited: dict[int, set[str]] = field(default_factory=dict)  #: holders that have lost a split without a commit
    kept: bool = False  #: whether a consumer stores its state
    lost: list[LostTask] = field(default_factory=list)  #: the last ones, each begun behind the loss of the one before
    seats: dict[int, AcquireClient] = field(default_factory=dict)  #: of consumers of a coordinated read, by index
    plans: list[RoundPlan] = field(default_factory=list)  #: of a coordinated read's rounds

    @property
    def gone(self) -> int | None:
        """The index of a consumer of a coordinated read that has left."""
        return next((index for index, seat in self.seats.items() if seat.client not in self.clients), None)


class ServiceState:
    """What the dispatcher knows. Changed by `apply` alone."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.datasets: dict[str, RegisterDataset] = {}
        self.graphs: dict[str, str] = {}  #: of datasets: the names under which their graphs are stored
        self.workers: dict[str, RegisterWorker] = {}
        self.jobs: dict[int, JobState] = {}
        self.names: dict[tuple[str, str, str], int] = {}  #: jobs by name, dataset and epoch
        self.finished: dict[tuple[str, str, str], None] = {}  #: jobs that were read to their end
        self.keys: dict[int, str] = {}  #: of clients: by which they are recognised when they join again
        self.holders: dict[int, str] = {}  #: of clients: who has leased their splits
        self.clients: dict[int, int] = {}  #: and the job of each
        self.tasks: dict[int, TaskState] = {}
        self.saves = RunningSaves()
        self.next_id = 1
        for record in records:
            self.apply(record)

    def apply(self, record: Record) -> None:  # noqa: C901, PLR0912, PLR0915  a case per record
        match record:
            case ProduceSplits():
                self._produce(record)
            case LeaseSplits():
                self._lease(record)
            case RegisterDataset(dataset=dataset):
                self.datasets[dataset] = record
            case StoreGraph(dataset=dataset, name=name):
                self.graphs[dataset] = name
            case RegisterWorker():
                self._register(record)
            case RemoveWorker(worker=worker):
                self.workers.pop(worker, None)
                self.saves.remove_worker(worker)
                for number in [number for number, task in self.tasks.items() if task.worker == worker]:
                    self._lose(number)
            case CreateJob(job=number):
                self._count(number)
                sources = [SourceProgress() for _ in self.datasets[record.dataset].splits]
                self.jobs[number] = JobState(record, sources=sources)
                if record.name:
                    self.names[record.name, record.dataset, record.epoch] = number
            case CollectJob(job=number):
                self._collect(number)
            case FinishedJob():
                self.finished[record.name, record.dataset, record.epoch] = None
                while len(self.finished) > MAX_FINISHED:
                    del self.finished[next(iter(self.finished))]
            case AcquireClient(client=client, job=number):
                self._count(client)
                self.clients[client] = number
                self.keys[client], self.holders[client] = record.key, record.holder
                self.jobs[number].clients.add(client)
                if record.index is not None:
                    self.jobs[number].seats[record.index] = record
            case ReleaseClient(client=client):
                self._release(client)
            case CreateTask(task=number, job=job, worker=worker):
                self._count(number)
                self.tasks[number] = TaskState(job, worker)
                self.jobs[job].tasks.add(number)
            case PlanRounds(job=number, plan=plan):
                self.jobs[number].plans.append(plan)
            case FinishTask():
                self._finish(record)
            case KeepJob(job=number):
                self.jobs[number].kept = True
            case JobProgress():
                self._progress(record)
            case ContinueNumbers(next_id=number):
                self._count(number - 1)
            case _:
                self.saves.apply(record)

    def _count(self, number: int) -> None:
        self.next_id = max(self.next_id, number + 1)

    def _produce(self, record: ProduceSplits) -> None:
        task = self.tasks[record.task]
        task.recent = [*task.recent[1 - MAX_RECENT :], record]
        job = self.jobs[task.job]
        source = job.sources[record.source]
        count = self.datasets[job.create.dataset].splits[record.source]
        if record.repetition >= source.below:
            source.taken[record.repetition] = record.first + record.count if record.count else count
        while source.taken.get(source.below) == count:
            del source.taken[source.below]
            source.below += 1

    def _lease(self, record: LeaseSplits) -> None:
        job = self.jobs[self.clients[record.client]]
        for split in record.done:
            if job.leased.get(split) == record.client:
                del job.leased[split]
                job.progress.pop(split, None)
        for split, count in record.progress:
            if job.leased.get(split) == record.client:
                job.progress[split] = count
        for split in record.taken:
            if split >= job.cursor:
                job.cursor = split + 1
            else:
                job.returned.remove(split)
                heapq.heapify(job.returned)
            job.leased[split] = record.client
            job.forfeited.get(split, set()).discard(self.holders[record.client])

    def _register(self, record: RegisterWorker) -> None:
        self.workers[record.worker] = record
        for job in self.jobs.values():  # one that comes back was silent, and no split has ended it
            job.lost = [each for each in job.lost if each.worker != record.worker]

    def _lose(self, number: int) -> None:
        task = self.tasks.pop(number)
        job = self.jobs[task.job]
        job.tasks.discard(number)
        splits = tuple((each.source, each.first, each.count) for each in task.recent if each.count)
        is_new = not job.lost or number >= job.lost[-1].before  # several that are lost at once count once
        if splits and is_new and not task.finished:
            job.lost = [*job.lost[1 - MAX_LOST :], LostTask(self.next_id, splits, task.worker)]

    def _release(self, client: int) -> None:
        job = self.jobs[self.clients.pop(client)]
        holder = self.holders.pop(client)
        del self.keys[client]
        job.clients.discard(client)
        for split in [split for split, holder in job.leased.items() if holder == client]:
            del job.leased[split]
            heapq.heappush(job.returned, split)
            if holder:
                job.forfeited.setdefault(split, set()).add(holder)

    def _finish(self, record: FinishTask) -> None:
        task = self.tasks[record.task]
        task.finished = True
        job = self.jobs[task.job]
        known = {(each.error, each.text) for each in job.failures}
        if record.failure is not None and (record.failure.error, record.failure.text) not in known:
            job.failures.append(record.failure)
        job.ever_finished = True
        worker = self.workers.get(task.worker)
        if worker is not None and worker.shard is not None:
            job.shards_done.add(worker.shard)

    def _collect(self, number: int) -> None:
        job = self.jobs.pop(number)
        create = job.create
        self.names.pop((create.name, create.dataset, create.epoch), None)
        for task in job.tasks:
            del self.tasks[task]
        for client in job.clients:
            del self.clients[client], self.keys[client], self.holders[client]

    def _progress(self, record: JobProgress) -> None:
        job = self.jobs[record.job]
        job.sources = [SourceProgress(below, dict(taken)) for below, taken in record.sources]
        job.cursor, job.returned, job.leased = record.cursor, list(record.returned), dict(record.leased)
        job.progress, job.kept = dict(record.progress), record.kept
        job.lost, job.failures = list(record.lost), list(record.failures)
        job.forfeited = {split: set(holders) for split, holders in record.forfeited}
        job.ever_finished, job.shards_done = record.ever_finished, set(record.shards_done)


def records_of(state: ServiceState) -> Iterator[Record]:
    """The shortest journal that leads to this state."""
    yield from state.datasets.values()
    for dataset, name in state.graphs.items():
        yield StoreGraph(dataset=dataset, name=name)
    yield from state.workers.values()
    for number, job in state.jobs.items():
        yield job.create
        for client in sorted(job.clients - {seat.client for seat in job.seats.values()}):
            yield AcquireClient(client=client, job=number, key=state.keys[client], holder=state.holders[client])
        for seat in job.seats.values():
            yield seat
            if seat.client not in job.clients:
                yield ReleaseClient(client=seat.client)
        for plan in job.plans:
            yield PlanRounds(job=number, plan=plan)
        for each in sorted(job.tasks):
            task = state.tasks[each]
            yield CreateTask(task=each, job=number, worker=task.worker)
            yield from task.recent
            if task.finished:
                yield FinishTask(task=each)
        yield JobProgress(
            job=number,
            sources=tuple((source.below, tuple(source.taken.items())) for source in job.sources),
            cursor=job.cursor,
            returned=tuple(job.returned),
            leased=tuple(job.leased.items()),
            progress=tuple(job.progress.items()),
            forfeited=tuple((split, tuple(sorted(each))) for split, each in job.forfeited.items() if each),
            kept=job.kept,
            lost=tuple(job.lost),
            failures=tuple(job.failures),
            ever_finished=job.ever_finished,
            shards_done=tuple(job.shards_done),
        )
    for name, dataset, epoch in state.finished:
        yield FinishedJob(name=name, dataset=dataset, epoch=epoch)
    yield from state.saves.records()
    yield ContinueNumbers(next_id=state.next_id)
