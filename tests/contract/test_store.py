"""The store's contract: what every implementation promises, on each of them."""

import hashlib
import itertools
import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.errors import NotRecorded, StoreError
from spanwise.orchestrator.run import Execution, Run, State, Trigger
from spanwise.orchestrator.store import Address, AlreadyClaimed, Claim, Link
from tests.contract.records import EXAMPLES, MODELS, begin, examples, model, publish, publish_one, told

# One store serves all the examples of a test: what they write has names of their own.
shared_store = settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], derandomize=True
)

fresh = itertools.count()
words = st.text(max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=8,
)
properties = st.dictionaries(st.from_regex("[a-z_]{1,12}", fullmatch=True), values, max_size=5)

AWKWARD = {
    "third": 1 / 3,
    "tiny": 1e-300,
    "negative_zero": -0.0,
    "infinite": math.inf,
    "whole_float": 1.0,
    "beyond_32_bits": 2**31,
    "beyond_64_bits": -(2**70),
    "true": True,
    "one": 1,
    "none": None,
    "empty": "",
    "quotes": 'it\'s "so" `here`',
    "backslash": "C:\\new\\'; DROP TABLE Context; --",
    "nul": "before\0after",
    "emoji": "Zürich ☃ 😀",
    "half_a_pair": "\ud800",
    "looks_like_json": "json:[1]",
    "looks_like_a_struct": "mlmd-struct::CgYKAWESAQg=",
    "percent": "100%5C %25 %s",
    "lines": "a\nb\tc\r\n",
    "list": [1, 1.0, True, None, "\\", [[]], {}],
    "dict": {"b": {"a": 0.1}, "": None, "\\0": "\0"},
}
"""Values that one or another database, or ml-metadata itself, would bend or refuse."""


# --- claims


def test_a_claim_is_found_with_its_facts_and_when_it_was_made(store, clock):
    """A claim comes back with the facts it was made with and `created` among them."""
    store.claim(Claim("tick", "flights@1", {"span": 7, "why": "cron"}))

    found = store.find_claim("tick", "flights@1")

    assert found == Claim("tick", "flights@1", {"span": 7, "why": "cron", "created": clock().isoformat()})


def test_what_was_never_claimed_is_none(store):
    """A name that nobody inserted is None, before and after others were."""
    before = store.find_claim("tick", "flights@1")
    store.claim(Claim("tick", "flights@2"))

    assert before is None
    assert store.find_claim("tick", "flights@1") is None


def test_a_taken_name_is_refused_and_keeps_its_facts(store):
    """Who comes second gets AlreadyClaimed, with the name in it, and changes nothing."""
    store.claim(Claim("tick", "flights@1", {"by": "first"}))

    with pytest.raises(AlreadyClaimed, match="tick flights@1"):
        store.claim(Claim("tick", "flights@1", {"by": "second"}))

    assert store.find_claim("tick", "flights@1").facts["by"] == "first"


def test_of_several_claims_all_are_made_or_none(store):
    """One taken name among several leaves the others unclaimed."""
    store.claim(Claim("tick", "b"))

    with pytest.raises(AlreadyClaimed):
        store.claim(Claim("tick", "a"), Claim("tick", "b"), Claim("tick", "c"))

    assert store.find_claim("tick", "a") is None
    assert store.find_claim("tick", "c") is None


def test_one_name_twice_in_one_write_is_taken_by_itself(store):
    """Two claims of one name in one call are refused, and neither is made."""
    with pytest.raises(AlreadyClaimed):
        store.claim(Claim("tick", "a", {"n": 1}), Claim("tick", "a", {"n": 2}))

    assert store.find_claim("tick", "a") is None


def test_no_claims_are_no_write(store):
    """Claiming nothing is allowed and does nothing."""
    store.claim()

    assert store.pipelines() == []


def test_the_newest_entry_is_that_of_the_last_claim_or_run(store):
    """Whatever its pipeline; what is only changed is no new one. An earlier one is found again by its id."""
    found = [store.entry()]
    store.begin_run(Run(pipeline="flights"))
    found.append(store.entry())
    run = store.begin_run(Run(pipeline="taxi"), Claim("tick", "a", {"n": 1}))
    found.append(store.entry())
    store.amend(Claim("tick", "a", {"n": 2}))
    store.update_run(replace(run, state=State.COMPLETE))
    after_changes = store.entry()
    store.claim(Claim("tick", "b"))
    found.append(store.entry())

    assert found[0] is None
    assert after_changes == found[2]
    assert len(set(found)) == 4
    assert [store.entry(each.id) for each in found[1:]] == found[1:]
    assert store.entry(found[-1].id + 1) is None


