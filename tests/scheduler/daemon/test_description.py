"""Real children import real files."""

import os
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spanwise.orchestrator.errors import LoadError
from spanwise.scheduler.daemon.description import DescriptionRequest, describe
from spanwise.scheduler.schedule.span_rule import days_before

FILE = """
from spanwise.orchestrator import Component, Output, Pipeline, PushedModel
from spanwise.scheduler import Schedule, days_before

print("this is no JSON")

class Push(Component):
    def run(self, pushed: Output[PushedModel]) -> None: ...

def first(name: str = "first") -> Pipeline:
    return Pipeline(name, [Push()])

def second() -> Pipeline:
    return Pipeline("second", [Push()])

daily = Schedule(first, cron="0 3 * * *", zone="Europe/Berlin", span=days_before(1))
odd = Schedule(second, cron="@hourly", span=lambda tick: 100 // (tick.hour - 5))
"""


@pytest.fixture(autouse=True)
def _warm_children() -> None:
    """None here: these tests are about the children, which die with all that they have started."""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "two.py"
    path.write_text(FILE)
    return path


def answer(asking: DescriptionRequest) -> list:
    while (found := asking.answer()) is None:
        time.sleep(0.01)
    return found


def test_a_file_says_which_schedules_it_has(file: Path) -> None:
    """Whatever else it prints; and where the models of each are pushed."""
    first, second = describe([str(file)], None)

    assert (first.pipeline, second.pipeline) == ("first", "second")
    assert (first.timetable.zone, first.timetable.span) == ("Europe/Berlin", days_before(1))
    assert first.source == f"{file}:daily"
    assert first.pushes == ("Push/pushed",)


PUSHED = """
from datetime import timedelta
from spanwise import Examples, Part, RollingWindow, days_before
from spanwise.orchestrator import Component, Input, Model, Output, Pipeline, PushedModel
from spanwise.scheduler import Schedule

class Ingest(Component):
    def run(self, examples: Output[Examples]) -> None: ...

class Train(Component):
    def run(self, examples: Input[list[Examples]], model: Output[Model]) -> None: ...

class Push(Component):
    def run(self, model: Input[Model], pushed: Output[PushedModel]) -> None: ...

def flow() -> Pipeline:
    ingest = Ingest()
    recent = RollingWindow(ingest["examples"], size=3)
    train = Train(examples=recent["examples"])
    return Pipeline("flow", [ingest, recent, train, Push(model=train["model"])])

thrice = Schedule(
    flow, span=days_before(1), TERM
    parts={"ingest": "0 2 * * *", "train": Part("0 3 * * *", OWN), "push": Part("0 4 * * *", at="Push")},
)
"""


def test_freshness_applies_to_the_parts_that_push(file: Path) -> None:
    """No model is ever pushed by the part that trains, which would be stale for ever."""
    file.write_text(PUSHED.replace("TERM", "freshness=timedelta(days=2),").replace(", OWN", ""))

    found = {each.pipeline: each.timetable.freshness for each in describe([str(file)], None)}

    assert found == {"flow:ingest": None, "flow:train": None, "flow:push": timedelta(days=2)}


def test_a_part_is_described_with_the_nodes_between_which_a_run_by_hand_does_it_alone(file: Path) -> None:
    """Not one that reads the newest run of the part before it, which a run by hand does not."""
    file.write_text(PUSHED.replace("TERM", "").replace(", OWN", ""))

    found = {each.pipeline: (each.first, each.last) for each in describe([str(file)], None)}

    assert found == {
        "flow:ingest": ((), ("Ingest",)),
        "flow:train": (("RollingWindow",), ("Train",)),
        "flow:push": ((), ()),
    }


def test_freshness_of_a_part_that_pushes_nothing_is_refused(file: Path) -> None:
    """Where another part pushes, it is meant for that one."""
    file.write_text(PUSHED.replace("TERM", "").replace("OWN", "freshness=timedelta(days=2)"))

    with pytest.raises(LoadError, match="freshness= of the part 'train', which pushes no model: Push/pushed does"):
        describe([str(file)], None)


def test_one_schedule_of_several_can_be_asked_for(file: Path) -> None:
    """By its name, as with pipelines."""
    assert [each.pipeline for each in describe([f"{file}:odd"], None)] == ["second"]


def test_a_span_rule_of_the_file_is_asked_for_ticks(file: Path) -> None:
    """What it cannot say is told, and the others are known."""
    hours = [datetime(2026, 3, 1, hour, tzinfo=UTC) for hour in (4, 5, 7)]

    (odd,) = answer(DescriptionRequest(f"{file}:odd", None, hours))

    assert odd.spans == {hours[0]: -100, hours[2]: 50}
    assert "ZeroDivisionError" in odd.trouble


def test_the_settings_make_the_pipeline(file: Path) -> None:
    """Its arguments decide what it is called."""
    config = file.with_name("spanwise.toml")
    config.write_text('[params.first]\nname = "renamed"\n')

    assert describe([f"{file}:daily"], config)[0].pipeline == "renamed"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import nothing_of_that_name", "No module named 'nothing_of_that_name'"),
        ("x = 1", "defines no schedule"),
        ("import os; os._exit(7)", r"ended the process that loaded it \(exit code 7\)"),
        ("import os; os.abort()", r"ended the process that loaded it \(by SIGABRT\)"),
        (FILE.replace("0 3 * * *", "61 3 * * *"), "61"),
        (FILE.replace("Europe/Berlin", "Europe/Berlim"), "Europe/Berlin"),
        (FILE.replace('"second"', '"first"'), "2 schedules for the pipeline 'first'"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(file: Path, text: str, says: str) -> None:
    """And takes nothing else down."""
    file.write_text(text)

    with pytest.raises(LoadError, match=says):
        describe([str(file)], None)


def test_a_file_that_never_comes_back_is_given_up(file: Path) -> None:
    """With whatever it has started."""
    file.write_text(
        "import pathlib, subprocess, time\n"
        "pathlib.Path('pid').write_text(str(subprocess.Popen(['sleep', '600']).pid))\n"
        "time.sleep(600)"
    )
    asking = DescriptionRequest(str(file), None, limit_s=300.0)
    note = file.with_name("pid")
    while not (note.exists() and note.read_text()):
        assert asking.answer() is None
        time.sleep(0.01)
    asking._deadline = time.monotonic()

    with pytest.raises(LoadError, match="not loaded within 300 s"):
        answer(asking)

    pid = int(note.read_text())
    deadline = time.monotonic() + 300  # it was killed, and takes its moment to die
    while lives(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not lives(pid)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
