"""The master and its workers: real requests, the loops of workers in threads."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from spanwise.components.training.elastic import requests
from spanwise.components.training.elastic.arrays import pack, unpack
from spanwise.components.training.elastic.job import ElasticJob
from spanwise.components.training.elastic.master import Master
from spanwise.components.training.elastic.tasks import TaskKind
from spanwise.components.training.elastic.training import readings_of, run_job
from spanwise.components.training.elastic.worker import Assignment, run_worker
from spanwise.orchestrator.code_meaning import ship_checked
from spanwise.orchestrator.errors import NodeFailed, ParameterError, ServiceError
from spanwise.pipelines.input.service.wire.security import Security
from tests.components.training.elastic import jobs
from tests.components.training.elastic.jobs import EVALUATED, EVALUATION, PREDICTION, SUM


@pytest.fixture
def task(tmp_path):
    """Two spans of 90 rows, the numbers from 0 to 89; 45 of them in the split eval."""
    return jobs.task_of(tmp_path)


def give(client, lease, batch, gradient, version=0, rows=1):
    """Reports the gradient of a batch, and gives the answer."""
    layout, content = pack(gradient)
    report = requests.ReportGradient(
        worker=client.worker,
        task=lease.task.number,
        lease=lease.number,
        batch=batch,
        version=version,
        rows=rows,
        layout=layout,
    )
    return client.ask(report, content)[0].answer


def finish(client, lease):
    number, worker = lease.task.number, client.worker
    report = requests.ReportTask(
        worker=worker, task=number, lease=lease.number, batches=1, rows=1, metrics={}, seconds={}
    )
    return client.ask(report)[0].answer


def averaging(grads_to_wait=1, **changes):
    """Parameters that go on by the mean gradient."""
    return replace(
        SUM,
        init=lambda task: {"w": np.zeros(())},
        apply=lambda p, g: {"w": p["w"] + g["w"]},
        grads_to_wait=grads_to_wait,
        **changes,
    )


def test_every_row_counts_once_an_epoch_however_many_workers_there_are(task):
    """Each batch changes the parameters once: the sums over all rows, and a version for each batch."""
    outcome = jobs.done(replace(SUM, epochs=2), task, workers=3)

    assert outcome.parameters == {"rows": 2 * 2 * 90, "sum": 2 * 2 * sum(range(90))}
    assert outcome.version == 2 * 2 * sum(-(-rows // 7) for rows in (20, 20, 20, 20, 10))


def test_an_evaluation_is_of_one_version_however_far_the_training_is(task):
    """All of its rows, with the parameters as they were when it was due; metrics are means over the rows."""
    outcome = jobs.done(replace(EVALUATED, epochs=2), task, workers=2)

    first, last = outcome.evaluations
    assert last.metrics == {"mean": pytest.approx(np.arange(45).mean()), "trained": 360}
    assert 180 <= first.metrics["trained"] < 360
    assert first.metrics["trained"] % 1 == 0
    assert first.rows == last.rows == 90
    assert last.version == outcome.version


def test_an_evaluation_only_changes_no_parameters(task):
    """It has no training tasks, and is of the parameters that `init` gave."""
    outcome = jobs.done(replace(EVALUATION, init=lambda task: {"rows": np.array(5)}), task, workers=2)

    (found,) = outcome.evaluations
    assert (found.version, found.rows, found.metrics["trained"]) == (0, 90, 5)


def test_predictions_come_in_the_order_of_the_rows(task):
    """Whoever made them, and whenever."""
    outcome = jobs.done(PREDICTION, task, workers=3)

    assert outcome.read_predictions()["doubled"].to_pylist() == [2 * row for row in range(90)] * 2
    assert outcome.evaluations == []


def test_predictions_of_shuffled_rows_are_refused(task):
    """They would be of other rows than those beside which they stand."""
    job = replace(PREDICTION, dataset_fn=lambda rows: rows.shuffle(10, seed=1).batch(7).as_numpy())

    with pytest.raises(ParameterError, match="Shuffle gives the rows in another order, and predictions are in that"):
        run_job(job, task)


def test_a_batch_that_counts_is_left_out_by_the_next_worker(task):
    """A worker is lost in the middle of a task: its batches count, what it says later does not."""
    with jobs.master_of(SUM, task) as master:
        gone = jobs.client_of(master, "gone")
        lease = gone.next_lease()
        first = {"rows": np.array(7), "sum": np.array(sum(range(lease.task.start, lease.task.start + 7)))}
        assert give(gone, lease, 0, first) == "taken"
        assert give(gone, lease, 0, first) == "taken"  # once more, since the answer did not arrive
        master.lose("gone")

        with jobs.at_work(jobs.worker_of(SUM, task, master)):
            pass

        assert give(gone, lease, 1, first) == "lost"
        assert finish(gone, lease) == "lost"
        assert master.outcome().parameters == {"rows": 180, "sum": 2 * sum(range(90))}
        assert master.refused == 2


def test_a_worker_that_is_silent_loses_its_tasks(task):
    """When its lease has run out, the next who asks is given the task."""
    job = replace(SUM, lease_s=0.05)
    with jobs.master_of(job, task) as master:
        old = jobs.client_of(master, "silent").next_lease()
        master.table.expire(float("inf"))
        new = jobs.client_of(master, "other").next_lease()

        assert new.task == old.task
        assert new.number > old.number


class LeaseClock:
    """The master's clock, which goes forward when a test says so."""

    def __init__(self):
        self.now = 0.0
        self.renewed = threading.Event()  #: when a worker was last heard of
        self.slow = 3  #: batches that take longer than a lease

    def __call__(self):
        return self.now


