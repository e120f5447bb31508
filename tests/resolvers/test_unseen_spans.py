"""UnseenSpans: each model is judged on spans that it has not learned from."""

import pytest

from spanwise.orchestrator import Model, ParameterError, PipelineError, ResolutionError, WindowIncomplete
from spanwise.orchestrator.scope import GatedSource
from spanwise.orchestrator.verdict import Verdict, append
from spanwise.resolvers import UnseenSpans


class Boosted(Model):
    """A kind of a project."""


GATED = (GatedSource("Ingest", "examples", ("Gate",)),)


def chosen(published, *, mine=(), gated=(), **options):
    """The spans, and the model."""
    node = UnseenSpans(published.examples, published.model, **options)
    found = node.choose(
        {
            "examples": published.history(published.examples, gated=gated),
            "model": published.history(published.model, mine=mine),
        }
    )
    (model,) = found["model"]
    return [a.span for a in found["examples"]], model.name


def learned(published, *windows):
    """A model of each window, oldest first."""
    return [published.a_model(spans=list(window)).name for window in windows]


@pytest.mark.parametrize(
    ("options", "spans", "model"),
    [
        ({}, [6], "to 5"),
        ({"skip": 1}, [5], "to 4"),
        ({"size": 2}, [5, 6], "to 4"),
        ({"offset": 1}, [6], "to 4"),
        ({"offset": -1}, [6], "to 6"),
        ({"size": 9, "since": 5}, [5, 6], "to 4"),
        ({"size": 2, "exclude": (5,)}, [6], "to 5"),
    ],
)
def test_the_newest_model_that_has_not_seen_the_newest_spans(published, options, spans, model):
    """Size and skip move the spans, the offset the model."""
    for span in range(1, 7):
        published.span(span)
    to_4, to_5, to_6 = learned(published, (2, 3, 4), (3, 4, 5), (4, 5, 6))

    assert chosen(published, **options) == (spans, {"to 4": to_4, "to 5": to_5, "to 6": to_6}[model])


def test_a_model_that_was_retrained_on_older_spans_is_newer(published):
    """The newest by publication, not the one that learned from the highest span."""
    for span in (1, 2, 3):
        published.span(span)
    _, again = learned(published, (1, 2), (1,))

    assert chosen(published) == ([3], again)


def test_what_a_base_learned_counts(published):
    """A model that was warm-started from one that has seen the span has seen it, too."""
    for span in (1, 2, 3):
        published.span(span)
    (first,) = learned(published, (1,))
    base = published.a_model(spans=[3])
    published.a_model(spans=[2], base=base.name)

    assert chosen(published) == ([3], first)


def test_the_model_of_this_run_is_not_judged(published):
    """Law 8: the model is one that an earlier run has published."""
    published.span(1)
    published.span(2)
    (before,) = learned(published, (1,))
    mine = published.a_model(spans=[1])

    assert chosen(published, mine=[mine]) == ([2], before)


def test_a_model_that_does_not_say_what_it_learned_is_passed_over(published):
    """Nor one whose base does not say; if there is no other, the message names it."""
    published.span(2)
    silent = published.a_model()
    with pytest.raises(
        ResolutionError, match=rf"{silent.name} does not record what it learned from\. Set model\.spans"
    ):
        chosen(published)
    (known,) = learned(published, (1,))
    published.a_model(spans=[1], base=silent.name)

    assert chosen(published) == ([2], known)


def test_a_model_of_another_calendar_is_passed_over(published):
    """Day 2 and hour 2 are different spans: whether it has seen the newest cannot be known from the numbers."""
    day = published.span(1, calendar="day")
    published.span(5, calendar="number")
    of_days = published.a_model(spans=[1], inputs=[day])
    with pytest.raises(
        ResolutionError, match=rf"{of_days.name} learned from spans that count by another calendar, day\. Run the pipe"
    ):
        chosen(published)
    own = published.a_model(spans=[2], inputs=[published.span(2, calendar="number")])
    published.a_model(spans=[3], base=of_days.name)

    assert chosen(published, missing=4) == ([5], own.name)


def test_no_model_that_is_old_enough_is_an_error(published):
    """It says which one would do, and what to change."""
    published.span(2)
    with pytest.raises(ResolutionError, match="no earlier run has published one"):
        chosen(published)
    learned(published, (1, 2), (2, 3))

    with pytest.raises(ResolutionError, match=r"only from spans before 2, but every model .* learned from 2 or later"):
        chosen(published)


def test_a_gap_and_a_refused_span_are_errors(published):
    """As in a RollingWindow: a model is judged on accepted spans."""
    learned(published, (1,))
    published.judge(published.span(2), given=True)
    published.judge(published.span(4), given=False)

    with pytest.raises(WindowIncomplete, match="2 are missing: 3, 4"):
        chosen(published, size=3, gated=GATED)
    assert chosen(published, size=3, missing=2, gated=GATED)[0] == [2]


def test_what_is_made_of_a_model_that_learned_a_refused_span_is_passed_over(published):
    """An ensemble that records the spans of its models learned from a span that was refused since, through one."""
    read = [published.span(span) for span in (1, 2, 3)]
    for each in read:
        published.judge(each, given=True)
    clean = published.a_model(spans=[1], inputs=read[:1])
    member = published.a_model(spans=[2], inputs=read[1:2])
    published.a_model(spans=[1, 2], inputs=[clean, member])
    published.judge(read[1], given=False, person=True)

    assert chosen(published, gated=GATED) == ([3], clean.name)


@pytest.mark.parametrize("kind", [Model, Boosted])
def test_what_is_made_of_a_model_has_learned_its_spans(published, kind):
    """An ensemble that records the one day on which it weighed its models was judged on a day that one had learned."""
    read = [published.span(span) for span in (1, 2, 3)]
    before = published.a_model(spans=[1], inputs=read[:1])
    member = published.a_model(kind=kind, spans=[2, 3], inputs=read[1:])
    published.a_model(spans=[1], inputs=[member, read[0]])

    assert chosen(published) == ([3], before.name)


def test_bad_use_is_refused_when_it_is_built(published):
    """Channels in the wrong order, a size of nothing, an offset that is no number."""
    with pytest.raises(PipelineError, match="takes examples, then a channel of models"):
        UnseenSpans(published.model, published.examples)
    with pytest.raises(PipelineError, match="two channels called 'examples'"):
        UnseenSpans(published.examples, published.examples)
    with pytest.raises(ParameterError, match="size is 0; it must be at least 1"):
        UnseenSpans(published.examples, published.model, size=0)
    with pytest.raises(ParameterError, match="skip is -1; it must be at least 0"):
        UnseenSpans(published.examples, published.model, skip=-1)
    with pytest.raises(ParameterError, match="offset is '1'"):
        UnseenSpans(published.examples, published.model, offset="1")


def test_a_model_whose_blessing_a_person_took_back_is_passed_over(published):
    """It would be judged again and never pushed; the one before it may be."""
    for span in (1, 2, 3):
        published.span(span)
    older, newest = learned(published, (1,), (1, 2))
    append(published.store, [Verdict(mark="blessed", artifact=newest, given=False, by="ann@host", because="wrong")])

    assert chosen(published) == ([3], older)
