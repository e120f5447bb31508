"""Renewals: a reused artifact is current again, in the order of its place."""

from datetime import timedelta

import pytest

from spanwise.orchestrator.renewal import current_of_span, current_of_spans, current_without_span, renewals_of
from spanwise.orchestrator.store import Address
from tests.published import Published

MODELS, SPANS = Address("taxi", "Train", "model"), Address("taxi", "Ingest", "examples")


@pytest.fixture
def past():
    return Published()


def reuse(past, *artifacts):
    past.now += timedelta(minutes=1)
    claims = renewals_of(past.store, artifacts)
    past.store.claim(*claims)
    return claims


def numbers(artifacts):
    return [artifact.name.rpartition("/")[2] for artifact in artifacts]


def test_without_a_reuse_the_order_is_that_of_publication(past):
    """Models come newest first, the artifacts of a span newest last."""
    for _ in range(3):
        past.a_model(), past.span(7)

    assert numbers(current_without_span(past.store, MODELS)) == ["3", "2", "1"]
    assert numbers(current_of_span(past.store, SPANS, 7)) == ["1", "2", "3"]


def test_what_is_current_is_not_renewed(past):
    """Reusing the newest artifact, day after day, writes nothing."""
    past.a_model()

    assert renewals_of(past.store, [past.a_model()]) == []


def test_a_reused_artifact_is_current_and_stands_once(past):
    """Each artifact has one place in the order: that of its last publication or reuse."""
    first, second, _ = (past.a_model() for _ in range(3))
    reuse(past, first), reuse(past, second), reuse(past, first)

    assert numbers(current_without_span(past.store, MODELS)) == ["1", "2", "3"]


def test_a_publication_after_a_reuse_is_current(past):
    """The order mixes both."""
    first, _ = past.a_model(), past.a_model()
    reuse(past, first)
    past.a_model()

    assert numbers(current_without_span(past.store, MODELS)) == ["3", "1", "2"]


def test_places_are_renewed_by_themselves(past):
    """A reuse in one span changes nothing in another."""
    old, _, _, _ = past.span(1), past.span(1), past.span(2), past.span(2)
    reuse(past, old)

    assert numbers(current_of_span(past.store, SPANS, 1)) == ["2", "1"]
    assert numbers(current_of_span(past.store, SPANS, 2)) == ["1", "2"]


def test_several_artifacts_of_one_output_are_renewed_together(past):
    """A node with two outputs at one place gives them in the same order again."""
    pair = past.a_model(), past.a_model()
    past.a_model()

    assert len(reuse(past, *pair)) == 2
    assert numbers(current_without_span(past.store, MODELS)) == ["2", "1", "3"]
    assert reuse(past, *pair) == []


def test_a_later_reuse_does_not_count_in_the_past(past):
    """As of a moment, the order is what it was then."""
    first, _ = past.a_model(), past.a_model()
    then = past.now
    reuse(past, first)

    assert numbers(current_without_span(past.store, MODELS, as_of=then)) == ["2", "1"]
    assert numbers(current_without_span(past.store, MODELS, as_of=past.now)) == ["1", "2"]


def test_many_places_are_asked_about_at_once(past, monkeypatch):
    """Of spans that were published twice, only those with renewals are asked about one by one."""
    renewed, *_ = [past.span(span) for span in (1, 2, 3) for _ in range(2)]
    reuse(past, renewed)
    asked = []
    last_claim = past.store.last_claim
    monkeypatch.setattr(past.store, "last_claim", lambda *place: asked.append(place) or last_claim(*place))

    found = current_of_spans(past.store, SPANS, [1, 2, 3])

    assert {span: numbers(artifacts) for span, artifacts in found.items()} == {
        1: ["2", "1"],
        2: ["1", "2"],
        3: ["1", "2"],
    }
    assert asked == [("renewed", f"{SPANS}/1#")]