def test_kinds_of_claims_do_not_meet(store):
    """The same name may be claimed once for each kind."""
    store.claim(Claim("blessed", "m"))

    store.claim(Claim("pushed", "m"))

    assert store.find_claim("pushed", "m") is not None


def test_capitals_make_another_name(store):
    """Names that differ in capitals alone are different names."""
    store.claim(Claim("tick", "flights"))

    store.claim(Claim("tick", "Flights"))

    assert store.find_claim("tick", "FLIGHTS") is None


def test_amending_replaces_the_facts_and_keeps_when_it_was_made(store, clock):
    """After `amend` only the new facts are there, with the first `created`."""
    store.claim(Claim("lease", "flights#1", {"beat": 0, "doing": "run 1"}))
    made = clock().isoformat()
    clock.forward(minutes=1)

    store.amend(Claim("lease", "flights#1", {"beat": 1}))

    assert store.find_claim("lease", "flights#1").facts == {"beat": 1, "created": made}


def test_only_what_was_claimed_can_be_amended(store):
    """Amending an unknown claim is NotRecorded and makes none."""
    with pytest.raises(NotRecorded, match="lease"):
        store.amend(Claim("lease", "flights#1", {"beat": 1}))

    assert store.find_claim("lease", "flights#1") is None


# --- values


def test_awkward_values_come_back_exactly(store):
    """Facts, parameters and properties that databases bend come back equal, and of the same class."""
    store.claim(Claim("facts", "awkward", AWKWARD))
    run = store.begin_run(Run(pipeline="flights", parameters=AWKWARD, error=AWKWARD["backslash"] + "\0"))
    made = publish_one(store, MODELS, model(**AWKWARD))

    facts = dict(store.find_claim("facts", "awkward").facts)
    del facts["created"]

    assert repr(sorted(facts.items())) == repr(sorted(AWKWARD.items()))
    assert repr(store.run("flights", run.number)) == repr(run)
    assert repr(sorted(store.artifact(made.name).properties.items())) == repr(sorted(AWKWARD.items()))


def test_long_texts_come_back_exactly(store):
    """Also texts that no compression makes short, such as the digests of many files: an index of PostgreSQL is narrow."""
    long = "".join(hashlib.sha256(b"%d" % number).hexdigest() for number in range(100))
    files = {f"{number}.parquet": long[64 * number :][:64] for number in range(100)}
    store.claim(Claim("facts", "long", {"text": long, "list": [long, "é\\"], "short": "s"}))
    run = store.begin_run(Run(pipeline="flights", parameters={"text": long}))
    failed = publish(store, MODELS, run=run.number, state=State.FAILED, outputs={}, error=f"é\\\n{long}")
    given_properties = {"files": long, "rows": {long: 1}, "split_names": [long, "eval"], "name": long}
    made = publish_one(store, MODELS, Artifact("/m/1", kind="Model", files=files, properties=given_properties))

    facts = dict(store.find_claim("facts", "long").facts)
    found = store.artifact(made.name)

    assert {name: facts[name] for name in ("text", "list", "short")} == {
        "text": long, "list": [long, "é\\"], "short": "s",
    }  # fmt: skip
    assert len(facts) == 4
    assert store.run("flights", run.number).parameters == {"text": long}
    assert store.execution(failed.id).error == f"é\\\n{long}"
    assert (found.files, found.properties) == (files, given_properties)


@given(facts=properties)
@shared_store
def test_any_facts_come_back_equal(store, facts):
    """Whatever JSON can say comes back from a claim as it went in."""
    facts.pop("created", None)
    name = f"any/{next(fresh)}"
    store.claim(Claim("facts", name, facts))

    found = dict(store.find_claim("facts", name).facts)

    del found["created"]
    assert found == facts
    assert repr(sorted(found.items())) == repr(sorted(facts.items()))


@given(given_properties=properties)
@shared_store
def test_any_properties_of_an_artifact_come_back_equal(store, given_properties):
    """Whatever JSON can say comes back from an artifact's properties, `span` and `version` among them."""
    given_properties.pop("span", None)

    made = publish_one(store, MODELS, model(**given_properties))

    assert repr(sorted(store.artifact(made.name).properties.items())) == repr(sorted(given_properties.items()))


