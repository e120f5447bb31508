"""Zones: in which zone the times of a pipeline are shown, which is that of its schedule."""

from __future__ import annotations

from datetime import UTC, tzinfo

from spanwise.orchestrator.errors import SpanwiseError
from spanwise.scheduler.ledger.schedules import list_keys, read_schedule
from spanwise.scheduler.web.site import WebSite

_KEEP_S = 60.0


def find_zone(site: WebSite, pipeline: str) -> tzinfo:
    """The zone of the first schedule of a pipeline; UTC without one."""
    return site.memo.get(("zone", pipeline), lambda: _read(site, pipeline), for_s=_KEEP_S)


def _read(site: WebSite, pipeline: str) -> tzinfo:
    try:
        found = [read_schedule(site.store, key) for key in list_keys(site.store, pipeline)]
    except SpanwiseError:
        return UTC
    return next((schedule.timetable.clock for schedule in found if schedule is not None), UTC)
