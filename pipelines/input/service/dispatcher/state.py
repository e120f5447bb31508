"""The dispatcher's state: datasets, workers, jobs, clients, tasks and splits. Pure: it is what its records made of it.

Every change is a record. A function that decides looks at the state and returns records; `State.apply` does what one
says. So a journal of records is the state, and `records_of` is the shortest journal that leads to it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from spanwise.orchestrator.errors import ServiceError
from spanwise.pipelines.input.service.dispatcher.rounds import Plan
from spanwise.pipelines.input.service.policy import ShardingPolicy
from spanwise.pipelines.input.service.saves.state import SaveRecord, Saves

MOST_SPLITS: Final = 64
"""How many splits a worker is dealt at once, at most."""


@dataclass(frozen=True, kw_only=True)
class RegisterDataset:
    dataset: str  #: its id
    structure: str  #: what its elements are, in words: equal for equal structures
    splits: tuple[int, ...]  #: how many splits each of its sources has
    unsplittable: str = ""  #: why it has none
    unleasable: str = ""  #: why no split of it can be made by itself
    infinite: bool = False  #: whether a pass never ends


@dataclass(frozen=True, kw_only=True)
class RegisterWorker:
    worker: str  #: one life of a worker; another one when it was started again
    address: str
    process: str  #: host and pid, by which a consumer knows that it is in its own process
    shard: int | None = None  #: its place in the dispatcher's list of workers


@dataclass(frozen=True, kw_only=True)
class RemoveWorker:
    worker: str


@dataclass(frozen=True, kw_only=True)
class CreateJob:
    job: int
    dataset: str
    mode: ShardingPolicy
    name: str  #: under which consumers share it; empty for a job of one consumer
    epoch: str  #: which iteration of the consumers
    shards: int = 0  #: how many workers share it by static sharding
    seed: int = 0  #: from which all its workers draw, if the dataset has none; not under OFF
    consumers: int = 0  #: how many read it in coordination; 0 for first come, first served
    cached: bool = False  #: whether trainers share a window


@dataclass(frozen=True, kw_only=True)
class CollectJob:
    job: int


@dataclass(frozen=True, kw_only=True)
class AcquireClient:
    client: int
    job: int
    index: int | None = None  #: in a coordinated read
    key: str = ""  #: of who joined: by it an answer that got lost is given again


@dataclass(frozen=True, kw_only=True)
class ReleaseClient:
    client: int


@dataclass(frozen=True, kw_only=True)
class CreateTask:
    task: int
    job: int
    worker: str


@dataclass(frozen=True, kw_only=True)
class PlanRounds:
    """From round `first` of a coordinated read on, these tasks serve in turn."""

    job: int
    first: int
    tasks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class FinishTask:
    task: int


@dataclass(frozen=True, kw_only=True)
class ProduceSplits:
    """Splits `first` to `first + count - 1` of a source went to a task; `count` 0 tells that there were no more."""

    task: int
    number: int  #: of the task's request: one that is made again is answered as before
    source: int
    repetition: int
    first: int
    count: int


@dataclass(frozen=True, kw_only=True)
class LeaseSplits:
    """A client has done with some splits, and holds some more until it has done with them, or is gone."""

    client: int
    done: tuple[int, ...] = ()
    taken: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a job has come, in a journal that was made shorter."""

    job: int
    sources: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]  #: of each `Source`: below, dealt
    cursor: int
    returned: tuple[int, ...]
    leased: tuple[tuple[int, int], ...]
    ever_finished: bool
    shards_done: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Continue:
    """Where numbers go on, in a journal that was made shorter."""

    next_id: int


Record: TypeAlias = (
    RegisterDataset
    | RegisterWorker
    | RemoveWorker
    | CreateJob
    | CollectJob
    | AcquireClient
    | ReleaseClient
    | CreateTask
    | PlanRounds
    | FinishTask
    | ProduceSplits
    | LeaseSplits
    | Progress
    | Continue
    | SaveRecord
)


