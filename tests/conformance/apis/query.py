"""What a query-based ExampleGen asks its database: the form `query`, with TFX's placeholders."""

from collections.abc import Mapping
from typing import Any

from spanwise.components import QueryExampleGen
from spanwise.components.ingest.query import Query
from spanwise.orchestrator import Run
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.driver import history_of
from spanwise.orchestrator.store import MemoryStore

_NEWEST: Mapping[str, int] = {"num_spans": 1, "start": 0}


def ask(given: Mapping[str, Any]) -> dict[str, Any]:
    """The query as it would be asked; which span is decided as in a run, and the values are those that are bound."""
    node = QueryExampleGen(query=given["query"], connection="env:NOT_CONNECTED")
    run = Run(pipeline="p", span=_named_span(given["range"]))
    prepared = node.prepare(run, lambda key: history_of(MemoryStore(), run, node[key]))
    return {
        "span": prepared["span"],
        "version": prepared["version"],
        "fingerprint": prepared.get("fingerprint"),
        "query": Query.parse(given["query"], "query").fill(prepared["span"], Calendar.DAY),
    }


def _named_span(chosen: Mapping[str, Any] | None) -> int | None:
    """The span as a user would type it: one, or none for the newest; any other range is a wrong text."""
    if chosen is None or chosen == {"rolling": _NEWEST}:
        return None
    if (static := chosen.get("static")) is not None:
        start, end = static["start"], static["end"]
        return Calendar.DAY.parse(str(start) if start == end else f"{start}..{end}")
    return Calendar.DAY.parse(" ".join(f"{name} {value}" for name, value in chosen.get("rolling", {}).items()))


APIS = {"query": ask}
