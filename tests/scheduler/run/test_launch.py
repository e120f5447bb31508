from dataclasses import replace
from datetime import UTC, datetime

import pytest

from spanwise.orchestrator import (
    Blessing,
    Calendar,
    Execution,
    NotRecorded,
    Run,
    State,
    UsageError,
)
from spanwise.orchestrator.run_request import RunOutcome
from spanwise.orchestrator.store import MemoryStore
from spanwise.scheduler.run import launch, span_options
from spanwise.scheduler.run.launch import RunOptions
from tests.scheduler.branches import pipeline
from tests.scheduler.records import DAY, NOON, filled

OPTIONS = RunOptions(reference="p.py")


@pytest.mark.parametrize(
    ("options", "run"),
    [
        (OPTIONS, None),
        (replace(OPTIONS, first=["B"]), ("B", "D")),
        (replace(OPTIONS, last=["B"]), ("A", "B")),
        (replace(OPTIONS, first=["B"], last=["B"]), ("B",)),
        (replace(OPTIONS, skip=["A"]), ("B", "C", "D")),
        (replace(OPTIONS, skip=["D"]), ("A", "B", "C")),
        (replace(OPTIONS, skip=["C", "D"]), ("A", "B")),
        (replace(OPTIONS, first=["B"], skip=["D"]), ("B",)),
        (replace(OPTIONS, only=["C"]), ("C",)),
        (replace(OPTIONS, only=["B", "C"]), ("B", "C")),
    ],
)
def test_words_select_a_part(options: RunOptions, run: tuple[str, ...] | None) -> None:
    """No words select all of it."""
    selection = launch.select_nodes(pipeline(), options)

    assert (selection and selection.run) == run


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (replace(OPTIONS, first=["X"]), "has no node 'X'"),
        (replace(OPTIONS, first=["D"], last=["A"]), "No node of 'p' would run"),
        (replace(OPTIONS, only=["A"], last=["B"]), "cannot be combined"),
        (replace(OPTIONS, skip=["B"]), "B cannot be skipped: it depends on A, which runs, and D depends on it."),
        (replace(OPTIONS, last=["A"], skip=["A", "B"]), "No node of 'p' would run"),
        (replace(OPTIONS, only=["A", "D"]), "leaves out the nodes between them: B, C"),
    ],
)
def test_words_that_make_no_part_are_refused(options: RunOptions, says: str) -> None:
    """Before anything is started."""
    with pytest.raises(UsageError) as refused:
        launch.select_nodes(pipeline(), options)

    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2013-01-08T03:00Z", datetime(2013, 1, 8, 3, tzinfo=UTC)),
        ("2013-01-08T03:00+02:00", datetime(2013, 1, 8, 1, tzinfo=UTC)),
        ("2013-01-08", datetime(2013, 1, 8).astimezone()),
    ],
)
def test_a_time_without_zone_is_local(text: str, moment: datetime) -> None:
    """A date is its midnight."""
    assert launch.parse_time(text) == moment


def test_a_time_that_is_none_is_refused() -> None:
    """The message shows how one is written."""
    with pytest.raises(UsageError, match="2013-01-08T03:00Z"):
        launch.parse_time("yesterday")


@pytest.mark.parametrize(("typed", "number"), [(None, None), ("latest", 3), ("2", 2), ("flights/1", 1)])
def test_a_base_run_is_a_number_or_the_latest(typed: str | None, number: int | None) -> None:
    """Without one, the runner looks for a run that has what is needed."""
    assert launch.find_base_run(filled(), "flights", typed) == number


@pytest.mark.parametrize(("typed", "error"), [("taxi/1", UsageError), ("last", UsageError), ("9", NotRecorded)])
def test_a_base_run_that_is_none_is_refused(typed: str, error: type[Exception]) -> None:
    """Another pipeline's run cannot stand in."""
    with pytest.raises(error):
        launch.find_base_run(filled(), "flights", typed)


def test_the_latest_of_no_runs_is_refused() -> None:
    """There has to be a run first."""
    with pytest.raises(UsageError, match="has no run yet"):
        launch.find_base_run(MemoryStore(), "flights", "latest")


