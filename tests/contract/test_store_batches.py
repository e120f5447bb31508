"""The store's contract: questions about many records at once answer like the questions about one."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spanwise.orchestrator.run import Run, State
from spanwise.orchestrator.store import Address, Claim, summarize_span
from tests.contract.records import EXAMPLES, begin, examples, model, publish, publish_one, told


def test_the_latest_runs_of_every_pipeline_are_its_newest_first(store):
    """A pipeline with fewer runs gives them all; what is read later is there later."""
    for _ in range(9):
        store.begin_run(Run(pipeline="flights"))
    store.begin_run(Run(pipeline="taxi"))
    before = store.latest_runs(3)
    store.begin_run(Run(pipeline="flights"))

    assert {name: [run.number for run in runs] for name, runs in before.items()} == {"flights": [9, 8, 7], "taxi": [1]}
    assert [run.number for run in store.latest_runs(1)["flights"]] == [10]
    assert store.latest_runs(3)["flights"] == list(store.runs("flights"))[:3]


def test_an_empty_store_has_no_latest_runs(store):
    """Nothing has run here yet, which is no error."""
    assert store.latest_runs(3) == {}


def test_the_executions_of_several_runs_are_found_with_every_attempt(store):
    """They come without inputs and outputs, in the order in which they began; other runs are left out."""
    first, second, other = (store.begin_run(Run(pipeline="flights", nodes=("ExampleGen", "Trainer"))) for _ in range(3))
    publish(store, EXAMPLES, examples(1), run=first.number)
    begun = begin(store, "Trainer", run=first.number)
    store.publish(replace(begun, state=State.FAILED))
    begin(store, "Trainer", run=first.number, attempt=2)
    begin(store, "ExampleGen", run=second.number)
    begin(store, "ExampleGen", run=other.number)

    found = store.executions_of([second, first])

    assert [e.name for e in found] == [
        "flights/1/ExampleGen/1",
        "flights/1/Trainer/1",
        "flights/1/Trainer/2",
        "flights/2/ExampleGen/1",
    ]
    assert [told(e) for e in found] == [
        told(replace(e, inputs={}, outputs={})) for run in (first, second) for e in store.executions(run)
    ]
    assert store.executions_of([]) == []


def test_a_run_that_names_no_nodes_has_no_executions_to_find(store):
    """The names of nodes are what executions are found by."""
    assert store.executions_of([store.begin_run(Run(pipeline="flights"))]) == []


def test_the_summary_of_a_span_is_that_of_its_newest_version(store):
    """Highest span first; with how often it was published, and the rows of all its splits."""
    for span, version in ((9, 1), (10, 1), (11, 3), (10, 2), (300, 1), (-4, 1)):
        publish_one(store, EXAMPLES, examples(span, version))
    publish_one(store, EXAMPLES, examples(11, 2))

    found = {summary.span: summary for summary in store.span_summaries(EXAMPLES)}

    assert {s.span: (s.version, s.publications) for s in found.values()} == {
        300: (1, 1),
        11: (3, 2),
        10: (2, 2),
        9: (1, 1),
        -4: (1, 1),
    }
    assert list(found) == [300, 11, 10, 9, -4]
    assert [s.span for s in store.span_summaries(EXAMPLES, below=11)] == [10, 9, -4]
    assert list(store.span_summaries(Address("flights", "Nothing", "examples"))) == []


@settings(
    max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], derandomize=True
)
@given(
    spans=st.sets(st.integers(-1200, 1200) | st.integers(10**17, 10**17 + 50), max_size=12),
    below=st.none() | st.integers(-1300, 10**18 - 1),
)
def test_summaries_say_what_asking_for_each_span_finds(store, spans, below):
    """Whatever the signs and lengths of the numbers."""
    address = Address("flights", f"Node{abs(hash((frozenset(spans), below)))}", "examples")
    for span in sorted(spans, key=hash):
        publish_one(store, address, replace_rows(examples(span), span))

    found = list(store.span_summaries(address, below=below))

    assert [s.span for s in found] == list(store.spans(address, below=below))
    assert found == [summarize_span(s.span, store.of_span(address, s.span)) for s in found]


def replace_rows(artifact, rows):
    """The artifact with so many rows in one split, and as many in another."""
    return type(artifact)(artifact.uri, properties={**artifact.properties, "rows": {"train": rows, "eval": rows}})


def test_artifacts_without_a_span_have_no_summary(store):
    """Models are published without one."""
    models = Address("flights", "Trainer", "model")
    publish_one(store, models, model())

    assert list(store.span_summaries(models)) == []


def test_many_claims_are_found_by_their_names(store):
    """Those of the marks of artifacts, and of any other kind; also after they were amended."""
    for number in range(5):
        store.claim(Claim("pinned", f"flights/Trainer/model/{number}", {"pinned": True}))
        store.claim(Claim("tick", f"flights/{number}", {"number": number}))
    store.amend(Claim("pinned", "flights/Trainer/model/3", {"pinned": False}))

    pins = store.find_claims("pinned", [f"flights/Trainer/model/{number}" for number in range(3, 3000)])
    ticks = store.find_claims("tick", ["flights/4", "flights/5"])

    assert {name: claim.facts["pinned"] for name, claim in pins.items()} == {
        "flights/Trainer/model/3": False,
        "flights/Trainer/model/4": True,
    }
    assert pins["flights/Trainer/model/4"] == store.find_claim("pinned", "flights/Trainer/model/4")
    assert [claim.facts["number"] for claim in ticks.values()] == [4]
    assert store.find_claims("collected", ["flights/Trainer/model/4"]) == {}


@pytest.mark.parametrize("count", [0, 1, 2, 3, 31, 40])
def test_the_last_of_numbered_claims_is_found(store, count):
    """From the first or from one that is known to exist; also when more were made since."""
    for number in range(1, count + 1):
        store.claim(Claim("lease", f"flights#{number}"), Claim("lease", f"flights#{number}#1"))

    found = [store.last_claim("lease", "flights#", seen=seen) for seen in (0, count // 2, count)]
    store.claim(Claim("lease", f"flights#{count + 1}"))

    assert found == [count] * 3
    assert store.last_claim("lease", "flights#") == count + 1
    assert store.last_claim("slot", "flights#") == 0


def test_links_of_one_side_are_those_that_read_or_those_that_do_not(store):
    """What executions have made is found without what they have read."""
    made = publish(store, EXAMPLES, examples(1))
    (artifact,) = made.outputs["examples"]
    begun = begin(store, "Trainer")
    read = store.publish(replace(begun, state=State.COMPLETE, inputs={"examples": (artifact,)}))

    links = store.links(executions=[made.id, read.id])

    for side in (True, False):
        assert store.links(executions=[made.id, read.id], read=side) == [one for one in links if one.read is side]
        assert store.links(artifacts=[artifact.id], read=side) == [one for one in links if one.read is side]
