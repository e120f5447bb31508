"""Base runs: whose outputs stand in for the nodes that a partial run leaves out."""

import pytest

from spanwise.orchestrator import Component, Input, NotRecorded, Output, Pipeline, Report, UsageError
from spanwise.orchestrator.base_run import find_base_run
from spanwise.orchestrator.run import BaseRun, Trigger
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.testing import Trial


class Node(Component):
    def run(
        self, above: Input[list[Report] | None], report: Output[Report], fails: bool = False, value: int = 1
    ) -> None:
        if fails:
            raise ValueError("as told")
        (report.path / "x").write_text(str(value))


def pipeline(fails=""):
    """A -> b -> c, and x beside them."""
    a = Node(name="a", fails="a" in fails)
    b = Node(name="b", above=[a["report"]], fails="b" in fails)
    c = Node(name="c", above=[b["report"]], fails="c" in fails)
    return Pipeline("p", [a, b, c, Node(name="x", fails="x" in fails)])


@pytest.fixture
def trial(tmp_path):
    return Trial(tmp_path)


def base_run(trial, base=None, **part):
    whole = pipeline()
    return find_base_run(trial.store, whole, whole.select(**part), RunRequest(base=base, force_base=base is not None))


def test_a_whole_run_needs_nobody(trial):
    """Nothing is left out, so nothing stands in."""
    assert base_run(trial) == BaseRun()


def test_the_newest_run_that_has_it_all_stands_in(trial):
    """For what is read, and for the rest where it has it."""
    for _ in range(2):
        trial.run(pipeline(), RunRequest(cache=False))
    found = base_run(trial, first=["b"])

    assert found.number == 2
    assert {name: e.run for name, e in found.executions.items()} == {"a": 2, "x": 2}


def test_a_run_that_lacks_it_is_passed_over(trial):
    """One failed run does not block the next partial one."""
    trial.run(pipeline())
    trial.run(pipeline(fails="b"), RunRequest(cache=False))
    found = base_run(trial, first=["c"])

    assert found.number == 1
    assert set(found.executions) == {"a", "b", "x"}


def test_outputs_are_never_mixed_from_several_runs(trial):
    """What the chosen run lacks and nobody reads is left out, not taken from another."""
    trial.run(pipeline())
    trial.run(pipeline(fails="x"), RunRequest(cache=False))
    found = base_run(trial, first=["b"])

    assert found.number == 2
    assert set(found.executions) == {"a"}


def test_a_base_run_can_be_named(trial):
    """Whichever it is, as long as it has what is read."""
    for _ in range(2):
        trial.run(pipeline(), RunRequest(cache=False))

    assert base_run(trial, base=1, first=["b"]).number == 1


def test_a_named_base_run_that_lacks_something_is_refused(trial):
    """The message says what it lacks, and which runs have it."""
    trial.run(pipeline())
    trial.run(pipeline(fails="b"), RunRequest(cache=False))

    with pytest.raises(
        UsageError, match=r"Run 2 of 'p' has no finished b, which this part needs\. Runs that have it: 1\."
    ):
        base_run(trial, base=2, first=["c"])


def test_without_any_run_the_way_is_told(trial):
    """Nothing has ever run: run the whole once, with the file, the span and the arguments that were asked for."""
    whole = pipeline()
    asked = RunRequest(source="dir/file.py:p", span=3, typed=("data=my data",))

    with pytest.raises(UsageError) as refused:
        find_base_run(trial.store, whole, whole.select(first=["b"]), asked)

    assert str(refused.value) == (
        "This part of 'p' begins at b and needs what it leaves out: a. No run of it is recorded here yet.\n"
        "Run the whole pipeline once:  spanwise run dir/file.py:p --span 3 --param 'data=my data'"
    )


def test_without_a_run_that_finished_the_way_is_told(trial):
    """There were runs, and none has what is read."""
    trial.run(pipeline(fails="a"))

    with pytest.raises(UsageError, match=r"out: a\. None of its last 100 runs has finished that\.\nRun the whole"):
        base_run(trial, first=["b"])


