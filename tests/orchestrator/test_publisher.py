"""Publishers: the outcome of an execution becomes visible all at once, under the run's lease."""

from dataclasses import replace

import pytest

from spanwise.orchestrator import Blessing, Execution, Fenced, PushedModel, Report, Run, State
from spanwise.orchestrator.driver import Execute, Reuse
from spanwise.orchestrator.lease import acquire
from spanwise.orchestrator.publisher import (
    ABANDONED,
    LONGEST_ERROR,
    begin,
    clear,
    close_abandoned_runs,
    complete,
    fail,
    place,
    reuse,
)
from spanwise.orchestrator.serving import claim_pushes, pushes
from spanwise.orchestrator.store import Address, AlreadyClaimed, Claim, MemoryStore
from spanwise.orchestrator.verdict import Verdict, append, read_verdicts

PLAN = Execute(reason="no cached result matched", prepared={}, parameters={"n": "3"}, key=None)


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def lease(store):
    return acquire(store, "p", "a run")


def running(store, lease, node="Node"):
    run = lease.write(lambda place: store.begin_run(Run(pipeline="p", token=lease.token), place))
    return begin(store, lease, Execution(pipeline="p", run=run.number, node=node))


def blessing(of="p/Train/model/1"):
    return Blessing("/b", properties={"blessed": 1, "current_model": of, "current_model_id": 1})


def dies(store, lease):
    claim = store.find_claim("lease", f"p#{lease.token}")
    store.amend(Claim("lease", claim.name, {**claim.facts, "who": {**claim.facts["who"], "started": 1}}))


def test_what_was_made_becomes_visible(store, lease):
    """State, parameters, inputs and outputs, in one write; keys under which nothing was made are left out."""
    done = complete(store, lease, running(store, lease), {}, PLAN, {"report": (Report("/r"),), "extra": ()})

    assert done.state is State.COMPLETE
    assert [a.name for a in done.outputs["report"]] == ["p/Node/report/1"]
    assert (set(done.outputs), done.parameters, done.reason) == ({"report"}, {"n": "3"}, PLAN.reason)


def test_nothing_is_visible_of_a_fenced_run(store, lease):
    """A run whose lease was taken over publishes nothing, not even a failure, and keeps its files."""
    execution = running(store, lease)
    dies(store, lease)
    successor = acquire(store, "p", "the next run")
    close_abandoned_runs(store, successor, root=_nowhere())

    with pytest.raises(Fenced):
        complete(store, lease, execution, {}, PLAN, {"report": (Report("/r"),)})
    with pytest.raises(Fenced):
        fail(store, lease, _nowhere(), execution, State.FAILED, "late")

    assert list(store.newest(Address("p", "Node", "report"))) == []
    assert store.execution(execution.id).error == ABANDONED


def _nowhere():
    from pathlib import Path

    return Path("/nowhere")


def blessed(node, run):
    return Verdict(mark="blessed", artifact="p/Train/model/1", given=True, judge=node, by=f"p/{run}", because="")


def judged(store, model="p/Train/model/1"):
    return [(v.judge, v.by, v.given) for v in read_verdicts(store, "blessed", model)]


def test_a_blessing_judges_its_model_in_the_same_write(store, lease):
    """The blessing and the verdict on the model are recorded together."""
    verdicts = [blessed("Node", 1)]
    complete(store, lease, running(store, lease), {}, PLAN, {"blessing": (blessing(),)}, verdicts)

    assert judged(store) == [("Node", "p/1", True)]


def test_a_model_is_blessed_twice(store, lease):
    """Each node has a verdict of its own; both blessings are published."""
    for run, node in enumerate(("One", "Two"), start=1):
        verdicts = [blessed(node, run)]
        complete(store, lease, running(store, lease, node), {}, PLAN, {"blessing": (blessing(),)}, verdicts)

    assert judged(store) == [("One", "p/1", True), ("Two", "p/2", True)]
    assert len(list(store.newest(Address("p", "Two", "blessing")))) == 1


def pushed(of="p/Train/model/1"):
    return PushedModel("/p", properties={"pushed": 1, "model": of})


def overtake(store, monkeypatch, act):
    """Lets somebody act between the look and the write of the next publication."""
    publish = store.publish

    def overtaken(*arguments):
        monkeypatch.setattr(store, "publish", publish)
        act()
        return publish(*arguments)

    monkeypatch.setattr(store, "publish", overtaken)


def test_a_push_that_is_recorded_meanwhile_comes_first(store, lease, monkeypatch):
    """Another Pusher may take the place in the log; ours takes the next one."""
    execution = running(store, lease)
    other = replace(execution, node="Other")
    overtake(store, monkeypatch, lambda: store.claim(*claim_pushes(store, other, [pushed()])))

    complete(store, lease, execution, {}, PLAN, {"pushed_model": (pushed(),)})

    assert [push.node for push in pushes(store, "p/Train/model")] == [execution.node, "Other"]


def test_a_verdict_that_is_given_meanwhile_comes_first(store, lease, monkeypatch):
    """Another judge may take the place in the log; ours takes the next one."""
    execution = running(store, lease)
    other = Verdict(mark="blessed", artifact="p/Train/model/1", given=False, judge="Other", by="p/9", because="slow")
    overtake(store, monkeypatch, lambda: append(store, [other]))
    verdicts = [blessed("Node", 1)]

    complete(store, lease, execution, {}, PLAN, {"blessing": (blessing(),)}, verdicts)

    assert judged(store) == [("Other", "p/9", False), ("Node", "p/1", True)]


