"""The data service and the snapshots: asked in the background, so that a dispatcher that is gone holds up no page."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spanwise.orchestrator.errors import SpanwiseError
from spanwise.scheduler.data_service.observation import list_snapshots, read_status
from spanwise.scheduler.data_service.service_status import suggest_workers
from spanwise.scheduler.data_service.snapshot_formatting import listing_document
from spanwise.scheduler.formatting import Document
from spanwise.scheduler.web.site import WebSite

_FRESH_S = 2.0
_PATIENCE_S = 1.0
_SNAPSHOTS_S = 15.0
_MOST = 500  # snapshots on a page


@dataclass(frozen=True, kw_only=True)
class ServiceView:
    """A data service, as its dispatcher describes it."""

    dispatcher: str
    status: Mapping[str, Any] | None  #: None while it has not answered
    trouble: str  #: why it has not
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class SnapshotView:
    """One snapshot."""

    fingerprint: str
    state: str
    elements: int | None
    size_bytes: int
    started: datetime | None
    runs: int
    error: str


def read_service(site: WebSite) -> ServiceView | None:
    """The data service of the address that the server was given; None without one."""
    if not site.dispatcher:
        return None
    key = ("service", site.dispatcher)

    def ask() -> None:
        try:
            status: Mapping[str, Any] = read_status(site.dispatcher)
            found = ServiceView(dispatcher=site.dispatcher, status=status, trouble="", hint=suggest_workers(status))
        except SpanwiseError as error:
            found = ServiceView(dispatcher=site.dispatcher, status=None, trouble=str(error))
        site.memo.get(key, lambda: found, for_s=_FRESH_S)

    if not site.memo.holds(key):
        site.begin_work(key, ask)
        until = time.monotonic() + _PATIENCE_S
        while not site.memo.holds(key) and time.monotonic() < until:
            time.sleep(0.02)
    asking = ServiceView(dispatcher=site.dispatcher, status=None, trouble=f"Asking {site.dispatcher}; no answer yet.")
    return site.memo.last(key, asking)


def read_snapshots(site: WebSite) -> tuple[Sequence[SnapshotView], int]:
    """The newest snapshots of the root, and how many there are."""
    found = site.memo.get(("snapshots",), lambda: list_snapshots(site.client.settings.snapshots), for_s=_SNAPSHOTS_S)
    shown = [
        SnapshotView(
            fingerprint=each.fingerprint,
            state=each.state,
            elements=None if each.final is None else each.final.elements,
            size_bytes=each.size_bytes,
            started=each.started,
            runs=len(each.runs),
            error="" if each.failed is None else str(each.failed.error),
        )
        for each in found[:_MOST]
    ]
    return shown, len(found)


def snapshot_documents(site: WebSite) -> list[Document]:
    """As `spanwise snapshot ls --json` prints them."""
    return [listing_document(each) for each in list_snapshots(site.client.settings.snapshots)]
