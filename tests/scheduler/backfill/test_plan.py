"""What a backfill would do, shown before anything is done."""

import json
from shutil import rmtree

import pytest

from spanwise.orchestrator.run import Execution, State
from spanwise.scheduler.backfill.plan import median_durations_s
from tests.scheduler.backfill.conftest import World
from tests.scheduler.records import NOON


def plan(world: World, *words: str) -> dict:  # type: ignore[type-arg]
    code, out, err = world("backfill", "days.py", *words, "--dry-run", "--json")
    assert (code, err) == (0, "")
    return json.loads(out)  # type: ignore[no-any-return]


def learned(windows: list[dict]) -> list[str]:  # type: ignore[type-arg]
    (window,) = windows
    return [f"{s['span_label'][-1]}v{s['version']}" for s in window["spans"]]


def test_a_corrected_day_is_learned_with_the_latest_window(world: World) -> None:
    """RFC: "Resolver of that pipeline will retrieve ExampleGen's output Spans of day 4 to 6 (not day 3 to 5)"."""
    world.lived(6)
    world.arrive(5, version=2)

    (target,) = plan(world, "--span", "2024-05-05")["targets"]

    assert (target["versions"], target["replaces"]) == ({"Ingest": 2}, {"Ingest": 1})
    assert learned(target["windows"]) == ["4v1", "5v2", "6v1"]


def test_a_span_that_no_window_reads_is_left_out(world: World) -> None:
    """RFC: "Backfilling a new Version of a Span that is out of rolling window range is unnecessary"."""
    world.lived(6)
    world.arrive(2, version=2)

    assert [s["span_label"] for s in plan(world, "--span", "2024-05-02..2024-05-04")["outside"]] == [
        "2024-05-02", "2024-05-03",
    ]  # fmt: skip
    assert len(plan(world, "--span", "2024-05-02..2024-05-04", "--force")["targets"]) == 3


def test_a_window_that_a_run_would_refuse_is_not_forecast_as_whole(world: World) -> None:
    """The versions of one day went down: a run of another day would fail at the window, and the plan says so."""
    world.lived(3)
    world.arrive(2, version=2)
    assert world("run", "days.py", "--span", "2024-05-02")[0] == 0
    rmtree(world.folder / "data" / "2024-05-02" / "v2")
    assert world("run", "days.py", "--span", "2024-05-02")[0] == 1
    world.arrive(3, version=2)

    (target,) = plan(world, "--span", "2024-05-03")["targets"]

    (window,) = target["windows"]
    assert "RollingWindow would read days/Ingest/examples" in window["refusal"]
    assert "a run would fail there" in world("backfill", "days.py", "--span", "2024-05-03", "--dry-run")[1]


def test_days_before_any_run_each_learn_from_what_is_there_by_then(world: World) -> None:
    """A new pipeline is filled from the oldest day on; no day of the future is in a window."""
    for day in (1, 2, 3, 4):
        world.arrive(day)

    targets = plan(world, "--span", "2024-05-01..2024-05-04")["targets"]

    assert [learned(t["windows"]) for t in targets] == [
        ["1v1"], ["1v1", "2v1"], ["1v1", "2v1", "3v1"], ["2v1", "3v1", "4v1"],
    ]  # fmt: skip


SETTLING = ('size=3, since="2024-05-01"', 'size=3, since="2024-05-01", skip=1')
APART = ('size=3, since="2024-05-01"', 'size=2, step=2, since="2024-05-01"')


LATEST = (
    'RollingWindow(ingest["examples"], size=3, since="2024-05-01",',
    'LatestSpans(ingest["examples"], n=3, skip=1,',
)


@pytest.mark.parametrize("once", [(), ("--train-once",)])
@pytest.mark.parametrize("change", [SETTLING, LATEST], ids=["RollingWindow", "LatestSpans"])
def test_a_day_that_has_yet_to_settle_is_backfilled(
    world: World, once: tuple[str, ...], change: tuple[str, str]
) -> None:
    """The window of `skip=1` does not read the newest day before the next one has come; then it does."""
    world.rewrite("import RollingWindow", "import LatestSpans, RollingWindow")
    world.rewrite(*change)
    for day in (1, 2, 3, 4):
        world.arrive(day)

    planned = plan(world, "--span", "2024-05-01..2024-05-04", *once)

    assert planned["outside"] == []
    assert [t["span_label"][-1] for t in planned["targets"]] == ["1", "2", "3", "4"]
    windows = planned["windows"] if once else planned["targets"][-1]["windows"]
    assert learned(windows) == ["1v1", "2v1", "3v1"]


