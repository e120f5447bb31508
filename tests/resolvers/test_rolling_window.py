"""Which spans a window holds."""

from datetime import timedelta

import pytest

from spanwise.orchestrator import ParameterError, WindowIncomplete
from spanwise.resolvers import LatestSpans, RollingWindow


def chosen(resolver, history):
    return [f"{a.span}v{a.version}" for a in resolver.resolve(history)]


def test_backfill_keeps_the_latest_window(published):
    """Backfilling span 5 on day 6 chooses spans 4 to 6, with the new version of 5 (RFC, Version Handling)."""
    for span in (3, 4, 5, 6):
        published.span(span, 1)
    published.span(5, 2)

    window = chosen(RollingWindow(published.examples, size=3), published.history(published.examples))

    assert window == ["4v1", "5v2", "6v1"]


def test_the_larger_version_wins_over_the_later_published(published):
    """A newer version is one with a larger number, whenever it was published (RFC, Span and Version)."""
    published.span(1, 10)
    published.span(1, 9)

    assert chosen(RollingWindow(published.examples, size=1), published.history(published.examples)) == ["1v10"]


def test_the_same_version_published_again_is_read_once(published):
    """Of one version published twice the later counts, and only that."""
    published.span(1, 1)
    again = published.span(1, 1)

    (only,) = RollingWindow(published.examples, size=1).resolve(published.history(published.examples))

    assert only.name == again.name


def test_a_gap_is_an_error_that_names_it_and_mends_it(published):
    """A window with a gap refuses, naming the missing spans and the command that ingests the first."""
    for span in (1, 2, 5):
        published.span(span)

    with pytest.raises(WindowIncomplete) as refused:
        RollingWindow(published.examples, size=4).resolve(published.history(published.examples))

    assert "missing: 3, 4" in str(refused.value)
    assert "spanwise run taxi.py --span 3 --to Ingest" in str(refused.value)


def test_a_tolerated_gap_is_left_out(published):
    """`missing=k` lets up to k spans be absent; no older span slips in for them."""
    for span in (1, 2, 5):
        published.span(span)

    window = chosen(RollingWindow(published.examples, size=4, missing=2), published.history(published.examples))

    assert window == ["2vNone", "5vNone"]


def test_the_first_days_have_shorter_windows(published):
    """Spans before `since` are not wanted, so a pipeline can start with one span."""
    published.span(10)

    window = chosen(RollingWindow(published.examples, size=7, since=10), published.history(published.examples))

    assert window == ["10vNone"]


def test_without_since_the_first_day_says_how_to_start(published):
    """The message on the first day offers `since`."""
    published.span(10)

    with pytest.raises(WindowIncomplete, match="since='10'"):
        RollingWindow(published.examples, size=3).resolve(published.history(published.examples))


def test_a_window_of_the_past_sees_what_was_published_then(published):
    """With as_of, neither later spans nor later versions exist."""
    published.span(1, 1)
    published.span(2, 1)
    then = published.now + timedelta(seconds=1)
    published.span(2, 2)
    published.span(3, 1)

    window = chosen(RollingWindow(published.examples, size=2), published.history(published.examples, as_of=then))

    assert window == ["1v1", "2v1"]


def test_a_window_can_end_at_a_named_span(published):
    """`at` has the window end there, whatever is newer."""
    for span in range(1, 7):
        published.span(span)

    window = chosen(RollingWindow(published.examples, size=2, at=4), published.history(published.examples))

    assert window == ["3vNone", "4vNone"]


def test_weekly_spans_step_by_seven(published):
    """`step` says how ids advance."""
    for span in (1, 8, 15):
        published.span(span)

    window = chosen(RollingWindow(published.examples, size=3, step=7), published.history(published.examples))

    assert window == ["1vNone", "8vNone", "15vNone"]


def test_latest_spans_passes_over_gaps(published):
    """`LatestSpans` takes the highest spans that exist, oldest first."""
    for span in (9, 1, 4):
        published.span(span)

    assert chosen(LatestSpans(published.examples, n=2), published.history(published.examples)) == ["4vNone", "9vNone"]


def test_explain_shows_what_is_superseded_and_missing(published):
    """`explain` tells of each span what was chosen, what that replaces, and what is not there."""
    published.span(4, 1)
    published.span(6, 1)
    published.span(6, 2)

    told = RollingWindow(published.examples, size=3).explain(published.history(published.examples))

    assert [(t.span, t.chosen and t.chosen.version, [s.version for s in t.superseded]) for t in told] == [
        (4, 1, []),
        (5, None, []),
        (6, 2, [1]),
    ]


@pytest.mark.parametrize("wrong", [{"size": 0}, {"size": 1, "step": 0}, {"size": 1, "missing": -1}])
def test_senseless_numbers_are_refused(published, wrong):
    """A size or step below 1, or a negative allowance, is refused when the pipeline is built."""
    with pytest.raises(ParameterError, match="must be at least"):
        RollingWindow(published.examples, **wrong)