@pytest.mark.parametrize(
    "given_properties",
    [
        {"span": 3, "version": 2, "split_names": ["train", "eval"]},
        {"span": 3, "version": None, "split_names": []},
        {"span": 2**40, "version": 2**40},
        {"version": "2", "split_names": "train"},
        {"version": 2.0, "split_names": ["50% \\ more", "é"]},
        {
            "version": True,
            "content": "mine",
            "size_bytes": -1,
            "created": "then",
            "producer": "me",
            "kind": "k",
            "base_kinds": ["Examples"],
            "name": 1,
        },
    ],
)
def test_properties_that_have_a_column_or_the_name_of_a_field_come_back_equal(store, given_properties):
    """A property that ML Metadata has a typed column for, or that is called as a field is, mixes with neither."""
    made = publish_one(store, MODELS, model(**given_properties))

    found = store.artifact(made.name)

    assert found.properties == given_properties
    assert {k: type(v) for k, v in found.properties.items()} == {k: type(v) for k, v in given_properties.items()}
    assert (found.content, found.size_bytes, found.created) == (made.content, made.size_bytes, made.created)


def test_what_the_kind_of_an_artifact_extends_comes_back(store):
    """By every way to read one, in processes that do not load the project; a kind that extends none has nothing."""
    drafts = [
        Artifact(f"/models/{number}", kind="Boosted", base_kinds=kinds, properties={"base_kinds": "mine"})
        for number, kinds in enumerate([("Trees", "Model"), (), tuple(f"Model{n}" for n in range(500))])
    ]
    execution = publish(store, MODELS, *drafts)
    made = execution.outputs[MODELS.key]

    ways = [
        made,
        [store.artifact(each.name) for each in made],
        store.artifacts_by_id([each.id for each in made]),
        store.execution(execution.id).outputs[MODELS.key],
        [*store.newest(MODELS)][::-1],
    ]
    for found in ways:
        assert [each.base_kinds for each in found] == [each.base_kinds for each in drafts]
        assert {each.properties["base_kinds"] for each in found} == {"mine"}


# --- runs

A_RUN = Run(
    pipeline="flights",
    trigger=Trigger.BACKFILL,
    span=20130105,
    calendar="day",
    as_of=datetime(2013, 1, 9, 3, 0, 0, 1, tzinfo=UTC),
    base=4,
    behind=("Window", "Learn"),
    nodes=("ExampleGen", "Trainer"),
    unselected=("Evaluator",),
    parameters={"data": "/data", "window": 7, "rate": 0.1, "on": True},
    from_scratch=True,
    cause="2013-01-09T03:00",
    typed=("window=7", "data=a=b"),
    beam={"runner": "PrismRunner", "parallelism": 2, "experiments": ["one"]},
    spans={"ads": "2013-01-05", "clicks": "2013-01"},
    exclude=("2012-12-25", "Recent=2012-12-30..2013-01-02"),
    source="flights.py:flights",
    token=12,
    host="here",
    pid=4711,
    started=datetime(2013, 1, 9, 4, 0, tzinfo=UTC),
)


def test_a_run_gets_the_next_number_of_its_pipeline(store):
    """Runs count up from 1 within their pipeline."""
    numbers = [store.begin_run(Run(pipeline=p)).number for p in ("flights", "taxi", "flights", "flights")]

    assert numbers == [1, 1, 2, 3]


def test_a_run_comes_back_as_it_was_begun(store):
    """Every field of a run is recorded."""
    begun = store.begin_run(A_RUN)

    assert begun == replace(A_RUN, number=1)
    assert store.run("flights", 1) == begun


def test_a_run_begins_now_unless_it_says_when(store, clock):
    """`started` is the store's clock where the run has none."""
    begun = store.begin_run(Run(pipeline="flights"))

    assert begun.started == clock()


def test_updating_replaces_a_run(store):
    """After `update_run` the new record is there, and what it no longer says is gone."""
    begun = store.begin_run(A_RUN)
    ended = replace(
        begun, state=State.FAILED, error="Trainer failed", ended=datetime(2013, 1, 9, tzinfo=UTC), base=None
    )

    store.update_run(ended, Claim("journal", "flights#12/1"))

    assert store.run("flights", 1) == ended
    assert store.find_claim("journal", "flights#12/1") is not None


def test_updating_with_a_taken_claim_changes_nothing(store):
    """A run whose update carries a taken claim stays as it was."""
    begun = store.begin_run(A_RUN, Claim("journal", "flights#12/1"))

    with pytest.raises(AlreadyClaimed):
        store.update_run(replace(begun, state=State.COMPLETE), Claim("x", "y"), Claim("journal", "flights#12/1"))

    assert store.run("flights", 1) == begun
    assert store.find_claim("x", "y") is None


