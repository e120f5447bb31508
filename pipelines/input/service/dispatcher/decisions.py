"""What a dispatcher decides: functions that look at its state and return the records of a change. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

from spanwise.orchestrator.errors import ServiceError
from spanwise.pipelines.input.service.dispatcher.leasing import MAX_SPLITS
from spanwise.pipelines.input.service.dispatcher.records import (
    AcquireClient,
    CollectJob,
    CreateJob,
    CreateTask,
    FinishedJob,
    PlanRounds,
    ProduceSplits,
    Record,
    RegisterWorker,
    RemoveWorker,
)
from spanwise.pipelines.input.service.dispatcher.state import MAX_LOST, JobState, ServiceState
from spanwise.pipelines.input.service.policy import ShardingPolicy
from spanwise.pipelines.input.service.wire.connection import JobGone
from spanwise.pipelines.input.service.wire.requests import RegisterDataset, RoundPlan


def register(state: ServiceState, wanted: RegisterDataset) -> list[Record]:
    """Registers a dataset, unless it is registered.

    Raises:
        ServiceError: its id belongs to another dataset.
    """
    registered = state.datasets.get(wanted.dataset)
    if registered is None:
        return [wanted]
    if registered.structure != wanted.structure:
        raise ServiceError(
            f"dataset {wanted.dataset!r} is already registered with other elements: {registered.structure}, not "
            f"{wanted.structure}. Datasets with the same id must have the same structure: use another dataset_id."
        )
    return []


def arrive(state: ServiceState, worker: RegisterWorker) -> list[Record]:
    """A worker that starts replaces an earlier one at its address, and gets a task of every running job."""
    if worker.worker in state.workers:
        return []
    earlier = [each.worker for each in state.workers.values() if each.address == worker.address]
    records: list[Record] = [RemoveWorker(worker=each) for each in earlier]
    records.append(worker)
    jobs = [job for number, job in state.jobs.items() if not is_finished(state, number)]
    return records + _tasks(jobs, [worker], state.next_id)


def join(  # noqa: C901  a case per kind of consumer
    state: ServiceState,
    wanted: CreateJob,
    index: int | None = None,
    client_key: str = "",
    reached: int = 0,
    holder: str = "",
    *,
    resumes: bool = False,
) -> list[Record]:
    """Adds a client to a job, which is created if there is none. The number in `wanted` is ignored.

    `index` is the client's place in a coordinated read, which has come to the round `reached`. A request with the key
    of a client is answered with that client. One that was restored, which `resumes` says, joins the job of its state,
    and gets what its `holder` has leased by its first exchange.

    Raises:
        ServiceError: there is no such dataset; it cannot be read in this mode; the job has other parameters; or a
            coordinated read has started and cannot admit a new consumer; the job was read to its end.
        JobGone: there is no such job to resume.
    """
    dataset = state.datasets.get(wanted.dataset)
    if dataset is None:
        raise ServiceError(f"dataset {wanted.dataset!r} is not registered with this dispatcher; register_dataset does.")
    key = (wanted.name, wanted.dataset, wanted.epoch)
    number = state.names.get(key) if wanted.name else None
    if number is not None and index is None and client_key:
        known = next((each for each in state.jobs[number].clients if state.keys[each] == client_key), None)
        if known is not None:  # the answer was lost
            return [AcquireClient(client=known, job=number, key=client_key, holder=state.holders[known])]
    if resumes:
        if number is None:
            raise JobGone(
                f"the dispatcher no longer has job {wanted.name!r} (pass {wanted.epoch}) that the state belongs to: it "
                f"was read to its end, or forgotten, or the dispatcher was restarted without fault_tolerant_mode. "
                f"Start the pass again, without the state."
            )
        return [AcquireClient(client=state.next_id, job=number, key=client_key, holder=holder)]
    if key in state.finished or (number is not None and is_finished(state, number)):
        raise ServiceError(
            f"job {wanted.name!r} was read to its end (pass {wanted.epoch}), so there is nothing left in it to read. "
            f"Leave job_name out, and each pass is a job of its own; or use a job_name that is new for each run."
        )
    collected: list[Record] = []
    if number is not None and index is not None and state.jobs[number].seats and not state.jobs[number].clients:
        collected = [CollectJob(job=number)]  # all its consumers have left, so they can start again
        number = None
    if number is None:
        _check_mode(dataset, wanted)
        _check_identity(state, dataset, wanted)
        number = state.next_id
        create = replace(wanted, job=number)
        tasks = _tasks([JobState(create)], state.workers.values(), number + 2)
        client = AcquireClient(client=number + 1, job=number, index=index, key=client_key, holder=holder)
        return [*collected, create, client, *tasks]
    job = state.jobs[number]
    if _describe_mode(job.create) != _describe_mode(wanted):
        raise ServiceError(
            f"job {wanted.name!r} cannot be read {_describe_mode(wanted)}: there is an existing job with different "
            f"parameters: it is read {_describe_mode(job.create)}. Use the same parameters, or another job_name."
        )
    if index is not None and index in job.seats:
        seat = job.seats[index]
        if seat.key == client_key and seat.client in job.clients:
            return [seat]
        raise ServiceError(
            f"consumer {index} of job {wanted.name!r} starts at round 0, but the job's current round has already "
            f"reached {reached}: a coordinated read continues only with the consumers that it started with. Stop them "
            f"all and start again, or use another job_name."
        )
    return [AcquireClient(client=state.next_id, job=number, index=index, key=client_key, holder=holder)]


def _describe_mode(create: CreateJob) -> str:
    """How a job is read: equal for requests that can share a job."""
    by = f" by {create.consumers} coordinated consumers" if create.consumers else ""
    shared = " through a cross_trainer_cache" if create.cached else ""
    return f"in mode {create.mode}{by}{shared}" + (f" with {create.shards} workers" if create.shards else "")


def _check_mode(dataset: RegisterDataset, wanted: CreateJob) -> None:
    mode = wanted.mode
    why = dataset.unsplittable if mode is ShardingPolicy.DYNAMIC or mode.is_leased else ""
    if mode.is_leased:
        why = why or dataset.unleasable or ("it is infinite; put repeat behind distribute" if dataset.infinite else "")
    if why:
        raise ServiceError(f"distribute(processing_mode={mode.value!r}): the dataset cannot be split: {why}.")
    if mode.is_static and not wanted.shards:
        raise ServiceError(
            f"distribute(processing_mode={mode.value!r}): worker is not in the workers list, which is empty. Static "
            f"sharding needs a dispatcher with a fixed list: DispatcherConfig(worker_addresses=[…])."
        )
    if (wanted.consumers or wanted.cached) and not dataset.infinite:
        what = "num_consumers" if wanted.consumers else "cross_trainer_cache"
        raise ServiceError(
            f"distribute({what}=…) requires that the input dataset has infinite cardinality, but this one may end. Put "
            f"repeat() last, right before distribute."
        )


def _check_identity(state: ServiceState, dataset: RegisterDataset, wanted: CreateJob) -> None:
    """Refuses a second job of a name that may be meant to be the first: each consumer would get all elements."""
    if not (wanted.name and dataset.opaque):
        return
    jobs = itertools.chain(state.names, state.finished)
    others = {each for name, each, epoch in jobs if (name, epoch) == (wanted.name, wanted.epoch)} - {wanted.dataset}
    if any(state.datasets[each].opaque for each in others if each in state.datasets):
        raise ServiceError(
            f"there is a job {wanted.name!r} (pass {wanted.epoch}) already, and whether it reads the same dataset "
            f"cannot be known: {dataset.opaque} For consumers that share a job, give each the same dataset_id=…; for "
            f"another job, use another job_name."
        )


def _tasks(jobs: Iterable[JobState], workers: Iterable[RegisterWorker], number: int) -> list[Record]:
    """A task for each of the jobs at each of the workers. Leased splits need none: clients ask any worker for them."""
    numbers = itertools.count(number)
    return [
        CreateTask(task=next(numbers), job=job.create.job, worker=worker.worker)
        for job in jobs
        for worker in workers
        if not job.create.mode.is_leased and not (job.create.mode.is_static and worker.shard is None)
    ]


def next_splits(state: ServiceState, task: int, number: int, source: int, repetition: int) -> ProduceSplits | None:
    """The next splits for a task; None if this repetition of the source has none left.

    As long as there are many splits a task gets many at once: few requests, and still all workers finish together.
    """
    asking = state.tasks[task]
    if asking.last is not None and asking.last.number == number:
        return asking.last
    job = state.jobs[asking.job]
    count = state.datasets[job.create.dataset].splits[source]
    progress = job.sources[source]
    first = count if repetition < progress.below else progress.taken.get(repetition, 0)
    if first >= count or poisoned_split(job) is not None:
        return None
    share = (count - first) // (4 * max(1, len(job.tasks)))
    if job.lost:  # singly, so that it is known which one ends workers, and few are lost with the next
        share = 1
    return ProduceSplits(
        task=task,
        number=number,
        source=source,
        repetition=repetition,
        first=first,
        count=max(1, min(MAX_SPLITS, share)),
    )


def poisoned_split(job: JobState) -> tuple[int, int] | None:
    """The source and number of a split that ends each worker that produces it; None if there is no such sign.

    Workers that are lost for other reasons were rarely at the same split, nor at their first one, several times in a
    row.
    """
    if len(job.lost) < MAX_LOST:
        return None
    sets = [
        {(source, each) for source, first, n in lost.splits for each in range(first, first + n)} for lost in job.lost
    ]
    common = set[tuple[int, int]].intersection(*sets)
    if common:
        return max(common)  # a task takes its next split when it has produced the one before
    return min(sets[-1]) if all(len(lost.splits) == 1 for lost in job.lost) else None


def plan_rounds(state: ServiceState, number: int, agreed: int | None) -> list[Record]:
    """If the tasks of a coordinated read have changed, lets the new ones serve in turn from the agreed round on.

    `agreed` is None until all consumers have reported.
    """
    job = state.jobs[number]
    if agreed is None or not job.tasks or job.gone is not None:
        return []
    if job.plans and job.tasks == set(job.plans[-1].tasks):
        return []
    return [PlanRounds(job=number, plan=RoundPlan(first=agreed, tasks=tuple(sorted(job.tasks))))]


def is_finished(state: ServiceState, number: int, workers: Iterable[str] | None = None) -> bool:
    """Whether a job has nothing left to read; from the workers with these ids, if given."""
    job = state.jobs[number]
    create = job.create
    if create.mode.is_leased:
        return job.cursor == sum(state.datasets[create.dataset].splits) and not job.returned and not job.leased
    chosen = set(workers) if workers is not None else None
    tasks = [state.tasks[each] for each in job.tasks]
    if any(not task.finished for task in tasks if chosen is None or task.worker in chosen):
        return False
    if chosen is not None:
        return any(task.worker in chosen for task in tasks)
    if create.mode.is_static:
        return len(job.shards_done) >= create.shards
    return job.ever_finished


def collect(state: ServiceState, idle: Iterable[int], *, dynamic: bool) -> list[Record]:
    """Collects idle jobs, but not those that hand out splits: starting them again would yield elements again."""
    records: list[Record] = []
    for number in idle:
        create = state.jobs[number].create
        once = create.name and (create.mode is ShardingPolicy.DYNAMIC or create.mode.is_leased)
        keeps = (
            once and not dynamic and not create.consumers and not create.private
        )  # these cannot come back, or not now
        finished = is_finished(state, number)
        if finished and once and not create.private:
            records.append(FinishedJob(name=create.name, dataset=create.dataset, epoch=create.epoch))
        if not keeps or finished:
            records.append(CollectJob(job=number))
    return records
