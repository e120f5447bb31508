"""Shipped graphs: a dataset pickled for workers, behind the versions of the environment it was pickled in."""

from __future__ import annotations

import json
import math
import pickle
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from spanwise.orchestrator.errors import DatasetError, ParameterError, Unfingerprintable
from spanwise.orchestrator.fingerprint import digest, of_value
from spanwise.orchestrator.user_code import ship
from spanwise.pipelines.input.flow import Flow
from spanwise.pipelines.input.graph.fingerprint import of_graph
from spanwise.pipelines.input.op import Op, Options, list_ops
from spanwise.pipelines.input.ops.cache import Cache
from spanwise.pipelines.input.service.sharding.splits import plan_graph, split_graph, with_file_sizes
from spanwise.pipelines.input.service.wire.connection import (
    check_environment,
    environment,
    refusing_malformed,
)
from spanwise.pipelines.input.service.wire.dispatcher_connection import DispatcherConnection
from spanwise.pipelines.input.service.wire.requests import RegisterDataset
from spanwise.pipelines.input.snapshot.op import Snapshot

_inspecting = threading.Lock()  # ops cache what they compute of themselves, and cannot be pickled meanwhile


@dataclass(frozen=True)
class ShippedGraph:
    """A dataset for workers: opaque, so that no rewrite or seed of the consumer's graph enters it."""

    op: Op
    options: Options
    flow: type[Flow]  #: the class in which users' functions get nested datasets

    @classmethod
    def of(cls, flow: Flow) -> Self:
        return cls(with_file_sizes(flow.op), replace(flow.settings, consumer=None), type(flow))


def pack_graph(graph: ShippedGraph) -> bytes:
    """Pickles a dataset: functions of packages and installed modules by name, others with their code.

    Raises:
        DatasetError: something in it cannot be pickled.
    """
    try:
        content = ship((graph.op, graph.options, graph.flow), by_value=True).content
    except ParameterError as error:
        raise DatasetError(f"distribute: the dataset cannot be sent to workers: {error}") from error
    return json.dumps(environment()).encode() + b"\n" + content


def unpack_graph(content: bytes, who: str) -> ShippedGraph:
    """The dataset that was pickled. Runs code of the sender, so it must come from a dispatcher that knows the token.

    Raises:
        ServiceError: it was pickled in another environment.
        DatasetError: it cannot be unpickled here.
    """
    versions, _, pickled = content.partition(b"\n")
    check_environment(json.loads(versions), who)
    try:
        return ShippedGraph(*pickle.loads(pickled))  # noqa: S301  from a dispatcher that knows the token
    except Exception as error:
        raise DatasetError(
            f"{who} could not be unpickled here: {type(error).__name__}: {error}. The modules of its functions must be "
            f"installed on the workers too."
        ) from error


def id_of(op: Op, options: Options, content: bytes, splits: Sequence[int]) -> tuple[str, str]:
    """The default id of a dataset, equal for equal datasets; and why that is not known, empty if it is.

    Where the same dataset makes other splits, the numbers in leases and stored states mean others too. The number at
    the beginning is incremented when their order changes.
    """
    try:
        return digest("service dataset 2", of_graph(op), repr(options), *map(str, splits), *_stored_steps(op)), ""
    except Unfingerprintable as error:
        return digest("service dataset", content), str(error)[:10_000]


def _stored_steps(op: Op) -> Iterator[str]:
    """Where a graph stores elements, and how: it decides what each pass yields, but is in no fingerprint."""
    for place, each in enumerate(list_ops(op)):
        match each:
            case Cache():
                yield f"{place} cache {each.limit_bytes}"
            case Snapshot():
                yield f"{place} {each.mode} {each.path} {of_value(each.reader_fn)}"


def register(connection: DispatcherConnection, graph: ShippedGraph, dataset_id: str | None) -> str:
    """Registers a dataset with a dispatcher; returns its id."""
    with _inspecting, refusing_malformed("request"):
        content = pack_graph(graph)
        splits = split_graph(plan_graph(graph.op, graph.options))
        default, opaque = ("", "") if dataset_id else id_of(graph.op, graph.options, content, splits.splits)
        request = RegisterDataset(
            dataset=dataset_id or default,
            structure=str(graph.op.spec)[:10_000],
            splits=splits.splits,
            unsplittable=splits.unsplittable,
            unleasable=splits.unleasable,
            infinite=graph.op.cardinality == math.inf,
            opaque=opaque,
        )
    connection.ask(request, content)
    return request.dataset
