import io
import logging
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from rich.console import Console

from spanwise.orchestrator import Execution, Run, State
from spanwise.orchestrator.run_request import Event, EventName
from spanwise.scheduler.run import progress
from spanwise.scheduler.run.progress import Follower, Lines, Tail
from tests.scheduler.records import NOON

RUN = Run(pipeline="flow", number=4, nodes=("First", "Second"))


def event(what: EventName, node: str = "", message: str = "", **facts: object) -> Event:
    execution = Execution(pipeline="flow", run=4, node=node, started=NOON, ended=NOON + timedelta(seconds=2))
    return Event(
        what=what,
        run=RUN,
        node=node,
        execution=replace(execution, **facts) if node else None,  # type: ignore[arg-type]
        message=message,
    )


@pytest.mark.parametrize(
    ("happened", "line"),
    [
        (event("run-started"), "Run flow/4 started: First, Second"),
        (event("node-started", "First"), "First started"),
        (event("node-started", "First", attempt=2), "First started (attempt 2)"),
        (event("node-reused", "First", reason="same\ninputs", reused=3), "First reused: same inputs"),
        (event("node-completed", "First"), "First complete in 2.0 s"),
        (event("node-reused", "First", reason="chose x/1", state=State.CACHED), "First chose x/1"),
        (event("node-failed", "First", "E: bad\n  File x"), "First failed after 2.0 s: E: bad"),
        (event("node-skipped", "Second"), "Second not reached: an input was not produced"),
        (event("stop-requested", message="SIGINT"), "Stopping: SIGINT"),
        (event("run-ended"), ""),
    ],
)
def test_an_event_is_one_line(happened: Event, line: str) -> None:
    """The end of a run has none: its summary follows."""
    assert progress.format_event(happened) == line


def test_a_log_is_read_in_whole_lines(tmp_path: Path) -> None:
    """A line appears when its end does; the rest at the end of the node."""
    file = tmp_path / "log"
    tail = Tail(file)
    assert tail.lines() == []

    file.write_text("one\ntw")
    first = tail.lines()
    with file.open("a") as log:
        log.write("o\nthree")

    assert (first, tail.lines(), tail.rest()) == (["one"], ["two"], ["three"])


def test_bytes_that_are_no_text_do_not_stop_the_display(tmp_path: Path) -> None:
    """A node may print anything."""
    (tmp_path / "log").write_bytes(b"\xff\x00x\x1b[1m!\n")

    assert Tail(tmp_path / "log").rest() == ["\ufffdx!"]


def test_what_a_node_printed_is_shown_before_its_end(tmp_path: Path) -> None:
    """Each line has the name of its node, and none comes after the node has ended."""
    log = tmp_path / "log"
    stream = io.StringIO()
    follower = Follower(Lines(stream))

    follower.observe(event("node-started", "First", log=str(log)))
    log.write_text("hello\n")
    follower.poll()
    with log.open("a") as more:
        more.write("last words")
    follower.observe(event("node-completed", "First"))
    follower.poll()

    assert stream.getvalue().splitlines() == [
        "First started",
        "First | hello",
        "First | last words",
        "First complete in 2.0 s",
    ]


def test_warnings_of_the_program_are_among_the_lines() -> None:
    """They are shown once, with their facts, and the logging that was there is put back."""
    stream = io.StringIO()
    logger = logging.getLogger("spanwise.driver")

    with progress.show_progress(Lines(stream)):
        logger.warning("caching-refused", extra={"node": "First", "reason": "a lambda"})

    assert stream.getvalue() == "warning: caching-refused (First: a lambda)\n"
    assert logging.getLogger("spanwise").handlers == []
    assert logging.getLogger("spanwise").propagate


def test_the_table_shows_state_time_and_reason() -> None:
    """A running node has a spinner and its seconds so far; what a node says may hold brackets."""
    nodes = {
        "First": progress._node_state(event("node-reused", "First", reason="same [bold]inputs", reused=3), now=0.0),
        "Second": progress._node_state(event("node-started", "Second"), now=0.0),
    }
    console = Console(file=io.StringIO(), width=80)

    console.print(progress.draw_nodes(nodes, now=3.0))

    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0].split() == ["NODE", "STATE", "TOOK"]
    assert lines[1].split() == ["First", "reused", "2.0", "s", "same", "[bold]inputs"]
    assert lines[2].split()[2:] == ["running", "3.0", "s"]


def test_every_event_has_a_row_or_a_line() -> None:
    """Whatever happens to a node, the table has a state for it."""
    states = {
        what: progress._node_state(event(what, "First", reused=3), now=0.0).state
        for what in ("node-started", "node-reused", "node-completed", "node-failed", "node-canceled", "node-skipped")
    }

    assert states == {
        "node-started": "running",
        "node-reused": "reused",
        "node-completed": "complete",
        "node-failed": "failed",
        "node-canceled": "canceled",
        "node-skipped": "not reached",
    }


def test_states_are_those_of_the_record() -> None:
    """The words on the screen are the words in the metadata, as far as both have them."""
    assert {State.COMPLETE.value, State.FAILED.value, State.CANCELED.value, State.RUNNING.value} <= {*progress._STYLE}
