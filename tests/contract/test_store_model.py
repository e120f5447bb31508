"""The store against its double: after any history of writes, both answer every question alike."""

import contextlib
import os
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spanwise.orchestrator.errors import NotRecorded, StoreError
from spanwise.orchestrator.run import Execution, Run, State
from spanwise.orchestrator.store import Address, AlreadyClaimed, Claim, MemoryStore
from tests.contract.conftest import Clock, Place
from tests.contract.records import examples, model, without_ids

pytestmark = pytest.mark.slow

HISTORIES = int(os.environ.get("SPANWISE_TEST_HISTORIES", "30"))  # the long form: 2000

PIPELINES, NODES, KEYS = ("a", "b"), ("Gen", "Train"), ("examples", "model")
NAMES = "pqrst"
SPANS = (-11, -1, 0, 1, 2, 19, 20, 101)

claims = st.just(()) | st.lists(st.sampled_from(NAMES), max_size=2).map(tuple)
output = st.sampled_from(["new", *SPANS]) | st.integers(0, 9).map(lambda n: ("old", n))
publication = st.tuples(
    st.just("publish"),
    st.integers(0, 5),
    st.sampled_from([State.COMPLETE, State.COMPLETE, State.CACHED, State.FAILED]),
    st.dictionaries(st.sampled_from(KEYS), st.lists(st.integers(0, 9), max_size=3), max_size=2),
    st.dictionaries(st.sampled_from(KEYS), st.lists(output, max_size=3), max_size=2),
    st.sampled_from(["", "k1", "k2"]),
    claims,
)
write = st.one_of(
    st.tuples(st.just("claim"), claims),
    st.tuples(st.just("amend"), st.sampled_from(NAMES)),
    st.tuples(st.just("begin_run"), st.sampled_from(PIPELINES), claims),
    st.tuples(st.just("update_run"), st.sampled_from(PIPELINES), st.integers(1, 2), claims),
    st.tuples(st.just("begin"), st.sampled_from(PIPELINES), st.integers(1, 2), st.sampled_from(NODES), claims),
    publication,
    publication,
)


@dataclass
class Written:
    """One store, and what was begun and published in it: ids differ from store to store, places in here do not."""

    store: object
    begun: list = field(default_factory=list)
    artifacts: list = field(default_factory=list)

    def apply(self, verb, *arguments):
        """What the verb said: a record without its ids, or the class of its refusal."""
        try:
            answer = getattr(self, verb)(*arguments)
        except (AlreadyClaimed, NotRecorded, StoreError) as refusal:
            return type(refusal).__name__
        return without_ids(answer) if isinstance(answer, Execution) else answer

    def claim(self, names):
        self.store.claim(*_claims(names))

    def amend(self, name):
        self.store.amend(Claim("kind", name, {"amended": True}))

    def begin_run(self, pipeline, names):
        return self.store.begin_run(Run(pipeline=pipeline, span=3), *_claims(names))

    def update_run(self, pipeline, number, names):
        self.store.update_run(Run(pipeline=pipeline, number=number, state=State.FAILED, error="x"), *_claims(names))

    def begin(self, pipeline, run, node, names):
        attempt = 1 + len(self.begun) // 4
        wanted = Execution(pipeline=pipeline, run=run, node=node, attempt=attempt, component="C")
        self.begun.append(self.store.begin(wanted, *_claims(names)))
        return self.begun[-1]

    def publish(self, which, state, inputs, outputs, key, names):
        if not self.begun:
            return None
        ended = replace(
            self.begun[which % len(self.begun)],
            state=state,
            key=key,
            inputs={k: self._old(row) for k, row in inputs.items()},
            outputs={k: tuple(a for o in row for a in self._output(o)) for k, row in outputs.items()},
        )
        published = self.store.publish(ended, *_claims(names))
        known = {a.name for a in self.artifacts}
        self.artifacts += [a for row in published.outputs.values() for a in row if a.name not in known]
        return published

    def _old(self, places):
        return tuple(self.artifacts[place % len(self.artifacts)] for place in places if self.artifacts)

    def _output(self, wanted):
        if isinstance(wanted, tuple):
            return self._old(wanted[1:])
        return (model(),) if wanted == "new" else (examples(wanted),)

    def everything(self):
        """The answers to all questions."""
        store = self.store
        addresses = [Address(p, n, k) for p in PIPELINES for n in NODES for k in KEYS]
        hits = [store.find_cached(key) for key in ("", "k1", "k2")]
        return {
            "claims": [store.find_claim("kind", name) for name in NAMES],
            "pipelines": store.pipelines(),
            "runs": [list(store.runs(p)) for p in PIPELINES],
            "executions": [[without_ids(e) for e in store.executions(r)] for p in PIPELINES for r in store.runs(p)],
            "each": [without_ids(store.execution(e.id)) for e in self.begun],
            "cached": [hit and without_ids(hit) for hit in hits],
            "artifacts": [without_ids(store.artifact(a.name)) for a in self.artifacts],
            "newest": [[a.name for a in store.newest(address)] for address in addresses],
            "spans": [list(store.spans(address)) for address in addresses],
            "below": [list(store.spans(address, below=2)) for address in addresses],
            "of span": [[a.name for a in store.of_span(address, s)] for address in addresses for s in SPANS],
            "producers": [Written(store).apply("producer", a) for a in self.artifacts],
            "consumers": [[e.name for e in store.consumers(a)] for a in self.artifacts],
            "links": self._links(),
        }

    def _links(self):
        """All links of all artifacts, and of all executions, by name."""
        artifacts = {a.id: a.name for a in self.store.artifacts_by_id([a.id for a in self.artifacts])}
        executions = {e.id: e.name for e in self.store.executions_by_id([e.id for e in self.begun])}
        asked = self.store.links(artifacts=artifacts), self.store.links(executions=executions)
        return [sorted((artifacts[n.artifact], executions[n.execution], n.read) for n in links) for links in asked]

    def producer(self, artifact):
        return self.store.producer(artifact)


def _claims(names):
    return [Claim("kind", name, {"by": name}) for name in names]


START = [("begin_run", "a", ()), ("begin_run", "b", ()), ("begin", "a", 1, "Gen", ()), ("begin", "b", 1, "Train", ())]
"""So that most histories get as far as publishing."""


@given(writes=st.lists(write, min_size=10, max_size=40), reopened=st.integers(0, 25))
@settings(
    max_examples=HISTORIES,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_store_answers_as_its_double_does(tmp_path, real, writes, reopened):
    """Whatever is written, also when the store is opened anew in between, both stores say the same to it and of it."""
    with contextlib.closing(Place(real.kind, tmp_path)) as place:
        double, written = Written(MemoryStore(Clock())), Written(place.open())

        for number, (verb, *arguments) in enumerate(START + writes):
            if number == reopened:
                written.store = place.open()
            assert written.apply(verb, *arguments) == double.apply(verb, *arguments)

        assert written.everything() == double.everything()
