"""One artifact, the models of a pipeline, and what a wrong span has reached."""

from __future__ import annotations

import shlex

from spanwise.orchestrator.artifact import Model
from spanwise.scheduler.inspect import find
from spanwise.scheduler.inspect.taint import number_of_version, split_span, trace_taint
from spanwise.scheduler.web.pages import Page
from spanwise.scheduler.web.queries.artifacts import read_artifact
from spanwise.scheduler.web.queries.descendants import draw_descendants, find_older
from spanwise.scheduler.web.queries.models import read_models
from spanwise.scheduler.web.queries.search import search
from spanwise.scheduler.web.site import Ask, WebSite


def show_artifact(site: WebSite, ask: Ask) -> Page:
    """One artifact; `depth` is how far its lineage is drawn."""
    depth = ask.number("depth", 2, least=1, most=6)
    view = read_artifact(site, ask.path["id"], depth)
    is_model = view.record.artifact.is_a(Model)
    facts = {"view": view, "record": view.record, "depth": depth, "is_model": is_model}
    return Page("artifact.html", view.record.name, facts, view.record.pipeline, "models" if is_model else "")


def show_models(site: WebSite, ask: Ask) -> Page:
    """The models of a pipeline."""
    pipeline = find.pipeline(site.store, ask.path["pipeline"])
    pair = (ask.query.get("a", "").strip(), ask.query.get("b", "").strip())
    before = ask.number("before", 0) or None
    view = read_models(
        site, pipeline, metric=ask.query.get("metric", ""), by=ask.query.get("by", ""), before=before, pair=pair
    )
    facts = {"view": view, "pair": pair, "before": before}
    return Page("models.html", f"Models of {pipeline}", facts, pipeline, "models")


def show_tainted(site: WebSite, ask: Ask) -> Page:
    """What learned from a wrong version of a span, and what replaces it.

    Raises:
        NotRecorded: nothing was published for the span, or not that version.
    """
    pipeline = find.pipeline(site.store, ask.path["pipeline"])
    text = ask.query.get("span", "").strip()
    node, label, calendar = split_span(site.store, pipeline, text)
    version = ask.number("version", -1)
    wrong = None if version < 0 else version
    found = trace_taint(site.store, pipeline, calendar.parse(label), node=node, version=wrong, calendar=calendar)
    named = f"{node}={calendar.label(found.span)}" if node else calendar.label(found.span)
    facts = {
        "found": found,
        "label": named,
        "version": ask.query.get("version", ""),
        "versions": sorted({number_of_version(artifact) for artifact in found.published}),
        "target": found.target,
        "params": shlex.join(found.typed),
        "source": site.client.pipeline(pipeline).source,
        "graph": draw_descendants(site.store, found),
        "older": find_older(site.store, found),
    }
    return Page("tainted.html", f"What {named} reached", facts, pipeline, "models")


def show_search(site: WebSite, ask: Ask) -> Page:
    """What fits what was typed."""
    text = ask.query.get("q", "")[:200]
    return Page("search.html", "Search", {"q": text, "hits": search(site, text)})
