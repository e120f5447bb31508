"""The table of tasks: each is done exactly once, whatever workers do."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanwise.components.training.elastic.tasks import JobPlan, TaskKind, TaskTable

TRAINING = JobPlan(training=(10, 5), task_rows=4, lease_s=10.0, max_failures=2)


def rows_of(tasks):
    return sorted((task.shard, row) for task in tasks for row in range(task.start, task.stop))


def work_off(table, worker="w", version=0):
    """Takes and finishes tasks until there are none, and gives them."""
    done = []
    while (lease := table.take(worker, 0.0)) is not None:
        assert table.finish(lease.task.number, lease.number)
        table.evaluate_if_due(version)
        done.append(lease.task)
    return done


def test_the_tasks_of_an_epoch_are_all_rows_once():
    """A shard is cut into ranges, the last of which may be short; no range crosses shards."""
    done = work_off(TaskTable(TRAINING))

    assert rows_of(done) == [*((0, row) for row in range(10)), *((1, row) for row in range(5))]
    assert [task.stop - task.start for task in done if task.shard == 0] == [4, 4, 2]


def test_epochs_follow_each_other_in_other_orders():
    """Shards come in an order of each epoch that follows from the seed; rows of a shard stay together."""
    plan = JobPlan(training=(1,) * 20, task_rows=1, epochs=2, seed=3)

    orders = [[task.shard for task in work_off(TaskTable(plan))] for _ in range(2)]

    assert orders[0] == orders[1]
    assert sorted(orders[0][:20]) == sorted(orders[0][20:]) == list(range(20))
    assert orders[0][:20] != orders[0][20:]


@pytest.mark.parametrize(
    ("shards", "tasks"),
    [
        ({"training": (4,)}, [TaskKind.TRAINING]),
        ({"training": (4,), "evaluation": (4,)}, [TaskKind.TRAINING, TaskKind.EVALUATION]),
        ({"evaluation": (4,)}, [TaskKind.EVALUATION]),
        ({"prediction": (4,)}, [TaskKind.PREDICTION]),
    ],
)
def test_what_rows_there_are_tells_which_tasks_there_are(shards, tasks):
    """To train on, to evaluate, or to predict."""
    assert [task.kind for task in work_off(TaskTable(JobPlan(**shards, task_rows=4)))] == tasks


def test_an_epoch_ends_with_an_evaluation_of_the_version_that_it_came_to():
    """Its tasks come before those of the next epoch."""
    table = TaskTable(JobPlan(training=(1,), evaluation=(2,), task_rows=1, epochs=2))
    versions = iter((7, 7, 7, 9, 9, 9))
    done = []
    while (lease := table.take("w", 0.0)) is not None:
        table.finish(lease.task.number, lease.number)
        table.evaluate_if_due(next(versions))
        done.append((lease.task.kind, lease.task.version))

    evaluations = [(TaskKind.EVALUATION, 7)] * 2, [(TaskKind.EVALUATION, 9)] * 2
    assert done == [(TaskKind.TRAINING, 0), *evaluations[0], (TaskKind.TRAINING, 0), *evaluations[1]]
    assert table.is_finished


def test_evaluations_every_so_many_steps():
    """At each version that is a multiple, once; and at the end of the last epoch."""
    table = TaskTable(JobPlan(training=(5,), evaluation=(1,), task_rows=5, evaluate_every=2))
    lease = table.take("w", 0.0)

    due = [table.evaluate_if_due(version) for version in (1, 2, 2, 3, 4)]
    table.finish(lease.task.number, lease.number)
    due.append(table.evaluate_if_due(5))

    assert due == [False, True, False, False, True, True]
    assert table.versions() == {2, 4, 5}


def test_the_end_of_the_job_is_not_evaluated_twice():
    """If the last version has had its evaluation."""
    table = TaskTable(JobPlan(training=(1,), evaluation=(1,), task_rows=1, evaluate_every=2))
    lease = table.take("w", 0.0)

    assert table.evaluate_if_due(2)
    table.finish(lease.task.number, lease.number)
    assert not table.evaluate_if_due(2)
    assert not table.is_finished


def test_a_lost_worker_leaves_its_tasks_to_the_next_who_asks():
    """In the order in which it had them, before all others; batches that count stay counted."""
    table = TaskTable(TRAINING)
    first, second = table.take("a", 0.0), table.take("a", 0.0)
    table.count(first.task.number, first.number)

    assert table.lose("a") == (first.task, second.task)
    again = table.take("b", 0.0)

    assert again.task == first.task
    assert again.number > second.number
    assert again.counted == 1


def test_what_is_reported_after_the_lease_went_to_another_is_refused():
    """The new holder's report counts, and the late one neither before nor after it."""
    table = TaskTable(TRAINING)
    old = table.take("a", 0.0)
    new = table.take("b", 10.1)

    assert new.task == old.task
    assert not table.finish(old.task.number, old.number)
    assert table.finish(new.task.number, new.number)
    assert not table.finish(old.task.number, old.number)
    assert table.done[TaskKind.TRAINING] == 1


