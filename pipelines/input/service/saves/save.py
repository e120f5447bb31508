"""Saving a dataset: the workers of a service write a snapshot of it, side by side."""

from __future__ import annotations

import logging
import math
import os
import secrets
import time
from collections.abc import Callable
from typing import Final, TypeVar

from spanwise.orchestrator.errors import DatasetError, ServiceError
from spanwise.orchestrator.fingerprint import versions
from spanwise.pipelines.input.flow import Flow
from spanwise.pipelines.input.graph.fingerprint import FilesBy, digest_files
from spanwise.pipelines.input.service.sharding.splits import count_shards, plan_graph
from spanwise.pipelines.input.service.wire.connection import Unreachable, refusing_malformed
from spanwise.pipelines.input.service.wire.dispatcher_connection import DispatcherConnection
from spanwise.pipelines.input.service.wire.requests import PollSave, StartSave
from spanwise.pipelines.input.service.wire.security import Security
from spanwise.pipelines.input.service.wire.shipped_graph import ShippedGraph, register
from spanwise.pipelines.input.snapshot.folder import SnapshotFolder, new_run_id
from spanwise.pipelines.input.snapshot.op import Snapshot, add_snapshot
from spanwise.pipelines.input.snapshot.settings import CompressionName
from spanwise.pipelines.input.snapshot.state import Metadata, PassThrough, Read, decide
from spanwise.pipelines.input.snapshot.storage import files_at, from_anywhere

_POLL_S: Final = 0.1
_RETRY_FOR_S: Final = 60.0

_Answer = TypeVar("_Answer")

_log = logging.getLogger("spanwise.service.saves")


def save(
    dataset: Flow,
    path: str | os.PathLike[str],
    service: str,
    *,
    compression: CompressionName | None = "auto",
    pending_snapshot_expiry_seconds: float = 86_400,
    files_by: FilesBy = "mtime",
    wait: bool = True,
    exist_ok: bool = False,
    security: Security | None = None,
) -> bool:
    """Has the workers of a service write the snapshot of a dataset that `dataset.snapshot(path)` reads.

    Workers must reach `path` under the same name. With `wait=False` the call returns at once; the save continues
    without its caller either way. With `exist_ok` an existing snapshot is accepted, and one that somebody else is
    writing is waited for; the result is then False.

    Raises:
        DatasetError: the dataset is infinite.
        ServiceError: its snapshot exists or is being written, or could not be written; the message says why.
    """
    if dataset.cardinality == math.inf:
        raise DatasetError(
            "save: saving an infinite dataset is not allowed. Apply repeat() where the snapshot is read."
        )
    where = from_anywhere(path)
    snapshot = add_snapshot(
        dataset,
        path=where,
        compression=compression or "none",
        reader_fn=None,
        writer_fn=None,
        expiry_s=pending_snapshot_expiry_seconds,
        mode="auto",
        files_by=files_by,
    ).op
    assert isinstance(snapshot, Snapshot)
    connection = DispatcherConnection(service, security or Security.from_environment())
    try:
        graph = ShippedGraph.of(dataset)
        dataset_id = _retry(lambda: register(connection, graph, None))
        folder = SnapshotFolder(files_at(where), snapshot.fingerprint)
        run_id = _claim(snapshot, folder, exist_ok=exist_ok)
        if run_id is None:
            return False
        try:
            with refusing_malformed("request"):
                request = StartSave(
                    save=run_id,
                    dataset=dataset_id,
                    path=where,
                    fingerprint=snapshot.fingerprint,
                    compression=snapshot.compression,
                    shards=count_shards(plan_graph(graph.op, graph.options)),
                    seed=secrets.randbits(53),
                )
            _retry(lambda: connection.ask(request))
        except BaseException:
            folder.withdraw(run_id)
            raise
        if wait:
            _wait(connection, folder, run_id)
        return True
    finally:
        connection.close()


def _claim(op: Snapshot, folder: SnapshotFolder, *, exist_ok: bool) -> str | None:
    """The id of a run that has become the attempt in the snapshot's folder; None if an existing snapshot is accepted.

    Raises:
        ServiceError: there is another attempt or a snapshot.
    """
    while True:
        found, now = folder.look(), time.time()
        decision = decide(final=found.final, pending=found.pending, now=now, expiry_s=op.expiry_s)
        if isinstance(decision, Read) and exist_ok:
            return None
        if isinstance(decision, PassThrough) and exist_ok:
            time.sleep(_POLL_S)
            continue
        if isinstance(decision, Read | PassThrough):
            reason = "it is complete" if isinstance(decision, Read) else decision.reason
            raise ServiceError(
                f"save({op.path!r}): a save of this dataset has been started or completed already: {folder}: {reason}. "
                f"Read it with dataset.snapshot(path) or load(path); remove the folder to save it again."
            )
        run = Metadata(
            run_id=new_run_id(),
            fingerprint=folder.fingerprint,
            started=now,
            spec=str(op.input.spec),
            versions=versions(["spanwise", "pyarrow", "numpy"]),
            files=digest_files(op.input),
        )
        if folder.claim(run, found):
            return run.run_id


def _retry(ask: Callable[[], _Answer]) -> _Answer:
    """The dispatcher's answer; waits for a dispatcher that is being restarted."""
    deadline = time.monotonic() + _RETRY_FOR_S
    while True:
        try:
            return ask()
        except Unreachable:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)


def _wait(connection: DispatcherConnection, folder: SnapshotFolder, run_id: str) -> None:
    """Waits until the snapshot's folder records how the save ended.

    Raises:
        ServiceError: it failed.
    """
    while _is_running(connection, run_id):
        time.sleep(_POLL_S)
    found = folder.look()
    if found.final is not None and found.final.run_id == run_id:
        return
    if found.failed is not None and found.failed.run_id == run_id:
        raise ServiceError(f"the save job failed to write {folder}: {found.failed.error}")
    folder.withdraw(run_id)
    raise ServiceError(
        f"the dispatcher at {connection.address} no longer knows the save of {folder}: it was restarted without "
        f"fault_tolerant_mode, or the folder could not be written. Save the dataset again."
    )


def _is_running(connection: DispatcherConnection, run_id: str) -> bool:
    try:
        return connection.ask(PollSave(save=run_id))[0].going
    except Unreachable as error:
        _log.info("dispatcher-unreachable", extra={"reason": str(error)})
        return True
