"""What a data service is doing and which snapshots are stored, asked from outside."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from spanwise.scheduler.data_service.snapshot_formatting import age_key

if TYPE_CHECKING:
    from spanwise.pipelines.input.snapshot.inventory import SnapshotListing


class ServiceObserver:
    """A connection to a dispatcher, for questions about its service."""

    def __init__(self, dispatcher: str) -> None:
        from spanwise.pipelines.input.service.wire.dispatcher_connection import DispatcherConnection
        from spanwise.pipelines.input.service.wire.security import Security

        self._connection = DispatcherConnection(dispatcher, Security.from_environment())

    def read_status(self) -> dict[str, Any]:
        """Its workers, jobs and consumers now.

        Raises:
            ServiceError: it does not answer, or lets nobody in without a token.
        """
        from spanwise.pipelines.input.service.wire.requests import GetStatus

        return self._connection.ask(GetStatus())[0].model_dump(mode="json")

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()


def read_status(dispatcher: str) -> dict[str, Any]:
    """The status of the service of a dispatcher, asked once.

    Raises:
        ServiceError: it does not answer, or lets nobody in without a token.
    """
    with contextlib.closing(ServiceObserver(dispatcher)) as observer:
        return observer.read_status()


def list_snapshots(place: str | os.PathLike[str]) -> list[SnapshotListing]:
    """The snapshots below a folder or URL, newest first; none where there is no such folder."""
    from spanwise.pipelines.input.snapshot import inventory
    from spanwise.pipelines.input.snapshot.storage import files_at

    return sorted(inventory.snapshots(files_at(place)), key=age_key)