CLOCK = LeaseClock()  # of the module: a job that is sent to a worker finds it by its name


def compute_slowly(parameters, batch):
    if CLOCK.slow:
        CLOCK.slow -= 1
        for _ in range(2):  # longer than the lease, with a heartbeat in the middle
            CLOCK.renewed.clear()
            CLOCK.now += 0.4
            assert CLOCK.renewed.wait(300)
    return jobs.gradient(parameters, batch)


def test_a_worker_that_computes_longer_than_its_lease_is_not_silent(task):
    """It sends heartbeats while it computes, so its task stays its own."""
    job = replace(SUM, gradient=compute_slowly, lease_s=0.5, task_rows=90)
    plan = jobs.plan_of(job, readings_of(job, task))
    with Master(job, plan, lambda: job.init(task), task.checkpoints / "elastic", clock=CLOCK) as master:
        renew = master.table.renew

        def note(worker, now_s):
            renew(worker, now_s)
            CLOCK.renewed.set()

        master.table.renew = note
        assignment = Assignment(
            worker="slow",
            target=master.target,
            security=master.security,
            readings=readings_of(job, task),
            job=ship_checked(job),
        )
        working = threading.Thread(target=run_worker, args=[assignment], daemon=True)
        working.start()
        while not master.wait(0.01):
            master.tick()
        working.join(60)

        assert master.outcome().parameters["rows"] == 180
        assert master.refused == 0
        assert CLOCK.slow == 0


def test_a_step_takes_the_mean_of_so_many_gradients(task):
    """Weighted by their rows; nothing happens before the last of them has come."""
    with jobs.master_of(averaging(2), task) as master:
        a, b = jobs.client_of(master, "a"), jobs.client_of(master, "b")
        of_a, of_b = a.next_lease(), b.next_lease()

        assert give(a, of_a, 0, {"w": 4.0}, rows=1) == "taken"
        before = master.parameters.version
        assert give(b, of_b, 0, {"w": 8.0}, rows=3) == "taken"

        assert before == 0
        assert master.parameters.version == 1
        assert master.parameters.values["w"] == (1 * 4.0 + 3 * 8.0) / 4


@pytest.mark.parametrize("dtype", ["i4", "f2", "f4", "c8"])
def test_a_mean_of_gradients_does_not_overflow(task, dtype):
    """However many rows their batches have: each is multiplied by its rows on the way."""
    with jobs.master_of(averaging(2), task) as master:
        a, b = jobs.client_of(master, "a"), jobs.client_of(master, "b")
        of_a, of_b = a.next_lease(), b.next_lease()

        give(a, of_a, 0, {"w": np.array([40_000, 2], dtype)}, rows=65_536)
        give(b, of_b, 0, {"w": np.array([40_000, 4], dtype)}, rows=65_536)

        np.testing.assert_allclose(master.parameters.values["w"], [40_000, 3], rtol=1e-3)


@pytest.mark.parametrize("task_rows", [20, 90], ids=["of another task", "of the same task"])
def test_metrics_of_some_batches_alone_are_refused(task, task_rows):
    """Their sum would be divided by the rows of all batches."""
    job = replace(
        EVALUATION,
        init=lambda task: {"rows": np.array(0)},
        evaluate=lambda p, batch: {"mean": 1.0, **({"auc": 1.0} if batch["x"][0] >= 20 else {})},
        task_rows=task_rows,
        max_failures=0,
    )

    with pytest.raises((ParameterError, NodeFailed), match="returned the metrics 'mean' for one batch and 'auc', 'mea"):
        jobs.done(job, task)


