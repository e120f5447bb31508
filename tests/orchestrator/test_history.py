"""Histories: what was published on a channel, as one run may see it."""

from datetime import timedelta

import pytest

from spanwise.orchestrator.history import version_key
from tests.published import Published


@pytest.fixture
def past():
    return Published()


def names(artifacts):
    return [artifact.name for artifact in artifacts]


def test_spans_come_highest_first(past):
    """Each span once, whatever the order in which they were published."""
    for span in (3, 1, 7, 3):
        past.span(span)

    assert list(past.history(past.examples).spans()) == [7, 3, 1]


def test_spans_below_a_limit(past):
    """A window asks for what lies below its newest span."""
    for span in (1, 2, 3):
        past.span(span)

    assert list(past.history(past.examples).spans(below=3)) == [2, 1]


def test_the_newest_version_of_a_span(past):
    """The highest version counts, not the latest to be published; of one published twice, the later."""
    past.span(1, version=2)
    again = past.span(1, version=3)
    past.span(1, version=1)
    same = past.span(1, version=3)

    assert past.history(past.examples).newest_version(1).id == same.id != again.id


def test_a_version_comes_before_none(past):
    """A span that has a version is newer than one without."""
    with_version, without = past.span(1, version=0), past.span(1)

    assert version_key(with_version) > version_key(without)
    assert past.history(past.examples).newest_version(1).id == with_version.id


def test_what_was_never_published_is_none(past):
    """An empty history answers, and finds nothing."""
    history = past.history(past.examples)

    assert history.newest_version(1) is None
    assert history.latest() is None
    assert list(history.spans()) == []


def test_models_come_newest_first(past):
    """Artifacts without a span are ordered by their publication."""
    made = [past.a_model() for _ in range(3)]

    assert names(past.history(past.model).newest()) == names(reversed(made))


def test_the_model_of_this_very_run_is_not_the_latest(past):
    """Law 8: what this run has made is left out."""
    old, mine = past.a_model(), past.a_model()
    history = past.history(past.model, mine=[mine])

    assert history.latest().name == old.name


def test_blessed_ones_alone(past):
    """Blessed models, newest first."""
    past.a_model(blessed=True)
    second = past.a_model(blessed=True)
    past.a_model(blessed=False)

    assert names(past.history(past.model).blessed())[0] == second.name


def test_nothing_later_is_seen(past):
    """With `as_of`, what was published afterwards does not exist: spans, versions, models."""
    past.span(1, version=1)
    model = past.a_model()
    then = past.now
    past.span(1, version=2)
    past.span(2)
    past.a_model()
    examples, models = past.history(past.examples, as_of=then), past.history(past.model, as_of=then)

    assert list(examples.spans()) == [1]
    assert examples.newest_version(1).version == 1
    assert names(models.newest()) == [model.name]


def test_a_blessing_given_later_is_not_seen(past):
    """A model that was blessed afterwards was not blessed then."""
    past.a_model(blessed=True)
    before_the_blessing = past.now - timedelta(seconds=30)

    assert list(past.history(past.model, as_of=before_the_blessing).blessed()) == []
    assert len(list(past.history(past.model, as_of=past.now).blessed())) == 1


def test_artifacts_are_read_as_their_channels_kind(past):
    """A resolver gets Examples, with the properties that Examples declare."""
    past.span(4, version=2)

    assert past.history(past.examples).latest().span == 4
