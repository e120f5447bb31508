"""The data service and the snapshots."""

from __future__ import annotations

from spanwise.scheduler.web.pages import Page
from spanwise.scheduler.web.queries.data import read_service, read_snapshots
from spanwise.scheduler.web.site import Ask, WebSite


def show_data(site: WebSite, _ask: Ask) -> Page:
    """Workers, jobs and consumers of the data service; snapshots with their sizes and ages."""
    shown, count = read_snapshots(site)
    facts = {
        "service": read_service(site),
        "snapshots": shown,
        "count": count,
        "total": sum(each.size_bytes for each in shown),
    }
    return Page("data.html", "Data service and snapshots", facts, tab="data")
