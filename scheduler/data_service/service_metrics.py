"""Metrics of a data service: the numbers in the status of its dispatcher and workers, in the format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

from spanwise.scheduler.daemon.metrics import MetricFamily

Status: TypeAlias = Mapping[str, Any]
_Values: TypeAlias = dict[tuple[str, ...], float]

_OF_WORKERS: tuple[tuple[str, str, str, str], ...] = (
    ("busy", "busy_ratio", "gauge", "Share of its time that a worker recently spent on producing elements."),
    ("tasks", "tasks", "gauge", "Unfinished tasks of a worker."),
    ("busy_s", "busy_seconds", "counter", "Time that a worker has spent on producing elements, over all tasks."),
    ("given", "given_elements", "counter", "Elements that a worker has sent to consumers."),
    ("given_bytes", "given_bytes", "counter", "Bytes that a worker has sent to consumers, before compression."),
    ("buffered_bytes", "buffered_bytes", "gauge", "Bytes that are ready on a worker and not yet sent."),
    ("lent_bytes", "lent_bytes", "gauge", "Bytes of memory that a worker shares with consumers on its host."),
)
_OF_JOBS: tuple[tuple[str, str, str], ...] = (
    ("starved", "starved_ratio", "Share of their time that a job's consumers recently waited for elements."),
    ("rate", "elements_per_second", "Elements, or blocks of rows, that a job's consumers recently received."),
    ("consumers", "consumers", "Consumers that read a job."),
    ("tasks", "job_tasks", "Tasks of a job, one for each worker."),
    ("tasks_finished", "job_tasks_finished", "Finished tasks of a job."),
    ("splits_leased", "splits_leased", "Splits that a job's consumers hold."),
)


def families(member: Literal["dispatcher", "worker"], status: Status) -> Iterator[MetricFamily]:
    """The metrics of a dispatcher or a worker."""
    yield from _of_dispatcher(status) if member == "dispatcher" else _of_worker(status)
    for key, says in (("requests", "Requests to a"), ("errors", "Failed requests to a")):
        by_kind: _Values = {(kind,): count for kind, count in status[key].items()}
        name = f"spanwise_service_{member}_{key}"
        yield MetricFamily(name, f"{says} {member}, by kind of request.", "counter", ("request",), by_kind)


def _of_dispatcher(status: Status) -> Iterator[MetricFamily]:
    workers, jobs = status["workers"], status["jobs"]
    for name, says, value in (
        ("workers", "Live workers.", len(workers)),
        ("workers_wanted", "Workers that the consumers need.", status["wanted"]),
        ("jobs", "Jobs that the dispatcher knows.", len(jobs)),
        ("datasets", "Datasets that are registered.", status["datasets"]),
    ):
        now: _Values = {(): value}
        yield MetricFamily(f"spanwise_service_{name}", says, "gauge", (), now)
    dealt: _Values = {(): status["splits_dealt"]}
    yield MetricFamily("spanwise_service_splits_dealt", "Splits that were assigned or leased.", "counter", (), dealt)
    for key, name, says in _OF_JOBS:
        by_job: _Values = {(str(job["job"]), job["name"], job["mode"]): job[key] for job in jobs if not job["finished"]}
        yield MetricFamily(f"spanwise_service_{name}", says, "gauge", ("job", "name", "mode"), by_job)
    for key, name, kind, says in _OF_WORKERS:
        by_worker: _Values = {(each["address"],): each[key] for each in workers}
        yield MetricFamily(f"spanwise_service_worker_{name}", says, kind, ("worker",), by_worker)


def _of_worker(status: Status) -> Iterator[MetricFamily]:
    for key, name, kind, says in _OF_WORKERS:
        if key in status:  # the dispatcher reports shares; here they are rates of a counter
            of_this: _Values = {(status["address"],): status[key]}
            yield MetricFamily(f"spanwise_service_worker_{name}", says, kind, ("worker",), of_this)