def test_a_part_that_reads_nothing_needs_no_base(trial):
    """The first nodes can run alone in a fresh store."""
    assert base_run(trial, last=["a"]) == BaseRun()


def test_a_base_run_that_is_not_there_is_told(trial):
    """A number that was never given to a run."""
    trial.run(pipeline())

    with pytest.raises(NotRecorded, match="has no run 7"):
        base_run(trial, base=7, first=["b"])


def test_a_run_of_stand_ins_can_stand_in(trial):
    """What was carried over counts as that run's own, so parts can follow each other."""
    trial.run(pipeline())
    whole = pipeline()
    trial.run(whole, RunRequest(selection=whole.select(first=["c"])))
    found = base_run(trial, first=["b"])

    assert found.number == 2
    assert found.executions["a"].outputs["report"][0].name == "p/a/report/1"


def test_a_resumed_run_has_completed_the_part_before(trial):
    """It did the rest of the run that it resumes; a part by hand, on what an older run has made, has not."""
    whole, behind = pipeline(), RunRequest(behind=("a", "b"))
    trial.run(pipeline(fails="b"))
    rest = RunRequest(selection=whole.select(first=["b"]), trigger=Trigger.RESUME, cause="p/1", base=1)
    trial.run(whole, rest)
    trial.run(whole, RunRequest(selection=whole.select(first=["b"])))

    assert find_base_run(trial.store, whole, whole.select(first=["c"]), behind).number == 2


def checked(fails=False, value=1):
    """Make -> Push, which comes after Check; Other beside them."""
    make = Node(name="Make", value=value)
    check = Node(name="Check", above=[make["report"]], fails=fails, cache=False)
    push = Node(name="Push", above=[make["report"]], after=[check], cache=False)
    return Pipeline("checked", [make, check, push, Node(name="Other")])


@pytest.mark.parametrize(
    "part", [{"first": ["Push"]}, {"first": ["Push"], "last": ["Push"]}, {"first": ["Check"], "skip": ["Check"]}]
)
@pytest.mark.parametrize(("value", "begin"), [(1, "Check"), (2, "Make")])
def test_a_part_does_not_go_past_a_check_that_has_failed(trial, part, value, begin):
    """Push comes after Check: no run supplies what that has failed since, and the command that is printed asks it."""
    trial.run(checked())
    trial.run(checked(fails=True, value=value))
    whole = checked(value=value)

    with pytest.raises(UsageError) as refused:
        find_base_run(trial.store, whole, whole.select(**part), RunRequest(source="checked.py"))

    assert f"  spanwise run checked.py --from {begin}\n" in str(refused.value)


def test_a_part_comes_after_a_check_that_has_passed(trial):
    """The newest run in which it has, also where another node failed."""
    trial.run(checked())
    trial.run(checked(fails=True))
    trial.run(checked())
    whole = checked()
    found = find_base_run(trial.store, whole, whole.select(first=["Push"]), RunRequest())

    assert found.number == 3
    assert set(found.executions) == {"Make", "Check", "Other"}


def test_a_named_base_run_in_which_a_check_failed_is_refused(trial):
    """Also by its number: what the check has failed is pushed by name, or not at all."""
    trial.run(checked(fails=True))
    whole = checked()

    with pytest.raises(UsageError, match=r"Run 1 of 'checked' has no finished Check, which this part needs"):
        find_base_run(trial.store, whole, whole.select(first=["Push"]), RunRequest(base=1, force_base=True))


def test_a_part_does_not_come_after_a_check_that_was_edited(trial):
    """It would be asked anew in a run of everything, and may fail; so would one that was added upstream."""
    trial.run(checked())
    edited = checked(fails=True)

    with pytest.raises(UsageError, match=r"come after Check of run 1, but .* Check is defined otherwise now"):
        find_base_run(trial.store, edited, edited.select(first=["Push"]), RunRequest())
