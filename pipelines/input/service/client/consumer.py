"""The consumer's side: the op that reads what the workers of a service make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from spanwise.orchestrator.errors import DatasetError, StateMismatch
from spanwise.pipelines.input.element import Spec
from spanwise.pipelines.input.flow import AnyFlow, extend
from spanwise.pipelines.input.op import Count, Element, Op, Opening, State, Stream, whole
from spanwise.pipelines.input.service.client.coordinated import CoordinatedReader
from spanwise.pipelines.input.service.client.reader import Reader
from spanwise.pipelines.input.service.policy import CrossTrainerCache, ShardingPolicy, policy_of
from spanwise.pipelines.input.service.wire.security import Security
from spanwise.pipelines.input.service.wire.shipped_graph import Given

Compression: TypeAlias = Literal["auto", "lz4", "zstd"]
"""`auto` compresses what goes to another machine."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Distribute(Op):
    service: str
    mode: ShardingPolicy
    job_name: str | None
    given: Given | None  #: what is registered when it is opened; None if that was done before
    dataset_id: str | None
    result: Spec = field(repr=False)
    endless: bool
    max_outstanding_requests: int | None
    compression: Compression | None
    target_workers: str | tuple[str, ...]
    consumer_index: int | None
    num_consumers: int | None
    cross_trainer_cache: CrossTrainerCache | None
    security: Security | None = field(repr=False)

    def __post_init__(self) -> None:
        word = "distribute"
        if not isinstance(self.service, str) or not self.service:
            raise DatasetError(f"{word}(service={self.service!r}): wants an address such as grpc://127.0.0.1:5050.")
        for argument in ("job_name", "dataset_id"):
            value = getattr(self, argument)
            if value is not None and (not isinstance(value, str) or not value):
                raise DatasetError(f"{word}({argument}={value!r}): wants a text that is not empty.")
        if self.compression is not None and self.compression not in get_args(Compression):
            raise DatasetError(f"{word}(compression={self.compression!r}): wants 'auto', 'lz4', 'zstd' or None.")
        if self.max_outstanding_requests is not None:
            whole(word, "max_outstanding_requests", self.max_outstanding_requests)
        if isinstance(self.target_workers, str) and self.target_workers not in {"any", "local"}:
            raise DatasetError(f"{word}(target_workers={self.target_workers!r}): wants 'any', 'local' or addresses.")
        self._check_coordinated(word)
        self._check_shared(word)

    def _check_coordinated(self, word: str) -> None:
        index, count = self.consumer_index, self.num_consumers
        if index is None and count is None:
            return
        if index is None or count is None:
            raise DatasetError(
                f"{word}(consumer_index={index!r}, num_consumers={count!r}): wants both for coordinated reads, or "
                f"neither."
            )
        whole(word, "num_consumers", count)
        whole(word, "consumer_index", index, at_least=0)
        if index >= count:
            raise DatasetError(f"{word}(consumer_index={index}): wants one below num_consumers={count}.")
        if self.job_name is None:
            raise DatasetError(f"{word}(num_consumers={count}): wants a job_name, which brings the consumers together.")
        if self.target_workers != "any":
            raise DatasetError(
                f"{word}(num_consumers={count}, target_workers={self.target_workers!r}): in coordinated reads the "
                f"dispatcher says which worker is read from: target_workers='any'."
            )
        if self.cross_trainer_cache is not None:
            raise DatasetError(f"{word}(num_consumers={count}): cannot be combined with cross_trainer_cache.")
        self._check_unleased(word, "num_consumers")

    def _check_shared(self, word: str) -> None:
        if self.cross_trainer_cache is None:
            return
        if not isinstance(self.cross_trainer_cache, CrossTrainerCache):
            raise DatasetError(
                f"{word}(cross_trainer_cache={self.cross_trainer_cache!r}): wants CrossTrainerCache(trainer_id=…)."
            )
        if self.job_name is None:
            raise DatasetError(f"{word}(cross_trainer_cache=…): wants a job_name, which brings the trainers together.")
        self._check_unleased(word, "cross_trainer_cache")

    def _check_unleased(self, word: str, argument: str) -> None:
        if self.mode.is_leased:
            raise DatasetError(
                f"{word}(processing_mode={self.mode.value!r}, {argument}=…): leases end with their splits, and so "
                f"cannot be read without an end. Use 'off' or 'dynamic'."
            )

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


def distributed(
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
    """What `Dataset.distribute` gives; `is_registered` says that the service knows the dataset by its id already."""
    op = Distribute(
        service=service,
        mode=policy_of(processing_mode),
        job_name=job_name,
        given=None if is_registered else Given(dataset.op, dataset.settings),
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
    """Reads a job; begins when the first element is asked for."""

    def __init__(self, op: Distribute, epoch: str) -> None:
        self._op = op
        self._epoch = epoch
        self._reader: Reader | None = None
        self._closed = False

    def __next__(self) -> Element:
        if self._closed:
            raise StopIteration
        if self._reader is None:
            self._reader = (CoordinatedReader if self._op.num_consumers else Reader)(self._op, self._epoch)
        return self._reader.next()

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:  # noqa: ARG002  there is nothing in it
        raise StateMismatch(
            "a pass over a data service cannot be restored: its elements went to whoever came first. With a job_name "
            "and processing_mode='exactly_once' or 'at_least_once', the next consumer goes on with what is left."
        )

    def close(self) -> None:
        self._closed = True
        if self._reader is not None:
            self._reader.close()
