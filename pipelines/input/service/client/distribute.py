"""The op that reads a job: its elements are those that the workers of a service produce."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from spanwise.orchestrator.errors import DatasetError, StateMismatch
from spanwise.pipelines.input.commits import KEY, PassCommits, stream_name
from spanwise.pipelines.input.element import Spec
from spanwise.pipelines.input.flow import AnyFlow, extend
from spanwise.pipelines.input.op import CommitRegistry, Count, Element, Op, Opening, State, Stream, list_ops
from spanwise.pipelines.input.rows import BlockTypes
from spanwise.pipelines.input.service.client.coordinated import CoordinatedReader
from spanwise.pipelines.input.service.client.feed import Compression
from spanwise.pipelines.input.service.client.job import JobSettings
from spanwise.pipelines.input.service.client.lease_reader import LeaseReader
from spanwise.pipelines.input.service.client.leases import BEGINNING, Place
from spanwise.pipelines.input.service.client.reader import JobReader, TaskReader
from spanwise.pipelines.input.service.policy import CrossTrainerCache, ShardingPolicy, policy_of
from spanwise.pipelines.input.service.sharding.splits import hide_snapshots, plan_graph, why_unsplit, why_whole
from spanwise.pipelines.input.service.sharding.static import list_hints, why_not_by_file
from spanwise.pipelines.input.service.wire.security import Security
from spanwise.pipelines.input.service.wire.shipped_graph import ShippedGraph
from spanwise.pipelines.input.snapshot.source import why_not_shared


@dataclass(frozen=True, kw_only=True, eq=False)
class Distribute(JobSettings, Op):
    proves_place = False  # another pass is another job

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
        if opening.options.in_order:
            raise DatasetError(
                "distribute: several processes share the elements of this dataset by counting them, and each would get "
                "those of the data service in another order. Read the service in one process, such as "
                "DataLoader(…, num_workers=1): its workers do the work."
            )
        epoch = ".".join(map(str, opening.epoch))
        consumer = opening.options.consumer
        op = self if consumer is None else replace(self, scope=consumer.name)
        if self.mode.is_leased:
            return LeasedStream(op, epoch, opening.commits or PassCommits(), stream_name(opening.next_path()))
        return DistributeStream(op, epoch)


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
    mode = policy_of(processing_mode)
    op = Distribute(
        service=service,
        mode=mode,
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
    if not is_registered:
        _check_parts(dataset, mode)
    return extend(dataset, op)


def _check_parts(dataset: AnyFlow, mode: ShardingPolicy) -> None:
    """Refuses a mode in which workers would compute other elements than the dataset has.

    Raises:
        DatasetError: says which op needs more than a part of its input.
    """
    why = ""
    if mode is ShardingPolicy.DYNAMIC or mode.is_leased:
        plan = plan_graph(dataset.op, dataset.settings)
        why = why_unsplit(hide_snapshots(plan)) or why_whole(plan, leased=mode.is_leased)
    elif mode is ShardingPolicy.FILE:
        why = why_not_by_file(dataset.op)
    elif mode.is_static and any(isinstance(each, Distribute) for each in list_ops(dataset.op)):
        why = "in each of them the elements of Distribute come in another order"
    elif unshared := next(filter(None, map(why_not_shared, _list_counted(dataset.op, mode))), ""):
        raise DatasetError(f"distribute(processing_mode={mode.value!r}): workers count the elements, and {unshared}")
    if why:
        raise DatasetError(
            f"distribute(processing_mode={mode.value!r}): workers get parts of the dataset, and {why}. Or use "
            f"processing_mode='off' or 'data', in which each worker computes the whole dataset."
        )


class DistributeStream(Stream):
    """Reads a job; starts when the first element is asked for."""

    def __init__(self, op: Distribute, epoch: str) -> None:
        self._op = op
        self._epoch = epoch
        self._reader: JobReader | None = None
        self._types = BlockTypes.of_stream("distribute", op.result)
        self._closed = False

    def __next__(self) -> Element:
        if self._closed:
            raise StopIteration
        if self._reader is None:
            self._reader = self._open_reader()
        return _checked(self._reader.next(), self._types)

    def _open_reader(self) -> JobReader:
        if self._op.num_consumers:
            return CoordinatedReader(self._op, self._epoch)
        return TaskReader(self._op, self._epoch, self._op.private_name if self._op.scope else "")

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:  # noqa: ARG002  it is empty
        raise StateMismatch(
            f"a pass over a data service in mode {self._op.mode.value!r} cannot be restored: its elements went to "
            f"whoever asked first. Use processing_mode='exactly_once' or 'at_least_once', whose passes can."
        )

    def close(self) -> None:
        self._closed = True
        if self._reader is not None:
            self._reader.close()


class LeasedStream(Stream):
    """Reads leased splits. Its elements are committed by the pass, which keeps them leased until then."""

    def __init__(self, op: Distribute, epoch: str, commits: CommitRegistry, name: str) -> None:
        self._op = op
        self._epoch = epoch
        self._commits = commits
        self._name = name  # in the pass
        self._place: Place | None = None  # where it continues
        self._reader: LeaseReader | None = None
        self._types = BlockTypes.of_stream("distribute", op.result)
        self._closed = False
        self.is_over = False

    def __next__(self) -> Element:
        if self._closed:
            raise StopIteration
        if self._reader is None:
            self._reader = LeaseReader(self._op, self._epoch, self._commits.stored(self._name), self._place)
            self._commits.register(self._name, self)
        try:
            element = self._reader.next()
        except StopIteration:
            self.is_over = True
            raise
        return _checked(element, self._types)

    def state(self) -> State:
        place = self._place or BEGINNING if self._reader is None else self._reader.place
        return {KEY: self._name, **place._asdict()}

    def restore(self, state: State) -> None:
        if state[KEY] != self._name:
            raise StateMismatch(
                f"the state is of a pass that named its leases in another way ({state[KEY]}, not {self._name}), as "
                f"spanwise did before. Start the pass again, without the state."
            )
        if (place := Place(state["at"], state["given"])) != BEGINNING:
            self._place = place

    def close(self) -> None:
        """Ends the reading; the pass leaves the job when it has committed what ops behind this one still hold."""
        self._closed = True
        if self._reader is not None:
            self._reader.end_reading()

    # For the pass.

    def describe(self) -> State:
        assert self._reader is not None
        return {**self._reader.describe(), "over": self.is_over}

    def keep_state(self) -> None:
        if self._reader is not None:
            self._reader.keep_state()

    def commit(self, state: State | None, *, wait: bool) -> None:
        assert self._reader is not None
        self._reader.commit(None if state is None else Place(state["at"], state["given"]), wait=wait)

    def leave(self) -> None:
        if self._reader is not None:
            self._reader.close()


def _checked(element: Element, types: BlockTypes | None) -> Element:
    """An element of a type that a function returned in other passes too: of other workers, of other splits."""
    if types is not None:
        types.check(element)
    return element


def _list_counted(op: Op, mode: ShardingPolicy) -> list[Op]:
    """The parts of a graph whose elements each worker counts to find its own."""
    if mode is ShardingPolicy.HINT:
        return [each.input for each in list_hints(op)]
    by_elements = mode is ShardingPolicy.DATA or (mode is ShardingPolicy.FILE_OR_DATA and why_not_by_file(op))
    return [op] if by_elements else []