@pytest.mark.parametrize("task_rows", [20, 90], ids=["of another task", "of the same task"])
@pytest.mark.parametrize("without", ["the first batch", "later batches"])
def test_a_batch_without_metrics_is_refused_where_others_have_some(task, task_rows, without):
    """Its rows would count in a mean that says nothing of them."""
    job = replace(
        EVALUATION,
        init=lambda task: {"rows": np.array(0)},
        evaluate=lambda p, batch: {"mean": 1.0} if (batch["x"][0] >= 20) == (without == "the first batch") else {},
        task_rows=task_rows,
        max_failures=0,
    )

    with pytest.raises((ParameterError, NodeFailed), match=r"returned the metrics ('mean'|none) for one batch and"):
        jobs.done(job, task)


def test_a_batch_without_rows_has_no_part_in_the_metrics(task):
    """Whatever `evaluate` makes of it: it has no mean."""
    job = replace(
        EVALUATION,
        init=lambda task: {"rows": np.array(0)},
        dataset_fn=lambda rows: rows.batch(7).as_numpy().map(lambda batch: {"x": batch["x"][batch["x"] >= 20]}),
        evaluate=lambda p, batch: {"mean": batch["x"].mean()} if len(batch["x"]) else {"none": np.nan},
    )

    (found,) = jobs.done(job, task).evaluations

    assert (found.rows, found.metrics) == (2 * 25, {"mean": pytest.approx(32.0)})


def test_predictions_may_be_returned_in_one_buffer(task):
    """A function that writes each batch over the last one has all of them."""
    buffer = np.empty(7, np.int64)
    job = replace(
        PREDICTION,
        predict=lambda p, batch: {"doubled": np.multiply(batch["x"], 2, out=buffer[: len(batch["x"])])},
    )

    assert jobs.done(job, task).read_predictions()["doubled"].to_pylist() == [2 * row for row in range(90)] * 2


def test_predictions_are_one_for_each_row(task):
    """More or fewer would stand beside other rows."""
    job = replace(PREDICTION, predict=lambda p, batch: {"y": batch["x"][batch["x"] != 3]}, max_failures=0)

    with pytest.raises(NodeFailed, match="predict returned 6 rows for a batch of 7: return one for each"):
        jobs.done(job, task)


def test_predictions_in_another_order_are_refused(task):
    """As of a Series that was sorted, whose index says of which rows its values are."""
    pandas = pytest.importorskip("pandas")
    job = replace(
        PREDICTION,
        predict=lambda p, batch: {"y": pandas.Series(batch["x"]).sort_values(ascending=False)},
        max_failures=0,
    )

    with pytest.raises(
        NodeFailed, match="predict returned a Series of pandas whose index is not in the order of the rows"
    ):
        jobs.done(job, task)


@pytest.mark.parametrize("goes", ["dies", "has nothing left to do"])
def test_nobody_waits_for_who_gives_no_more(task, goes):
    """A step is made with fewer gradients when no other worker is at a training task."""
    with jobs.master_of(averaging(3), task) as master:
        a, b = jobs.client_of(master, "a"), jobs.client_of(master, "b")
        of_a, of_b = a.next_lease(), b.next_lease()
        give(a, of_a, 0, {"w": 4.0})
        assert master.parameters.version == 0

        if goes == "dies":
            master.lose("b")
        else:
            finish(b, of_b)

        assert master.parameters.version == 1
        found, content = a.ask(requests.GetModel(worker="a", have=0, newer=True, wait_s=1.0))
        assert unpack(found.layout, content) == {"w": 4.0}


def test_a_gradient_that_is_too_old_is_computed_anew(task):
    """Of a version that is further behind than allowed; without a limit any is taken."""
    for staleness, answer in ((0, "stale"), (1, "taken"), (None, "taken")):
        job = averaging(max_staleness=staleness)
        with Master(
            job,
            jobs.plan_of(job, jobs.readings_of(job, task)),
            lambda: {"w": np.zeros(())},
            task.checkpoints / str(staleness),
        ) as master:
            a, b = jobs.client_of(master, "a"), jobs.client_of(master, "b")
            of_a, of_b = a.next_lease(), b.next_lease()
            give(a, of_a, 0, {"w": 1.0}, version=0)

            assert give(b, of_b, 0, {"w": 1.0}, version=0) == answer
            if answer == "stale":
                assert give(b, of_b, 0, {"w": 1.0}, version=1) == "taken"
            assert master.parameters.values["w"] == 2.0


