"""Benchmarks: what they say of goals."""

import json
import socket
import time

import pytest

from benchmarks import figures
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
