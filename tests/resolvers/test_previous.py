"""Which span is the one before."""

import pytest

from spanwise.orchestrator import Examples, PipelineError, past
from spanwise.resolvers import Previous


def test_the_previous_span_is_the_one_below_this_runs_own(published):
    """A run of span 8 reads span 7, at its newest version."""
    published.span(7, 1)
    published.span(7, 2)
    mine = published.span(8, 1)

    (found,) = Previous(published.examples).resolve(published.history(published.examples, mine=[mine]))

    assert (found.span, found.version) == (7, 2)


def test_a_backfilled_span_has_the_span_before_it_not_the_newest(published):
    """A backfill of span 5 is compared with span 4, although 9 is there."""
    for span in (3, 4, 9):
        published.span(span, 1)
    mine = published.span(5, 2)

    (found,) = Previous(published.examples).resolve(published.history(published.examples, mine=[mine]))

    assert found.span == 4


def test_a_new_version_of_a_span_is_not_compared_with_the_old_one(published):
    """The previous span is another span."""
    published.span(4, 1)
    published.span(5, 1)
    mine = published.span(5, 2)

    (found,) = Previous(published.examples).resolve(published.history(published.examples, mine=[mine]))

    assert found.span == 4


def test_the_first_span_has_no_previous(published):
    """Before the first span there is nothing, and that is an answer."""
    mine = published.span(5, 1)

    assert Previous(published.examples).resolve(published.history(published.examples, mine=[mine])) == ()


def test_previous_needs_the_channel_of_this_run():
    """A channel of the past makes no span in this run to go by, which is refused when the pipeline is built."""
    with pytest.raises(PipelineError, match="own channel"):
        Previous(past("ExampleGen", "examples", Examples))


def test_several_previous_spans_come_oldest_first(published):
    """The `n` highest below this run's own, fewer if fewer exist."""
    for span in (2, 3, 5, 9):
        published.span(span, 1)
    mine = published.span(8, 1)
    history = published.history(published.examples, mine=[mine])

    assert [a.span for a in Previous(published.examples, n=2).resolve(history)] == [3, 5]
    assert [a.span for a in Previous(published.examples, n=9).resolve(history)] == [2, 3, 5]
