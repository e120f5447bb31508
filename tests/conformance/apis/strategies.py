"""What a resolver node takes from history: `strategy`.

The reference lists the newest first, ours last; so ours are read backwards.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spanwise.orchestrator import Component, History, Model, Output, Resolver, Run
from spanwise.orchestrator.artifact import Artifact, Examples
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import ResolutionError
from spanwise.orchestrator.store import Address, MemoryStore
from spanwise.resolvers import Latest, LatestBlessed
from spanwise.resolvers.spans import enough, latest_created, newest_per_span, static_span_range, window
from tests.conformance.apis.verdicts import a_blessing, publish
from tests.conformance.judge import NotMapped

Given = Mapping[str, Any]


def resolve(given: Given) -> dict[str, Any]:
    if given["strategy"] not in STRATEGIES:
        raise NotMapped(given["strategy"])
    return STRATEGIES[given["strategy"]](given)


def _span_range(given: Given) -> dict[str, Any]:
    """The reference tolerates any number of missing spans, so what is missing from the window is not looked at."""
    artifacts, chosen = [_examples(record) for record in given["artifacts"]], given["range"]
    if (static := chosen.get("static")) is not None:
        return _ids(enough(static_span_range(artifacts, static["start"], static["end"])))
    if (rolling := chosen.get("rolling")) is None:
        raise ResolutionError("neither the first and last span nor the size of a window is given.")
    newest = newest_per_span(artifacts)
    spans = window((a.span for a in newest), rolling["num_spans"], since=rolling.get("start", 0)).present
    return _ids(enough([artifact for artifact in newest if artifact.span in spans]))


def _examples(record: Given) -> Examples:
    read = {name: record[name] for name in ("span", "version") if record.get(name) is not None}
    properties = {name: Calendar.NUMBER.parse(n) if isinstance(n, str) else n for name, n in read.items()}
    return Examples("", id=record["id"], properties=properties)


def _latest_artifact(given: Given) -> dict[str, Any]:
    """One is what the resolver gives; several are what a resolver of one's own would take."""
    n = given.get("n", 1)
    if n != 1:
        return _ids(enough(latest_created([Artifact("", id=record["id"]) for record in given["artifacts"]], n), n))
    published = _Published(record["id"] for record in given["artifacts"])
    found = _chosen(Latest(Train()["model"]), published.store)
    return {"ids": [published.ids[model.id] for model in found]} if found else {"none": True}


def _latest_blessed(given: Given) -> dict[str, Any]:
    published = _Published(given["models"])
    verdicts: dict[int, int] = {}  # the blessing that counts, by model
    for blessing in given["blessings"]:
        model = published.models.get(blessing["current_model_id"])
        if model is None or blessing.get("blessed") is None:
            continue  # of a model that is not on the channel; or no verdict, which ours does not publish
        publish(published.store, "Evaluator", "blessing", a_blessing(model, blessing["blessed"]))
        if blessing["blessed"] == 1:
            verdicts[blessing["current_model_id"]] = blessing["id"]
    found = [published.ids[model.id] for model in _chosen(LatestBlessed(Train()["model"]), published.store)]
    model_id = found[0] if found else None
    return {"model": model_id, "blessing": None if model_id is None else verdicts[model_id]}


class Train(Component):
    def run(self, *, model: Output[Model]) -> None: ...


class _Published:
    """Models in a store, by the reference's ids and ours."""

    def __init__(self, ids: Iterable[int]) -> None:
        self.store = MemoryStore()
        self.models = {number: publish(self.store, "Train", "model", Model("")) for number in sorted(ids)}
        self.ids = {model.id: number for number, model in self.models.items()}


def _chosen(resolver: Resolver, store: MemoryStore) -> Sequence[Artifact]:
    return resolver.resolve(History(store, Address("p", "Train", "model"), Model, Run(pipeline="p", number=1000)))


def _ids(found: Sequence[Artifact]) -> dict[str, Any]:
    return {"ids": [artifact.id for artifact in reversed(found)]}


STRATEGIES = {"SpanRange": _span_range, "LatestArtifact": _latest_artifact, "LatestBlessedModel": _latest_blessed}

APIS = {"strategy": resolve}
