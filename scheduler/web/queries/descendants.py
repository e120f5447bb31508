"""The descendants of a wrong version of a span, as a graph; and what served before a model learned from it."""

from __future__ import annotations

import itertools

from markupsafe import Markup

from spanwise.orchestrator.artifact import Model
from spanwise.orchestrator.serving import find_served
from spanwise.orchestrator.store import Store
from spanwise.scheduler.inspect.rollback import Rollback, find_rollback
from spanwise.scheduler.inspect.taint import TaintReport
from spanwise.scheduler.web.pages import artifact_url
from spanwise.scheduler.web.pictures.graphs import Box, draw_graph

_MOST = 60  # boxes


def draw_descendants(store: Store, found: TaintReport) -> Markup:
    """The wrong versions on the left, then what was made from them; models first, where there are too many."""
    models = [tainted.model for tainted in found.models]
    shown = list(itertools.islice(itertools.chain(found.wrong, models, found.others), _MOST))
    known = {artifact.id for artifact in shown}
    links = store.links(artifacts=known)
    read, made = [link for link in links if link.read], [link for link in links if not link.read]
    makers = {link.artifact: link.execution for link in sorted(made, key=lambda link: -link.execution)}  # the first
    by_execution = {execution: artifact for artifact, execution in makers.items()}
    boxes = [
        Box(
            str(artifact.id),
            artifact.kind,
            "/".join(artifact.name.split("/")[1:]),
            "failed" if artifact in found.wrong else "here" if artifact.is_a(Model) else "",
            artifact_url(artifact.id),
        )
        for artifact in shown
    ]
    edges = {(str(link.artifact), str(by_execution[link.execution])) for link in read if link.execution in by_execution}
    return draw_graph(boxes, edges, f"What was made from {len(found.wrong)} wrong versions; the tables below list it")


def find_older(store: Store, found: TaintReport) -> list[Rollback]:
    """The pushes that roll each Pusher back to a model which did not learn from it."""
    tainted = {each.model.name for each in found.models}
    serving = [push for _, push in find_served(store, found.pipeline) if push.model in tainted]
    ways = [find_rollback(store, push, without=tainted) for push in serving]
    return [rollback for rollback in ways if rollback is not None]
