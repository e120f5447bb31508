"""The dispatcher's state: who gets which splits, which jobs there are, and that its shortest journal is itself."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.orchestrator.errors import DatasetError, ServiceError
from spanwise.pipelines.input.service.dispatcher import decisions, leasing, records
from spanwise.pipelines.input.service.dispatcher.records import CreateJob, RegisterWorker
from spanwise.pipelines.input.service.dispatcher.state import ServiceState, records_of
from spanwise.pipelines.input.service.policy import ShardingPolicy, policy_of
from spanwise.pipelines.input.service.wire.connection import JobGone
from spanwise.pipelines.input.service.wire.requests import RegisterDataset, ResumedLeases, TaskFailure


def dataset(name="d", splits=(10,), **more):
    return RegisterDataset(dataset=name, structure="int64", splits=splits, **more)


def worker(name, address=None, shard=None):
    return RegisterWorker(worker=name, address=address or f"{name}:1", process="here:1", shard=shard)


def job(mode=ShardingPolicy.DYNAMIC, name="j", *, of="d", epoch="0", shards=0):
    return CreateJob(job=0, dataset=of, mode=mode, name=name, epoch=epoch, shards=shards)


def do(state, records):
    for record in records:
        state.apply(record)
    return records


def started(*, workers=1, mode=ShardingPolicy.DYNAMIC, **more):
    state = ServiceState([dataset(**more)])
    for number in range(workers):
        do(state, decisions.arrive(state, worker(f"w{number}", shard=number)))
    do(state, decisions.join(state, job(mode, shards=workers if mode.is_static else 0)))
    return state


def as_records(state):
    return [str(record) for record in records_of(state)]


def test_every_split_is_dealt_once():
    """Two tasks that take turns get every split of the source, none of them twice."""
    state = started(workers=2, splits=(1000,))
    seen, number = [], 0
    asking = sorted(state.tasks)
    while asking:
        for task in list(asking):
            number += 1
            dealt = decisions.next_splits(state, task, number, 0, 0)
            if dealt is None:
                asking.remove(task)
            else:
                state.apply(dealt)
                seen += range(dealt.first, dealt.first + dealt.count)

    assert sorted(seen) == list(range(1000))


def test_a_request_that_is_made_again_is_answered_as_before():
    """Whose answer got lost asks again by the same number, and no split is lost with it."""
    state = started()
    task = next(iter(state.tasks))
    (first,) = do(state, [decisions.next_splits(state, task, 1, 0, 0)])

    assert decisions.next_splits(state, task, 1, 0, 0) == first
    assert decisions.next_splits(state, task, 2, 0, 0).first == first.first + first.count


def test_a_worker_that_comes_back_takes_the_place_of_its_earlier_life():
    """The tasks of the earlier life are gone, and the new one has one for each job that goes on."""
    state = started()
    before = set(state.tasks)

    do(state, decisions.arrive(state, worker("again", address="w0:1")))

    assert list(state.workers) == ["again"]
    assert not before & set(state.tasks)
    assert [task.worker for task in state.tasks.values()] == ["again"]


def test_leases_of_a_client_that_is_gone_are_given_to_another():
    """What a client has not done with when it is released, the next one gets, before what nobody has had."""
    state = started(mode=ShardingPolicy.EXACTLY_ONCE)
    do(state, decisions.join(state, job(ShardingPolicy.EXACTLY_ONCE)))
    one, two = sorted(state.clients)
    state.apply(leasing.lease(state, one, [], 4))
    state.apply(leasing.lease(state, one, [1], 3))
    state.apply(records.ReleaseClient(client=one))
    state.apply(leasing.lease(state, two, [], 5))

    assert leasing.held_by(state, two) == ((0, 0), (2, 0), (3, 0), (4, 0), (5, 0))


def test_a_leased_job_ends_when_every_split_is_done():
    """Not when the last one is leased."""
    state = started(mode=ShardingPolicy.AT_LEAST_ONCE, splits=(3,))
    (client,) = state.clients
    (number,) = state.jobs
    state.apply(leasing.lease(state, client, [], 3))
    leased = decisions.is_finished(state, number)
    state.apply(leasing.lease(state, client, [0, 1, 2], 3))

    assert not leased
    assert decisions.is_finished(state, number)


def test_jobs_of_one_name_are_shared_and_must_agree():
    """A second consumer joins the job; one that wants another mode is refused."""
    state = started()
    do(state, decisions.join(state, job()))

    assert len(state.jobs) == 1
    assert len(state.clients) == 2
    with pytest.raises(ServiceError, match="existing job with different parameters"):
        decisions.join(state, job(ShardingPolicy.OFF))


def test_old_names_of_modes_are_known_and_others_refused():
    """`parallel_epochs` and `distributed_epoch` are what they are called today."""
    assert policy_of("parallel_epochs") is ShardingPolicy.OFF
    assert policy_of("distributed_epoch") is ShardingPolicy.DYNAMIC
    with pytest.raises(DatasetError, match="there is no such mode"):
        policy_of("sideways")


STEPS = st.lists(
    st.tuples(st.sampled_from(["arrive", "lose", "join", "leave", "deal", "lease", "finish"]), st.integers(0, 5))
)


@given(STEPS, st.sampled_from([ShardingPolicy.DYNAMIC, ShardingPolicy.EXACTLY_ONCE, ShardingPolicy.OFF]))
def test_the_shortest_journal_leads_to_the_same_state(steps, mode):
    """Whatever has happened, `records_of` makes it again, and the next ids are the same."""
    state = ServiceState([dataset(splits=(7, 3))])
    for number, (step, choice) in enumerate(steps):
        tasks, clients = sorted(state.tasks), sorted(state.clients)
        if step == "arrive":
            do(state, decisions.arrive(state, worker(f"w{choice}-{number}", address=f"w{choice}")))
        elif step == "lose" and state.workers:
            state.apply(records.RemoveWorker(worker=sorted(state.workers)[choice % len(state.workers)]))
        elif step == "join":
            with contextlib.suppress(ServiceError):  # the job was read to its end
                do(state, decisions.join(state, job(mode, name=f"j{choice % 2}")))
        elif step == "leave" and clients:
            state.apply(records.ReleaseClient(client=clients[choice % len(clients)]))
        elif step == "deal" and tasks:
            dealt = decisions.next_splits(state, tasks[choice % len(tasks)], number, choice % 2, choice // 3)
            do(state, [dealt] if dealt else [])
        elif step == "lease" and clients and mode.is_leased:
            client = clients[choice % len(clients)]
            held = [split for split, _ in leasing.held_by(state, client)]
            state.apply(leasing.lease(state, client, held[:choice], choice, [(split, number) for split in held]))
        elif step == "finish" and tasks:
            task = tasks[choice % len(tasks)]
            failure = TaskFailure(task=task, error="ServiceError", text=f"{choice}") if choice % 2 else None
            state.apply(records.FinishTask(task=task, failure=failure))

    again = ServiceState(records_of(state))

    assert as_records(again) == as_records(state)
    assert again.next_id == state.next_id


def test_a_consumer_whose_answer_was_lost_joins_as_the_same_client():
    """Also one that was restored, whose state says what it goes on with."""
    state = started(mode=ShardingPolicy.EXACTLY_ONCE)
    wanted = job(ShardingPolicy.EXACTLY_ONCE, name="k")
    do(state, decisions.join(state, wanted, client_key="a", holder="h"))
    do(state, decisions.join(state, wanted, client_key="a", holder="h"))
    (number,) = [each for each, found in state.jobs.items() if found.create.name == "k"]
    (client,) = state.jobs[number].clients
    state.apply(leasing.lease(state, client, [0], 3))
    resumed = ResumedLeases(done=((0, 0),), held=((1, 5), (2, 0)))
    for _ in range(2):
        do(state, decisions.join(state, wanted, client_key="b", holder="h", resumes=True))
    (again,) = state.jobs[number].clients - {client}
    for _ in range(2):
        do(state, leasing.resume(state, again, resumed))

    assert leasing.held_by(state, again) == ((1, 5), (2, 0))
    assert state.jobs[number].clients == {again}
    with pytest.raises(ServiceError, match="cannot continue from this state"):
        leasing.resume(state, again, ResumedLeases(held=((1, 4),)))


def test_a_state_whose_job_is_gone_is_refused():
    """Another job would begin with elements that its model has learned."""
    with pytest.raises(JobGone, match="no longer has job 'k'"):
        decisions.join(started(), job(name="k"), holder="h", resumes=True)


def lose_one(state, name, deals):
    """A worker takes splits so many times, and is lost; another one comes."""
    (task,) = [each for each, found in state.tasks.items() if found.worker == name]
    for number in range(deals):
        do(state, [decisions.next_splits(state, task, number, 0, number // 5)])
    taken = state.tasks[task].last
    do(state, [records.RemoveWorker(worker=name), *decisions.arrive(state, worker(f"{name}+"))])
    return taken


def test_a_split_that_ends_worker_after_worker_is_recognised():
    """Each is lost at its first splits; from then on the job hands out none, so that no more workers end."""
    state = started(splits=(1000,))
    (found,) = state.jobs.values()
    names = ["w0", "w0+", "w0++"]
    signs = []
    for name in names:
        signs.append(decisions.poisoned_split(found))
        lose_one(state, name, 1)

    assert signs == [None, None, None]
    assert decisions.poisoned_split(found) is not None
    (task,) = state.tasks
    assert decisions.next_splits(state, task, 0, 0, 0) is None
    again = ServiceState(records_of(state))
    assert decisions.poisoned_split(next(iter(again.jobs.values()))) == decisions.poisoned_split(found)


def test_workers_that_were_only_silent_are_no_sign():
    """On a machine with too much to do their heartbeats come too late, at one split after the other."""
    state = started(splits=(1000,))
    (found,) = state.jobs.values()
    for name in ("w0", "w0+", "w0++"):
        lose_one(state, name, 1)
        do(state, decisions.arrive(state, worker(name)))
    again = ServiceState(records_of(state))

    assert decisions.poisoned_split(found) is None
    assert decisions.poisoned_split(next(iter(again.jobs.values()))) is None


def test_workers_that_are_lost_at_different_splits_are_no_sign():
    """Nor are several that are lost at once."""
    apart = started(splits=(1000,))
    for name in ("w0", "w0+", "w0++"):
        lose_one(apart, name, 6)
    at_once = started(workers=4, splits=(1000,))
    for task in list(at_once.tasks):
        do(at_once, [decisions.next_splits(at_once, task, 0, 0, 0)])
    for name in list(at_once.workers):
        do(at_once, [records.RemoveWorker(worker=name)])

    assert decisions.poisoned_split(next(iter(apart.jobs.values()))) is None
    assert decisions.poisoned_split(next(iter(at_once.jobs.values()))) is None
