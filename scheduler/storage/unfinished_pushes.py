"""Unfinished pushes: uploads to object storage that a pipeline's pushes have begun, and that nobody will complete."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from spanwise.orchestrator.errors import StorageError
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.storage import UnfinishedUpload, is_object_url, open_bucket, parse_url
from spanwise.orchestrator.store import Store

SAFE_AGE = timedelta(days=1)
"""No push takes longer."""

_RUNS = 20  # the newest, whose destinations are looked into


def find_unfinished_pushes(
    store: Store, runs: Sequence[Run], now: datetime
) -> tuple[list[UnfinishedUpload], list[str]]:
    """The uploads below the destinations of the first of these runs, begun more than a day ago; which are not known."""
    found: dict[str, UnfinishedUpload] = {}
    failures = []
    for destination in sorted(set(_destinations(store, runs[:_RUNS]))):
        url = parse_url(destination)
        try:
            uploads = open_bucket(url.home).list_uploads(url.key)
        except StorageError as error:
            failures.append(str(error))
            continue
        found |= {each.id: each for each in uploads if each.begun_s < (now - SAFE_AGE).timestamp()}
    return list(found.values()), failures


def _destinations(store: Store, runs: Sequence[Run]) -> Iterator[str]:
    """Of the older runs, without the nodes that had parameters in the newest one, and no destination among them."""
    newest = store.executions_of(runs[:1])
    others = {e.node for e in newest if e.parameters and "destination" not in e.parameters}  # a killed one has none
    older = [replace(run, nodes=tuple(node for node in run.nodes if node not in others)) for run in runs[1:]]
    for execution in (*newest, *store.executions_of(older)):
        place = json.loads(execution.parameters.get("destination", "null"))
        if isinstance(place, str) and is_object_url(place):
            yield place
