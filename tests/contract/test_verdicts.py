"""Verdicts on every store: an append-only log per artifact, in which each judge's newest counts, and a person's most."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.errors import StoreError
from spanwise.orchestrator.store import AlreadyClaimed, Claim
from spanwise.orchestrator.verdict import (
    Verdict,
    append,
    find_standing,
    is_given,
    read_verdicts,
    write_with,
)
from tests.contract import racers
from tests.contract.records import EXAMPLES, begin, examples, publish_one

shared_store = settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], derandomize=True
)


def accepted(artifact, judge="Gate", *, run=1, because="", mark="accepted"):
    return Verdict(mark=mark, artifact=artifact, given=True, judge=judge, by=f"flights/{run}", because=because)


def refused(artifact, judge="Gate", *, run=1, because="too small"):
    return replace(accepted(artifact, judge, run=run), given=False, because=because)


def by_person(artifact, *, given, who="ann@host"):
    return Verdict(mark="accepted", artifact=artifact, given=given, by=who, because="I looked")


def named(name):
    return Artifact("", name=name)


def test_what_nobody_judged_has_no_mark(store):
    """No verdict is not a verdict: the mark is not given, and nobody refuses it."""
    standing = find_standing(store, "accepted", named("a"))

    assert not standing.holds()
    assert standing.refusal() is None
    assert read_verdicts(store, "accepted", "a") == []


def test_a_verdict_comes_back_as_it_was_given(store, clock):
    """Who, in which run, because of what, and when."""
    told = refused("flights/ExampleGen/examples/1/1", run=7, because="1 anomaly:\n  error: tip is missing")

    append(store, [told])

    assert read_verdicts(store, "accepted", told.artifact) == [replace(told, created=clock.now)]


def test_the_newest_verdict_of_a_judge_counts(store):
    """A gate may change its mind when its rule changes, and back."""
    for verdict in (refused("a", run=1), accepted("a", run=2), refused("a", run=3)):
        append(store, [verdict])

    assert find_standing(store, "accepted", named("a")).refusal().by == "flights/3"
    assert len(read_verdicts(store, "accepted", "a")) == 3


def test_a_verdict_that_changes_nothing_is_not_recorded(store):
    """A gate that passes the same span every day does not lengthen its log."""
    for run in range(1, 5):
        append(store, [accepted("a", run=run)])

    assert [v.by for v in read_verdicts(store, "accepted", "a")] == ["flights/1"]


def test_every_judge_must_agree(store):
    """One gate of two that refuses is enough; one that has not judged yet, too."""
    append(store, [accepted("a", "Rows"), refused("a", "Drift"), accepted("b", "Rows")])

    assert not is_given(store, "accepted", named("a"))
    assert find_standing(store, "accepted", named("b")).holds(["Rows"])
    assert not find_standing(store, "accepted", named("b")).holds(["Rows", "Drift"])


def test_a_person_overrules_all_judges(store):
    """A person's verdict holds whatever gates said before, or say later; only a person changes it."""
    append(store, [refused("a", "Rows"), refused("a", "Drift")])
    append(store, [by_person("a", given=True)])
    append(store, [refused("a", "Rows", run=9)])

    assert find_standing(store, "accepted", named("a")).holds(["Rows", "Drift"])
    assert len(read_verdicts(store, "accepted", "a")) == 3
    append(store, [by_person("a", given=False, who="ben@host")])
    assert str(find_standing(store, "accepted", named("a")).refusal()) == "refused by ben@host: I looked"


def test_a_verdict_says_who_and_why_in_one_line(store):
    """The first line of a long reason, as in messages."""
    text = str(refused("a", "AnomalyGate", run=12, because="1 anomaly of severity error:\n  error: tip\n"))

    assert text == "refused by AnomalyGate in run 12: 1 anomaly of severity error"


def test_marks_have_logs_of_their_own(store):
    """An artifact that is blessed is not thereby accepted."""
    append(store, [accepted("a", mark="blessed")])

    assert is_given(store, "blessed", named("a"))
    assert not is_given(store, "accepted", named("a"))


