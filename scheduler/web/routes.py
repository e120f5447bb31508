"""Routes: which view shows which path, and which document says the same; pages and their live parts share the table."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias
from urllib.parse import quote, urlencode

from spanwise.scheduler.web.pages import Page
from spanwise.scheduler.web.queries.zones import find_zone
from spanwise.scheduler.web.site import Ask, WebSite
from spanwise.scheduler.web.views import actions, artifacts, data, pipelines, runs, schedules

View: TypeAlias = Callable[[WebSite, Ask], Page]


@dataclass(frozen=True)
class Route:
    """One kind of page."""

    pattern: re.Pattern[str]
    view: View
    twin: str  #: the document of the same, in which places are filled in from the path or the query


def _route(path: str, view: View, twin: str) -> Route:
    return Route(re.compile(re.sub(r"[{](\w+)[}]", r"(?P<\1>[^/]+)", path)), view, twin)


ROUTES = (
    _route("/", pipelines.show_overview, "/api/pipelines"),
    _route("/p/{pipeline}", pipelines.show_runs, "/api/pipelines/{pipeline}/runs"),
    _route("/p/{pipeline}/runs", pipelines.show_runs, "/api/pipelines/{pipeline}/runs"),
    _route("/p/{pipeline}/spans", pipelines.show_spans, "/api/pipelines/{pipeline}/spans"),
    _route("/p/{pipeline}/spans/{span}", pipelines.show_span, "/api/pipelines/{pipeline}/spans/{span}"),
    _route("/p/{pipeline}/models", artifacts.show_models, "/api/pipelines/{pipeline}/models"),
    _route("/p/{pipeline}/tainted", artifacts.show_tainted, "/api/pipelines/{pipeline}/tainted/{span}"),
    _route("/p/{pipeline}/schedule", schedules.show_schedule, "/api/pipelines/{pipeline}/schedule"),
    _route("/a/{id}", artifacts.show_artifact, "/api/artifacts/{id}"),
    _route("/do/{action}", actions.show_action, "/api/actions"),
    _route("/jobs/{number}", actions.show_job, "/api/jobs/{number}"),
    _route("/activity", actions.show_activity, "/api/activity"),
    _route("/data", data.show_data, "/api/data"),
    _route("/search", artifacts.show_search, "/api/search"),
    _route("/runs/{pipeline}/{number}", runs.show_run, "/api/runs/{pipeline}/{number}"),
    _route("/runs/{pipeline}/{number}/diff", runs.show_diff, "/api/runs/{pipeline}/{number}/diff"),
    _route("/runs/{pipeline}/{number}/why/{node}", runs.show_why, "/api/runs/{pipeline}/{number}/why/{node}"),
    _route("/runs/{pipeline}/{number}/log/{node}", runs.show_log, "/api/runs/{pipeline}/{number}/log/{node}"),
)


def find_route(path: str) -> tuple[Route, dict[str, str]] | None:
    """The route of a path, and what its places hold."""
    for route in ROUTES:
        if (found := route.pattern.fullmatch(path)) is not None:
            return route, found.groupdict()
    return None


def make_page(site: WebSite, route: Route, ask: Ask) -> Page:
    """The page of a route, with the zone of its pipeline and the address of its document."""
    site.client.session.look_back()
    page = route.view(site, ask)
    zone = find_zone(site, page.pipeline) if page.pipeline else page.zone
    return replace(page, zone=zone, twin=_twin(route, ask))


def _twin(route: Route, ask: Ask) -> str:
    asked = dict(ask.query)
    filled = re.sub(
        r"[{](\w+)[}]", lambda place: quote(ask.path.get(place[1]) or asked.pop(place[1], ""), safe=""), route.twin
    )
    left = {name: value for name, value in asked.items() if value and name != "token"}
    return f"{filled}?{urlencode(left)}" if left else filled
