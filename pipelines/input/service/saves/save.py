"""Saving a dataset: has the workers of a service write a snapshot of it, side by side."""

from __future__ import annotations

import logging
import math
import os
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from spanwise.orchestrator.errors import DatasetError, ServiceError
from spanwise.orchestrator.fingerprint import versions
from spanwise.pipelines.input.graph.fingerprint import FilesBy
from spanwise.pipelines.input.service.dispatcher import sharding
from spanwise.pipelines.input.service.wire.connection import Connection, Unreachable
from spanwise.pipelines.input.service.wire.security import Security
from spanwise.pipelines.input.service.wire.shipped_graph import Given, registered
from spanwise.pipelines.input.snapshot.folder import Folder, new_run_id
from spanwise.pipelines.input.snapshot.op import Compression, Snapshot
from spanwise.pipelines.input.snapshot.state import Metadata, PassThrough, Read, decide
from spanwise.pipelines.input.snapshot.storage import files_at, from_anywhere

if TYPE_CHECKING:
    from spanwise.pipelines.input.dataset import Dataset

_LOOK_S: Final = 0.1
_START_S: Final = 60.0

_Answer = TypeVar("_Answer")

_log = logging.getLogger(__name__)


def save(
    dataset: Dataset,
    path: str | os.PathLike[str],
    service: str,
    *,
    compression: Compression | None = "auto",
    pending_snapshot_expiry_seconds: float = 86_400,
    files_by: FilesBy = "mtime",
    wait: bool = True,
    exist_ok: bool = False,
    security: Security | None = None,
) -> bool:
    """Has the workers of a service write the snapshot of a dataset that `dataset.snapshot(path)` reads.

    `path` is reached by the workers under the same name. It is waited for unless told otherwise; the save goes on
    without whoever has begun it. With `exist_ok` a snapshot that is there will do, and one that somebody writes is
    waited for; False says that it was so.

    Raises:
        DatasetError: the dataset never ends.
        ServiceError: its snapshot is there, or is being written; or it could not be written, and the message says why.
    """
    if dataset.cardinality == math.inf:
        raise DatasetError("save: saving an infinite dataset is not allowed. Put repeat() behind what reads it.")
    where = from_anywhere(path)
    snapshot = dataset.snapshot(
        where,
        compression,
        pending_snapshot_expiry_seconds=pending_snapshot_expiry_seconds,
        files_by=files_by,
    ).op
    assert isinstance(snapshot, Snapshot)
    connection = Connection(service, security or Security.from_environment())
    try:
        given = Given(dataset.op, dataset.settings)
        known_as = _patiently(lambda: registered(connection, given, None))
        folder = Folder(files_at(where), snapshot.fingerprint)
        run_id = _claimed(snapshot, folder, exist_ok=exist_ok)
        if run_id is None:
            return False
        try:
            request = {
                "save": run_id,
                "dataset": known_as,
                "path": where,
                "fingerprint": snapshot.fingerprint,
                "compression": snapshot.compression,
                "shards": sharding.shards_of(sharding.planned(given.op, given.options)),
                "seed": secrets.randbits(53),
            }
            _patiently(lambda: connection.call("start_save", request))
        except BaseException:
            folder.withdraw(run_id)
            raise
        if wait:
            _wait(connection, folder, run_id)
        return True
    finally:
        connection.close()


def _claimed(op: Snapshot, folder: Folder, *, exist_ok: bool) -> str | None:
    """A run that is the attempt in the snapshot's folder now; None if a snapshot is there, and may be.

    Raises:
        ServiceError: another one is, or a snapshot is there.
    """
    while True:
        found, now = folder.look(), time.time()
        decision = decide(final=found.final, pending=found.pending, now=now, expiry_s=op.expiry_s)
        if isinstance(decision, Read) and exist_ok:
            return None
        if isinstance(decision, PassThrough) and exist_ok:
            time.sleep(_LOOK_S)
            continue
        if isinstance(decision, Read | PassThrough):
            reason = "it is whole" if isinstance(decision, Read) else decision.reason
            raise ServiceError(
                f"save({op.path!r}): a save of this dataset has been started or completed already: {folder}: {reason}. "
                f"dataset.snapshot(path) and load(path) read it; remove the folder to save it anew."
            )
        run = Metadata(
            run_id=new_run_id(),
            fingerprint=folder.fingerprint,
            started=now,
            spec=str(op.input.spec),
            versions=versions(["spanwise", "pyarrow", "numpy"]),
        )
        if folder.claim(run, found):
            return run.run_id


def _patiently(ask: Callable[[], _Answer]) -> _Answer:
    """The dispatcher's answer; it may be on its way up again."""
    deadline = time.monotonic() + _START_S
    while True:
        try:
            return ask()
        except Unreachable:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_S)


def _wait(connection: Connection, folder: Folder, run_id: str) -> None:
    """Waits until the snapshot's folder says how the save has ended.

    Raises:
        ServiceError: it was not written.
    """
    while _goes_on(connection, run_id):
        time.sleep(_LOOK_S)
    found = folder.look()
    if found.final is not None and found.final.run_id == run_id:
        return
    if found.failed is not None and found.failed.run_id == run_id:
        raise ServiceError(f"the save job failed to write {folder}: {found.failed.error}")
    folder.withdraw(run_id)
    raise ServiceError(
        f"the dispatcher at {connection.address} does not know of the save of {folder} any more: it was restarted "
        f"without fault_tolerant_mode, or the folder could not be written. Save it again."
    )


def _goes_on(connection: Connection, run_id: str) -> bool:
    try:
        answer, _ = connection.call("look_save", {"save": run_id})
    except Unreachable as error:
        _log.info("service-unreachable", extra={"reason": str(error)})
        return True
    return bool(answer["going"])
