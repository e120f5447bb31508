"""The test kit: a time that is moved, a lake in a folder, and runs without more than a folder."""

import importlib.util
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spanwise import ExampleGen
from spanwise.orchestrator import Attempt, Calendar, Component, Output, Pipeline, Report, State
from spanwise.orchestrator.lease import TTL_S
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.span_pattern import SpanPattern
from spanwise.orchestrator.store import MemoryStore
from spanwise.orchestrator.testing import FakeClock, Lake, Trial

pytestmark = pytest.mark.usefixtures("with_servers")


class Say(Component):
    def run(self, report: Output[Report], attempt: Attempt, word: str) -> None:
        (report.path / "word").write_text(f"{word} {attempt.run.span}")
        print("said", word)  # noqa: T201  it is the log that is tested


def test_a_clock_stands_until_it_is_moved():
    """Sleeping and forwarding move both its times together."""
    clock = FakeClock(datetime(2024, 2, 3, tzinfo=UTC))
    clock.sleep(1.5)
    moved = clock.forward(timedelta(minutes=1))

    assert moved == clock.now() == clock() == datetime(2024, 2, 3, 0, 1, 1, 500000, tzinfo=UTC)
    assert clock.monotonic() == 61.5


def test_a_clock_is_what_leases_take():
    """With the usual time to live, or another."""
    clock = FakeClock()
    lease = clock.lease(ttl_s=2.0)
    lease.sleep(1)

    assert lease.monotonic() == 1
    assert (lease.ttl_s, clock.lease().ttl_s) == (2.0, TTL_S)


@pytest.mark.parametrize(
    ("calendar", "span", "number", "folder"),
    [
        (Calendar.NUMBER, 5, 5, "5/v2"),
        (Calendar.DAY, 15713, 15713, "2013-01-08/v2"),
        (Calendar.DAY, "2013-01-08", 15713, "2013-01-08/v2"),
    ],
)
def test_a_lake_writes_what_its_pattern_finds(tmp_path, calendar, span, number, folder):
    """Spans by number or by day; the file lies where an ExampleGen looks."""
    lake = Lake(tmp_path, calendar)
    file = lake.arrive(span=span, version=2)

    assert file == tmp_path / folder / "rows.csv"
    assert SpanPattern.parse(lake.pattern).match(str(file)) == (number, 2)


def test_a_lake_holds_the_rows_it_is_given(tmp_path):
    """Or ten that say which span and version they are of."""
    lake = Lake(tmp_path)

    assert lake.arrive(span=1, rows=[{"a": 1, "b": "x"}]).read_text() == "a,b\n1,x\n"
    assert len(lake.arrive(span=2).read_text().splitlines()) == 11


def test_a_trial_runs_and_is_asked(tmp_path):
    """States, artifacts, the log and the events of a run, in a word each."""
    trial = Trial(tmp_path)
    ran = trial.run(Pipeline("p", [Say(word="hello")]), span=3)

    assert ran.states == {"Say": State.COMPLETE}
    assert ran.run.span == 3
    assert (ran.artifact("Say", "report").path / "word").read_text() == "hello 3"
    assert ran.artifacts("Say", "nothing") == ()
    assert ran.log("Say") == "said hello\n"
    assert [event.what for event in ran.events][-1] == "run-ended"


def test_a_trial_remembers(tmp_path):
    """One run after the other sees what was published before."""
    trial = Trial(tmp_path)
    pipeline = Pipeline("p", [Say(word="hello")])
    trial.run(pipeline)

    assert trial.run(pipeline).states == {"Say": State.CACHED}
    assert trial.run(pipeline, RunRequest(cache=False)).states == {"Say": State.COMPLETE}
    assert isinstance(trial.store, MemoryStore)


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "testing.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def shown_in(folder, number):
    """The tests of one example of the page, imported from a file as a reader would have it."""
    file = folder / f"example_{number}.py"
    file.write_text(EXAMPLES[number])
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: value for name, value in vars(module).items() if name.startswith("test_")}


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_the_examples_of_the_page_hold(tmp_path, number):
    """Each test that docs/reference/testing.md shows is run as it is shown."""
    found = shown_in(tmp_path, number)
    for name, test in found.items():
        test(tmp_path / name)

    assert found


def test_the_page_names_everything():
    """Whatever the kit offers is described."""
    from spanwise.orchestrator import testing

    assert [name for name in testing.__all__ if f"`{name}" not in PAGE.read_text()] == []


def test_a_trial_takes_a_span_as_it_is_written(tmp_path):
    """As a label of the calendar that the pipeline ingests by, as on the command line."""
    lake = Lake(tmp_path / "lake", Calendar.DAY)
    lake.arrive(span="2013-01-08")

    ran = Trial(tmp_path / "root").run(Pipeline("p", [ExampleGen(pattern=lake.pattern)]), span="2013-01-08")

    assert ran.artifact("ExampleGen", "examples").properties["span"] == 15713


def test_the_run_of_a_trial_counts_as_its_pipeline_does(tmp_path):
    """Its record has the calendar that the command line would have given it, so messages name spans by their labels."""
    lake = Lake(tmp_path / "lake", Calendar.HOUR)
    lake.arrive(span="2013-01-08T05")
    pipeline = Pipeline("p", [ExampleGen(pattern=lake.pattern)])

    ran = Trial(tmp_path / "root").run(pipeline, span="2013-01-08T05")

    assert ran.run.calendar == "hour"


def test_a_node_that_did_not_begin_is_named(tmp_path):
    """With those that did: a test asks for the wrong one, or another has failed before it."""
    ran = Trial(tmp_path).run(Pipeline("p", [Say(word="hello")]), span=1)

    with pytest.raises(KeyError, match="Cry did not begin in p/1; these nodes did: Say"):
        ran["Cry"]


def test_a_reused_node_has_no_log(tmp_path):
    """It printed nothing in this run; reading its log is no error."""
    trial, pipeline = Trial(tmp_path), Pipeline("p", [Say(word="hello")])
    trial.run(pipeline, span=1)

    again = trial.run(pipeline, span=1)

    assert again.states == {"Say": State.CACHED}
    assert again.log("Say") == ""
