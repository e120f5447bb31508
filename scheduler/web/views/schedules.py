"""The schedules of a pipeline, and what they would do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from spanwise.orchestrator.errors import SpanwiseError
from spanwise.scheduler.web.pages import Page
from spanwise.scheduler.web.queries.health import find_pipeline
from spanwise.scheduler.web.queries.schedules import list_schedule_views, read_simulation
from spanwise.scheduler.web.site import Ask, WebSite


def show_schedule(site: WebSite, ask: Ask) -> Page:
    """Ticks past and to come, and the simulator."""
    pipeline = find_pipeline(site.store, ask.path["pipeline"])
    views = list_schedule_views(site, pipeline)
    today = datetime.now(UTC).date()
    wanted = {
        "from": ask.query.get("from") or str(today),
        "to": ask.query.get("to") or str(today + timedelta(days=30)),
        "duration": ask.query.get("duration", ""),
        "key": ask.query.get("key") or (views[0].status.schedule.key if views else ""),
    }
    simulation, trouble = None, ""
    chosen = next((view for view in views if view.status.schedule.key == wanted["key"]), None)
    if "from" in ask.query and chosen is not None:
        try:
            simulation = read_simulation(site, chosen.status, wanted)
        except SpanwiseError as error:
            trouble = str(error)
    facts = {
        "views": views,
        "schedulers": site.client.schedulers(),
        "source": views[0].status.schedule.source if views else site.client.pipeline(pipeline).source,
        "wanted": wanted,
        "simulation": simulation,
        "trouble": trouble,
    }
    return Page("schedule.html", f"Schedule of {pipeline}", facts, pipeline, "schedule")