def test_a_newer_version_of_a_day_that_has_yet_to_settle_is_stale(world: World) -> None:
    """The next window would read the old one in silence."""
    world.rewrite(*SETTLING)
    world.arrive(1)
    world("run", "days.py", "--span", "2024-05-01")  # its window is still empty
    for day in (2, 3):
        world.arrive(day)
        assert world("run", "days.py", "--span", f"2024-05-0{day}")[0] == 0
    world.arrive(3, version=2)

    assert [t["span_label"] for t in plan(world, "--stale")["targets"]] == ["2024-05-03"]


def test_a_day_between_the_steps_of_a_window_is_backfilled(world: World) -> None:
    """A window of every second day reads the others on the next day; one before its first day, never again."""
    world.rewrite(*APART)
    world.lived(5)
    for day in (2, 4):
        world.arrive(day, version=2)

    planned = plan(world, "--span", "2024-05-02..2024-05-04")

    assert [s["span_label"][-1] for s in planned["outside"]] == ["2"]
    assert [t["span_label"][-1] for t in planned["targets"]] == ["3", "4"]


def test_stale_days_are_those_with_a_newer_version(world: World) -> None:
    """A day that was never ingested is not stale, nor one with its newest version ingested."""
    world.lived(4)
    world.arrive(3, version=2)
    world.arrive(4, version=3)
    world.arrive(5)

    assert [t["span_label"] for t in plan(world, "--stale")["targets"]] == ["2024-05-03", "2024-05-04"]


def test_a_version_that_went_down_is_not_backfilled_in_vain(world: World) -> None:
    """Of a range that was named it is refused: the windows would go on reading the higher version."""
    for version in (1, 5):
        world.arrive(1, version)
    assert world("run", "days.py", "--span", "2024-05-01")[0] == 0
    rmtree(world.folder / "data" / "2024-05-01" / "v5")

    code, out, err = world("backfill", "days.py", "--span", "2024-05-01")

    assert (code, out) == (2, "")
    assert "The input of 2024-05-01 has a lower version than was ingested before" in err
    assert len(world.runs()) == 1


def test_a_version_that_went_down_is_reported_by_stale(world: World) -> None:
    """It is no newer version, but it is not well either: exit 1."""
    for version in (1, 5):
        world.arrive(1, version)
    assert world("run", "days.py", "--span", "2024-05-01")[0] == 0
    rmtree(world.folder / "data" / "2024-05-01" / "v5")

    code, out, _ = world("backfill", "days.py", "--stale")

    assert code == 1
    assert "Skipped because a higher version was ingested before: 2024-05-01." in out
    assert [s["span_label"] for s in plan(world, "--stale")["lowered"]] == ["2024-05-01"]


def test_nothing_stale_is_nothing_to_do(world: World) -> None:
    """Exit 0, and no run."""
    world.lived(1)

    code, out, _ = world("backfill", "days.py", "--stale")

    assert (code, out) == (0, "days needs no backfill.\n")
    assert len(world.runs()) == 1


def test_the_second_part_begins_where_spans_are_chosen(world: World) -> None:
    """RFC: "The second portion contains a Resolver plus components like Transform, Trainer, Evaluator and Pusher"."""
    world.lived(3)
    made = plan(world, "--span", "2024-05-02..2024-05-03", "--train-once")

    assert (made["ingest"], made["train"]) == (["Ingest", "Check"], ["RollingWindow", "Train", "Push"])
    assert learned(made["windows"]) == ["1v1", "2v1", "3v1"]
    other = plan(world, "--span", "2024-05-02..2024-05-03", "--train-once", "--split-at", "Check")
    assert other["ingest"] == ["Ingest"]