def test_beginning_with_a_taken_claim_leaves_no_run(store):
    """A refused run uses up no number and makes no pipeline."""
    store.claim(Claim("journal", "taken"))

    with pytest.raises(AlreadyClaimed, match="journal taken"):
        store.begin_run(Run(pipeline="flights"), Claim("x", "y"), Claim("journal", "taken"))

    assert store.pipelines() == []
    assert list(store.runs("flights")) == []
    assert store.find_claim("x", "y") is None
    assert store.begin_run(Run(pipeline="flights"), Claim("x", "y")).number == 1


@pytest.mark.parametrize(
    ("begun", "number", "says"),
    [(0, 1, "never run here"), (3, 4, "runs are 1 to 3"), (3, 0, "no run 0"), (3, -1, "no run -1")],
)
def test_a_run_that_is_not_there_is_said_to_be_missing(store, begun, number, says):
    """Asking for an unknown run, or updating it, says which there are."""
    for _ in range(begun):
        store.begin_run(Run(pipeline="flights"))

    with pytest.raises(NotRecorded, match=says):
        store.run("flights", number)
    with pytest.raises(NotRecorded, match=says):
        store.update_run(Run(pipeline="flights", number=number))


@pytest.mark.parametrize(
    ("before", "numbers"),
    [(None, range(11, 0, -1)), (12, range(11, 0, -1)), (99, range(11, 0, -1)), (4, (3, 2, 1)), (1, ()), (0, ())],
)
def test_runs_come_newest_first(store, before, numbers):
    """`runs` lists the runs below `before`, newest first, at most `limit`, and those of no other pipeline."""
    for _ in range(11):
        store.begin_run(Run(pipeline="flights"))
        store.begin_run(Run(pipeline="taxi"))

    found = [(r.pipeline, r.number) for r in store.runs("flights", before=before)]
    first = [[(r.pipeline, r.number) for r in store.runs("flights", before=before, limit=n)] for n in (0, 2, 100)]

    assert found == [("flights", n) for n in numbers]
    assert first == [[], found[:2], found]


def test_pipelines_are_those_that_ran(store):
    """Each pipeline that ever began a run is listed once, in order of name."""
    for pipeline in ("taxi", "flights", "taxi"):
        store.begin_run(Run(pipeline=pipeline))

    assert store.pipelines() == ["flights", "taxi"]


def test_kinds_are_those_that_were_published(store):
    """Each kind of which there is an artifact is listed once, in order of name, also one that a user has defined."""
    before = store.kinds()
    publish(store, MODELS, model(), model("/models/2"))
    publish(store, Address("taxi", "Predict", "tides"), Artifact("/tides", kind="Tides"))

    assert (before, store.kinds()) == ([], ["Model", "Tides"])


# --- executions


def test_an_execution_is_known_from_when_it_begins(store, clock):
    """A begun execution is running, has an id and a start, and is found by its run and by its id."""
    begun = begin(store, log="/logs/Trainer.1.log")

    assert begun.id > 0
    assert begun == Execution(
        id=begun.id,
        pipeline="flights",
        run=1,
        node="Trainer",
        component="TrainerComponent",
        log="/logs/Trainer.1.log",
        started=clock(),
    )
    assert store.execution(begun.id) == begun
    assert store.executions(store.run("flights", 1)) == [begun]


def test_an_execution_may_have_no_component(store):
    """An execution without a class name comes back without one."""
    store.begin_run(Run(pipeline="flights"))

    begun = store.begin(Execution(pipeline="flights", run=1, node="Anything"))

    assert store.execution(begun.id).component == ""


def test_an_execution_belongs_to_a_run(store):
    """There is no execution without its run, and refusing it leaves no claim."""
    with pytest.raises(NotRecorded, match="never run here"):
        store.begin(Execution(pipeline="flights", run=1, node="Trainer", component="Trainer"), Claim("x", "y"))

    assert store.find_claim("x", "y") is None


def test_an_attempt_is_begun_once(store):
    """A second execution of the same run, node and attempt is refused, and leaves no claim."""
    begin(store)

    with pytest.raises(AlreadyClaimed, match="flights/1/Trainer/1"):
        begin(store, "Trainer", Claim("x", "y"), run=1)

    assert store.find_claim("x", "y") is None
    assert len(store.executions(store.run("flights", 1))) == 1


def test_beginning_an_execution_with_a_taken_claim_records_nothing(store):
    """A refused execution is not there, nor are its other claims, and can be begun later."""
    run = store.begin_run(Run(pipeline="flights"), Claim("journal", "1"))

    with pytest.raises(AlreadyClaimed, match="journal 1"):
        begin(store, "Trainer", Claim("x", "y"), Claim("journal", "1"), run=1)

    assert store.executions(run) == []
    assert store.find_claim("x", "y") is None
    assert begin(store, "Trainer", Claim("journal", "2"), run=1).attempt == 1


