"""The status of a service: what its dispatcher reports of workers, jobs and consumers. Pure."""

from __future__ import annotations

from spanwise.pipelines.input.service.dispatcher.activity import Activity, ConsumerRate
from spanwise.pipelines.input.service.dispatcher.decisions import is_finished
from spanwise.pipelines.input.service.dispatcher.load import RecentLoad, wanted_workers
from spanwise.pipelines.input.service.dispatcher.records import RegisterWorker
from spanwise.pipelines.input.service.dispatcher.state import ServiceState
from spanwise.pipelines.input.service.wire.requests import JobStatus, ServiceStatus, WorkerLoad, WorkerStatus


def status_of(
    state: ServiceState, activity: Activity, target: str, splits_dealt: int, counts: dict[str, dict[str, int]]
) -> ServiceStatus:
    workers = tuple(_worker_status(state, activity, each) for each in state.workers.values())
    jobs = tuple(_job_status(state, activity, number) for number in state.jobs)
    busy = sum(worker.busy for worker in workers) / max(1, len(workers))
    starved = max((job.starved for job in jobs if not job.finished), default=0.0)
    return ServiceStatus(
        target=target,
        workers=workers,
        wanted=wanted_workers(len(workers), busy, starved),
        jobs=jobs,
        datasets=len(state.datasets),
        splits_dealt=splits_dealt,
        **counts,
    )


def _worker_status(state: ServiceState, activity: Activity, worker: RegisterWorker) -> WorkerStatus:
    load = activity.loads.get(worker.worker) or RecentLoad(WorkerLoad(), 0.0)
    return WorkerStatus(
        address=worker.address,
        worker=worker.worker,
        tasks=sum(task.worker == worker.worker and not task.finished for task in state.tasks.values()),
        busy=load.busy,
        given_per_s=load.given_per_s,
        bytes_per_s=load.bytes_per_s,
        **load.load.model_dump(),
    )


def _job_status(state: ServiceState, activity: Activity, number: int) -> JobStatus:
    job = state.jobs[number]
    rates = [activity.rates.get(client, ConsumerRate()) for client in job.clients]
    return JobStatus(
        job=number,
        name=job.create.name,
        dataset=job.create.dataset,
        mode=job.create.mode,
        tasks=len(job.tasks),
        tasks_finished=sum(state.tasks[each].finished for each in job.tasks),
        consumers=len(job.clients),
        starved=sum(each.starved for each in rates) / max(1, len(rates)),
        rate=sum(each.rate for each in rates),
        given=sum(each.given for each in rates),
        splits_leased=len(job.leased),
        finished=is_finished(state, number),
    )