@dataclass(slots=True)
class Source:
    """How far the splits of one source have been dealt out, round by round of the `repeat`s around it."""

    below: int = 0  #: all rounds before this one are dealt out
    dealt: dict[int, int] = field(default_factory=dict)  #: splits, in rounds that are not


@dataclass(slots=True)
class Task:
    job: int
    worker: str
    finished: bool = False
    last: ProduceSplits | None = None


@dataclass(slots=True)
class Job:
    made: CreateJob
    clients: set[int] = field(default_factory=set)
    tasks: set[int] = field(default_factory=set)
    shards_done: set[int] = field(default_factory=set)
    ever_finished: bool = False  #: whether a task of it has come to its end
    sources: list[Source] = field(default_factory=list)
    cursor: int = 0  #: splits that were leased at least once
    returned: list[int] = field(default_factory=list)  #: splits to lease again; a heap
    leased: dict[int, int] = field(default_factory=dict)  #: split, and the client that holds it
    seats: dict[int, AcquireClient] = field(default_factory=dict)  #: of consumers of a coordinated read, by index
    plans: list[Plan] = field(default_factory=list)  #: of its rounds

    @property
    def gone(self) -> int | None:
        """A consumer of a coordinated read that was there, and is not any more."""
        return next((index for index, seat in self.seats.items() if seat.client not in self.clients), None)


