"""What a dispatcher decides: functions that look at its state and return the records of a change. Pure."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from spanwise.orchestrator.errors import ServiceError
from spanwise.pipelines.input.service.dispatcher.records import (
    AcquireClient,
    CollectJob,
    CreateJob,
    CreateTask,
    FinishedJob,
    KeepJob,
    LeaseSplits,
    PlanRounds,
    ProduceSplits,
    Record,
    RegisterWorker,
    ReleaseClient,
    RemoveWorker,
)
from spanwise.pipelines.input.service.dispatcher.state import JobState, ServiceState
from spanwise.pipelines.input.service.policy import ShardingPolicy
from spanwise.pipelines.input.service.wire.requests import RegisterDataset, ResumedLeases, RoundPlan

MAX_SPLITS: Final = 64
"""How many splits a worker or consumer gets at once, at most."""


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
    resumed: ResumedLeases | None = None,
) -> list[Record]:
    """Adds a client to a job, which is created if there is none. The number in `wanted` is ignored.

    `index` is the client's place in a coordinated read, which has come to the round `reached`. A request with the key
    of a client is answered with that client.

    Raises:
        ServiceError: there is no such dataset; it cannot be read in this mode; the job has other parameters; or a
            coordinated read has started and cannot admit a new consumer; the job was read to its end.
    """
    dataset = state.datasets.get(wanted.dataset)
    if dataset is None:
        raise ServiceError(f"dataset {wanted.dataset!r} is not registered with this dispatcher; register_dataset does.")
    key = (wanted.name, wanted.dataset, wanted.epoch)
    number = state.names.get(key) if wanted.name else None
    if number is not None and index is None and client_key:
        known = next((each for each in state.jobs[number].clients if state.keys[each] == client_key), None)
        if known is not None:  # the answer was lost
            return [AcquireClient(client=known, job=number, key=client_key)]
    if resumed is not None:
        return _resume(state, number, wanted, resumed, client_key)
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
        number = state.next_id
        create = replace(wanted, job=number)
        tasks = _tasks([JobState(create)], state.workers.values(), number + 2)
        return [*collected, create, AcquireClient(client=number + 1, job=number, index=index, key=client_key), *tasks]
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
    return [AcquireClient(client=state.next_id, job=number, index=index, key=client_key)]


def _resume(
    state: ServiceState, number: int | None, wanted: CreateJob, resumed: ResumedLeases, key: str
) -> list[Record]:
    """Lets a consumer that was restored continue in its job, with the splits that it held.

    Raises:
        ServiceError: the job is gone, or its elements were committed or given to another consumer since.
    """
    if number is None:
        raise ServiceError(
            f"the dispatcher no longer has job {wanted.name!r} (pass {wanted.epoch}) that the state belongs to: it was "
            f"restarted without fault_tolerant_mode, or the job was forgotten. Start the pass again, without the state."
        )
    job = state.jobs[number]
    before = resumed.client if state.clients.get(resumed.client) == number else None
    free = {*job.returned, *(split for split, holder in job.leased.items() if holder == before)}
    ended = [split for split in resumed.done if split < job.cursor and split not in free and split not in job.leased]
    lost = [split for split in resumed.done if split not in free and split not in ended]
    lost += [split for split, count in resumed.held if split not in free or job.progress.get(split, 0) > count]
    if lost:
        raise ServiceError(
            f"job {wanted.name!r} (pass {wanted.epoch}) cannot continue from this state: splits {lost[:5]} were "
            f"committed since, or given to another consumer after client_timeout_s. Restore the newest state, or start "
            f"the pass again."
        )
    client = state.next_id
    done = tuple(split for split in resumed.done if split in free)
    held = tuple(split for split, _ in resumed.held)
    return [
        *([] if before is None else [ReleaseClient(client=before)]),
        AcquireClient(client=client, job=number, key=key),
        LeaseSplits(client=client, taken=(*done, *held)),
        LeaseSplits(client=client, done=done, progress=tuple((split, count) for split, count in resumed.held if count)),
        KeepJob(job=number),
    ]


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
            f"repeat() before distribute."
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
    if first >= count:
        return None
    share = (count - first) // (4 * max(1, len(job.tasks)))
    return ProduceSplits(
        task=task,
        number=number,
        source=source,
        repetition=repetition,
        first=first,
        count=max(1, min(MAX_SPLITS, share)),
    )


def lease(
    state: ServiceState, client: int, done: Sequence[int], want: int, progress: Sequence[tuple[int, int]] = ()
) -> LeaseSplits:
    """Takes committed splits from a client and leases it more, until it holds `want` splits."""
    job = state.jobs[state.clients[client]]
    acknowledged = tuple(split for split in done if job.leased.get(split) == client)
    held = sum(holder == client for holder in job.leased.values()) - len(acknowledged)
    count = sum(state.datasets[job.create.dataset].splits)
    missing = max(0, min(want - held, MAX_SPLITS))
    again = heapq.nsmallest(missing, job.returned)
    fresh = range(job.cursor, min(count, job.cursor + missing - len(again)))
    further = tuple(
        (split, count)
        for split, count in progress
        if job.leased.get(split) == client and split not in acknowledged and count > job.progress.get(split, 0)
    )
    return LeaseSplits(client=client, done=acknowledged, progress=further, taken=(*again, *fresh))


def has_ended(state: ServiceState, client: int, at_end: Mapping[int, bool]) -> bool:
    """Whether a client that has yielded all it holds gets nothing more from a leased job.

    `at_end` has the clients that wait at the end, and whether each commits by itself. A client that has nothing left to
    commit waits for those that have, since they may die; two that have do not wait for each other.
    """
    job = state.jobs[state.clients[client]]
    if job.returned or job.cursor < sum(state.datasets[job.create.dataset].splits):
        return False
    holders = set(job.leased.values())
    others = holders - {client}
    if client in holders:
        return others <= at_end.keys()
    return all(at_end.get(other, False) for other in others)


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


def held_by(state: ServiceState, client: int) -> tuple[tuple[int, int], ...]:
    """The splits that a client holds, and how many elements of each are committed."""
    job = state.jobs[state.clients[client]]
    splits = sorted(split for split, holder in job.leased.items() if holder == client)
    return tuple((split, job.progress.get(split, 0)) for split in splits)


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
