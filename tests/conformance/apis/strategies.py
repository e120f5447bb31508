"""What a resolver node takes from history: `strategy`.

The reference lists the newest first, ours last; so ours are read backwards.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.artifact import Artifact, Examples
from orchestrator.errors import ResolutionError
from orchestrator.span import Calendar
from resolvers.spans import enough, latest_created, newest_per_span, static_span_range, window
from tests.conformance.judge import NotMapped


def resolve(given: Mapping[str, Any]) -> dict[str, Any]:
    if given["strategy"] == "SpanRange":
        found: Sequence[Artifact] = _span_range([_examples(record) for record in given["artifacts"]], given["range"])
    elif given["strategy"] == "LatestArtifact":
        n = given.get("n", 1)
        found = enough(latest_created([Artifact("", id=record["id"]) for record in given["artifacts"]], n), n)
    else:
        raise NotMapped(given["strategy"])
    return {"ids": [artifact.id for artifact in reversed(found)]}


def _span_range(artifacts: Sequence[Examples], chosen: Mapping[str, Any]) -> Sequence[Examples]:
    """The reference tolerates any number of missing spans, so what is missing from the window is not looked at."""
    if (static := chosen.get("static")) is not None:
        return enough(static_span_range(artifacts, static["start"], static["end"]))
    if (rolling := chosen.get("rolling")) is None:
        raise ResolutionError("neither the first and last span nor the size of a window is given.")
    newest = newest_per_span(artifacts)
    spans = window((a.span for a in newest), rolling["num_spans"], since=rolling.get("start", 0)).present
    return enough([artifact for artifact in newest if artifact.span in spans])


def _examples(record: Mapping[str, Any]) -> Examples:
    read = {name: record[name] for name in ("span", "version") if record.get(name) is not None}
    properties = {name: Calendar.NUMBER.parse(n) if isinstance(n, str) else n for name, n in read.items()}
    return Examples("", id=record["id"], properties=properties)


APIS = {"strategy": resolve}
