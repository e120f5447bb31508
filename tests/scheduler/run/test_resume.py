from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spanwise.orchestrator import Execution, Run, State, UsageError
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.run import Trigger
from spanwise.orchestrator.store import MemoryStore
from spanwise.scheduler.project.settings import Settings
from spanwise.scheduler.run import resume
from tests.scheduler.branches import pipeline
from tests.scheduler.records import DAY, NOON

RUN = Run(
    pipeline="p", number=42, nodes=("A", "B", "C", "D"), state=State.FAILED, span=DAY, calendar="day", started=NOON,
    ended=NOON, from_scratch=True, typed=("x=1",), source="/gone/p.py",
)  # fmt: skip


RUN_SPAN = Calendar.DAY.label(DAY)


def executions(*done: str, failed: tuple[str, ...] = ()) -> list[Execution]:
    states = {**dict.fromkeys(done, State.COMPLETE), **dict.fromkeys(failed, State.FAILED)}
    return [Execution(pipeline="p", run=42, node=n, state=s) for n, s in states.items()]


@pytest.mark.parametrize(
    ("run", "done", "left"),
    [
        (RUN, executions("A", "C", failed=("B",)), ("B", "D")),
        (RUN, executions("A", failed=("B", "C")), ("B", "C", "D")),
        (RUN, executions(failed=("A",)), ("A", "B", "C", "D")),
        (RUN, [], ("A", "B", "C", "D")),
        (replace(RUN, nodes=("A", "B")), executions("A"), ("B",)),
        (replace(RUN, nodes=("B", "C")), executions("A", "B", failed=("C",)), ("C",)),
    ],
)
def test_what_is_left_is_what_was_not_done_and_what_comes_after(
    run: Run, done: list[Execution], left: tuple[str, ...]
) -> None:
    """Of the nodes that the run had, and no others."""
    assert resume.select_remaining(run, done, pipeline()).run == left


def test_a_run_is_resumed_as_it_was_asked_for() -> None:
    """Its span, its arguments and its training from scratch hold; its own outputs stand in."""
    request = resume.resume_request(RUN, executions("A", "C", failed=("B",)), pipeline())

    assert (request.trigger, request.cause, request.base) == (Trigger.RESUME, "p/42", 42)
    assert (request.span, request.typed, request.from_scratch) == (DAY, ("x=1",), True)


def test_a_run_that_did_nothing_is_run_whole() -> None:
    """Nothing stands in, so no base is asked for what it lacks."""
    assert resume.resume_request(RUN, [], pipeline()).base is None


def test_a_run_that_died_after_its_last_node_is_not_run_again() -> None:
    """Nothing is left of it; to act outside a second time is nobody's wish."""
    with pytest.raises(UsageError, match="so there is nothing to resume"):
        resume.resume_request(RUN, executions("A", "B", "C", "D"), pipeline())


def test_a_pipeline_that_lost_a_node_of_the_run_is_refused() -> None:
    """What was meant to be done cannot be done any more; a new run is for the same span, with the same arguments."""
    with pytest.raises(UsageError, match=rf"(?s)had nodes that 'p' no longer has: E.*--span {RUN_SPAN} --param x=1"):
        resume.resume_request(replace(RUN, nodes=("A", "E")), [], pipeline())


@pytest.mark.parametrize(
    ("source", "says"), [("", "was not started from a file"), ("/gone/p.py", "is gone: /gone/p.py. Restore it")]
)
def test_a_run_whose_pipeline_cannot_be_found_says_so(source: str, says: str, tmp_path: Path) -> None:
    """Without its file nothing is known of its nodes."""
    settings = Settings(root=tmp_path, metadata=str(tmp_path / "m.db"))
    with pytest.raises(UsageError, match=says):
        resume.reload_pipeline(replace(RUN, source=source), settings)


def test_nothing_is_left_of_a_complete_run() -> None:
    """The message has the command that runs its pipeline again, for its span and with its arguments."""
    store = MemoryStore()
    done = store.begin_run(replace(RUN, state=State.COMPLETE))
    with pytest.raises(UsageError) as refused:
        resume._refuse_complete(store, done)
    assert str(refused.value) == (
        "Run p/1 is complete, so there is nothing to resume. Run its pipeline again:  "
        f"spanwise run /gone/p.py --span {RUN_SPAN} --param x=1"
    )


@pytest.mark.parametrize("part", [{"base": 1}, {"unselected": ("E",)}])
def test_a_complete_part_is_not_run_again_as_a_whole(part: dict[str, Any]) -> None:
    """The training of a backfill has no span: the command would ingest what is newest. A resumed part is one too."""
    store = MemoryStore()
    store.begin_run(replace(RUN, **part))
    for facts in ({}, {"trigger": Trigger.RESUME, "cause": "p/1", "base": 1}):
        done = store.begin_run(replace(RUN, state=State.COMPLETE, **{**part, **facts}))
        with pytest.raises(UsageError) as refused:
            resume._refuse_complete(store, done)
        assert str(refused.value) == f"Run {done.name} is complete, so there is nothing to resume."
