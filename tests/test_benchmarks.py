"""Benchmarks: what they say of goals."""

import json
import socket
import time

import pytest

from benchmarks import figures, goals
from benchmarks.__main__ import README, TABLE
from benchmarks.figures import at_least, at_most, show
from benchmarks.service_relay import Way


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


def test_a_relay_holds_what_it_is_given_and_passes_it_on_in_order():
    """Each byte, and then the end; the first not before its time."""
    near, source = socket.socketpair()
    sink, far = socket.socketpair()
    sent = bytes(range(256)) * 2_000
    Way(source, sink, delay_s=0.05)
    began = time.monotonic()
    near.sendall(sent[:100])
    found = far.recv(1)
    held_s = time.monotonic() - began
    near.sendall(sent[100:])
    near.shutdown(socket.SHUT_WR)
    while chunk := far.recv(1 << 16):
        found += chunk
    for each in (near, source, sink, far):
        each.close()

    assert held_s >= 0.05
    assert found == sent


def test_the_goals_and_the_readme_are_those_of_the_last_figures():
    """What the page says of goals and the README of times is what `python -m benchmarks` writes from the same rows."""
    page, readme = TABLE.read_text(encoding="utf-8"), README.read_text(encoding="utf-8")
    rows = [row for found in goals.read_rows(page).values() for row in found]

    assert goals.format_goals(rows) in page
    assert goals.insert_figures(readme, rows) == readme
    assert "<!-- nodes: 5 nodes from the shell -->" in readme


def test_a_goal_is_judged_by_the_row_that_was_measured_last():
    """Against its own limit, on each kind of machine; a figure that is not there is not measured."""
    goal = goals.Goal("a run", "nodes", "a", "1 s", 0.3)
    printed = {"name": "a", "value": 0.4, "unit": "s", "goal": "<= 0.5", "ok": True, "judged": True, "quiet": True}
    quiet = goals.Row.of("nodes", printed)
    both = goals.Row.of("nodes", {**printed, "value": 0.2, "judged": False, "quiet": False}, quiet)
    again = goals.Row.of("nodes", {**printed, "value": 0.6, "ok": False}, both)

    assert [goal.judge(quiet.quiet), goal.judge(quiet.busy)] == ["0.4 s, **missed**", "not measured"]
    assert [both.quiet, goal.judge(both.busy), both.met] == ["0.4 s", "0.2 s, met", "yes"]
    assert [again.quiet, again.busy, again.met] == ["0.6 s", "0.2 s", "**no**"]
    assert goals.read_rows(f"| benchmark | figure | …\n|---\n{again}") == {"nodes": [again]}


def test_growth_is_the_exponent_over_all_sizes():
    """1 where twice the size takes twice as much, 2 where it takes four times as much."""
    assert figures.growth("a", [1, 2, 4], [3, 6, 12]).value == pytest.approx(1)
    assert figures.growth("a", [1, 2, 4], [1, 4, 16]).value == pytest.approx(2)
    assert not figures.growth("a", [1, 2, 4], [1, 4, 16]).ok
