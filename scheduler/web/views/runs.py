"""One run, what differs from another, why a node was executed, and the log of a node."""

from __future__ import annotations

from spanwise.orchestrator.run import format_source
from spanwise.scheduler.inspect.why import explain, format_explanation
from spanwise.scheduler.web.actions.catalog import fill_run
from spanwise.scheduler.web.pages import Page
from spanwise.scheduler.web.queries.logs import find_log, list_attempts
from spanwise.scheduler.web.queries.runs import number_of_run, read_run
from spanwise.scheduler.web.site import Ask, WebSite


def _number(ask: Ask) -> int:
    return number_of_run(ask.path["number"], ask.path["pipeline"])


def show_run(site: WebSite, ask: Ask) -> Page:
    """One run, live while it runs."""
    view = read_run(site, ask.path["pipeline"], _number(ask))
    source = format_source(view.run.source) if view.run.source else ""
    facts = {"view": view, "run": view.run, "source": source, "again": fill_run(view.run)}
    return Page("run.html", f"Run {view.run.name}", facts, view.run.pipeline, "runs")


def show_diff(site: WebSite, ask: Ask) -> Page:
    """What differs from the run before, or from another."""
    pipeline = site.client.pipeline(ask.path["pipeline"])
    run = pipeline.run(_number(ask))
    other = pipeline.run(number) if (number := ask.number("with", run.number - 1)) else None
    found = run.diff(other) if other is not None else []
    return Page(
        "diff.html",
        f"Differences of {run.name}",
        {"run": run.run, "other": other, "found": found},
        run.pipeline,
        "runs",
    )


def show_why(site: WebSite, ask: Ask) -> Page:
    """Why a node was executed or reused."""
    run = site.client.pipeline(ask.path["pipeline"]).run(_number(ask)).run
    found = explain(site.store, run, ask.path["node"])
    facts = {"run": run, "found": found, "text": format_explanation(found)}
    return Page("why.html", f"Why {ask.path['node']} of {run.name}", facts, run.pipeline, "runs")


def show_log(site: WebSite, ask: Ask) -> Page:
    """The log of one attempt at a node, live while it runs."""
    execution, log = find_log(site, ask)
    run = site.store.run(execution.pipeline, execution.run)
    facts = {
        "run": run,
        "node": execution.node,
        "attempt": execution.attempt,
        "attempts": [e.attempt for e in list_attempts(site, ask)],
        "log": log,
        "q": ask.query.get("q", "")[:200],
        "execution": execution,
    }
    return Page("log.html", f"Log of {execution.node} in {run.name}", facts, run.pipeline, "runs")
