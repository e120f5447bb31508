"""Which spans a window holds."""

from datetime import timedelta

import pytest

from spanwise.orchestrator import ParameterError, WindowIncomplete
from spanwise.resolvers import Fixed, LatestSpans, RollingWindow


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


def test_a_gap_is_an_error_that_names_it_and_the_command_that_fills_it(published):
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


@pytest.mark.parametrize(
    ("there", "end", "since", "says"),
    [
        ((3,), None, None, "the 3 spans 1 to 3 of"),
        ((3,), None, None, "If history begins at 3, pass since='3'; if gaps"),
        ((1, 3), None, None, "\nIf gaps"),
        ((1, 2), 3, 1, "\nIf gaps"),
        ((2,), 1, 1, "RollingWindow wants the span 1 of"),
    ],
)
def test_since_is_named_where_it_would_close_the_gap(published, there, end, since, says):
    """History may begin after the first spans are missing, not before another one is."""
    for span in there:
        published.span(span)

    with pytest.raises(WindowIncomplete) as refused:
        RollingWindow(published.examples, size=3, at=end, since=since).resolve(published.history(published.examples))

    assert says in str(refused.value)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_window_of_which_nothing_is_there_offers_no_gaps(published, missing):
    """An empty window is refused whatever is allowed, so the message says only how to get its spans."""
    published.span(3)

    with pytest.raises(WindowIncomplete) as refused:
        RollingWindow(published.examples, size=2, at=2, missing=missing).resolve(published.history(published.examples))

    assert "but 2 are missing: 1, 2." in str(refused.value)
    assert "missing=" not in str(refused.value)
    assert "--exclude" not in str(refused.value)


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


@pytest.mark.parametrize(
    "wrong", [{"size": "3"}, {"size": 3.0}, {"size": 1, "missing": True}, {"size": 1, "skip": None}]
)
def test_what_is_no_whole_number_is_refused(published, wrong):
    """By the name of the parameter, when the pipeline is built."""
    (name, value) = list(wrong.items())[-1]
    with pytest.raises(ParameterError, match=rf"RollingWindow.{name} takes int, not {type(value).__name__}"):
        RollingWindow(published.examples, **wrong)


class TestExclude:
    @pytest.fixture(autouse=True)
    def spans_1_to_9(self, published):
        for span in range(1, 10):
            published.span(span)

    @pytest.mark.parametrize(
        ("exclude", "window"),
        [
            ((7,), [6, 8, 9]),
            (("7",), [6, 8, 9]),
            (("7..8",), [6, 9]),
            ((9,), [6, 7, 8]),
            ((6,), [7, 8, 9]),
            ((2,), [6, 7, 8, 9]),
            (("1..6", 8), [7, 9]),
            ((), [6, 7, 8, 9]),
        ],
    )
    def test_an_excluded_span_is_not_read_and_the_window_keeps_its_ends(self, published, exclude, window):
        """Not even the newest span moves the window when it is excluded, and no older span slips in."""
        resolver = RollingWindow(published.examples, size=4, exclude=exclude)

        assert [a.span for a in resolver.resolve(published.history(published.examples))] == window

    def test_an_excluded_span_is_not_a_gap(self, published):
        """A span that nobody published and nobody wants is missed by nobody; another gap is still an error."""
        published.span(12)
        window = RollingWindow(published.examples, size=4, exclude=(10,))
        both = RollingWindow(published.examples, size=4, exclude=("10..11",))

        with pytest.raises(WindowIncomplete, match="1 is missing: 11"):
            window.resolve(published.history(published.examples))
        assert [a.span for a in both.resolve(published.history(published.examples))] == [9, 12]

    def test_a_run_excludes_spans_besides(self, published):
        """For one run, of all windows or of the one that is named."""
        recent = RollingWindow(published.examples, size=4, exclude=(6,), name="Recent")
        history = published.history(published.examples, exclude=("7", "Recent=8", "Other=9"))

        assert [a.span for a in recent.resolve(history)] == [9]

    def test_a_window_of_excluded_spans_alone_is_refused(self, published):
        """Nothing is left to learn from; the message names what was excluded."""
        with pytest.raises(WindowIncomplete, match=r"all spans from 8 to 9 are excluded \(5\.\.9\)"):
            RollingWindow(published.examples, size=2, exclude=("5..9",)).resolve(published.history(published.examples))

    def test_latest_spans_leaves_them_out_of_the_latest(self, published):
        """As in TFX, where they are excluded after the latest were chosen; when none is left, the run fails."""
        history = published.history(published.examples)

        assert [a.span for a in LatestSpans(published.examples, n=3, exclude=("7..8",)).resolve(history)] == [9]
        with pytest.raises(WindowIncomplete, match=r"are excluded \(7\.\.9\)"):
            LatestSpans(published.examples, n=3, exclude=("7..9",)).resolve(history)

    def test_a_fixed_range_leaves_them_out(self, published):
        """And one artifact by name has nothing to leave out."""
        fixed = Fixed(published.examples, first=3, last=6, exclude=(4,))

        assert [a.span for a in fixed.resolve(published.history(published.examples))] == [3, 5, 6]
        with pytest.raises(ParameterError, match="not beside artifact="):
            Fixed(published.examples, artifact="taxi/Ingest/examples/1", exclude=(4,))

    @pytest.mark.parametrize(
        ("exclude", "says"),
        [("7", r"write a tuple of spans: exclude=\('7',\)"), (("2013-12-25",), "A span is a whole number here")],
    )
    def test_what_is_no_span_is_refused_when_the_pipeline_is_built(self, published, exclude, says):
        """In the calendar of the channel."""
        with pytest.raises(ParameterError, match=says):
            RollingWindow(published.examples, size=2, exclude=exclude)
