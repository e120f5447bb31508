"""Benchmarks: what they say of goals."""

import json

import pytest

from benchmarks import figures
from benchmarks.figures import at_least, at_most, show


@pytest.mark.parametrize(("busy", "words"), [(0.0, ["met", "MISSED", ""]), (0.9, ["not judged", "not judged", ""])])
def test_goals_are_judged_where_the_machine_does_nothing_else(monkeypatch, capsys, busy, words):
    """Neither met nor missed on a busy one, in each form of the output and in the exit code."""
    monkeypatch.setattr(figures, "busy_share", lambda: busy)
    found = [at_most("a", 1, "s", 2), at_least("b", 1, "x", 2), figures.Figure(name="c", value=1, unit="")]
    code = show(found, ["--strict"])
    lines = capsys.readouterr().out.splitlines()
    show(found, ["--json"])
    judged = [json.loads(line)["judged"] for line in capsys.readouterr().out.splitlines()]

    assert [line.partition(figure.goal or "1")[2].strip() for line, figure in zip(lines, found, strict=True)] == words
    assert code == (busy == 0.0)
    assert judged == [busy == 0.0] * 3
