"""Artifacts that earlier runs have published, and what a resolver node of a later run chooses among them."""

from collections.abc import Iterable, Mapping

from spanwise.components import ExampleGen
from spanwise.orchestrator import Channel, Component, Examples, Model, Output, Resolver, Run
from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.driver import history_of
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


def publish_spans(records: Iterable[Mapping[str, object]]) -> Published:
    """Examples of one ExampleGen, with the spans and versions of these records."""
    ingest = ExampleGen(pattern="lake/{SPAN}/v{VERSION}/*.csv")
    drafts = {}
    for record in records:
        known = {name: record[name] for name in ("span", "version") if record.get(name) is not None}
        drafts[record["id"]] = Examples("", properties={**known, "calendar": "number"})
    return Published(ingest["examples"], drafts)