def test_as_of_reads_what_was_written_by_then(store, clock):
    """A verdict given or taken back later does not reach into the past."""
    before = clock.now
    append(store, [accepted("a")])
    accepted_at = clock.now
    clock.forward(hours=1)
    append(store, [by_person("a", given=False)])

    assert not is_given(store, "accepted", named("a"), as_of=before - timedelta(seconds=1))
    assert is_given(store, "accepted", named("a"), as_of=accepted_at)
    assert not is_given(store, "accepted", named("a"), as_of=clock.now)


def test_a_verdict_rides_in_the_transaction_of_a_publication(store):
    """A publication that fails records no verdict, and one that lands records it."""
    artifact = publish_one(store, EXAMPLES, examples(1))
    begun = begin(store, "Gate")
    store.claim(Claim("journal", "taken"))
    ended = replace(begun, state=begun.state.COMPLETE, outputs={"examples": (artifact,)})

    def publish(*claims):
        return write_with(store, [accepted(artifact.name)], lambda more: store.publish(ended, *claims, *more))

    with pytest.raises(AlreadyClaimed):
        publish(Claim("journal", "taken"))
    assert read_verdicts(store, "accepted", artifact.name) == []
    publish(Claim("journal", "free"))
    assert is_given(store, "accepted", artifact)


def test_several_verdicts_on_one_artifact_are_recorded_together(store):
    """Each takes a place of its own, in the order given."""
    append(store, [refused("a", "Rows"), accepted("a", "Drift"), accepted("b", "Rows")])

    assert [v.judge for v in read_verdicts(store, "accepted", "a")] == ["Rows", "Drift"]
    assert [v.judge for v in read_verdicts(store, "accepted", "b")] == ["Rows"]


def test_another_writer_takes_the_place_first(store):
    """The verdict then takes the next place, and both are there."""
    done = []

    def write(claims):
        if not done:
            done.append(store.claim(Claim("accepted", "a#1", dict(claims[0].facts) | {"judge": "Faster"})))
        return store.claim(*claims)

    write_with(store, [accepted("a")], write)

    assert [v.judge for v in read_verdicts(store, "accepted", "a")] == ["Faster", "Gate"]


def test_what_is_no_verdict_is_an_error(store):
    """Something else that was written at a place of the log is named, not skipped."""
    store.claim(Claim("accepted", "a#1", {"given": "perhaps"}))

    with pytest.raises(StoreError, match="'a#1'"):
        find_standing(store, "accepted", named("a"))


@pytest.mark.slow
def test_racing_writers_lose_no_verdict(real):
    """Four processes judge the same artifact: every verdict has a place, and none is written over."""
    racers.race(4, racers.judge_each, real.url, 10)

    found = read_verdicts(real.open(), "accepted", "a")

    assert sorted(v.because for v in found) == sorted(f"{n}" for n in range(10) for _ in range(4))


steps = st.lists(st.tuples(st.sampled_from(["", "Rows", "Drift"]), st.booleans()), max_size=8)


@shared_store
@given(steps=steps)
def test_the_standing_is_that_of_a_model_in_five_lines(place, steps):
    """Whatever order judges and persons decide in, the standing at each moment is what the rule says."""
    store, clock = place.open(), place.clock
    artifact = named(f"law/{clock.forward(hours=1).timestamp()}")
    history = []
    for number, (judge, given_) in enumerate(steps):
        clock.forward(seconds=1)
        by = "ann@host" if not judge else f"flights/{number}"
        append(
            store,
            [Verdict(mark="accepted", artifact=artifact.name, given=given_, judge=judge, by=by, because=f"{number}")],
        )
        history.append(clock.now)

    for count, moment in enumerate(history, start=1):
        persons = [given_ for judge, given_ in steps[:count] if not judge]
        newest = dict(steps[:count])
        holds = persons[-1] if persons else all(newest.values())
        assert is_given(store, "accepted", artifact, as_of=moment) == holds
