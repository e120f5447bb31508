import json
from dataclasses import replace
from datetime import timedelta

import pytest

from spanwise.orchestrator import Calendar, Component, Examples, Output, Pipeline, UsageError
from spanwise.orchestrator.store import Address, MemoryStore
from spanwise.resolvers import Fixed, Latest, LatestSpans, RollingWindow
from spanwise.scheduler.inspect import window
from spanwise.scheduler.inspect.window import ResolverWindow
from spanwise.scheduler.project.load import Loaded
from tests.scheduler.records import DAY, NOON, Clock, begun, ended, examples, published


class ExampleGen(Component):
    calendar = Calendar.DAY

    def run(self, examples: Output[Examples]) -> None: ...


def loaded(size: int = 3, **choice: object) -> Loaded:
    ingest = ExampleGen()
    recent = RollingWindow(ingest["examples"], size=size, **choice)  # type: ignore[arg-type]
    last = LatestSpans(ingest["examples"], n=2)
    return Loaded(pipeline=Pipeline("flights", [ingest, recent, last]), source="flights.py")


def lake(*spans: tuple[int, int]) -> MemoryStore:
    """A store to which these spans and versions were published, an hour after each other."""
    clock = Clock()
    store = MemoryStore(clock)
    for span, version in spans:
        run = begun(store, span=span)
        published(store, run, "ExampleGen", outputs={"examples": examples(span, version)})
        ended(store, run)
        clock.now = clock.now.replace(hour=clock.now.hour + 1)
    return store


def test_a_window_says_what_is_read_superseded_and_missing() -> None:
    """Each span with its state, its version, and why."""
    found, _ = window.find_windows(loaded(), lake((DAY, 1), (DAY + 2, 1), (DAY + 2, 2)), at=None, as_of=None)

    lines = window.format_window(found).splitlines()

    assert lines[0] == "RollingWindow chooses from ExampleGen['examples'] (size=3, step=1, missing=0):"
    assert lines[2].split()[:2] == ["2013-01-05", "read"]
    assert lines[2].endswith("the only version")
    assert lines[3].split() == [
        "2013-01-06",
        "missing",
        *["-", "-", "nothing", "was", "published", "for", "this", "span"],
    ]
    assert lines[4].endswith("the newest version; it supersedes v1, publication 1")
    assert lines[5].strip() == "2 of 3 spans, 2013-01-05 to 2013-01-07."
    assert "A run would fail: " in lines[6]
    assert "spanwise run flights.py --span 2013-01-06" in "\n".join(lines)


def test_a_window_shows_what_it_leaves_out_by_name() -> None:
    """In its place among the others, whether the file or an option says so, with what was published for it."""
    store = lake((DAY, 1), (DAY + 1, 1), (DAY + 2, 1))

    rolling, latest = window.find_windows(
        loaded(exclude=[DAY]), store, at=None, as_of=None, exclude=(Calendar.DAY.label(DAY + 1),)
    )

    states = [line.split()[:2] for line in window.format_window(rolling).splitlines()[2:5]]
    assert [state for _, state in states] == ["excluded", "excluded", "read"]
    assert states[0][0] < states[1][0] < states[2][0]
    assert "left out by name" in window.format_window(rolling)
    assert "1 of 1 spans" in window.format_window(rolling)
    assert [each.span for each in latest.excluded] == [DAY + 1]
    assert window.window_document(rolling, Calendar.DAY)["excluded"] == [Calendar.DAY.label(DAY + n) for n in (0, 1)]


def test_a_gates_reason_moves_no_cursor() -> None:
    """It may quote the data; the lines of the refusal stay."""
    said = "2013-01-05 was refused: \x1b]0;title\x07bad\x1b[2J\x9b value\nAccept it"
    text = window.format_window(ResolverWindow(node="Recent", source="x", parameters="", refusal=said))

    assert text.splitlines()[1:] == ["  A run would fail: 2013-01-05 was refused: bad value", "  Accept it"]


def test_a_window_can_end_elsewhere() -> None:
    """`--at` moves its end; nothing else."""
    rolling, last = window.find_windows(loaded(), lake((DAY, 1), (DAY + 1, 1)), at=DAY, as_of=None)

    assert [w.label for w in rolling.spans] == ["2013-01-03", "2013-01-04", "2013-01-05"]
    assert [w.label for w in last.spans] == ["2013-01-05"]


@pytest.mark.parametrize(("choice", "at"), [({"skip": 1}, None), ({}, DAY - 1)])
def test_a_window_that_ends_before_history_begins_says_so_in_dates(choice: dict[str, int], at: int | None) -> None:
    """Whether by `skip=` or by `--at`; the pipeline's other windows are shown all the same."""
    since = Calendar.DAY.label(DAY)

    rolling, last = window.find_windows(loaded(since=since, **choice), lake((DAY, 1)), at=at, as_of=None)

    text = window.format_window(rolling)
    assert "A run would fail: RollingWindow has nothing to choose from: it ends at 2013-01-04" in text
    assert "history begins at 2013-01-05" in text
    assert ("because of skip=1" in text) is bool(choice)
    assert last.node == "LatestSpans"


