"""The overview, and the runs and spans of a pipeline."""

from __future__ import annotations

import shlex

from spanwise.scheduler.client.runs import STATES, TRIGGERS
from spanwise.scheduler.formatting import format_run_span
from spanwise.scheduler.inspect import find
from spanwise.scheduler.web.pages import Page
from spanwise.scheduler.web.queries.overview import read_overview
from spanwise.scheduler.web.queries.runs import MOST_PER_PAGE, PER_PAGE, RunFilter, read_grid, took_s
from spanwise.scheduler.web.queries.span import read_span
from spanwise.scheduler.web.queries.spans import read_spans
from spanwise.scheduler.web.site import Ask, WebSite


def show_overview(site: WebSite, ask: Ask) -> Page:
    """All pipelines."""
    found = read_overview(site, ask.number("page", 1, least=1))
    schedulers = site.memo.get("schedulers", site.client.schedulers, for_s=2.0)
    facts = {"overview": found, "schedulers": schedulers, "root": site.root, "span_of": format_run_span}
    return Page("overview.html", "Pipelines", facts)


def show_runs(site: WebSite, ask: Ask) -> Page:
    """The grid of runs."""
    pipeline = find.pipeline(site.store, ask.path["pipeline"])
    chosen = RunFilter(**{name: ask.query.get(name, "").strip() for name in ("state", "trigger", "span", "text")})
    before = ask.number("before", 0) or None
    grid = read_grid(
        site, pipeline, chosen, before=before, limit=ask.number("limit", PER_PAGE, least=1, most=MOST_PER_PAGE)
    )
    facts = {
        "grid": grid,
        "chosen": chosen,
        "before": before,
        "states": STATES,
        "triggers": TRIGGERS,
        "span_of": format_run_span,
        "took_s": took_s,
        "query": {k: v for k, v in ask.query.items() if k != "before"},
    }
    return Page("runs.html", f"Runs of {pipeline}", facts, pipeline, "runs")


def show_spans(site: WebSite, ask: Ask) -> Page:
    """The calendar of spans."""
    pipeline = find.pipeline(site.store, ask.path["pipeline"])
    first, last = ask.query.get("first", "").strip(), ask.query.get("last", "").strip()
    node = ask.query.get("node", "")
    spans = read_spans(site, pipeline, node=node, first=first, last=last)
    facts = {
        "spans": spans,
        "node": node,
        "source": site.client.pipeline(pipeline).source,
    }
    return Page("spans.html", f"Spans of {pipeline}", facts, pipeline, "spans", whole=spans is None or spans.complete)


def show_span(site: WebSite, ask: Ask) -> Page:
    """One span: its versions with their statistics and anomalies, its runs, and the models that learned from it."""
    pipeline = find.pipeline(site.store, ask.path["pipeline"])
    view = read_span(site, pipeline, ask.path["span"], ask.query.get("node") or None)
    of = site.client.pipeline(pipeline)
    facts = {"view": view, "record": view.record, "source": of.source, "params": shlex.join(of.typed)}
    return Page("span.html", f"{view.record.label} of {pipeline}", facts, pipeline, "spans")
