"""What a query-based ExampleGen asks its database: the form `query`, with TFX's placeholders."""

from collections.abc import Mapping
from typing import Any

from spanwise.components import QueryExampleGen
from spanwise.components.ingest.query import Query
from spanwise.orchestrator import Run
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.driver import history_of
from spanwise.orchestrator.store import MemoryStore
from tests.conformance.apis.example_gen import named_span


def ask(given: Mapping[str, Any]) -> dict[str, Any]:
    """The query as it would be asked; which span is decided as in a run, and the values are those that are bound."""
    node = QueryExampleGen(query=given["query"], connection="env:NOT_CONNECTED")
    run = Run(pipeline="p", span=named_span(node, given["range"]))
    prepared = node.prepare(run, lambda key: history_of(MemoryStore(), run, node[key]))
    return {
        "span": prepared["span"],
        "version": prepared["version"],
        "fingerprint": prepared.get("fingerprint"),
        "query": Query.parse(given["query"], "query").fill(prepared["span"], Calendar.DAY),
    }


APIS = {"query": ask}
