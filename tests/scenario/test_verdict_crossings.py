"""Verdicts of people meet garbage collection: what a person may still accept is kept, and what is gone is refused."""

from pathlib import Path

import pytest

from tests.scenario.inline import run_inline
from tests.scenario.test_system import Bench

COLLECT = ("--keep-last", "0", "--keep-younger", "0s")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Three days are learned; the gate refuses the fourth, so that the fifth is not learned."""
    monkeypatch.chdir(tmp_path)
    run_inline(monkeypatch)
    bench = Bench(tmp_path)
    for span, value in enumerate((1, 2, 3, -1, 5), start=1):
        bench.arrive(span, 1, value)
        bench.spanwise("run", "system.py", "--span", str(span))
    assert bench.failed() == ["Window"]
    return bench


def test_a_refused_span_that_a_window_wants_is_not_collected(bench, capsys):
    """A person accepts it after the collection, and the run that waited for it resumes without its input."""
    assert bench.spanwise("gc", "system.py", *COLLECT) == 0
    bench.vanish(4, 1)

    assert bench.spanwise("accept", "system.py", "--span", "4", "--because", "a refund") == 0
    assert bench.spanwise("resume", "system/5") == 0
    learned = bench.learned()

    assert learned is not None
    assert [edition.value for edition in learned.window] == [3, -1, 5]


def test_a_span_whose_files_were_collected_is_not_accepted(bench, capsys):
    """No window could read it: the message says how to ingest it again, and that works."""
    assert bench.spanwise("gc", "system", *COLLECT) == 0  # by name, so that no window says what it wants
    capsys.readouterr()

    assert bench.spanwise("accept", "system.py", "--span", "4", "--because", "a refund") == 2

    said = capsys.readouterr().err
    assert "system/Ingest/examples/4/1 was garbage-collected" in said
    assert "spanwise run system.py --span 4 --to Check" in said
    bench.spanwise("run", "system.py", "--span", "4", "--to", "Check")
    assert bench.spanwise("accept", "system.py", "--span", "4", "--because", "a refund") == 0
    assert bench.spanwise("run", "system.py", "--span", "5") == 0