def test_a_plan_is_told_before_it_is_carried_out(world: World) -> None:
    """Which versions replace which, what is learned from, what is left out, and how long it takes."""
    world.lived(6)
    world.arrive(5, version=2)

    code, out, _ = world("backfill", "days.py", "--span", "2024-05-03..2024-05-05", "--dry-run")

    lines = out.splitlines()
    assert code == 0
    assert lines[0] == "Backfill of days: 2 spans, a full run each."
    assert lines[1].split() == ["SPAN", "VERSION", "REPLACES", "LEARNS", "FROM"]
    assert lines[3].split(maxsplit=3)[3] == "2024-05-04 v1, 2024-05-05 v2, 2024-05-06 v1"
    assert "Skipped because no window reads them: 2024-05-03  (--force runs them)" in lines
    assert lines[-1].startswith("Estimated duration: ")
    assert len(world.runs()) == 6


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--span", "2024-05-09"), "Span 2024-05-09 has no input"),
        (("--span", "2024-05-09"), "Nearest spans with input: 2024-05-01, 2024-05-02, 2024-05-04."),
        (("--span", "2024-05-04..2024-05-01"), "is an empty range"),
        (("--span", "2024-05-01..2024-05-05"), "has 2 spans without input: 2024-05-03, 2024-05-05."),
        (("--span", "2024-06-01..2024-06-05"), "No span of 2024-06-01..2024-06-05 has input."),
        (("--span", "2024-05-01.."), "a range with an open end"),
        (("--span", "5"), "5 is 1970-01-06 here"),
        ((), "one of --span, --missed and --stale"),
        (("--stale", "--missed"), "found --missed and --stale"),
        (("--stale", "--resume", "days/1"), "takes no file, no spans"),
        (("--span", "2024-05-01..9999-12-31"), "has 2,913,053 spans; a backfill takes at most 100,000"),
        (("--span", "2024-05-01", "--parallel", "2"), "--train-once --parallel N"),
        (("--span", "2024-05-01", "--train-once", "--split-at", "Chek"), "Did you mean Check?"),
        (("--span", "2024-05-01", "--train-once", "--split-at", "Ingest"), "leaves Ingest behind it"),
        (("--span", "2024-05-01", "--train-once", "--split-at", "Push", "--parallel", "2"), "RollingWindow choose among"),
    ],
)  # fmt: skip
def test_what_cannot_be_backfilled_is_refused_in_one_message(world: World, words: tuple[str, ...], says: str) -> None:
    """Nothing is started, and no backfill is recorded."""
    for day in (1, 2, 4):
        world.arrive(day)

    code, out, err = world("backfill", "days.py", *words)

    assert code in (1, 2)
    assert says in err
    assert out == ""
    assert not (world.folder / ".spanwise").exists()


def test_absent_days_of_a_range_can_be_left_out(world: World) -> None:
    """They are named in the plan."""
    for day in (1, 3):
        world.arrive(day)

    made = plan(world, "--span", "2024-05-01..2024-05-03", "--skip-absent")

    assert [t["span_label"] for t in made["targets"]] == ["2024-05-01", "2024-05-03"]
    assert [s["span_label"] for s in made["absent"]] == ["2024-05-02"]


def test_a_pipeline_that_ingests_nothing_cannot_be_backfilled(world: World) -> None:
    """The message has its nodes."""
    (world.folder / "flow.py").write_text(
        "from spanwise.orchestrator import Component, Output, Pipeline, Report\n"
        "class Say(Component):\n    def run(self, report: Output[Report]) -> None: ...\n"
        "def flow() -> Pipeline:\n    return Pipeline('flow', [Say()])\n"
    )
    code, _, err = world("backfill", "flow.py", "--span", "3")

    assert code == 2
    assert "has no node that ingests spans, such as ExampleGen" in err


def test_how_long_a_node_takes_is_what_it_took_when_it_worked() -> None:
    """The median; reused and failed executions say nothing."""

    def took(seconds: int, state: State = State.COMPLETE) -> Execution:
        begun = NOON.replace(second=0)
        return Execution(pipeline="p", run=1, node="A", state=state, started=begun, ended=begun.replace(second=seconds))

    assert median_durations_s([took(1), took(9), took(3), took(0, State.CACHED), took(50, State.FAILED)]) == {"A": 3.0}
