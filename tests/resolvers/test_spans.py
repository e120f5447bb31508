"""Choosing among published artifacts by span, version and time."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.orchestrator.artifact import Artifact, Examples
from spanwise.orchestrator.errors import MissingProperty, ParameterError, ResolutionError
from spanwise.resolvers.spans import (
    all_spans,
    at_least,
    by_creation,
    consecutive_spans,
    enough,
    exclude_spans,
    latest_created,
    latest_spans,
    latest_version,
    newest_per_span,
    paired_spans,
    sliding_windows,
    static_span_range,
    unnest,
    window,
)

NOON = datetime(2013, 1, 5, 12, tzinfo=UTC)


def examples(span, version=None, *, id=1, minute=0):  # noqa: A002  the field of an artifact
    created = NOON + timedelta(minutes=minute)
    return Examples("", id=id, created=created, properties={"span": span, "version": version, "split_names": []})


def published(*spans_and_versions):
    """Artifacts with ids from 1 on, in the order given."""
    return [examples(span, version, id=i) for i, (span, version) in enumerate(spans_and_versions, 1)]


def ids(found):
    return [artifact.id for artifact in found]


GAPPED = published((1, 0), (2, 0), (3, 1), (3, 0), (7, 1), (8, 2))


def test_all_spans_are_the_newest_version_of_each():
    """A span that was ingested twice is read once, in ascending order of spans."""
    assert ids(all_spans(reversed(GAPPED))) == [1, 2, 3, 5, 6]


def test_all_versions_are_kept_when_asked_for():
    """Older versions come before newer ones."""
    assert ids(all_spans(GAPPED, all_versions=True)) == [1, 2, 4, 3, 5, 6]


def test_the_newest_of_equal_versions_was_published_last():
    """Ingesting the same version again replaces it; the higher id decides when the times are equal."""
    again = [examples(1, 1, id=3, minute=5), examples(1, 1, id=2, minute=9), examples(1, 1, id=1, minute=9)]

    assert ids(newest_per_span(again)) == [2]


def test_no_version_is_older_than_any():
    """When a pattern gets a {VERSION} later on, the first version replaces what had none."""
    assert ids(newest_per_span(published((1, 0), (1, None)))) == [1]


def test_another_order_may_say_what_is_newest():
    """By creation, a version that was published later wins over a higher one."""
    editions = [examples(1, 3, id=1, minute=1), examples(1, 2, id=2, minute=2)]

    assert ids(latest_spans(editions, order=by_creation)) == [2]


@pytest.mark.parametrize(
    ("n", "options", "found"),
    [
        (1, {}, [6]),
        (2, {}, [5, 6]),
        (None, {}, [1, 2, 3, 5, 6]),
        (1, {"skip": 1}, [5]),
        (2, {"skip": 2, "all_versions": True}, [2, 4, 3]),
        (1, {"skip": 5}, []),
        (1, {"skip": 6}, []),
        (3, {"since": 7}, [5, 6]),
        (1, {"since": 9}, []),
    ],
)
def test_latest_spans_count_those_that_exist(n, options, found):
    """Gaps do not count, and the newest may be left to settle."""
    assert ids(latest_spans(GAPPED, n, **options)) == found


@pytest.mark.parametrize(
    ("start", "end", "found"), [(None, None, [1, 2, 3, 5, 6]), (2, 7, [2, 3, 5]), (4, None, [5, 6])]
)
def test_a_static_range_includes_its_ends(start, end, found):
    """An end that is None is open."""
    assert ids(static_span_range(GAPPED, start, end)) == found


def test_spans_before_1970_are_in_an_open_range():
    """A negative span is a span like any other."""
    assert ids(static_span_range(published((-2, 0), (-1, 0)), None, -2)) == [1]


@pytest.mark.parametrize(
    ("first", "options", "found"),
    [
        (None, {}, [1, 2, 3]),
        (2, {}, [2, 3]),
        (4, {}, []),
        (0, {}, []),
        (None, {"skip": 6}, [1, 2]),
        (1, {"exclude": [1, 3]}, [2]),
        (1, {"exclude": [1, 2]}, [3]),
        (None, {"all_versions": True}, [1, 2, 4, 3]),
    ],
)
def test_consecutive_spans_end_at_the_first_gap(first, options, found):
    """An excluded start moves the start up; a later exclusion is a gap."""
    assert ids(consecutive_spans(GAPPED, first, **options)) == found


def test_excluded_spans_are_left_out():
    """What remains keeps its order."""
    assert ids(exclude_spans(GAPPED, {3, 8})) == [1, 2, 5]


def test_too_few_spans_are_refused():
    """Versions of one span count once, and the message names the spans that are there."""
    assert at_least(GAPPED, 5) is GAPPED
    with pytest.raises(ResolutionError, match="6 spans are needed, but 5 exist: 1, 2, 3, 7, 8"):
        at_least(GAPPED, 6)


def test_too_few_things_are_refused():
    """Nothing is not enough, unless nothing is needed."""
    assert enough([], 0) == []
    with pytest.raises(ResolutionError, match="1 are needed, but 0 exist"):
        enough([])


def test_the_latest_versions_go_by_span_first():
    """A higher version of an older span is older."""
    assert ids(latest_version(published((1, 9), (2, 1), (2, 0)), 2)) == [3, 2]


def test_versions_of_things_without_spans_are_compared():
    """A kind that has versions and no spans goes by version."""

    class Dictionary(Artifact):
        version: int

    found = [Dictionary("", id=1, properties={"version": 2}), Dictionary("", id=2, properties={"version": 1})]

    assert ids(latest_version(found)) == [1]


def test_what_was_created_last_comes_last():
    """Of equal times the higher id is later."""
    assert ids(
        latest_created([examples(1, id=3, minute=1), examples(2, id=1, minute=2), examples(3, id=2, minute=2)], 2)
    ) == [1, 2]


@pytest.mark.parametrize(
    ("size", "stride", "found"),
    [(2, 1, [(1, 2), (2, 3), (3, 4)]), (2, 2, [(1, 2), (3, 4)]), (3, 2, [(1, 2, 3)]), (5, 1, [])],
)
def test_sliding_windows_are_full(size, stride, found):
    """A tail that does not fill a window is left out."""
    assert list(sliding_windows([1, 2, 3, 4], size, stride=stride)) == found


def test_pairs_are_spans_that_every_channel_has():
    """Each side brings its newest version, and the versions must be equal."""
    a = published((0, 0), (1, 0), (2, 0))
    b = published((0, 0), (1, 1), (1, 0))

    assert [(ids([p["a"]]), ids([p["b"]])) for p in paired_spans({"a": a, "b": b})] == [([1], [1])]
    assert len(paired_spans({"a": a, "b": b}, match_version=False)) == 2
    assert len(paired_spans({"a": a, "b": b}, all_versions=True)) == 2


def test_one_channel_has_no_pairs():
    """Nothing is paired with itself."""
    assert paired_spans({"a": GAPPED}) == ()


def test_unnesting_repeats_the_other_channels():
    """There is one set of inputs for each artifact of the chosen channel."""
    assert unnest({"x": [1, 2], "y": [3, 4]}, "x") == ({"x": (1,), "y": (3, 4)}, {"x": (2,), "y": (3, 4)})
    with pytest.raises(ParameterError, match="no channel 'z'; known ones: x"):
        unnest({"x": [1]}, "z")


@pytest.mark.parametrize(
    "call",
    [
        lambda: latest_spans(GAPPED, 0),
        lambda: latest_spans(GAPPED, skip=-1),
        lambda: consecutive_spans(GAPPED, skip=-1),
        lambda: latest_version(GAPPED, 0),
        lambda: latest_created(GAPPED, 0),
        lambda: sliding_windows(GAPPED, 0),
        lambda: sliding_windows(GAPPED, stride=0),
        lambda: window([1], 0),
        lambda: window([1], 1, step=0),
        lambda: paired_spans({}, match_version=False, all_versions=True),
    ],
)
def test_a_parameter_that_means_nothing_is_refused(call):
    """Counts are positive, skips are not negative, and versions are not paired by span alone."""
    with pytest.raises(ParameterError):
        call()


@pytest.mark.parametrize(
    "choose",
    [all_spans, newest_per_span, latest_spans, static_span_range, consecutive_spans, latest_version, latest_created],
)
def test_nothing_in_gives_nothing_out(choose):
    """Whether nothing is too little is said by `at_least` and `enough`, not in passing."""
    assert choose([]) == ()


def test_an_artifact_without_its_span_is_no_span_0():
    """A property that was never set is an error, not a zero."""
    with pytest.raises(MissingProperty):
        latest_spans([Examples("", id=1)])


def test_a_window_ends_at_the_newest_span():
    """A gap is missing; no older span slips in for it."""
    found = window([1, 2, 4, 6], 4)

    assert (found.wanted, found.present, found.missing) == ((3, 4, 5, 6), (4, 6), (3, 5))


def test_a_window_may_end_at_a_named_span():
    """A named end counts also when it is not there."""
    assert window([1, 2, 9], 2, end=3) == window([1, 2], 2, end=3)
    assert window([1, 2, 9], 2, end=3).missing == (3,)


def test_a_window_does_not_reach_before_history():
    """The first days of a pipeline want fewer spans, none of them missing."""
    assert window([5, 6], 7, since=5).wanted == (5, 6)


def test_a_window_counts_in_steps():
    """Spans named by every seventh day are neighbours; `since` may fall between them."""
    assert window([1, 8, 15, 22], 9, since=2, step=7).wanted == (8, 15, 22)


def test_a_backfilled_span_leaves_the_window_where_it_is():
    """On day 6, after a backfill of day 5, the window of three is days 4 to 6 (RFC, backfill)."""
    assert window([4, 6, 5, 5], 3).present == (4, 5, 6)


@pytest.mark.parametrize(("spans", "since"), [([], None), ([3], 4)])
def test_a_window_of_nothing_is_refused(spans, since):
    """There is no newest span, or it is before history begins."""
    with pytest.raises(ResolutionError):
        window(spans, 3, since=since)


@given(
    spans=st.sets(st.integers(-50, 50), min_size=1),
    size=st.integers(1, 20),
    step=st.integers(1, 5),
    since=st.none() | st.integers(-60, 40),
)
def test_a_window_is_made_of_what_is_present_and_what_is_missing(spans, size, step, since):
    """Every wanted span is one or the other, at most `size` of them, evenly spaced, the newest last."""
    if since is not None and since > max(spans):
        since = max(spans)

    found = window(spans, size, since=since, step=step)

    assert sorted({*found.present, *found.missing}) == list(found.wanted)
    assert len(found.present) + len(found.missing) == len(found.wanted) <= size
    assert found.wanted[-1] == max(spans)
    assert set(found.present) <= spans
    assert spans.isdisjoint(found.missing)
    assert all(later - earlier == step for earlier, later in zip(found.wanted, found.wanted[1:], strict=False))
    assert since is None or found.wanted[0] >= since
    assert since is not None or len(found.wanted) == size
