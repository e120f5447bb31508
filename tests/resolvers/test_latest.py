"""Which artifact is the latest, the champion, or the named one."""

from dataclasses import replace
from datetime import timedelta

import pytest

from spanwise.orchestrator import Model, ParameterError, ResolutionError, WindowIncomplete, past
from spanwise.orchestrator.verdict import Verdict, append_personal
from spanwise.resolvers import Fixed, Latest, LatestBlessed


def test_latest_is_never_what_this_run_made(published):
    """The latest model of a run is the newest of an earlier one (law 8)."""
    older = published.a_model()
    mine = published.a_model()

    (found,) = Latest(published.model).resolve(published.history(published.model, mine=[mine]))

    assert found.name == older.name


def test_latest_passes_over_a_model_whose_blessing_a_person_took_back(published):
    """None is started from it or compared with it again; what an Evaluator says does not count."""
    older, newest = published.a_model(blessed=False), published.a_model(blessed=True)
    latest, history = Latest(published.model), published.history(published.model)
    append_personal(published.store, said(newest, given=False), newest)

    assert [a.name for a in latest.resolve(history)] == [older.name]
    assert [a.name for a in Latest(published.model, n=2).resolve(history)] == [older.name]

    append_personal(published.store, said(newest, given=True), newest)
    assert [a.name for a in latest.resolve(history)] == [newest.name]


def said(model, *, given):
    return Verdict(mark="blessed", artifact=model.name, given=given, by="ann@host", because="wrong for refunds")


def test_a_replay_does_not_know_that_a_blessing_was_taken_back_later(published):
    """It sees what was said by its time."""
    model = published.a_model()
    then = published.now
    published.now += timedelta(minutes=1)
    append_personal(published.store, said(model, given=False), model)

    (found,) = Latest(published.model).resolve(published.history(published.model, as_of=then))

    assert found.name == model.name


def test_latest_span_is_the_highest_not_the_last_published(published):
    """Of spans the latest has the highest id (RFC, Span and Version)."""
    published.span(7, 1)
    published.span(3, 1)

    (found,) = Latest(published.examples).resolve(published.history(published.examples))

    assert found.span == 7


def test_latest_is_never_a_span_that_this_run_made(published):
    """Nor an older version of it; what a base run supplies, and nobody compares with the choice, it may be."""
    published.span(3, 1)
    published.span(7, 1)
    mine = published.span(7, 2)
    history = published.history(published.examples, mine=[mine])

    assert [a.span for a in Latest(published.examples).resolve(history)] == [3]
    assert [a.span for a in Latest(published.examples, n=2).resolve(history)] == [3]
    supplied = replace(history, supplied=True, compared=False)
    assert [(a.span, a.version) for a in Latest(published.examples).resolve(supplied)] == [(7, 2)]


def test_the_champion_is_the_newest_blessed_model(published):
    """Models without a blessing, or refused one, are passed over."""
    published.a_model(blessed=True)
    champion = published.a_model(blessed=True)
    published.a_model(blessed=False)
    published.a_model()

    (found,) = LatestBlessed(published.model).resolve(published.history(published.model))

    assert found.name == champion.name


def test_no_champion_is_no_error(published):
    """Before anything is blessed there is nothing to compare with, and that is an answer."""
    published.a_model(blessed=False)

    assert LatestBlessed(published.model).resolve(published.history(published.model)) == ()


def test_a_blessing_given_later_is_not_seen_as_of_before(published):
    """With as_of, a model blessed later was not yet a champion."""
    published.a_model()
    then = published.now + timedelta(seconds=1)
    published.a_model(blessed=True)

    assert LatestBlessed(published.model).resolve(published.history(published.model, as_of=then)) == ()


def test_a_resolver_of_the_past_may_name_a_node_downstream():
    """`past` gives a channel that waits for nothing of this run."""
    assert Latest(past("Trainer", "model", Model)).source.producer is None


def test_fixed_reads_the_named_spans(published):
    """`Fixed` reads the newest versions of its range, whatever has come since."""
    for span, version in ((1, 1), (2, 1), (2, 2), (3, 1)):
        published.span(span, version)

    found = Fixed(published.examples, first=1, last=2).resolve(published.history(published.examples))

    assert [(a.span, a.version) for a in found] == [(1, 1), (2, 2)]


def test_fixed_refuses_a_range_with_gaps(published):
    """A named span that was never published is named in the error."""
    published.span(1)

    with pytest.raises(WindowIncomplete, match="missing: 2"):
        Fixed(published.examples, first=1, last=2).resolve(published.history(published.examples))


def test_fixed_refuses_an_artifact_of_another_channel(published):
    """An artifact is chosen from the channel that the pipeline names, and no other."""
    model = published.a_model()

    with pytest.raises(ResolutionError, match="which is not on"):
        Fixed(published.examples, artifact=model.name).resolve(published.history(published.examples))


def test_fixed_wants_one_of_two(published):
    """Neither spans nor an artifact, or both, is refused."""
    with pytest.raises(ParameterError, match="takes either"):
        Fixed(published.examples)
