"""Why a node was done or reused, and what of its key had changed, in the words of who wrote the pipeline."""

from dataclasses import replace

import pytest

from spanwise.orchestrator import Examples, Execution, NotRecorded, State
from spanwise.orchestrator.calendar import Calendar
from spanwise.scheduler.inspect import why
from spanwise.scheduler.inspect.diff import compare_runs
from tests.scheduler.past import Past
from tests.scheduler.records import DAY

PARTS = {"code": "a", "component": "b", "parameter at_least": "100", "parameter run_fn": "f", "input examples": "x",
         "library numpy": "2.1"}  # fmt: skip
PARAMETERS = {"at_least": 100, "run_fn": "flights:train"}


@pytest.fixture
def past(tmp_path):
    return Past(tmp_path)


@pytest.fixture
def counted(past):
    """Does `Count` in a run of its own, with parts and parameters that may differ from those of all others."""

    def counted(examples, *, parameters=None, state=State.COMPLETE, reused=None, **parts):
        run = past.begin(DAY)
        past.do(
            "Count", {"examples": examples}, state,
            {**PARTS, **{name.replace("__", " "): value for name, value in parts.items()}},
            {**PARAMETERS, **(parameters or {})}, reused,
        )  # fmt: skip
        return run

    return counted


def changes(past, run):
    return [str(change) for change in why.explain(past.store, run, "Count").changes]


def test_a_parameter_is_told_with_both_values(past, counted):
    """As it was and as it is."""
    counted([])
    run = counted([], parameters={"at_least": 120}, parameter__at_least="120")

    assert changes(past, run) == ["parameter at_least: 100 -> 120"]


def test_a_function_whose_code_changed_is_named(past, counted):
    """Its parameter reads the same, and its digest does not."""
    counted([])
    run = counted([], parameter__run_fn="g")

    assert changes(past, run) == ["code of train (parameter run_fn) changed"]


def test_the_code_of_the_component_and_libraries_are_named(past, counted):
    """Libraries with their versions."""
    counted([])
    run = counted([], code="other", library__numpy="2.2")

    assert changes(past, run) == ["code of Count changed", "library numpy: 2.1 -> 2.2"]


def test_inputs_are_told_by_span_and_version(past, counted):
    """A corrected day is another version of it."""
    old, new = past.ingest(DAY), past.ingest(DAY, version=2)
    counted([old])
    run = counted([new], input__examples="y")

    assert changes(past, run) == [f"input examples: 2013-01-05 v1 ({old.name}) -> 2013-01-05 v2 ({new.name})"]


def test_a_part_that_came_is_told(past, counted):
    """There was no such parameter before."""
    counted([])
    run = counted([], parameters={"strict": True}, parameter__strict="true")

    assert changes(past, run) == ["parameter strict: none -> true"]


def test_it_is_compared_with_the_newest_run_that_finished_the_node(past, counted):
    """A failed attempt in between is passed over."""
    first = counted([])
    counted([], state=State.FAILED, code="broken")
    run = counted([], code="mended")

    found = why.explain(past.store, run, "Count")

    assert found.before.run == first.number
    assert "Changed since flights/1 (complete" in why.format_explanation(found)


def test_an_ordinary_run_is_not_compared_with_a_replay(past, counted):
    """It reuses nothing of one, whose key says that it is one; the next replay is compared with it."""
    first = counted([])
    replay = counted([], replay="yes")
    past.store.update_run(replace(replay, replay=True))
    again = counted([], replay="yes")
    past.store.update_run(replace(again, replay=True))
    run = counted([], code="mended")

    found = [why.explain(past.store, past.store.run("flights", each.number), "Count") for each in (again, run)]

    assert [explanation.before.run for explanation in found] == [replay.number, first.number]
    assert [str(change) for change in found[1].changes] == ["code of Count changed"]


def test_where_none_has_finished_it_is_compared_with_the_newest_that_tried(past, counted):
    """So that it can be seen whether the mending was in the code."""
    counted([], state=State.FAILED, code="broken")
    run = counted([], code="mended")

    assert changes(past, run) == ["code of Count changed"]


def test_a_reused_node_says_so(past, counted):
    """With the reason that was recorded, and that nothing has changed."""
    counted([])
    run = counted([], reused=1)

    text = why.format_explanation(why.explain(past.store, run, "Count"))

    assert text.startswith(f"Count of {run.name} was reused: same as before.")
    assert "Its key has not changed" in text


