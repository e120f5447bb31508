"""Artifacts that earlier runs have published, and what a resolver node of a later run chooses among them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spanwise.components import ExampleGen
from spanwise.orchestrator import Channel, Component, Examples, Model, Output, Resolver, Run
from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.driver import Reuse, drive, history_of
from spanwise.orchestrator.store import MemoryStore
from tests.conformance.apis.verdicts import publish


class Train(Component):
    """Where the models come from."""

    def run(self, *, model: Output[Model]) -> None: ...


class Published:
    """Artifacts on one channel of a store, by the reference's ids and ours; published in the order of its ids."""

    def __init__(self, channel: Channel, drafts: Mapping[int, Artifact]) -> None:
        self.store, self.channel = MemoryStore(), channel
        self.by_number = {
            number: publish(self.store, channel.node, channel.key, drafts[number]) for number in sorted(drafts)
        }
        self.numbers = {artifact.id: number for number, artifact in self.by_number.items()}

    def chosen_by(self, resolver: Resolver) -> list[int]:
        """What the resolver of a later run chooses, in its order."""
        history = history_of(self.store, Run(pipeline="p", number=1000), self.channel)
        return [self.numbers[artifact.id] for artifact in resolver.resolve(history)]


def publish_models(numbers: Iterable[int]) -> Published:
    """Models of one trainer."""
    return Published(Train()["model"], {number: Model("") for number in numbers})


class Lineage:
    """Examples by span and models that say what they learned from, each on its channel of one store."""

    def __init__(self, spans: Iterable[int], models: Iterable[Mapping[str, Any]]) -> None:
        self.store, self.models = MemoryStore(), {}
        ingest = ExampleGen(pattern="lake/{SPAN}/*.csv")
        self.examples, self.model = ingest["examples"], Train()["model"]
        for span in spans:
            publish(self.store, ingest.name, "examples", Examples("", properties={"span": span, "calendar": "number"}))
        for record in models:
            draft = Model("", properties={"spans": record["trained_on_spans"]})
            self.models[publish(self.store, "Train", "model", draft).name] = record["model"]

    def chosen_by(self, node: Resolver) -> Mapping[str, Sequence[Artifact]]:
        """What a resolver of a later run chooses, by key, as its driver decides."""
        plan = drive(node, Run(pipeline="p", number=1000), self.store, {}, {}, cache=True)
        assert isinstance(plan, Reuse)
        return plan.outputs


def publish_spans(records: Iterable[Mapping[str, object]]) -> Published:
    """Examples of one ExampleGen, with the spans and versions of these records."""
    ingest = ExampleGen(pattern="lake/{SPAN}/v{VERSION}/*.csv")
    drafts = {}
    for record in records:
        known = {name: record[name] for name in ("span", "version") if record.get(name) is not None}
        drafts[record["id"]] = Examples("", properties={**known, "calendar": "number"})
    return Published(ingest["examples"], drafts)