def test_a_publication_comes_back_as_it_was_published(store, clock):
    """Every field of an execution is recorded, with inputs and outputs in their order."""
    read = [publish_one(store, EXAMPLES, examples(span)) for span in (3, 1, 2)]
    begun = begin(store)
    clock.forward(minutes=5)
    full = replace(
        begun,
        state=State.COMPLETE,
        parameters={"rate": "0.1", "at": "\\path\0"},
        defaults=("rate",),
        key="k" * 64,
        key_parts={"code": "a1", "inputs": "b2"},
        inputs={"examples": tuple(read), "baseline": ()},
        outputs={"model": (model("/m/1"), model("/m/2"), model("/m/3")), "notes": ()},
        reused=None,
        reason="executed: the code has changed",
        error="a warning \\ with 'quotes'",
        log="/logs/x",
    )

    ended = store.publish(full, Claim("journal", "1"))

    assert ended.ended == clock()
    assert [a.name for a in ended.outputs["model"]] == [f"flights/Trainer/model/{n}" for n in (1, 2, 3)]
    assert [a.uri for a in ended.outputs["model"]] == ["/m/1", "/m/2", "/m/3"]
    assert all(a.id > 0 and a.created == clock() for a in ended.outputs["model"])
    assert told(replace(ended, outputs={})) == told(replace(full, outputs={}, ended=clock()))
    assert told(store.execution(begun.id)) == told(ended)
    assert told(store.executions(store.run("flights", begun.run))[0]) == told(ended)
    assert store.find_claim("journal", "1") is not None


def test_an_artifact_comes_back_by_its_name(store, clock):
    """An artifact is found by its name, with everything it was published with."""
    made = publish_one(store, EXAMPLES, examples(7, version=2))

    found = store.artifact("flights/ExampleGen/examples/7/1")

    assert told(found) == told(made)
    assert (found.kind, found.uri, found.created) == ("Examples", "/examples/1", clock())
    assert found.properties == {"span": 7, "version": 2, "split_names": ["train", "eval"]}


def test_an_artifact_may_be_read_in_many_places(store):
    """The same artifact under two keys, and twice in one list, comes back in each place."""
    first, second = (publish_one(store, EXAMPLES, examples(span)) for span in (1, 2))

    ended = publish(
        store, MODELS, model(), inputs={"examples": (first, second, first), "reference": (first,), "other": (second,)}
    )

    back = store.execution(ended.id)
    assert [a.name for a in back.inputs["examples"]] == [first.name, second.name, first.name]
    assert [a.name for a in back.inputs["reference"]] == [first.name]
    assert [a.name for a in back.inputs["other"]] == [second.name]


def test_a_long_list_keeps_its_order(store):
    """The order of a list of outputs is that of the publication, also beyond ten."""
    ended = publish(store, MODELS, *(model(f"/m/{n}") for n in range(23)))

    back = store.execution(ended.id)

    assert [a.uri for a in back.outputs["model"]] == [f"/m/{n}" for n in range(23)]


def test_a_resolver_passes_on_what_it_read(store):
    """What is an input may be an output too: the same artifact, not a new one."""
    made = publish_one(store, MODELS, model())

    ended = publish(
        store, Address("flights", "Latest", "model"), made, inputs={"model": (made,)}, state=State.CACHED, reused=1
    )

    back = store.execution(ended.id)
    assert told(back.outputs["model"][0]) == told(back.inputs["model"][0]) == told(made)
    assert list(store.newest(Address("flights", "Latest", "model"))) == []


def test_a_failure_is_published_without_outputs(store):
    """A failed execution keeps its error and its inputs, and its run can try again."""
    read = publish_one(store, EXAMPLES, examples(1))
    begun = begin(store)

    store.publish(replace(begun, state=State.FAILED, error="out of memory", inputs={"examples": (read,)}))

    back = store.execution(begun.id)
    assert (back.state, back.error, back.outputs) == (State.FAILED, "out of memory", {})
    assert begin(store, run=begun.run, attempt=2).id > begun.id


def test_what_was_never_begun_cannot_be_published(store):
    """Publishing an unknown execution is NotRecorded and makes no artifact."""
    store.begin_run(Run(pipeline="flights"))
    unknown = Execution(id=999, pipeline="flights", run=1, node="Trainer", component="T", outputs={"model": (model(),)})

    with pytest.raises(NotRecorded, match="flights/1/Trainer/1"):
        store.publish(unknown)

    assert list(store.newest(MODELS)) == []