def test_a_worker_that_is_heard_of_keeps_its_leases():
    """A lease runs out only for who is silent longer than it lasts."""
    table = TaskTable(TRAINING)
    table.take("a", 0.0)
    table.renew("a", 9.0)

    assert table.expire(19.0) == ()
    assert len(table.expire(19.1)) == 1


def test_a_report_that_comes_twice_counts_once():
    """Its sender may not have got the answer."""
    table = TaskTable(TRAINING)
    lease = table.take("a", 0.0)

    assert table.finish(lease.task.number, lease.number)
    assert table.finish(lease.task.number, lease.number)
    assert table.done[TaskKind.TRAINING] == 1


def test_a_task_that_fails_too_often_is_given_up():
    """It is tried again so often, at once; workers that are lost do not count against it."""
    table = TaskTable(TRAINING)
    task = None
    for _ in range(3):
        assert table.given_up is None
        lease = table.take("a", 0.0)
        table.lose("a")
        lease = table.take("b", 0.0)
        task = task or lease.task
        assert lease.task == task
        table.fail(task.number, lease.number)

    assert table.given_up == task
    assert not table.is_finished


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["take", "take", "count", "finish", "finish", "fail", "lose", "late", "restart"]),
        st.integers(0, 3),
    ),
    max_size=150,
)


@settings(max_examples=150)
@given(MOVES, st.booleans())
def test_every_batch_of_every_task_counts_exactly_once(moves, evaluates):  # noqa: C901  a line for each move
    """Under any interleaving of workers that take, compute, fail, fall silent, die and speak too late."""
    batches = 3
    plan = JobPlan(
        training=(6, 3), evaluation=(2,) if evaluates else (), task_rows=2, epochs=2, lease_s=5.0, max_failures=10**6
    )
    table = TaskTable(plan)
    counted, done, leases = Counter(), Counter(), []
    now = 0.0

    def finish(lease):
        task = lease.task.number
        if table.held(task, lease.number) is None:
            return
        if lease.task.kind is TaskKind.TRAINING:
            while table.next_batch(task) < batches:
                counted[task, table.next_batch(task)] += 1
                table.count(task, lease.number)
        assert table.finish(task, lease.number)
        done[task] += 1
        table.evaluate_if_due(len(done))

    for move, worker in moves:
        name = f"w{worker}"
        held = [lease for lease in leases if lease.worker == name]
        lease = held[worker % len(held)] if held else None
        if move == "take" and (taken := table.take(name, now)) is not None:
            leases.append(taken)
        elif move == "count" and lease is not None and table.held(lease.task.number, lease.number):
            if (batch := table.next_batch(lease.task.number)) < batches and lease.task.kind is TaskKind.TRAINING:
                counted[lease.task.number, batch] += 1
                table.count(lease.task.number, lease.number)
        elif move == "finish" and lease is not None:
            finish(lease)
        elif move == "fail" and lease is not None:
            table.fail(lease.task.number, lease.number)
        elif move == "lose":
            table.lose(name)
        elif move == "late":
            now += 3.0
            table.renew(f"w{(worker + 1) % 4}", now)
        elif move == "restart":
            table = TaskTable.restored(plan, json.loads(json.dumps(table.state())))
    while (last := table.take("last", now + 100.0)) is not None:
        finish(last)

    assert table.is_finished
    training = [task for (task, _), _ in counted.items()]
    assert set(done.values()) == {1}
    assert set(counted.values()) == {1}
    assert len(set(training)) == 2 * (3 + 2)
    assert table.done[TaskKind.TRAINING] == 10
    assert (table.done[TaskKind.EVALUATION] > 0) is evaluates


def test_a_table_of_another_plan_is_not_taken_up():
    """Rows that have changed make other tasks."""
    state = TaskTable(TRAINING).state()

    assert TaskTable.restored(JobPlan(training=(11, 5), task_rows=4), state) is None