def test_a_person_who_decides_meanwhile_is_not_overruled(store, lease, monkeypatch):
    """The blessing is published, but the verdict of the person stays the newest."""
    execution = running(store, lease)
    person = Verdict(mark="blessed", artifact="p/Train/model/1", given=False, by="ann@host", because="biased")
    overtake(store, monkeypatch, lambda: append(store, [person]))
    verdicts = [blessed("Node", 1)]

    done = complete(store, lease, execution, {}, PLAN, {"blessing": (blessing(),)}, verdicts)

    assert done.state is State.COMPLETE
    assert judged(store) == [("", "ann@host", False)]


def test_a_reuse_refers_to_what_there_is(store, lease):
    """The outputs keep their names; no new artifact comes to be."""
    made = complete(store, lease, running(store, lease), {}, PLAN, {"report": (Report("/r"),)})
    again = running(store, lease, "Other")
    plan = Reuse(outputs=made.outputs, reason="the same", execution=made.id)
    ended = reuse(store, lease, again, {}, plan)

    assert (ended.state, ended.reused, ended.reason) == (State.CACHED, made.id, "the same")
    assert ended.outputs["report"][0].name == "p/Node/report/1"


def test_a_failure_takes_the_files_away(store, lease, tmp_path):
    """Whatever the execution wrote as outputs is removed, and nothing else."""
    execution, other = running(store, lease), running(store, lease)
    mine, theirs = place(tmp_path, execution, "report"), place(tmp_path, other, "report")
    for folder in (mine, theirs):
        folder.mkdir(parents=True)
    failed = fail(store, lease, tmp_path, execution, State.FAILED, "too small")

    assert (failed.state, failed.error) == (State.FAILED, "too small")
    assert not mine.exists()
    assert theirs.exists()


def test_a_long_error_is_shortened(store, lease, tmp_path):
    """Its beginning and its end are recorded; databases do not take megabytes."""
    failed = fail(store, lease, tmp_path, running(store, lease), State.FAILED, "a" * 10**6 + "z")

    assert len(failed.error) < LONGEST_ERROR + 100
    assert failed.error.startswith("aaa")
    assert failed.error.endswith("az")


def test_files_stay_when_the_failure_is_not_recorded(store, lease, tmp_path):
    """A failure that comes after a publication that landed is refused, and the live files are not touched."""
    execution = running(store, lease)
    live = place(tmp_path, execution, "report")
    live.mkdir(parents=True)
    complete(store, lease, execution, {}, PLAN, {"report": (Report(str(live)),)})

    with pytest.raises(Exception, match="has ended as complete already"):
        fail(store, lease, tmp_path, execution, State.FAILED, "late")

    assert live.exists()


def test_executions_write_in_places_of_their_own(tmp_path):
    """No two executions share a folder."""
    execution = Execution(id=7, pipeline="p", run=1, node="Node")

    assert place(tmp_path, execution, "report") == tmp_path / "p" / "Node" / "report" / "7"


def test_clearing_what_is_not_there_does_nothing(tmp_path):
    """An execution that failed before it wrote leaves nothing to clear."""
    clear(tmp_path, Execution(id=7, pipeline="p", run=1, node="Node"))

    assert list(tmp_path.iterdir()) == []


def test_the_runs_of_all_dead_holders_are_closed(store, tmp_path):
    """Each with its executions; runs that had ended, and their executions, stay as they are."""
    for fate in ("dies", "ends", "dies"):
        lease = acquire(store, "p", "a run")
        execution = running(store, lease)
        if fate == "ends":
            fail(store, lease, tmp_path, execution, State.CANCELED, "stopped")
            ended = Run(pipeline="p", number=execution.run, token=lease.token, state=State.CANCELED)
            lease.write(lambda place, ended=ended: store.update_run(ended, place))
            lease.release()
        else:
            dies(store, lease)
    closed = close_abandoned_runs(store, acquire(store, "p", "the next run"), tmp_path)

    assert [run.number for run in closed] == [1, 3]
    assert [store.run("p", n).state for n in (1, 2, 3)] == [State.FAILED, State.CANCELED, State.FAILED]
    assert store.executions(store.run("p", 1))[0].error == ABANDONED
    assert store.executions(store.run("p", 2))[0].error == "stopped"


def test_the_files_of_a_recorded_failure_are_taken_away_too(store, tmp_path):
    """A run may die between recording a failure and taking its files away."""
    lease = acquire(store, "p", "a run")
    execution = running(store, lease)
    fail(store, lease, tmp_path, execution, State.FAILED, "too small")
    left = place(tmp_path, execution, "report")
    left.mkdir(parents=True)
    dies(store, lease)
    close_abandoned_runs(store, acquire(store, "p", "the next run"), tmp_path)

    assert not left.exists()
    assert store.execution(execution.id).error == "too small"


def test_putting_right_can_be_cut_short_and_taken_up(store, tmp_path, monkeypatch):
    """It fails in the middle; the next one finishes it."""
    for _ in range(2):
        lease = acquire(store, "p", "a run")
        running(store, lease)
        dies(store, lease)
    lease = acquire(store, "p", "the one that fails")
    update_run = store.update_run
    monkeypatch.setattr(store, "update_run", lambda *_: (_ for _ in ()).throw(AlreadyClaimed("something")))
    with pytest.raises(AlreadyClaimed):
        close_abandoned_runs(store, lease, tmp_path)
    lease.release()
    monkeypatch.setattr(store, "update_run", update_run)
    closed = close_abandoned_runs(store, acquire(store, "p", "the next run"), tmp_path)

    assert [run.number for run in closed] == [1, 2]
    assert all(e.state.ended for n in (1, 2) for e in store.executions(store.run("p", n)))
