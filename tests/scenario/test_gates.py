"""README: a day that does not fit stops "before anything is learned from it", that day and on every later one."""

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spanwise.orchestrator import Calendar
from spanwise.orchestrator.mlmd import open_store
from spanwise.pipelines import flights
from tests.scenario.flights_lake import WINDOW, FlightsLake, Rows, editions, span
from tests.scheduler.conftest import _own_path, folder, spanwise  # noqa: F401

SETTINGS = """root = ".spanwise"

[params.flights]
data = "lake"
serving = "serving"
window = {window}
"""

BAD = 4  #: the day of January that comes without a single carrier


def blank(column: str) -> Callable[[Rows], Rows]:
    """A column is there, and has no value."""
    return lambda rows: [{**row, column: ""} for row in rows]


@pytest.fixture
def lake(folder: Path) -> FlightsLake:  # noqa: F811
    """No day has come yet."""
    return FlightsLake(folder)


@pytest.fixture
def morning(lake: FlightsLake, folder: Path, spanwise: Callable[..., tuple[int, str, str]]):  # noqa: F811
    """Runs the pipeline for a day of January as a schedule would; the first three days have run.

    The window is full on the third of them, so the runs before it end at the gate, which is quicker.
    """
    shutil.copy(flights.__file__, folder / "flights.py")
    Path("spanwise.toml").write_text(SETTINGS.format(window=WINDOW))

    def run(day: int, change: Callable[[Rows], Rows] = list, *part: str) -> tuple[int, str]:
        lake.arrive_day(day, change=change)
        code, out, error = spanwise("run", "flights.py", "--span", Calendar.DAY.label(span(day)), *part)
        return code, out + error

    for day in range(1, BAD):
        assert run(day, list, *(["--to", "AnomalyGate"] if day < WINDOW else []))[0] == 0
    return run


def commands(text: str, verb: str) -> list[str]:
    """The commands of a verb that were printed, without the name of the program."""
    return list(dict.fromkeys(re.findall(rf"spanwise ({verb} .*)$", text, re.MULTILINE)))


def trained_on() -> list[str]:
    """What the newest model was trained on."""
    store = open_store(str(Path(".spanwise/metadata.db")))
    try:
        for run in store.runs("flights"):
            for execution in store.executions(run):
                if execution.node == "RollingWindow" and execution.state.succeeded:
                    return editions(execution.outputs["examples"])
    finally:
        store.close()
    return []


def test_a_day_with_a_blank_column_is_never_learned_until_a_person_or_a_new_version_says_so(morning, lake, spanwise):  # noqa: F811
    """Its run stops at the gate; the next day's run says why it does not learn; each printed command works."""
    code, refused = morning(BAD, blank("carrier"))
    assert code == 1
    assert "error: carrier of split train: the column has no values" in refused
    assert trained_on() == ["1v1", "2v1", "3v1"]

    code, stopped = morning(BAD + 1)

    assert code == 1
    assert f"2013-01-0{BAD}: refused by AnomalyGate in run {BAD}: span 2013-01-0{BAD} has" in stopped
    assert trained_on() == ["1v1", "2v1", "3v1"]
    assert commands(refused, "accept") == commands(stopped, "accept")

    (accept,) = commands(stopped, "accept")
    _, accepted, _ = spanwise(*shlex.split(accept))
    (backfill,) = commands(accepted, "backfill")
    assert spanwise(*shlex.split(backfill))[0] == 0
    assert trained_on() == ["3v1", "4v1", "5v1"]

    _, tainted, _ = spanwise("refuse", "flights.py", "--span", f"2013-01-0{BAD}", "--because", "no carriers")
    assert "learned from v1" in tainted
    assert morning(BAD + 2)[0] == 1

    lake.arrive_day(BAD, version=2)
    (ingest,) = [c for c in commands(stopped, "run") if f"--span 2013-01-0{BAD} " in f"{c} "]
    assert spanwise(*shlex.split(ingest))[0] == 0
    assert spanwise("run", "flights.py", "--span", f"2013-01-0{BAD + 2}")[0] == 0
    assert trained_on() == ["4v2", "5v1", "6v1"]
