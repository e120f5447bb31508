"""The store's contract: of the same records and files, a garbage collection plans the same, whichever store has them."""

import random
from datetime import timedelta

import pytest

from spanwise.orchestrator import Examples, Model, Report, TransformGraph
from spanwise.orchestrator.collection import COLLECTED, Retention
from spanwise.orchestrator.run import State
from spanwise.orchestrator.store import Claim, MemoryStore
from spanwise.orchestrator.verdict import Verdict, append, append_personal
from spanwise.scheduler.storage import gc, pins
from tests.contract.conftest import Clock
from tests.scheduler.yard import Yard

RETENTION = Retention(last=2, younger=timedelta(days=2), logs=timedelta(days=90))


class RandomYard(Yard):
    """A pipeline with a random history, in any store."""

    def __init__(self, root, store, clock, seed):
        self.root, self.store, self.now = root, store, clock.now
        chance = random.Random(seed)
        spans, models = [], []
        for span in range(1, 13):
            run = self.run(span=span, state=chance.choice([State.COMPLETE, State.COMPLETE, State.FAILED]))
            clock.now = self.now
            for version in range(1, chance.choice([2, 3])):
                facts = {"span": span, "version": version, "split_names": ["a%\\"], "rows": {"a%\\": 2**40}}
                spans += self.do(run, "ExampleGen", examples=Examples("", properties=facts)).outputs["examples"]
                run = self.run(span=span)
            recent = spans[-3:]
            self.do(run, "Recent", {"examples": recent}, chosen={"examples": recent})
            self.do(run, "Check", {"examples": recent[-1:]}, report=Report(""), state=chance.choice([*State]))
            graph = self.do(run, "Transform", {"examples": recent}, graph=TransformGraph("")).outputs["graph"]
            if models and chance.random() < 0.3:
                self.do(run, "Trainer", {"examples": recent}, chosen={"model": [chance.choice(models)]})
            else:
                read = {"examples": recent, "graph": list(graph), "base": models[-1:]}
                draft = Model("", properties={"spans": [a.properties["span"] for a in recent], "note": "é" * 3000})
                models += self.do(run, "Trainer", read, model=draft).outputs["model"]
            if chance.random() < 0.5:
                models += self.do(run, "Export", {"model": [chance.choice(models)]}, model=Model("")).outputs["model"]
            self._mark(chance, [*spans, *models, *graph])

    def _mark(self, chance, artifacts):
        unmarked = [a for a in artifacts if self.store.find_claim(COLLECTED, a.name) is None]
        chosen = [chance.choice(unmarked) for _ in range(4)]
        pins.pin(self.store, chosen[0], why="", now=self.now)
        model = next((a for a in reversed(unmarked) if a.kind == Model.kind), chosen[1])
        verdict = Verdict(mark="blessed", artifact=model.name, given=chance.random() < 0.6, by="ann@host", because="")
        chance.choice([lambda: append(self.store, [verdict]), lambda: append_personal(self.store, verdict, model)])()
        self.push(next(self.store.runs("flights")), chosen[2])
        if self.store.find_claim(COLLECTED, chosen[3].name) is None:
            self.store.claim(Claim(COLLECTED, chosen[3].name))

    def plan(self):
        """All that a plan says, without the numbers that stores give."""
        plan = gc.plan_collection(self.context(RETENTION), "flights")
        found = {
            decision.artifact.name: (
                decision.artifact.kind,
                decision.artifact.created,
                decision.artifact.size_bytes,
                decision.artifact.properties,
                decision.reasons,
                plan.inventory.locations[decision.artifact.id] == decision.artifact.uri,
            )
            for decision in plan.decisions
        }
        half = sorted(artifact.name for artifact in plan.inventory.half_removed)
        rest = sorted(each.why for each in (*plan.inventory.leftovers, *plan.inventory.unknown_files))
        return found, half, rest, plan.newest


@pytest.mark.parametrize("seed", range(3))
def test_every_store_has_the_same_plan(place, tmp_path, seed):
    """As of records in memory, where nothing is encoded, grouped or read by SQL."""
    expected = RandomYard(tmp_path / "memory", MemoryStore(clock := Clock()), clock, seed).plan()

    planned = RandomYard(tmp_path / "real", place.open(), place.clock, seed).plan()

    assert planned == expected
    decisions, half_removed, leftovers, _ = planned
    assert half_removed
    assert leftovers
    assert {bool(reasons) for *_, reasons, _ in decisions.values()} == {True, False}