def test_an_execution_ends_once(store):
    """Publishing what has ended is refused, says how it ended, and makes no artifact."""
    ended = publish(store, MODELS, model())

    with pytest.raises(StoreError, match="complete"):
        store.publish(replace(ended, state=State.FAILED, outputs={"model": (model(),)}), Claim("x", "y"))

    assert store.execution(ended.id).state is State.COMPLETE
    assert len(list(store.newest(MODELS))) == 1
    assert store.find_claim("x", "y") is None


def test_publishing_with_a_taken_claim_leaves_everything_as_it_was(store):
    """State, inputs, outputs, artifacts, spans, cache and other claims: of a refused publication nothing is there."""
    read = publish_one(store, EXAMPLES, examples(1))
    store.claim(Claim("journal", "flights#1/1"))
    begun = begin(store, "ExampleGen")
    full = replace(
        begun,
        state=State.COMPLETE,
        key="key",
        inputs={"examples": (read,)},
        outputs={"examples": (examples(2),), "model": (model(),)},
    )

    with pytest.raises(AlreadyClaimed, match="journal flights#1/1"):
        store.publish(full, Claim("x", "y"), Claim("journal", "flights#1/1"))

    assert store.execution(begun.id) == begun
    assert list(store.spans(EXAMPLES)) == [1]
    assert store.of_span(EXAMPLES, 2) == []
    assert list(store.newest(Address("flights", "ExampleGen", "model"))) == []
    assert store.consumers(read) == []
    assert store.find_cached("key") is None
    assert store.find_claim("x", "y") is None


def test_a_refused_publication_can_be_published_after_all(store):
    """What a taken claim refused is published with another, with the numbers it would have had."""
    begun = begin(store)
    full = replace(begun, state=State.COMPLETE, outputs={"model": (model(),)})
    store.claim(Claim("blessed", "m"))
    with pytest.raises(AlreadyClaimed):
        store.publish(full, Claim("blessed", "m"))

    ended = store.publish(full)

    assert ended.outputs["model"][0].name == "flights/Trainer/model/1"


def test_executions_of_a_run_come_in_the_order_they_were_begun(store):
    """All executions of a run are listed as they were begun, those of other runs are not."""
    first, second = store.begin_run(Run(pipeline="flights")), store.begin_run(Run(pipeline="flights"))
    for number, node in ((1, "C"), (2, "A"), (1, "A"), (1, "B"), (2, "B")):
        begin(store, node, run=number)

    assert [e.node for e in store.executions(first)] == ["C", "A", "B"]
    assert [e.node for e in store.executions(second)] == ["A", "B"]
    assert store.executions(Run(pipeline="flights", number=3)) == []


def test_an_unknown_execution_is_not_recorded(store):
    """Asking for an id that nothing has is NotRecorded."""
    with pytest.raises(NotRecorded, match="999"):
        store.execution(999)


# --- the cache


def test_the_newest_complete_execution_of_a_key_is_cached(store):
    """Of several executions with one cache key the last that was complete is found, with its outputs."""
    publish(store, MODELS, model("/m/1"), key="abc")
    newest = publish(store, MODELS, model("/m/2"), key="abc")
    publish(store, MODELS, model("/m/3"), key="other")

    found = store.find_cached("abc")

    assert told(found) == told(newest)


@pytest.mark.parametrize("state", [State.FAILED, State.CANCELED, State.CACHED])
def test_only_what_was_complete_is_cached(store, state):
    """Failed, canceled and reused executions are no one's cache."""
    publish(store, MODELS, key="abc", state=state)

    assert store.find_cached("abc") is None


def test_without_a_key_nothing_is_cached(store):
    """An execution without a cache key is not found by the empty key."""
    publish(store, MODELS, model())

    assert store.find_cached("") is None


# --- artifacts


def test_an_unknown_artifact_is_not_recorded(store):
    """Asking for a name that no artifact has is NotRecorded."""
    with pytest.raises(NotRecorded, match="flights/Trainer/model/1"):
        store.artifact("flights/Trainer/model/1")


def test_artifacts_are_numbered_where_they_are_published(store):
    """Each address counts up by itself, and each span of it."""
    names = [
        publish_one(store, address, draft).name
        for address, draft in (
            (MODELS, model()),
            (EXAMPLES, examples(7)),
            (MODELS, model()),
            (EXAMPLES, examples(7)),
            (EXAMPLES, examples(8)),
            (Address("taxi", "Trainer", "model"), model()),
        )
    ]

    assert names == [
        "flights/Trainer/model/1",
        "flights/ExampleGen/examples/7/1",
        "flights/Trainer/model/2",
        "flights/ExampleGen/examples/7/2",
        "flights/ExampleGen/examples/8/1",
        "taxi/Trainer/model/1",
    ]


