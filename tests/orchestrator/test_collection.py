"""Retention: which artifacts are removed and why the others are kept."""

from datetime import UTC, datetime, timedelta

import pytest

from spanwise.orchestrator import Examples, Model, TransformGraph
from spanwise.orchestrator.collection import Retention, combine_reasons, find_own_reasons

NOW = datetime(2013, 3, 1, 12, tzinfo=UTC)
NOTHING = Retention(last=0, younger=timedelta(0), marked=())


def artifact(kind, id, name, *, days=60, **properties):  # noqa: A002  the field's word
    return kind(
        f"/root/{id}",
        id=id,
        name=f"flights/{name}",
        kind=kind.kind,
        created=NOW - timedelta(days=days),
        properties=properties,
    )


def model(id, **facts):  # noqa: A002
    return artifact(Model, id, f"Trainer/model/{id}", **facts)


def examples(id, span, version=1, **facts):  # noqa: A002
    return artifact(Examples, id, f"ExampleGen/examples/{span}/{id}", span=span, version=version, **facts)


def decide(artifacts, retention, *, known_reasons=None, companions=None):
    own = find_own_reasons(artifacts, retention, NOW)
    return combine_reasons(artifacts, known_reasons or {}, own, companions=companions or {})


def removed_ids(artifacts, retention, **known):
    decided = decide(artifacts, retention, **known)
    return [decision.artifact.id for decision in decided if decision.removes]


def test_what_nobody_uses_is_removed():
    """Without a reason to keep it, everything is removed."""
    assert removed_ids([model(1), examples(2, 15710)], NOTHING) == [1, 2]


def test_the_last_of_a_channel_stay():
    """So many of each channel, the newest; another channel is counted by itself."""
    other = artifact(Model, 9, "Other/model/1")

    assert removed_ids([model(1), model(2), model(3), other], Retention(last=2, younger=timedelta(0))) == [1]


def test_a_kind_may_have_a_number_of_its_own():
    """`last_of` says it for one kind."""
    retention = Retention(last=1, last_of={"Model": 2}, younger=timedelta(0))

    assert removed_ids([model(1), model(2), model(3), examples(4, 1), examples(5, 2)], retention) == [1, 4]


def test_of_spans_the_highest_stay_in_their_newest_version():
    """A backfilled old span is not among the last because it came last; a superseded version is chosen by nobody."""
    found = [examples(1, 10), examples(2, 11), examples(3, 12), examples(4, 11, version=2), examples(5, 10, version=2)]

    assert removed_ids(found, Retention(last=2, younger=timedelta(0))) == [1, 2, 5]


def test_a_later_publication_of_an_older_version_does_not_win():
    """What counts is the version, then the order of publishing, as in windows."""
    found = [examples(1, 10, version=2), examples(2, 10, version=1)]

    assert removed_ids(found, Retention(last=1, younger=timedelta(0))) == [2]


@pytest.mark.parametrize(("days", "goes"), [(29, []), (30, [1])])
def test_what_is_young_stays(days, goes):
    """Younger than the length that was set; exactly so old is old."""
    assert removed_ids([model(1, days=days)], Retention(last=0)) == goes


def test_a_reason_from_elsewhere_is_kept():
    """Who uses it, or that it was pinned, is for others to know; every reason is told."""
    (decision,) = decide([model(1)], Retention(last=1), known_reasons={1: ["pinned by me"]})

    assert decision.reasons == ("pinned by me", "among the last 1 of flights/Trainer/model")


def test_what_a_model_needs_stays_with_it_and_no_further():
    """Its transform graph and the model it started from stay; what that one started from does not."""
    graph = artifact(TransformGraph, 4, "Transform/graph/1")
    needs = {3: [4, 2], 2: [1]}

    decided = decide([model(1), model(2), model(3), graph], NOTHING, known_reasons={3: ["pushed"]}, companions=needs)

    assert [decision.reasons for decision in decided] == [
        (),
        ("belongs to flights/Trainer/model/3",),
        ("pushed",),
        ("belongs to flights/Trainer/model/3",),
    ]


def test_a_companion_that_is_not_there_is_passed_over():
    """It was collected before, or never lay here."""
    assert removed_ids([model(1)], NOTHING, known_reasons={1: ["pushed"]}, companions={1: [77]}) == []
