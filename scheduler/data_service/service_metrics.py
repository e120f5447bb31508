"""The metrics of a data service: what its members tell in plain numbers, in the words of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

from spanwise.scheduler.daemon.metrics import MetricFamily

Status: TypeAlias = Mapping[str, Any]
_Values: TypeAlias = dict[tuple[str, ...], float]

_OF_WORKERS: tuple[tuple[str, str, str, str], ...] = (
    ("busy", "busy_ratio", "gauge", "Share of its time that a worker made elements, lately."),
    ("tasks", "tasks", "gauge", "Tasks that a worker has and has not finished."),
    ("busy_s", "busy_seconds", "counter", "How long a worker has made elements, over all tasks."),
    ("given", "given_elements", "counter", "Elements that a worker has given to consumers."),
    ("given_bytes", "given_bytes", "counter", "Bytes of these, before compression."),
    ("buffered_bytes", "buffered_bytes", "gauge", "Bytes that are ready on a worker, and not taken yet."),
    ("lent_bytes", "lent_bytes", "gauge", "Bytes of memory that a worker shares with consumers on its host."),
)
_OF_JOBS: tuple[tuple[str, str, str], ...] = (
    ("starved", "starved_ratio", "Share of their time that a job's consumers waited for elements, lately."),
    ("rate", "elements_per_second", "Elements, or blocks of rows, that a job's consumers took, lately."),
    ("consumers", "consumers", "Consumers that read a job."),
    ("tasks", "job_tasks", "Tasks of a job, one for each worker."),
    ("tasks_finished", "job_tasks_finished", "Those of them that have come to their end."),
    ("splits_leased", "splits_leased", "Splits that a job's consumers hold."),
)


def families(member: Literal["dispatcher", "worker"], status: Status) -> Iterator[MetricFamily]:
    """What a dispatcher or a worker tells."""
    yield from _of_dispatcher(status) if member == "dispatcher" else _of_worker(status)
    for key, says in (("requests", "Requests to a"), ("errors", "Requests that failed at a")):
        by_kind: _Values = {(kind,): count for kind, count in status[key].items()}
        name = f"spanwise_service_{member}_{key}"
        yield MetricFamily(name, f"{says} {member}, by what was asked for.", "counter", ("request",), by_kind)


def _of_dispatcher(status: Status) -> Iterator[MetricFamily]:
    workers, jobs = status["workers"], status["jobs"]
    for name, says, value in (
        ("workers", "Workers that are there.", len(workers)),
        ("workers_wanted", "Workers that would be right for what consumers take.", status["wanted"]),
        ("jobs", "Jobs that the dispatcher knows.", len(jobs)),
        ("datasets", "Datasets that are registered.", status["datasets"]),
    ):
        now: _Values = {(): value}
        yield MetricFamily(f"spanwise_service_{name}", says, "gauge", (), now)
    dealt: _Values = {(): status["splits_dealt"]}
    yield MetricFamily("spanwise_service_splits_dealt", "Splits that were dealt or leased.", "counter", (), dealt)
    for key, name, says in _OF_JOBS:
        by_job: _Values = {(str(job["job"]), job["name"], job["mode"]): job[key] for job in jobs if not job["finished"]}
        yield MetricFamily(f"spanwise_service_{name}", says, "gauge", ("job", "name", "mode"), by_job)
    for key, name, kind, says in _OF_WORKERS:
        by_worker: _Values = {(each["address"],): each[key] for each in workers}
        yield MetricFamily(f"spanwise_service_worker_{name}", says, kind, ("worker",), by_worker)


def _of_worker(status: Status) -> Iterator[MetricFamily]:
    for key, name, kind, says in _OF_WORKERS:
        if key in status:  # shares are told by the dispatcher; here they are rates of a counter
            of_this: _Values = {(status["address"],): status[key]}
            yield MetricFamily(f"spanwise_service_worker_{name}", says, kind, ("worker",), of_this)