def outcome(*done: str, failed: tuple[str, ...] = (), skipped: tuple[str, ...] = (), **facts: object) -> RunOutcome:
    states = {**dict.fromkeys(done, State.COMPLETE), **dict.fromkeys(failed, State.FAILED)}
    executions = {
        n: Execution(pipeline="p", run=42, node=n, state=s, error="ValueError: bad\n  File x" if n in failed else None)
        for n, s in states.items()
    }
    run = Run(
        pipeline="p", number=42, nodes=("A", "B", "C", "D"), state=State.FAILED, span=DAY, calendar="day",
        started=NOON, ended=NOON,
    )  # fmt: skip
    return RunOutcome(run=replace(run, **facts), executions=executions, failed=failed, skipped=skipped)  # type: ignore[arg-type]


def test_a_failure_ends_with_its_lines_and_the_way_on() -> None:
    """First what became of the run, then each error, then the command."""
    lines = launch.format_run_outcome(outcome("A", "C", failed=("B",), skipped=("D",)), ["--root", "a b"]).splitlines()

    assert lines[0].startswith("Run p/42 of span 2013-01-05: failed in 0.0 s; 2 of 4 nodes done")
    assert lines[2:4] == ["B failed: ValueError: bad", "  File x"]
    assert lines[-1] == "Resume it:  spanwise resume p/42 --root 'a b'"


@pytest.mark.parametrize(
    ("state", "error", "code"),
    [
        (State.COMPLETE, None, 0),
        (State.FAILED, "B failed", 1),
        (State.CANCELED, "stopped by `spanwise stop`", 1),
        (State.CANCELED, "stopped by SIGINT", 130),
    ],
)
def test_the_exit_code_says_how_the_run_ended(state: State, error: str | None, code: int) -> None:
    """Ctrl-C has the code that shells give it."""
    assert launch.exit_code(outcome(state=state, error=error)) == code


@pytest.mark.parametrize(
    ("calendar", "typed", "span"),
    [
        (Calendar.NUMBER, "5", 5),
        (Calendar.DAY, "2013-01-05", DAY),
        (Calendar.DAY, str(DAY), DAY),
        (Calendar.DAY, "1970-01-06", 5),
        (Calendar.HOUR, "1970-01-01T05", 5),
        (Calendar.WEEK, "2970", 2970),
        (Calendar.MONTH, "2026-11", 682),
        (Calendar.MONTH, "682", 682),
    ],
)
def test_a_span_is_typed_as_its_pipeline_counts(calendar: Calendar, typed: str, span: int) -> None:
    """An early date can be named by who means it."""
    assert span_options.parse_span(typed, calendar) == span


@pytest.mark.parametrize(
    ("calendar", "typed", "says"),
    [
        (Calendar.DAY, "5", "5 is 1970-01-06 here, because numbers count days from 1970-01-01."),
        (Calendar.HOUR, "15710", "write 1971-10-17T14"),
        (Calendar.DAY, "-3", "write 1969-12-29"),
        (Calendar.MONTH, "11", "11 is 1970-12 here, because numbers count months from 1970-01."),
        (Calendar.WEEK, "202604", "202604 is 5852-W52 here, because numbers count weeks from 1970-W01."),
        (Calendar.MONTH, "2026", "If you mean that month, write 2138-11"),
        (Calendar.WEEK, "2026", "If you mean that week, write 2008-W44"),
        (Calendar.QUARTER, "2026", "If you mean that quarter, write 2476-Q3"),
    ],
)
def test_a_small_number_is_no_date(calendar: Calendar, typed: str, says: str) -> None:
    """Who types `--span 5` for the fifth of a month would wait for the data of 1970, and `--span 2026` is a year."""
    with pytest.raises(UsageError) as refused:
        span_options.parse_span(typed, calendar)

    assert says in str(refused.value)


def test_a_run_whose_model_was_refused_says_so_at_its_end() -> None:
    """Before the last line, which stays what became of the run."""
    verdict = Blessing("/b", properties={"blessed": 0, "reasons": ["auc fell"]})
    judged = Execution(pipeline="p", run=42, node="B", state=State.COMPLETE, outputs={"blessing": (verdict,)})
    ended = outcome("A", "C", "D", state=State.COMPLETE)

    lines = launch.format_run_outcome(replace(ended, executions={**ended.executions, "B": judged})).splitlines()

    assert lines[0] == "Not blessed: auc fell."
    assert lines[1].startswith("Run p/42 of span 2013-01-05: complete")
    assert len(lines) == 2
