"""Law 13: a window holds accepted spans only. Generated histories against a model in ten lines."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanwise.orchestrator import ResolutionError, WindowIncomplete
from spanwise.orchestrator.scope import GatedSource
from spanwise.resolvers import Fixed, Latest, LatestSpans, Previous, RollingWindow
from tests.published import Published

GATED = (GatedSource("Ingest", "examples", ("Gate",)),)
SPANS = st.integers(1, 4)
SAYS = st.sampled_from([True, False, None])  # None: the gate crashed
HISTORIES = st.lists(
    st.one_of(
        st.tuples(st.just("ingest"), SPANS, st.integers(1, 3), SAYS),
        st.tuples(st.just("judge"), SPANS, st.booleans(), st.none()),
        st.tuples(st.just("person"), SPANS, st.booleans(), st.none()),
    ),
    min_size=1,
    max_size=12,
)


class Model:
    """What counts: of each span the newest version, if the gate's newest verdict or a person's accepts it."""

    def __init__(self):
        self.versions, self.gate, self.person = {}, {}, {}

    def ingest(self, span, version, name):
        self.versions.setdefault(span, []).append((version, len(self.versions[span]), name))

    def newest(self, span):
        return max(self.versions[span])[-1]

    def counts(self):
        newest = {span: self.newest(span) for span in sorted(self.versions)}
        return {span: name for span, name in newest.items() if self.person.get(name, self.gate.get(name, False))}


def play(steps):
    """Plays a history, and yields the moment after each step with what the model says of it."""
    published, model = Published(), Model()
    artifacts = {}
    moments = []
    for what, span, value, says in steps:
        if what == "ingest":
            made = published.span(span, value)
            artifacts[made.name] = made
            model.ingest(span, value, made.name)
            if says is not None:
                published.judge(made, given=says)
                model.gate[made.name] = says
        elif span in model.versions:
            newest = model.newest(span)
            published.judge(artifacts[newest], given=value, person=what == "person")
            (model.person if what == "person" else model.gate)[newest] = value
        if model.versions:
            moments.append((published.now, max(model.versions), model.counts()))
    return published, moments


def names(resolver, history):
    try:
        return [artifact.name for artifact in resolver.resolve(history)]
    except WindowIncomplete:
        return []


@settings(max_examples=150, deadline=None, derandomize=True)
@given(steps=HISTORIES)
def test_windows_read_what_the_model_says_at_every_moment(steps):
    """As of each moment, every resolver chooses among the newest versions that are accepted at that moment."""
    published, moments = play(steps)

    for moment, end, counts in moments:
        history = published.history(published.examples, as_of=moment, gated=GATED)
        highest = sorted(counts)[-2:]
        below = [span for span in counts if span < 3]
        window = [counts[span] for span in range(max(end - 2, 1), end + 1) if span in counts]

        assert names(RollingWindow(published.examples, size=3, since=1, missing=3), history) == window
        assert names(LatestSpans(published.examples, n=2), history) == [counts[span] for span in highest]
        assert names(Latest(published.examples), history) == [counts[span] for span in highest[-1:]]
        mine = [published.history(published.examples).kind("", properties={"span": 3})]
        baseline = names(
            Previous(published.examples), published.history(published.examples, as_of=moment, mine=mine, gated=GATED)
        )
        assert baseline == [counts[span] for span in below[-1:]]


@pytest.fixture
def published():
    return Published()


def test_a_window_without_gates_reads_everything(published):
    """Where no gate judges the spans, verdicts play no part."""
    refused = published.span(1)
    published.judge(refused, given=False)

    assert names(RollingWindow(published.examples, size=1), published.history(published.examples)) == [refused.name]


def test_a_gap_says_for_each_span_why_and_what_to_type(published):
    """Never ingested, not judged, refused by a gate or by a person."""
    for span in (1, 2, 3, 5):
        made = published.span(span)
        if span != 2:
            published.judge(made, given=span != 3)
        if span == 5:
            published.judge(made, given=False, person=True)

    with pytest.raises(WindowIncomplete) as refused:
        RollingWindow(published.examples, size=5).resolve(published.history(published.examples, gated=GATED))

    lines = str(refused.value).splitlines()
    assert lines[0].endswith("but 4 are missing: 2, 3, 4, 5.")
    assert lines[1] == "  2: not judged yet by Gate. Judge it:  spanwise run taxi.py --span 2 --to Gate"
    assert lines[2].startswith("  3: refused by Gate in run 1: ")
    assert lines[3] == "    Ingest a new version:  spanwise run taxi.py --span 3 --to Gate"
    assert lines[4] == "    or accept it as it is:  spanwise accept taxi.py --span 3 --because TEXT"
    assert lines[5] == "  4: never ingested. Ingest and judge it:  spanwise run taxi.py --span 4 --to Gate"
    assert lines[6].startswith("  5: refused by ann@host: ")


def test_fixed_spans_are_accepted_ones(published):
    """A range names what is missing and why; an artifact by name is refused like any other."""
    one, two = published.span(1), published.span(2)
    published.judge(one, given=True)
    published.judge(two, given=False)
    history = published.history(published.examples, gated=GATED)

    with pytest.raises(WindowIncomplete, match=r"missing: 2 \(refused by Gate in run 1"):
        Fixed(published.examples, first=1, last=2).resolve(history)
    with pytest.raises(ResolutionError, match="which was refused by Gate in run 1"):
        Fixed(published.examples, artifact=two.name).resolve(history)
    assert Fixed(published.examples, artifact=one.name).resolve(history)[0].name == one.name


def test_the_latest_of_no_accepted_span_says_why(published):
    """A choice of existing spans that finds none says what became of the newest."""
    published.judge(published.span(7), given=False)

    with pytest.raises(WindowIncomplete, match="found no accepted span") as refused:
        LatestSpans(published.examples, n=2).resolve(published.history(published.examples, gated=GATED))

    assert "  7: refused by Gate in run 1: " in str(refused.value)
    assert "spanwise accept taxi.py --span 7 --because TEXT" in str(refused.value)


class Counted:
    """A store that counts what it is asked."""

    def __init__(self, store):
        self._store, self.asked = store, []

    def __getattr__(self, name):
        def ask(*arguments, **options):
            self.asked.append(name)
            return getattr(self._store, name)(*arguments, **options)

        return ask


@pytest.mark.parametrize("resolver", [RollingWindow, LatestSpans])
def test_a_window_of_thirty_spans_asks_no_more_than_one_of_eight(resolver):
    """What was published for its spans, and what gates said of them, is read for all of them together, and once."""
    published = Published()
    for span in range(1, 41):
        published.judge(published.span(span), given=span != 20)
    asked = []
    for size in (8, 30):
        options = {"size": size, "missing": 1} if resolver is RollingWindow else {"n": size}
        window = resolver(published.examples, **options)
        store, published.store = published.store, Counted(published.store)
        history = published.history(published.examples, gated=GATED)
        found = window.explain(history)
        chosen = window.resolve(history)
        asked.append(len(published.store.asked))
        published.store = store
        assert [a.name for a in chosen] == [w.chosen.name for w in found if w.chosen]
        assert len(chosen) == size - (resolver is RollingWindow and size == 30)

    assert asked[1] <= asked[0] + 2 * (resolver is LatestSpans), asked
    assert max(asked) < 16


def test_a_decision_is_made_from_one_state():
    """What is published, or judged, while a window is chosen does not count for one part of it and not for another."""
    published = Published()
    first, second = (published.span(span) for span in (1, 2))
    published.judge(first, given=True)
    published.judge(second, given=True)
    window = RollingWindow(published.examples, size=2)
    history = published.history(published.examples, gated=GATED)
    explained = window.explain(history)

    published.judge(second, given=False, person=True)
    published.span(1, 7)

    assert [w.chosen.id for w in explained] == [first.id, second.id]
    assert [a.id for a in window.resolve(history)] == [first.id, second.id]
    assert history.last_given(1).id == first.id