def test_one_publication_may_number_several_of_one_place(store):
    """Several spans, and several versions of one, in one publication are numbered one after the other."""
    publish(store, EXAMPLES, examples(7))

    ended = publish(store, EXAMPLES, examples(7), examples(8), examples(7))

    assert [a.name.removeprefix(f"{EXAMPLES}/") for a in ended.outputs["examples"]] == ["7/2", "8/1", "7/3"]


def test_the_newest_artifacts_come_first(store):
    """`newest` lists what has no span, newest first, however many there are."""
    for _ in range(11):
        publish_one(store, MODELS, model())
    publish_one(store, MODELS, examples(5))

    found = [a.name for a in store.newest(MODELS)]

    assert found == [f"flights/Trainer/model/{n}" for n in range(11, 0, -1)]


def test_nothing_was_published_at_an_unknown_address(store):
    """An address that nothing was published at has no artifacts and no spans."""
    nowhere = Address("flights", "Nobody", "nothing")

    assert list(store.newest(nowhere)) == []
    assert list(store.spans(nowhere)) == []
    assert store.of_span(nowhere, 1) == []


def test_everything_published_for_a_span_comes_oldest_first(store):
    """`of_span` lists every publication for the span, of whatever version, in their order."""
    for version in (2, 1, 3, 3, 1, 2, 5, 4, 9):
        publish_one(store, EXAMPLES, examples(7, version=version))
        publish_one(store, EXAMPLES, examples(70))

    found = store.of_span(EXAMPLES, 7)

    assert [a.properties["version"] for a in found] == [2, 1, 3, 3, 1, 2, 5, 4, 9]
    assert [a.name for a in found] == [f"{EXAMPLES}/7/{n}" for n in range(1, 10)]


def test_many_spans_are_read_as_each_is(store):
    """`of_spans` gives for each span what `of_span` gives, and nothing for one that was never published."""
    for span, count in ((7, 9), (8, 1), (-9, 4), (70, 5)):
        for version in range(count):
            publish_one(store, EXAMPLES, examples(span, version=version))

    found = store.of_spans(EXAMPLES, [70, 8, 7, 6, -9])

    assert [(span, len(row)) for span, row in found.items()] == [(70, 5), (8, 1), (7, 9), (6, 0), (-9, 4)]
    assert all([a.name for a in found[s]] == [a.name for a in store.of_span(EXAMPLES, s)] for s in found)


def test_spans_come_highest_first(store):
    """Spans of any size, with gaps, with zero and below it, are listed once each, highest first."""
    spans = [3, 10, 1, 9, 0, -1, -10, 100, 20130105, 20130104, 10**7, 3, -20130105, 99, 2**40, -9]
    for span in spans:
        publish_one(store, EXAMPLES, examples(span))

    assert list(store.spans(EXAMPLES)) == sorted(set(spans), reverse=True)
    assert list(store.spans(Address("flights", "ExampleGen", "rejects"))) == []


@given(data=st.data())
@shared_store
def test_spans_below_are_those_that_a_sorted_list_would_give(store, data):
    """For any spans and any bound, `spans` gives what sorting them all would."""
    span = st.one_of(st.integers(-12, 12), st.integers(-(10**7), 10**7), st.integers(20130101, 20130131))
    spans = data.draw(st.sets(span, max_size=5))
    below = data.draw(st.none() | span | st.sampled_from(sorted(spans) or [0]))
    address = Address("flights", f"Gen{next(fresh)}", "examples")
    if spans:
        publish(store, address, *(examples(s) for s in sorted(spans)))

    found = list(store.spans(address, below=below))

    assert found == sorted((s for s in spans if below is None or s < below), reverse=True)


def test_the_producer_is_the_execution_that_made_it(store):
    """An artifact's producer is who published it first, not who passed it on."""
    made = publish(store, MODELS, model())
    artifact = made.outputs["model"][0]
    publish(store, Address("flights", "Trainer", "model"), artifact, state=State.CACHED, reused=made.id)

    assert told(store.producer(artifact)) == told(made)


def test_an_unknown_artifact_has_no_producer(store):
    """Asking who made a draft is NotRecorded."""
    with pytest.raises(NotRecorded):
        store.producer(model())