class State:
    """What the dispatcher knows. Changed by `apply` alone."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.datasets: dict[str, RegisterDataset] = {}
        self.workers: dict[str, RegisterWorker] = {}
        self.jobs: dict[int, Job] = {}
        self.names: dict[tuple[str, str, str], int] = {}  #: jobs by name, dataset and epoch
        self.clients: dict[int, int] = {}  #: and their jobs
        self.tasks: dict[int, Task] = {}
        self.saves = Saves()
        self.next_id = 1
        for record in records:
            self.apply(record)

    def apply(self, record: Record) -> None:  # noqa: C901, PLR0912  a table of records
        match record:
            case ProduceSplits():
                self._produce(record)
            case LeaseSplits():
                self._lease(record)
            case RegisterDataset(dataset=dataset):
                self.datasets[dataset] = record
            case RegisterWorker(worker=worker):
                self.workers[worker] = record
            case RemoveWorker(worker=worker):
                self.workers.pop(worker, None)
                self.saves.lose(worker)
                for number in [number for number, task in self.tasks.items() if task.worker == worker]:
                    self.jobs[self.tasks.pop(number).job].tasks.discard(number)
            case CreateJob(job=number):
                self._count(number)
                sources = [Source() for _ in self.datasets[record.dataset].splits]
                self.jobs[number] = Job(record, sources=sources)
                if record.name:
                    self.names[record.name, record.dataset, record.epoch] = number
            case CollectJob(job=number):
                self._collect(number)
            case AcquireClient(client=client, job=number):
                self._count(client)
                self.clients[client] = number
                self.jobs[number].clients.add(client)
                if record.index is not None:
                    self.jobs[number].seats[record.index] = record
            case ReleaseClient(client=client):
                self._release(client)
            case CreateTask(task=number, job=job, worker=worker):
                self._count(number)
                self.tasks[number] = Task(job, worker)
                self.jobs[job].tasks.add(number)
            case PlanRounds(job=number, first=first, tasks=tasks):
                self.jobs[number].plans.append(Plan(first=first, tasks=tasks))
            case FinishTask(task=number):
                self._finish(number)
            case Progress():
                self._progress(record)
            case Continue(next_id=number):
                self._count(number - 1)
            case _:
                self.saves.apply(record)

    def _count(self, number: int) -> None:
        self.next_id = max(self.next_id, number + 1)

    def _produce(self, record: ProduceSplits) -> None:
        task = self.tasks[record.task]
        task.last = record
        job = self.jobs[task.job]
        source = job.sources[record.source]
        there = self.datasets[job.made.dataset].splits[record.source]
        if record.repetition >= source.below:
            source.dealt[record.repetition] = record.first + record.count if record.count else there
        while source.dealt.get(source.below) == there:
            del source.dealt[source.below]
            source.below += 1

    def _lease(self, record: LeaseSplits) -> None:
        job = self.jobs[self.clients[record.client]]
        for split in record.done:
            if job.leased.get(split) == record.client:
                del job.leased[split]
        for split in record.taken:
            if split >= job.cursor:
                job.cursor = split + 1
            else:
                job.returned.remove(split)
                heapq.heapify(job.returned)
            job.leased[split] = record.client

    def _release(self, client: int) -> None:
        job = self.jobs[self.clients.pop(client)]
        job.clients.discard(client)
        for split in [split for split, holder in job.leased.items() if holder == client]:
            del job.leased[split]
            heapq.heappush(job.returned, split)

    def _finish(self, number: int) -> None:
        task = self.tasks[number]
        task.finished = True
        job = self.jobs[task.job]
        job.ever_finished = True
        worker = self.workers.get(task.worker)
        if worker is not None and worker.shard is not None:
            job.shards_done.add(worker.shard)

    def _collect(self, number: int) -> None:
        job = self.jobs.pop(number)
        made = job.made
        self.names.pop((made.name, made.dataset, made.epoch), None)
        for task in job.tasks:
            del self.tasks[task]
        for client in job.clients:
            del self.clients[client]

    def _progress(self, record: Progress) -> None:
        job = self.jobs[record.job]
        job.sources = [Source(below, dict(dealt)) for below, dealt in record.sources]
        job.cursor, job.returned, job.leased = record.cursor, list(record.returned), dict(record.leased)
        job.ever_finished, job.shards_done = record.ever_finished, set(record.shards_done)


def records_of(state: State) -> Iterator[Record]:
    """Records that make the same state again."""
    yield from state.datasets.values()
    yield from state.workers.values()
    for number, job in state.jobs.items():
        yield job.made
        for client in sorted(job.clients - {seat.client for seat in job.seats.values()}):
            yield AcquireClient(client=client, job=number)
        for seat in job.seats.values():
            yield seat
            if seat.client not in job.clients:
                yield ReleaseClient(client=seat.client)
        for plan in job.plans:
            yield PlanRounds(job=number, first=plan.first, tasks=plan.tasks)
        for each in sorted(job.tasks):
            task = state.tasks[each]
            yield CreateTask(task=each, job=number, worker=task.worker)
            if task.last is not None:
                yield task.last
            if task.finished:
                yield FinishTask(task=each)
        yield Progress(
            job=number,
            sources=tuple((source.below, tuple(source.dealt.items())) for source in job.sources),
            cursor=job.cursor,
            returned=tuple(job.returned),
            leased=tuple(job.leased.items()),
            ever_finished=job.ever_finished,
            shards_done=tuple(job.shards_done),
        )
    yield from state.saves.records()
    yield Continue(next_id=state.next_id)


# Decisions.


def register(state: State, wanted: RegisterDataset) -> list[Record]:
    """A dataset under an id: nothing to do if it is there.

    Raises:
        ServiceError: the id stands for another dataset.
    """
    found = state.datasets.get(wanted.dataset)
    if found is None:
        return [wanted]
    if found.structure != wanted.structure:
        raise ServiceError(
            f"dataset {wanted.dataset!r} is registered already, and its elements are others: {found.structure}, not "
            f"{wanted.structure}. Datasets with the same id must have the same structure: give another dataset_id."
        )
    return []


def arrive(state: State, worker: RegisterWorker) -> list[Record]:
    """A worker that starts: an earlier life of it at this address is over, and it works for every job that goes on."""
    if worker.worker in state.workers:
        return []
    over = [each.worker for each in state.workers.values() if each.address == worker.address]
    records: list[Record] = [RemoveWorker(worker=each) for each in over]
    records.append(worker)
    jobs = [job for number, job in state.jobs.items() if not is_finished(state, number)]
    return records + _tasks(jobs, [worker], state.next_id)


def join(state: State, wanted: CreateJob, index: int | None = None, key: str = "", reached: int = 0) -> list[Record]:
    """A new client of a job, which is made if it is not there. The number in `wanted` does not count.

    `index` is its place in a coordinated read, which has come to the round `reached`. Who asks again by the same key
    is the same client.

    Raises:
        ServiceError: no such dataset; it cannot be read in this way; the job is read in another one; a coordinated
            read goes on without a consumer that begins at its beginning.
    """
    dataset = state.datasets.get(wanted.dataset)
    if dataset is None:
        raise ServiceError(f"dataset {wanted.dataset!r} is not registered with this dispatcher; register_dataset does.")
    found = state.names.get((wanted.name, wanted.dataset, wanted.epoch)) if wanted.name else None
    over: list[Record] = []
    if found is not None and index is not None and state.jobs[found].seats and not state.jobs[found].clients:
        over = [CollectJob(job=found)]  # all its consumers are gone, so they can begin again
        found = None
    if found is None:
        _readable(dataset, wanted)
        number = state.next_id
        made = replace(wanted, job=number)
        tasks = _tasks([Job(made)], state.workers.values(), number + 2)
        return [*over, made, AcquireClient(client=number + 1, job=number, index=index, key=key), *tasks]
    job = state.jobs[found]
    if _way(job.made) != _way(wanted):
        raise ServiceError(
            f"job {wanted.name!r} was to be read {_way(wanted)}, but there is an existing job with different "
            f"parameters: it is read {_way(job.made)}. Use the same ones, or another job_name."
        )
    if index is not None and index in job.seats:
        seat = job.seats[index]
        if seat.key == key and seat.client in job.clients:
            return [seat]
        raise ServiceError(
            f"consumer {index} of job {wanted.name!r} begins at round 0, but the job's current round has already "
            f"reached {reached}: a coordinated read goes on with the consumers that it began with. End them all and "
            f"begin again, or use another job_name."
        )
    return [AcquireClient(client=state.next_id, job=found, index=index, key=key)]


def _way(made: CreateJob) -> str:
    """How a job is read, in words: equal for jobs that can be one."""
    by = f" by {made.consumers} consumers in coordination" if made.consumers else ""
    shared = " through a cross_trainer_cache" if made.cached else ""
    return f"in mode {made.mode}{by}{shared}" + (f" with {made.shards} workers" if made.shards else "")


def _readable(dataset: RegisterDataset, wanted: CreateJob) -> None:
    mode = wanted.mode
    why = dataset.unsplittable if mode is ShardingPolicy.DYNAMIC or mode.is_leased else ""
    if mode.is_leased:
        why = why or dataset.unleasable or ("it never ends; put repeat behind distribute" if dataset.infinite else "")
    if why:
        raise ServiceError(f"distribute(processing_mode={mode.value!r}): the dataset cannot be split: {why}.")
    if mode.is_static and not wanted.shards:
        raise ServiceError(
            f"distribute(processing_mode={mode.value!r}): worker is not in the workers list, which is empty. Static "
            f"sharding wants a dispatcher with a fixed list: DispatcherConfig(worker_addresses=[…])."
        )
    if (wanted.consumers or wanted.cached) and not dataset.infinite:
        what = "num_consumers" if wanted.consumers else "cross_trainer_cache"
        raise ServiceError(
            f"distribute({what}=…) requires that the input dataset has infinite cardinality, and this one may end. Put "
            f"repeat() before distribute."
        )


def _tasks(jobs: Iterable[Job], workers: Iterable[RegisterWorker], number: int) -> list[Record]:
    """A task for each of the jobs at each of the workers. What is leased, clients ask any worker for."""
    numbers = itertools.count(number)
    return [
        CreateTask(task=next(numbers), job=job.made.job, worker=worker.worker)
        for job in jobs
        for worker in workers
        if not job.made.mode.is_leased and not (job.made.mode.is_static and worker.shard is None)
    ]


def deal(state: State, task: int, number: int, source: int, repetition: int) -> ProduceSplits | None:
    """The next splits for a task; None if this round of the source has none left.

    One task gets many at once as long as there are many: few requests, and yet all workers end together.
    """
    asking = state.tasks[task]
    if asking.last is not None and asking.last.number == number:
        return asking.last
    job = state.jobs[asking.job]
    there = state.datasets[job.made.dataset].splits[source]
    progress = job.sources[source]
    first = there if repetition < progress.below else progress.dealt.get(repetition, 0)
    if first >= there:
        return None
    share = (there - first) // (4 * max(1, len(job.tasks)))
    return ProduceSplits(
        task=task,
        number=number,
        source=source,
        repetition=repetition,
        first=first,
        count=max(1, min(MOST_SPLITS, share)),
    )


def lease(state: State, client: int, done: Sequence[int], want: int) -> LeaseSplits:
    """What a client has done with is off its hands; it gets more until it holds `want` splits."""
    job = state.jobs[state.clients[client]]
    finished = tuple(split for split in done if job.leased.get(split) == client)
    held = sum(holder == client for holder in job.leased.values()) - len(finished)
    there = sum(state.datasets[job.made.dataset].splits)
    missing = max(0, min(want, MOST_SPLITS) - held)
    again = heapq.nsmallest(missing, job.returned)
    fresh = range(job.cursor, min(there, job.cursor + missing - len(again)))
    return LeaseSplits(client=client, done=finished, taken=(*again, *fresh))


def plan(state: State, number: int, agreed: int | None) -> list[Record]:
    """Lets the tasks that there are serve a coordinated read in turn, if they are others: from the agreed round on.

    `agreed` is None as long as not all consumers were heard of.
    """
    job = state.jobs[number]
    if agreed is None or not job.tasks or job.gone is not None:
        return []
    if job.plans and job.tasks == set(job.plans[-1].tasks):
        return []
    return [PlanRounds(job=number, first=agreed, tasks=tuple(sorted(job.tasks)))]


def held_by(state: State, client: int) -> list[int]:
    return sorted(split for split, holder in state.jobs[state.clients[client]].leased.items() if holder == client)


def is_finished(state: State, number: int, workers: Iterable[str] | None = None) -> bool:
    """Whether a job has no more to give; of these workers, if some are named (by their ids)."""
    job = state.jobs[number]
    made = job.made
    if made.mode.is_leased:
        there = sum(state.datasets[made.dataset].splits)
        return job.cursor == there and not job.returned and not job.leased
    chosen = set(workers) if workers is not None else None
    tasks = [state.tasks[each] for each in job.tasks]
    if any(not task.finished for task in tasks if chosen is None or task.worker in chosen):
        return False
    if chosen is not None:
        return any(task.worker in chosen for task in tasks)
    if made.mode.is_static:
        return len(job.shards_done) >= made.shards
    return job.ever_finished


def collect(state: State, idle: Iterable[int], *, dynamic: bool) -> list[Record]:
    """Jobs that nobody reads any more; not those dealt out by splits: to begin again would break a promise."""
    found: list[Record] = []
    for number in idle:
        made = state.jobs[number].made
        keeps = made.name and (made.mode is ShardingPolicy.DYNAMIC or made.mode.is_leased) and not dynamic
        keeps = keeps and not made.consumers  # these cannot come back
        if not keeps or is_finished(state, number):
            found.append(CollectJob(job=number))
    return found
