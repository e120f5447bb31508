"""What a consumer reads and how: the arguments of `Dataset.distribute`, checked."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass, field
from typing import get_args

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.element import Spec
from spanwise.pipelines.input.op import check_whole
from spanwise.pipelines.input.service.client.feed import Compression
from spanwise.pipelines.input.service.policy import CrossTrainerCache, ShardingPolicy
from spanwise.pipelines.input.service.wire.security import Security
from spanwise.pipelines.input.service.wire.shipped_graph import ShippedGraph


@dataclass(frozen=True, kw_only=True, eq=False)
class JobSettings:
    """How a consumer reads a job."""

    service: str
    mode: ShardingPolicy
    job_name: str | None
    scope: str = field(default="", repr=False)  #: whose jobs they are, in the names of those without one
    graph: ShippedGraph | None  #: registered when the op is opened; None if the dataset is registered
    dataset_id: str | None
    result: Spec = field(repr=False)  #: of an element
    max_outstanding_requests: int | None
    compression: Compression | None
    target_workers: str | tuple[str, ...]
    consumer_index: int | None
    num_consumers: int | None
    cross_trainer_cache: CrossTrainerCache | None
    security: Security | None = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.service, str) or not self.service:
            raise DatasetError(f"distribute(service={self.service!r}): wants an address such as grpc://127.0.0.1:5050.")
        for argument in ("job_name", "dataset_id"):
            value = getattr(self, argument)
            if value is not None and (not isinstance(value, str) or not value):
                raise DatasetError(f"distribute({argument}={value!r}): wants a non-empty string.")
        if self.compression is not None and self.compression not in get_args(Compression):
            raise DatasetError(f"distribute(compression={self.compression!r}): wants 'auto', 'lz4', 'zstd' or None.")
        if self.max_outstanding_requests is not None:
            check_whole("distribute", "max_outstanding_requests", self.max_outstanding_requests)
        if isinstance(self.target_workers, str) and self.target_workers not in {"any", "local"}:
            raise DatasetError(
                f"distribute(target_workers={self.target_workers!r}): wants 'any', 'local' or addresses."
            )
        self._check_coordinated()
        self._check_shared()

    @property
    def private_name(self) -> str:
        """A name that no other job has."""
        return f"{self.scope or socket.gethostname()} {secrets.token_hex(6)}"

    def _check_coordinated(self) -> None:
        index, count = self.consumer_index, self.num_consumers
        if index is None and count is None:
            return
        if index is None or count is None:
            raise DatasetError(
                f"distribute(consumer_index={index!r}, num_consumers={count!r}): wants both for coordinated reads, or "
                f"neither."
            )
        check_whole("distribute", "num_consumers", count)
        check_whole("distribute", "consumer_index", index, at_least=0)
        if index >= count:
            raise DatasetError(f"distribute(consumer_index={index}): wants one below num_consumers={count}.")
        if self.job_name is None:
            raise DatasetError(f"distribute(num_consumers={count}): wants a job_name that the consumers share.")
        if self.target_workers != "any":
            raise DatasetError(
                f"distribute(num_consumers={count}, target_workers={self.target_workers!r}): in coordinated reads the "
                f"dispatcher chooses the worker: target_workers='any'."
            )
        if self.cross_trainer_cache is not None:
            raise DatasetError(f"distribute(num_consumers={count}): cannot be combined with cross_trainer_cache.")
        self._check_unleased("num_consumers")

    def _check_shared(self) -> None:
        if self.cross_trainer_cache is None:
            return
        if not isinstance(self.cross_trainer_cache, CrossTrainerCache):
            raise DatasetError(
                f"distribute(cross_trainer_cache={self.cross_trainer_cache!r}): wants CrossTrainerCache(trainer_id=…)."
            )
        if self.job_name is None:
            raise DatasetError("distribute(cross_trainer_cache=…): wants a job_name that the trainers share.")
        self._check_unleased("cross_trainer_cache")

    def _check_unleased(self, argument: str) -> None:
        if self.mode.is_leased:
            raise DatasetError(
                f"distribute(processing_mode={self.mode.value!r}, {argument}=…): leases end with their splits, so "
                f"an infinite dataset cannot be read. Use 'off' or 'dynamic'."
            )
