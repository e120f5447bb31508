"""The op that reads a job: its elements are those that the workers of a service produce."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spanwise.orchestrator.errors import StateMismatch
from spanwise.pipelines.input.element import Spec
from spanwise.pipelines.input.flow import AnyFlow, extend
from spanwise.pipelines.input.op import Count, Element, Op, Opening, State, Stream
from spanwise.pipelines.input.service.client.coordinated import CoordinatedReader
from spanwise.pipelines.input.service.client.feed import Compression
from spanwise.pipelines.input.service.client.job import JobSettings
from spanwise.pipelines.input.service.client.reader import JobReader, LeaseReader, TaskReader
from spanwise.pipelines.input.service.policy import CrossTrainerCache, ShardingPolicy, policy_of
from spanwise.pipelines.input.service.wire.security import Security
from spanwise.pipelines.input.service.wire.shipped_graph import ShippedGraph


@dataclass(frozen=True, kw_only=True, eq=False)
class Distribute(JobSettings, Op):
    endless: bool

    @property
    def inputs(self) -> tuple[Op, ...]:
        return ()

    @property
    def spec(self) -> Spec:
        return self.result

    @property
    def cardinality(self) -> Count:
        return math.inf if self.endless else None

    def open(self, opening: Opening) -> Stream:
        return DistributeStream(self, ".".join(map(str, opening.epoch)))


def distribute(
    dataset: AnyFlow,
    *,
    is_registered: bool = False,
    service: str,
    processing_mode: ShardingPolicy | str,
    job_name: str | None,
    dataset_id: str | None,
    max_outstanding_requests: int | None,
    compression: Compression | None,
    target_workers: str | Sequence[str],
    consumer_index: int | None,
    num_consumers: int | None,
    cross_trainer_cache: CrossTrainerCache | None,
    security: Security | None,
) -> AnyFlow:
    """Implements `Dataset.distribute`; `is_registered` says that the service knows the dataset by its id."""
    op = Distribute(
        service=service,
        mode=policy_of(processing_mode),
        job_name=job_name,
        graph=None if is_registered else ShippedGraph.of(dataset),
        dataset_id=dataset_id,
        result=dataset.spec,
        endless=dataset.cardinality == math.inf,
        max_outstanding_requests=max_outstanding_requests,
        compression=compression,
        target_workers=target_workers if isinstance(target_workers, str) else tuple(target_workers),
        consumer_index=consumer_index,
        num_consumers=num_consumers,
        cross_trainer_cache=cross_trainer_cache,
        security=security,
    )
    return extend(dataset, op)


class DistributeStream(Stream):
    """Reads a job; starts when the first element is asked for."""

    def __init__(self, op: Distribute, epoch: str) -> None:
        self._op = op
        self._epoch = epoch
        self._reader: JobReader | None = None
        self._closed = False

    def __next__(self) -> Element:
        if self._closed:
            raise StopIteration
        if self._reader is None:
            self._reader = self._open_reader()
        return self._reader.next()

    def _open_reader(self) -> JobReader:
        if self._op.num_consumers:
            return CoordinatedReader(self._op, self._epoch)
        return (LeaseReader if self._op.mode.is_leased else TaskReader)(self._op, self._epoch)

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:  # noqa: ARG002  it is empty
        raise StateMismatch(
            "a pass over a data service cannot be restored: its elements went to whoever asked first. With a "
            "job_name and processing_mode='exactly_once' or 'at_least_once', the next consumer reads what is left."
        )

    def close(self) -> None:
        self._closed = True
        if self._reader is not None:
            self._reader.close()
