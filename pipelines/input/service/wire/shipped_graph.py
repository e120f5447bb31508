"""How a dataset travels, with the versions of where it was pickled before it; and how a dispatcher comes to know it."""

from __future__ import annotations

import json
import math
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from spanwise.orchestrator.errors import DatasetError, Unfingerprintable
from spanwise.orchestrator.fingerprint import digest
from spanwise.pipelines.input.graph.fingerprint import of_graph
from spanwise.pipelines.input.op import Op, Options, ops_of
from spanwise.pipelines.input.service.dispatcher import sharding
from spanwise.pipelines.input.service.wire.connection import Connection, check_environment, environment
from spanwise.pipelines.input.snapshot.op import Snapshot

_looking = threading.Lock()  # ops note what they find out about themselves, and cannot be pickled meanwhile


@dataclass(frozen=True)
class Given:
    """A dataset that workers are to run: closed, since no rewrite or seed of the consumer's graph goes into it."""

    op: Op
    options: Options


def packed_graph(op: Op, options: Options) -> bytes:
    """A dataset as bytes: functions of packages and installed modules by their names, others with their code.

    Raises:
        DatasetError: something in it cannot be pickled.
    """
    import cloudpickle

    try:
        with _by_value():
            content: bytes = cloudpickle.dumps((op, options))
    except Exception as error:
        raise DatasetError(
            f"distribute: the dataset cannot be sent to workers: {type(error).__name__}: {error}. A function must not "
            f"hold locks, open files or connections; open them inside of it."
        ) from error
    return json.dumps(environment()).encode() + b"\n" + content


_packing = threading.Lock()


@contextmanager
def _by_value() -> Iterator[None]:
    """Has functions of files that were loaded by their paths, as pipelines are, travel with their code meanwhile."""
    import cloudpickle

    libraries = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    with _packing, ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None) or ""
            alone = "." not in name and name != "__main__" and not hasattr(module, "__path__")
            if alone and file.endswith(".py") and not file.startswith(libraries):
                cloudpickle.register_pickle_by_value(module)
                stack.callback(cloudpickle.unregister_pickle_by_value, module)
        yield


def unpacked_graph(content: bytes, who: str) -> tuple[Op, Options]:
    """The dataset that was packed. Runs what the sender says, so it comes from a dispatcher that knows the token.

    Raises:
        ServiceError: it was packed in another environment, or cannot be put together here.
    """
    import cloudpickle

    versions, _, pickled = content.partition(b"\n")
    check_environment(json.loads(versions), who)
    try:
        op, options = cloudpickle.loads(pickled)
    except Exception as error:
        raise DatasetError(
            f"{who} cannot be put together here: {type(error).__name__}: {error}. Modules that its functions come from "
            f"must be there on workers too."
        ) from error
    return op, options


def id_of(op: Op, options: Options, content: bytes) -> str:
    """The id of a dataset for which none was given: equal datasets have equal ones, as far as that can be known."""
    kept = [f"{each.mode} {each.path}" for each in ops_of(op) if isinstance(each, Snapshot)]  # no fingerprint has these
    try:
        return digest("service dataset", of_graph(op), repr(options), *kept)
    except Unfingerprintable:
        return digest("service dataset", content)


def registered(connection: Connection, given: Given, dataset_id: str | None) -> str:
    """Makes a dataset known to a dispatcher, and gives the id under which it is."""
    with _looking:
        content = packed_graph(given.op, given.options)
        shares = sharding.shares_of(sharding.planned(given.op, given.options))
        header = {
            "dataset": dataset_id or id_of(given.op, given.options, content),
            "structure": str(given.op.spec)[:10_000],
            "splits": shares.splits,
            "unsplittable": shares.unsplittable,
            "unleasable": shares.unleasable,
            "infinite": given.op.cardinality == math.inf,
        }
    answer, _ = connection.call("put_dataset", header, content)
    registered: str = answer["dataset"]
    return registered