def test_consumers_are_the_executions_that_read_it(store):
    """An artifact's consumers are listed oldest first, without those that only passed it on."""
    artifact = publish_one(store, EXAMPLES, examples(1))
    readers = [
        publish(store, MODELS, model(), inputs={"examples": (artifact,)}),
        publish(store, MODELS, inputs={"examples": (artifact,), "again": (artifact,)}, state=State.FAILED),
    ]
    publish(store, Address("flights", "ExampleGen", "examples"), artifact, state=State.CACHED)

    assert [told(e) for e in store.consumers(artifact)] == [told(e) for e in readers]
    assert store.consumers(readers[0].outputs["model"][0]) == []


def test_links_say_who_read_and_who_had_what(store):
    """Asked for artifacts or for executions, the same links come, one for each pair and side, wherever it stands."""
    made = publish(store, EXAMPLES, examples(1), examples(2))
    one, two = made.outputs["examples"]
    trained = publish(store, MODELS, model(), inputs={"examples": (one,), "again": (one, two)})
    reused = publish(store, MODELS, *trained.outputs["model"], inputs={"examples": (one,)}, state=State.CACHED)
    (learned,) = trained.outputs["model"]

    assert set(store.links(artifacts=[two.id])) == {
        Link(artifact=two.id, execution=made.id, read=False),
        Link(artifact=two.id, execution=trained.id, read=True),
    }
    of_both = store.links(executions=[trained.id, reused.id])
    assert len(of_both) == 5
    assert set(of_both) == {
        Link(artifact=one.id, execution=trained.id, read=True),
        Link(artifact=two.id, execution=trained.id, read=True),
        Link(artifact=learned.id, execution=trained.id, read=False),
        Link(artifact=one.id, execution=reused.id, read=True),
        Link(artifact=learned.id, execution=reused.id, read=False),
    }
    assert store.links() == []
    assert store.links(artifacts=[10**6, 1 << 63], executions=[10**6, 1 << 63]) == []


def test_artifacts_and_executions_are_had_by_their_ids(store):
    """Several at once, whatever the order and how often they are asked for; executions come without their artifacts.

    Of a number that is too long for an id there is nothing.
    """
    first = publish(store, EXAMPLES, examples(1))
    second = publish(store, MODELS, model(), inputs=first.outputs)
    (one,), (two,) = first.outputs["examples"], second.outputs["model"]

    artifacts = store.artifacts_by_id([two.id, 10**6, one.id, two.id, 1 << 63])
    executions = store.executions_by_id([second.id, 10**6, first.id, second.id, 1 << 63])

    assert [told(a) for a in artifacts] == [told(one), told(two)]
    assert executions == [replace(first, inputs={}, outputs={}), replace(second, inputs={}, outputs={})]
    assert store.artifacts_by_id([]) == []
    assert store.executions_by_id([]) == []


def test_of_no_ids_nothing_is_read(store):
    """As where nothing was published."""
    assert store.artifacts_by_id([]) == store.executions_by_id([]) == store.links() == []


def test_more_ids_than_a_question_may_have_are_asked_for_in_several(store):
    """Two and a half thousand artifacts of one execution come back whole."""
    made = publish(store, EXAMPLES, *(examples(n) for n in range(2500)))
    ids = [a.id for a in made.outputs["examples"]]

    assert [a.id for a in store.artifacts_by_id(ids)] == ids
    assert {link.artifact for link in store.links(artifacts=ids)} == set(ids)


def test_who_opens_the_store_later_finds_it_all(place):
    """A store that is opened anew has the records of the one before, and goes on counting."""
    before = place.open()
    made = publish(before, MODELS, model(), key="abc", claims=[Claim("blessed", "m")])
    publish_one(before, EXAMPLES, examples(7))
    before.close()

    after = place.open()

    assert told(after.execution(made.id)) == told(made)
    assert told(after.find_cached("abc")) == told(made)
    assert after.find_claim("blessed", "m") is not None
    assert list(after.spans(EXAMPLES)) == [7]
    assert publish_one(after, MODELS, model()).name == "flights/Trainer/model/2"
    assert after.begin_run(Run(pipeline="flights")).number == 4


def test_two_open_stores_count_on_from_each_other(place):
    """What one store has numbered, another that is open at the same time does not number again."""
    one, other = place.open(), place.open()

    names = [publish_one(s, MODELS, model()).name for s in (one, other, other, one)]

    assert names == [f"flights/Trainer/model/{n}" for n in (1, 2, 3, 4)]
    assert [r.number for r in one.runs("flights")] == [4, 3, 2, 1]
