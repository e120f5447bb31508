"""Routes: which view shows which path. A plain table, which the pages, their live parts and the search share."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from spanwise.scheduler.web.pages import Page
from spanwise.scheduler.web.site import Ask, WebSite
from spanwise.scheduler.web.views import actions, artifacts, data, pipelines, runs, schedules

View: TypeAlias = Callable[[WebSite, Ask], Page]


@dataclass(frozen=True)
class Route:
    """One kind of page."""

    pattern: re.Pattern[str]
    view: View


def _route(path: str, view: View) -> Route:
    return Route(re.compile(re.sub(r"[{](\w+)[}]", r"(?P<\1>[^/]+)", path)), view)


ROUTES = (
    _route("/", pipelines.show_overview),
    _route("/p/{pipeline}", pipelines.show_runs),
    _route("/p/{pipeline}/runs", pipelines.show_runs),
    _route("/p/{pipeline}/spans", pipelines.show_spans),
    _route("/p/{pipeline}/spans/{span}", pipelines.show_span),
    _route("/p/{pipeline}/models", artifacts.show_models),
    _route("/p/{pipeline}/tainted", artifacts.show_tainted),
    _route("/p/{pipeline}/schedule", schedules.show_schedule),
    _route("/a/{id}", artifacts.show_artifact),
    _route("/do/{action}", actions.show_action),
    _route("/jobs/{number}", actions.show_job),
    _route("/activity", actions.show_activity),
    _route("/data", data.show_data),
    _route("/search", artifacts.show_search),
    _route("/runs/{pipeline}/{number}", runs.show_run),
    _route("/runs/{pipeline}/{number}/diff", runs.show_diff),
    _route("/runs/{pipeline}/{number}/why/{node}", runs.show_why),
    _route("/runs/{pipeline}/{number}/log/{node}", runs.show_log),
)


def find_view(path: str) -> tuple[View, dict[str, str]] | None:
    """The view of a path, and what the places of its route hold."""
    for route in ROUTES:
        if (found := route.pattern.fullmatch(path)) is not None:
            return route.view, found.groupdict()
    return None