def test_what_a_base_run_has_supplied_is_compared_as_it_was_executed_there(past, counted):
    """It records no parameters of its own: they neither went when it was supplied, nor came with the next run."""
    first = counted([])
    (made,) = past.store.executions(first)
    past.begin(DAY, base=first.number)
    past.do("Count", {"examples": []}, State.CACHED, reused=made.id)
    supplied = past.run
    after = counted([], parameters={"at_least": 120}, parameter__at_least="120")

    assert changes(past, supplied) == []
    assert changes(past, after) == ["parameter at_least: 100 -> 120"]
    assert [str(d.before) for d in compare_runs(past.store, first, supplied) if d.topic == "parameters"] == []


def test_the_first_time_has_nothing_to_be_compared_with(past, counted):
    """And says that."""
    found = why.explain(past.store, counted([]), "Count")

    assert found.changes == ()
    assert "No earlier run has reached it." in why.format_explanation(found)


def test_a_node_without_a_key_is_compared_by_what_was_recorded(past):
    """A resolver chooses, and what it chose is its input."""
    for days in (1, 2):
        chosen = [past.ingest(DAY + n, version=days) for n in range(days)]
        run = past.begin()
        past.do("Window", {"examples": chosen}, State.CACHED, parameters={"size": 3}, examples=chosen)

    found = why.explain(past.store, run, "Window")

    assert [c.kind for c in found.changes] == ["input"]
    assert "did no work of its own: " in why.format_explanation(found)


@pytest.mark.parametrize("state", [State.FAILED, State.RUNNING])
def test_of_an_execution_that_never_ended_nothing_is_said_to_have_changed(past, counted, state):
    """What it was given is recorded with its end: it was said to have had no inputs and no parameters."""
    first = counted([past.ingest(DAY)])
    died = past.begin(DAY)
    past.do("Count", state=state, error="abandoned: its run died before it ended")

    explanation = why.explain(past.store, died, "Count")

    assert (explanation.before, explanation.changes) == (None, ())
    assert "not recorded, so nothing can be compared" in why.format_explanation(explanation)
    assert [d.what for d in compare_runs(past.store, first, died) if d.where == "Count"] == ["state"]


def test_a_node_that_is_not_in_the_run_is_refused(past, counted):
    """With the name that was meant, and those there are."""
    with pytest.raises(NotRecorded, match=r"no node 'Cuont'\. Did you mean Count\? It has: Count"):
        why.explain(past.store, counted([]), "Cuont")


def test_a_node_that_the_run_did_not_come_to_is_refused(past):
    """It is one of the run's, and something before it failed."""
    run = past.begin(nodes=("Count", "Trainer"))
    past.do("Count")

    with pytest.raises(NotRecorded, match="did not reach 'Trainer'"):
        why.explain(past.store, run, "Trainer")


def test_a_span_is_written_as_its_own_run_counted(tmp_path):
    """The pattern was edited from numbers to days: span 3 was never a day of 1970."""
    sides = [
        Execution(
            pipeline="p", run=run, node="Ingest", parameters={"span": str(span)},
            outputs={"examples": (Examples(name=f"p/Ingest/examples/{span}/1", uri=str(tmp_path), properties=facts),)},
        )
        for run, span, facts in ((1, 3, {"calendar": "number"}), (2, 19723, {"calendar": "day"}))
    ]  # fmt: skip

    assert [str(change) for change in why.compare_keys(*sides, Calendar.DAY)] == ["parameter span: 3 -> 2024-01-01"]


def test_values_that_were_cut_short_alike_are_told_whole():
    """Two long lists that differ at their end."""
    one, other = (
        Execution(pipeline="f", run=1, node="N", parameters={"columns": f'["{"x" * 200}{end}"]'}, key_parts={"parameter columns": end})
        for end in "ab"
    )  # fmt: skip

    (change,) = why.compare_keys(one, other, why.Calendar.NUMBER)

    assert change.before != change.after


def test_the_document_has_the_parts(past, counted):
    """For programs: kind, name and both values."""
    counted([])
    run = counted([], parameters={"at_least": 120}, parameter__at_least="120")

    told = why.explanation_document(why.explain(past.store, run, "Count"))

    assert told["compared_with"] == "flights/1/Count/1"
    assert told["changes"] == [{"kind": "parameter", "name": "at_least", "before": "100", "after": "120"}]