def test_workers_that_must_not_be_stale_or_wait_for_each_other_come_to_an_end(task):
    """With every setting each row counts once."""
    for grads_to_wait, staleness in ((1, 0), (2, 0), (3, None), (5, 1)):
        job = replace(SUM, grads_to_wait=grads_to_wait, max_staleness=staleness, seed=grads_to_wait)
        rows = replace(job, apply=lambda p, g: {"rows": p["rows"] + 1, "sum": p["sum"]})
        with jobs.master_of(rows, task) as master:
            with jobs.at_work(*(jobs.worker_of(rows, task, master, f"w{n}") for n in range(3))):
                pass
            assert master.table.done[TaskKind.TRAINING] == 10
            assert -(-28 // grads_to_wait) <= master.parameters.version <= 28
        for left in (task.checkpoints / "elastic").glob("job"):
            left.unlink()


@pytest.mark.parametrize("grads_to_wait", [1, 4])
def test_a_second_master_goes_on_where_the_first_was_saved(task, grads_to_wait):
    """Parameters, tasks, batches and gradients that wait are saved together: what came later is done again."""
    job = replace(averaging(grads_to_wait), epochs=2)
    with jobs.master_of(job, task) as master:
        a, b = jobs.client_of(master, "a"), jobs.client_of(master, "b")
        of_a, of_b, _ = a.next_lease(), b.next_lease(), jobs.client_of(master, "has not begun").next_lease()
        give(a, of_a, 0, {"w": 1.0})
        give(b, of_b, 0, {"w": 3.0})
        finish(b, of_b)
        give(a, of_a, 1, {"w": 5.0})
        master.save()
        give(a, of_a, 2, {"w": 100.0})
        finish(a, of_a)

    with jobs.master_of(job, task) as master:
        assert master.is_resumed
        again = jobs.client_of(master, "c").next_lease()
        assert (again.task, again.counted) == (of_a.task, 2)
        assert master.table.done[TaskKind.TRAINING] == 1
        if grads_to_wait == 1:
            assert master.parameters.values["w"] == 9.0
            assert master.parameters.version == 3
        else:
            assert sorted(float(each.gradient["w"]) for each in master.parameters.waiting) == [1.0, 3.0, 5.0]


def test_what_was_finished_is_not_done_again(task):
    """A job that was saved at its end has the same outcome at once, without a worker."""
    job = replace(EVALUATED, checkpoint_s=0.0)
    with jobs.master_of(job, task) as master:
        with jobs.at_work(jobs.worker_of(job, task, master)):
            pass
        master.save()
        before = master.outcome()
    with jobs.master_of(job, task) as master:
        assert master.wait(0)
        after = master.outcome()

    assert after.parameters == before.parameters
    assert after.evaluations == before.evaluations


def test_an_evaluation_that_was_going_on_is_of_the_same_version_afterwards(task):
    """The parameters of that version are saved as long as they are needed."""
    job = replace(EVALUATED, epochs=2, task_rows=90)
    with jobs.master_of(job, task) as master:
        client = jobs.client_of(master)
        for _ in range(2):
            lease = client.next_lease()
            give(client, lease, 0, {"sum": 1, "rows": 10})
            finish(client, lease)
        assert client.next_lease().task.version == 2
        training = client.next_lease()
        while training.task.kind is TaskKind.EVALUATION:
            training = client.next_lease()
        give(client, training, 0, {"sum": 1, "rows": 1000}, version=2)
        master.save()
    with jobs.master_of(job, task) as master:
        with jobs.at_work(jobs.worker_of(job, task, master)):
            pass
        first = master.outcome().evaluations[0]

    assert (first.version, first.metrics["trained"]) == (2, 20)


def test_a_task_that_fails_too_often_ends_the_job_and_says_which_rows(task):
    """With what the user's function raised."""

    def gradient(parameters, batch):
        if 40 in batch["x"]:
            raise ValueError("forty")
        return jobs.gradient(parameters, batch)

    job = replace(SUM, gradient=gradient, max_failures=2)
    with jobs.master_of(job, task) as master:
        with jobs.at_work(*(jobs.worker_of(job, task, master, f"w{n}") for n in range(2))):
            pass
        with pytest.raises(NodeFailed, match=r"training on .*start=40.*failed 3 times(.|\n)*ValueError: forty"):
            master.outcome()


def test_a_task_that_fails_once_is_done_by_the_next_who_asks(task):
    """What it had counted stays counted, and the rest is done once."""
    fails = iter([True])

    def gradient(parameters, batch):
        if batch["x"][0] == 27 and next(fails, False):
            raise ValueError("once")
        return jobs.gradient(parameters, batch)

    assert jobs.done(replace(SUM, gradient=gradient), task).parameters == {"rows": 180, "sum": 2 * sum(range(90))}


def test_what_dataset_fn_raises_is_the_failure_of_its_task(task):
    """As what the other functions raise."""

    def broken(rows):
        return rows.map(lambda columns: 1 / 0, vectorized=True).batch(7)

    with pytest.raises(NodeFailed, match="ZeroDivisionError"):
        jobs.done(replace(SUM, dataset_fn=broken), task)


def test_an_error_in_apply_ends_the_job(task):
    """It is raised as it is, where the Trainer is."""

    def broken(parameters, gradient):
        return {"rows": parameters["rows"]}

    with pytest.raises(ParameterError, match="apply returned the parameters 'rows' for 'rows', 'sum'"):
        jobs.done(replace(SUM, apply=broken), task)


def test_a_version_never_changes(task):
    """A function that writes to the parameters is told so, instead of changing them under another worker's hands."""

    def writes(parameters, gradient):
        parameters["rows"] += 1
        return parameters

    with pytest.raises(ValueError, match="read-only"):
        jobs.done(replace(SUM, apply=writes, init=lambda task: {"rows": np.zeros(1), "sum": np.zeros(1)}), task)


def test_a_version_never_changes_whatever_apply_does_with_what_it_returned(task):
    """As where it returns the memory of a framework's model, which the next step changes in place."""
    own = {"w": np.zeros(())}

    def in_place(parameters, gradient):
        own["w"] += gradient["w"]
        return own

    job = replace(SUM, init=lambda task: own, apply=in_place)
    with jobs.master_of(job, task) as master:
        a = jobs.client_of(master, "a")
        lease = a.next_lease()
        versions = [master.parameters.values]
        for batch in range(2):
            give(a, lease, batch, {"w": np.array(4.0)}, version=batch)
            versions.append(master.parameters.values)

    assert versions == [{"w": 0.0}, {"w": 4.0}, {"w": 8.0}]


def test_only_who_knows_the_token_is_let_in(task):
    """The master gives its workers one of their own."""
    with jobs.master_of(SUM, task) as master:
        stranger = jobs.MasterClient("stranger", master.target, Security(token="guessed"))

        with pytest.raises(ServiceError, match="token"):
            stranger.next_lease()
        assert master.workers == set()


@pytest.mark.parametrize(
    ("job", "kind"),
    [
        (SUM, "training only"),
        (EVALUATED, "training with evaluation"),
        (EVALUATION, "evaluation only"),
        (PREDICTION, "prediction only"),
    ],
)
def test_there_are_four_kinds_of_jobs(job, kind):
    """What functions a job has tells which."""
    assert job.kind == kind


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"apply": None}, "gradient and apply belong together"),
        ({"predict": jobs.predict}, "either trains or predicts"),
        ({"gradient": None, "apply": None}, "pass gradient and apply, or evaluate, or predict"),
        ({"epochs": 0}, "epochs=0"),
        ({"max_staleness": -1}, "max_staleness=-1"),  # refuses every gradient, for ever
        ({"lease_s": 0.0}, "lease_s=0.0"),
    ],
)
def test_functions_that_make_no_job_are_refused(given, says):
    """When the job is written, with what is wrong."""
    with pytest.raises(ParameterError, match=says):
        ElasticJob(**{**vars(SUM), **given})


def test_arrays_travel_as_they_are():
    """Dtype, shape and order of axes; what is no number is refused, and so is what is not whole."""
    arrays = {"a": np.arange(6.0).reshape(2, 3).T, "b": np.array(3, np.int8), "c": np.zeros((0, 4), np.float32)}

    layout, content = pack(arrays)
    there = unpack(layout, content)

    assert all(np.array_equal(there[name], arrays[name]) for name in arrays)
    assert [there[name].dtype for name in arrays] == [np.float64, np.int8, np.float32]
    with pytest.raises(ServiceError, match="only numbers"):
        pack({"a": np.array(["text"])})
    with pytest.raises(ServiceError, match="refused"):
        unpack(layout, content[:-1])
    with pytest.raises(ServiceError, match="refused"):
        unpack([("a", "O", [1])], b"12345678")