def test_a_window_is_seen_as_of_an_earlier_time() -> None:
    """What was published later is not there."""
    store = lake((DAY, 1), (DAY, 2))
    first, _ = store.of_span(Address("flights", "ExampleGen", "examples"), DAY)

    found, _ = window.find_windows(loaded(size=1), store, at=None, as_of=first.created)

    (wanted,) = found.spans
    assert wanted.chosen is not None
    assert (wanted.chosen.properties["version"], wanted.superseded) == (1, ())


def test_before_the_first_run_it_says_that_nothing_was_published() -> None:
    """The refusal is the resolver's own."""
    found, _ = window.find_windows(loaded(), MemoryStore(), at=None, as_of=None)

    assert found.spans == ()
    assert "A run would fail: RollingWindow has nothing to choose from" in window.format_window(found)


def test_where_history_begins_is_shown_as_a_date() -> None:
    """Parameters that are spans are shown as the pipeline's spans are."""
    found, _ = window.find_windows(loaded(since="2013-01-05"), lake((DAY, 1)), at=None, as_of=None)

    assert "since=2013-01-05" in window.format_window(found)
    assert found.refusal == ""


def test_a_document_has_all_of_it() -> None:
    """Spans as numbers and labels, artifacts whole."""
    found, _ = window.find_windows(loaded(), lake((DAY, 1), (DAY + 2, 1)), at=None, as_of=None)

    document = json.loads(json.dumps(window.window_document(found, Calendar.DAY)))

    assert [(s["span"], s["span_label"], s["state"]) for s in document["spans"]] == [
        (DAY, "2013-01-05", "read"),
        (DAY + 1, "2013-01-06", "missing"),
        (DAY + 2, "2013-01-07", "read"),
    ]
    assert document["spans"][0]["chosen"]["uri"] == f"/root/{DAY}/1"
    assert document["refusal"]


def test_a_pipeline_without_a_window_is_refused() -> None:
    """A resolver that does not choose by span has nothing to explain."""
    ingest = ExampleGen()
    pipeline = Pipeline("flights", [ingest, Latest(ingest["examples"])])

    with pytest.raises(UsageError, match="no node that chooses by span"):
        window.find_windows(replace(loaded(), pipeline=pipeline), MemoryStore(), at=None, as_of=None)


def test_a_fixed_range_is_shown_with_its_spans_and_an_artifact_by_its_name() -> None:
    """What was published for each span of the range, wherever a window ends."""
    ingest = ExampleGen()
    ranged = Fixed(ingest["examples"], first=DAY, last=DAY + 1, exclude=(DAY + 1,), name="Exam")
    named = Fixed(ingest["examples"], artifact=f"flights/ExampleGen/examples/{DAY}/1", name="Named")
    pipeline = Pipeline("flights", [ingest, ranged, named])

    store = lake((DAY, 1), (DAY, 2), (DAY + 2, 1))
    exam, one = window.find_windows(replace(loaded(), pipeline=pipeline), store, at=DAY + 2, as_of=None)

    lines = [" ".join(line.split()) for line in window.format_window(exam).splitlines()]
    assert [line.split()[:2] for line in lines[2:4]] == [["2013-01-05", "read"], ["2013-01-06", "excluded"]]
    assert lines[2].endswith("the newest version; it supersedes v1, publication 1")
    assert lines[4] == "1 of 1 spans, 2013-01-05 to 2013-01-05."
    assert window.format_window(one) == (
        f"Named chooses from ExampleGen['examples'] (artifact=flights/ExampleGen/examples/{DAY}/1)."
    )


def test_a_window_that_ends_elsewhere_is_judged_as_well() -> None:
    """Whether a run could read it: what is missing there, and what mends it."""
    rolling, last = window.find_windows(loaded(), lake((DAY, 1)), at=DAY + 9, as_of=None)
    early = window.find_windows(loaded(), lake((DAY, 1)), at=DAY - 9, as_of=None)[1]

    assert "3 are missing: 2013-01-12" in rolling.refusal
    assert window.format_window(rolling).splitlines()[5:7] == [
        "  0 of 3 spans.",
        f"  A run would fail: {rolling.refusal.splitlines()[0]}",
    ]
    assert last.refusal == ""
    assert "found no span" in early.refusal


def test_as_of_a_time_without_spans_it_is_said_in_local_time() -> None:
    """As every time is that people read."""
    found, _ = window.find_windows(loaded(), lake((DAY, 1)), at=None, as_of=NOON - timedelta(days=1))

    assert f"was published by {(NOON - timedelta(days=1)).astimezone():%Y-%m-%d %H:%M %Z}." in found.refusal
