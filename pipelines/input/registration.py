"""Registered datasets: one consumer registers a dataset with a service, and others read it by its id."""

from __future__ import annotations

from collections.abc import Sequence

from spanwise.pipelines.input.dataset import Dataset
from spanwise.pipelines.input.service.client.distribute import distribute
from spanwise.pipelines.input.service.client.feed import Compression
from spanwise.pipelines.input.service.policy import CrossTrainerCache, ShardingPolicy
from spanwise.pipelines.input.service.wire.connection import refusing_malformed
from spanwise.pipelines.input.service.wire.dispatcher_connection import DispatcherConnection
from spanwise.pipelines.input.service.wire.requests import GetDataset
from spanwise.pipelines.input.service.wire.security import Security
from spanwise.pipelines.input.service.wire.shipped_graph import ShippedGraph, register, unpack_graph


def register_dataset(
    service: str, dataset: Dataset, *, dataset_id: str | None = None, security: Security | None = None
) -> str:
    """Registers a dataset with a service; returns the id by which `from_dataset_id` finds it.

    Raises:
        ServiceError: the id belongs to a dataset with other elements, or the service cannot be reached.
    """
    connection = DispatcherConnection(service, security or Security.from_environment())
    try:
        return register(connection, ShippedGraph.of(dataset), dataset_id)
    finally:
        connection.close()


def from_dataset_id(
    processing_mode: ShardingPolicy | str,
    service: str,
    dataset_id: str,
    job_name: str | None = None,
    *,
    max_outstanding_requests: int | None = None,
    compression: Compression | None = "auto",
    target_workers: str | Sequence[str] = "any",
    consumer_index: int | None = None,
    num_consumers: int | None = None,
    cross_trainer_cache: CrossTrainerCache | None = None,
    security: Security | None = None,
) -> Dataset:
    """The elements of a registered dataset, read as by `Dataset.distribute`.

    Raises:
        ServiceError: no dataset has this id.
    """
    connection = DispatcherConnection(service, security or Security.from_environment())
    try:
        with refusing_malformed("request"):
            _, content = connection.ask(GetDataset(dataset=dataset_id))
    finally:
        connection.close()
    graph = unpack_graph(content, f"dataset {dataset_id!r}")
    return distribute(
        Dataset(graph.op, graph.options),
        is_registered=True,
        service=service,
        processing_mode=processing_mode,
        job_name=job_name,
        dataset_id=dataset_id,
        max_outstanding_requests=max_outstanding_requests,
        compression=compression,
        target_workers=target_workers,
        consumer_index=consumer_index,
        num_consumers=num_consumers,
        cross_trainer_cache=cross_trainer_cache,
        security=security,
    )
