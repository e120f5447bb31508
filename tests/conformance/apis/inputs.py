"""How many artifacts an input takes: `min_count`."""

from collections.abc import Mapping
from typing import Any

from spanwise.orchestrator import Component, Examples, Input, Output, Run
from spanwise.orchestrator.driver import drive
from spanwise.orchestrator.store import MemoryStore
from spanwise.resolvers.spans import enough


class Lake(Component):
    def run(self, *, examples: Output[Examples]) -> None: ...


class ReadAny(Component):
    def run(self, *, examples: Input[list[Examples] | None]) -> None: ...


class ReadSome(Component):
    def run(self, *, examples: Input[list[Examples]]) -> None: ...


def count(given: Mapping[str, Any]) -> dict[str, Any]:
    """None or one is said by the annotation, more by the resolver that chooses them."""
    artifacts = [Examples("", id=at + 1, properties={"span": at}) for at in range(given["artifacts"])]
    if given["min_count"] > 1:
        enough(artifacts, given["min_count"])
    reads = ReadSome if given["min_count"] else ReadAny
    drive(
        reads(examples=Lake()["examples"]),
        Run(pipeline="taxi"),
        MemoryStore(),
        {"examples": tuple(artifacts)},
        {},
        cache=True,
    )
    return {"ok": True}


APIS = {"min_count": count}
