"""What a lease promises: an element counts when the consumer commits what it has made of it."""

import itertools
import json
import random
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.orchestrator.errors import FunctionFailed, ServiceError, StateMismatch
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.commits import PassCommits
from spanwise.pipelines.input.lookahead import Lookahead
from spanwise.pipelines.input.service.client.feed import WorkerFeed
from spanwise.pipelines.input.service.client.lease_reader import LeaseReader
from spanwise.pipelines.input.service.sharding import splits
from spanwise.pipelines.input.service.wire.connection import Disconnected
from tests.pipelines.input.service.servers import Service, listed
from tests.servers import eventually

COUNT = 120
SPLITS = 40  # of three elements each: to fetch a split costs the most here


@pytest.fixture(scope="module")
def service():
    with pytest.MonkeyPatch.context() as patch, Service(2) as running:
        patch.setattr(splits, "_SPLITS", SPLITS)
        yield running


def squares(service, mode, **arguments):
    return inputs.range(COUNT).map(lambda n: n * n).distribute(service.target, mode, **arguments)


SQUARES = [n * n for n in range(COUNT)]
BEHIND = {  # ops that hold elements which they have not yielded yet, and how often the squares come
    "nothing": (lambda ds: ds, 1),
    "shuffle": (lambda ds: ds.shuffle(30, seed=1), 1),
    "shuffle all": (lambda ds: ds.shuffle(seed=1), 1),
    "batch": (lambda ds: ds.batch(7), 1),
    "prefetch": (lambda ds: ds.map(lambda n: n, num_parallel=3).prefetch(20), 1),
    "rounds": (lambda ds: ds.repeat(2).shuffle(180, seed=2).batch(11), 2),
    "two": (lambda ds: inputs.zip(ds, ds.repeat()).map(lambda one, _: one).shuffle(20, seed=3), 1),
    "behind another": (lambda ds: ds.concatenate(ds).batch(50), 2),
    "flat_map": (lambda ds: ds.flat_map(lambda n: inputs.from_elements([n, n])), 2),
    "interleave": (lambda ds: ds.interleave(pair, cycle_length=3), 2),
    "lanes": (lambda ds: ds.interleave(pair, cycle_length=3, num_parallel=2), 2),
    "windows": (lambda ds: in_windows(ds, 7), 1),
    "groups": (lambda ds: ds.group_by_window(lambda n: n % 3, lambda _, group: group, 5), 1),
    "windows over two": (lambda ds: in_windows(ds.concatenate(ds)), 2),
    "windows over rounds": (lambda ds: in_windows(ds.repeat(2)), 2),
    "windows beside another": (lambda ds: inputs.zip(in_windows(ds.concatenate(ds)), ds).map(lambda one, _: one), 1),
    "windows over nested": (lambda ds: in_windows(nested(ds)), 2),
    "windows over lanes": (lambda ds: in_windows(nested(ds, num_parallel=2)), 2),
    "unique": (lambda ds: ds.unique().shuffle(seed=1), 1),
    "cache": (lambda ds: ds.cache().shuffle(seed=1), 1),
}
ALONE = ["nothing", "shuffle", "batch", "flat_map", "interleave", "lanes", "windows", "groups", "unique", "cache"]


def in_windows(dataset, size=50):
    return dataset.window(size).flat_map(lambda window: window)


def pair(number):
    return inputs.from_elements([number, number])


def nested(dataset, **options):
    return inputs.range(2).interleave(lambda _: dataset, cycle_length=2, block_length=30, **options)


def flat(elements):
    return [int(n) for element in elements for n in np.ravel(element)]


@pytest.mark.parametrize(
    ("behind", "mode"), [*((each, "exactly_once") for each in BEHIND), ("shuffle", "at_least_once")]
)
def test_what_a_checkpoint_has_and_what_a_restored_pass_yields_are_the_dataset(service, behind, mode):
    """However often the consumer dies behind a checkpoint, and whether it has come to commit it or not."""
    extend, times = BEHIND[behind]
    dataset = extend(squares(service, mode))
    dice = random.Random(f"{behind} {mode}")
    learned, state, lives = [], None, []
    for _ in range(3):
        life = dataset.iterator(epoch=0)
        lives.append(life)  # it is not closed: who is killed leaves no job
        if state is not None:
            life.restore(state)
        learned += flat(itertools.islice(life, dice.randrange(1, COUNT * times // 50 + 2)))
        state = life.state()
        if dice.random() < 0.5:
            life.commit()
        list(itertools.islice(life, dice.randrange(3)))  # and nothing is learned from them
    last = dataset.iterator(epoch=0).restore(state)
    learned += flat(last)
    for life in [last, *lives]:
        life.close()

    assert sorted(learned) == sorted(SQUARES * times)


@pytest.mark.parametrize("behind", BEHIND)
def test_a_pass_that_is_restored_yields_the_same_rest(service, behind):
    """In the same order, through every op."""
    dataset = BEHIND[behind][0](squares(service, "exactly_once"))
    with dataset.iterator() as first:
        list(itertools.islice(first, 2))
        state = first.state()
        rest = flat(first)

    assert flat(dataset.iterator().restore(state)) == rest


@pytest.mark.parametrize(
    ("behind", "job_name"), [*((each, None) for each in BEHIND), *((each, f"continued {each}") for each in ALONE)]
)
def test_a_state_that_was_committed_is_continued(service, behind, job_name):
    """It is the newest checkpoint: what ops still need of the elements that came before it was not committed."""
    extend = BEHIND[behind][0]
    dataset = extend(squares(service, "exactly_once", job_name=job_name))
    with dataset.iterator(epoch=0) as first:
        learned = flat(itertools.islice(first, 2))
        state = json.loads(json.dumps(first.state()))
        first.commit()
    with dataset.iterator().restore(state) as last:
        learned += flat(last)

    assert learned == flat(extend(inputs.range(COUNT).map(lambda n: n * n)).iterator(epoch=0))


def test_a_shared_job_gives_a_killed_consumers_uncommitted_elements_to_others(service):
    """What it has committed is not given again, and all the rest is."""
    dataset = squares(service, "exactly_once", job_name="shared")
    killed = dataset.shuffle(30, seed=1).iterator(epoch=0)
    kept = [next(killed) for _ in range(45)]
    killed.commit(killed.state())
    [next(killed) for _ in range(20)]
    release(killed)

    rest = list(dataset.iterator(epoch=0))

    assert set(SQUARES) <= {*kept, *rest}
    assert len(rest) <= COUNT - 30, "the first window was committed"
    assert len(set(rest)) == len(rest)


def release(iterator):
    """Lets the dispatcher lose a consumer, as after `client_timeout_s`."""
    (stream,) = iterator._commits._streams.values()
    reader: LeaseReader = stream._reader
    reader._closed.set()
    super(LeaseReader, reader).close()
    from spanwise.pipelines.input.service.wire.requests import LeaveJob

    reader._dispatcher.ask(LeaveJob(client=reader._client, key=reader._key))


def test_a_state_whose_elements_went_to_others_is_refused(service):
    """To go on from it would learn from them twice."""
    dataset = squares(service, "exactly_once", job_name="given")
    lost = dataset.iterator(epoch=0)
    lost.state()
    [next(lost) for _ in range(20)]
    state = lost.state()
    release(lost)
    assert len(list(dataset.iterator(epoch=0))) == COUNT

    with pytest.raises(ServiceError, match="given to another consumer"):
        next(dataset.iterator().restore(state))


def test_a_state_of_another_dataset_is_refused(service):
    """The function has changed."""
    one, other = (inputs.range(50).map(f).distribute(service.target, "exactly_once") for f in (abs, float))
    with one.iterator() as elements:
        next(elements)
        state = elements.state()
        with pytest.raises(StateMismatch):
            next(other.iterator().restore(state))


def test_a_pass_without_states_commits_what_was_asked_beyond(service):
    """What the consumer has used; not what an op still holds, and nothing of what it did not come to."""
    dataset = squares(service, "exactly_once", job_name="plain")
    with dataset.batch(10).take(5).iterator(epoch=0) as few:
        first = flat(few)
    rest = list(dataset.iterator(epoch=0))

    assert sorted(first + rest) == sorted(SQUARES)


def test_a_consumer_that_has_committed_all_waits_for_those_that_have_not(service):
    """They may die, and then their elements are its own; two that wait at the end do not wait for each other."""
    dataset = squares(service, "exactly_once", job_name="waits")
    other = dataset.iterator(epoch=0)
    mine = [next(other)]
    found = []
    reading = threading.Thread(target=lambda: found.extend(dataset.iterator(epoch=0)))
    reading.start()
    eventually(lambda: len(found) > 30)
    time.sleep(0.1)
    assert reading.is_alive()
    release(other)
    reading.join(60)

    assert sorted(found) == sorted(SQUARES)
    assert mine[0] in found
    both = [dataset.shuffle(seed=1).iterator(epoch=1) for _ in range(2)]
    results: list[list[int]] = [[], []]
    threads = [threading.Thread(target=lambda at=at: results[at].extend(both[at])) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results[0] + results[1]) == sorted(SQUARES)


def test_unordered_maps_are_ordered_under_leases(service):
    """A worker that takes over skips what was sent: that must be the same elements."""
    dataset = (
        inputs.range(COUNT)
        .map(lambda n: time.sleep(random.random() / 500) or n, num_parallel=4, deterministic=False)
        .options(deterministic=False)
        .distribute(service.target, "exactly_once")
    )
    assert list(dataset) == list(range(COUNT))


class Ended:
    """A stream that a thread has brought to its end since the state was taken."""

    is_over = False

    def __init__(self):
        self.committed = []

    def describe(self):
        return {}

    def commit(self, state, *, wait):
        self.committed.append(state)

    def keep_state(self):
        pass


def test_what_has_ended_since_a_state_was_taken_is_not_committed_with_it():
    """The state describes it, so a restored pass reads it again; a state that does not has used it."""
    commits, stream = PassCommits(), Ended()
    commits.register("0", stream)
    place = {"stream": {}, "begun": commits.begun}
    described = commits.describe(place)
    stream.is_over = True
    commits.commit(place, described)
    before = list(stream.committed)
    commits.commit(place, commits.describe(place))

    assert (before, stream.committed) == ([], [None])


def test_what_has_begun_and_ended_behind_a_state_is_not_committed_with_it():
    """A checkpoint may be stored while the training goes on, and be committed only then."""
    commits, stream = PassCommits(), Ended()
    place = {"stream": {}, "begun": commits.begun}
    described = commits.describe(place)
    commits.register("0", stream)
    stream.is_over = True
    commits.commit(place, described)

    assert stream.committed == []


def ahead(dataset, count):
    return Lookahead(dataset.iterator(epoch=0), lambda n: n, count)


def test_what_is_ready_and_not_given_is_not_committed_with_a_state(service):
    """An iterator that converts ahead reads past the place where its user stands."""
    dataset = squares(service, "exactly_once")
    killed = ahead(dataset, 30)
    learned = list(itertools.islice(killed, 20))
    state = killed.state()
    killed.elements.commit()
    last = dataset.iterator(epoch=0).restore(state)
    learned += last
    last.close()
    killed.close()

    assert sorted(learned) == SQUARES


@pytest.mark.parametrize("count", [0, 3, 30])
def test_who_converts_ahead_commits_by_itself_what_was_given(service, count):
    """As a plain loop does: all that it has gone beyond, and nothing that is only ready."""
    dataset = squares(service, "exactly_once", job_name=f"ahead {count}")
    first = ahead(dataset, count)
    learned = list(itertools.islice(first, 20))
    first.close()
    rest = list(dataset.iterator(epoch=0))

    assert sorted(learned + rest) == SQUARES


def test_who_has_converted_all_ahead_has_used_it_at_the_end(service):
    """So nobody else gets it again."""
    dataset = squares(service, "exactly_once", job_name="ahead of the end")
    other = dataset.iterator(epoch=0)
    first = [next(other)]
    found = []
    reading = threading.Thread(target=lambda: found.extend(ahead(dataset, 4)))
    reading.start()
    eventually(lambda: len(found) > 30)
    rest = list(other)
    reading.join(60)

    assert sorted(found + first + rest) == SQUARES


def test_an_element_that_kills_workers_is_an_error_after_a_few_of_them(service, monkeypatch):
    """With its place in the dataset and the last word of a worker; all before it is yielded, and nothing hangs."""
    fetch, fetched = WorkerFeed.fetch, []

    def die(self, ticket, timeout_s):
        if ticket.split == 9:
            fetched.append(ticket)
            raise Disconnected("Socket closed")
        return fetch(self, ticket, timeout_s)

    monkeypatch.setattr(WorkerFeed, "fetch", die)
    found = []
    with inputs.range(1000).distribute(service.target, "exactly_once").iterator() as elements:
        with pytest.raises(ServiceError, match=r"3 workers.*split 9: elements 225 to 249 of Range.*Socket closed"):
            found += elements
        with pytest.raises(ServiceError):
            next(elements)

    assert found == list(range(225))
    assert len(fetched) == 3


def test_an_error_of_a_function_names_its_place_in_the_dataset(service):
    """Not only in the split, which nobody has chosen."""
    dataset = inputs.range(1000).map(lambda n: 1 // (n - 42)).distribute(service.target, "exactly_once")
    with pytest.raises(FunctionFailed, match=r"element 17.*split 1: elements 25 to 49 of Range"):
        list(dataset)


@pytest.mark.parametrize("behind", ["nothing", "shuffle", "batch"])
def test_a_pass_that_was_committed_to_its_end_has_nothing_left(service, behind):
    """Although the dispatcher has forgotten its job: a process may die between its last checkpoint and its end."""
    dataset = BEHIND[behind][0](squares(service, "exactly_once"))
    iterator = dataset.iterator()
    iterator.state()
    assert len(flat(iterator)) == COUNT
    state = iterator.state()
    iterator.commit()
    iterator.close()
    mine = {stream["job"] for stream in state["commits"].values()}
    eventually(lambda: not mine & {job["name"] for job in service.dispatcher.status()["jobs"]})

    assert flat(dataset.iterator().restore(state)) == []


@pytest.mark.parametrize("job_name", [None, "restored twice"])
def test_a_state_continues_however_often_it_was_restored_in_vain(service, job_name):
    """A training that dies again before it stores anything new leaves the leases to the next that is restored."""
    dataset = squares(service, "exactly_once", job_name=job_name).shuffle(40, seed=5)
    first = dataset.iterator(epoch=0)
    learned = [next(first) for _ in range(10)]
    state = first.state()
    lives = [first]
    for _ in range(3):
        lives.append(dataset.iterator(epoch=0).restore(state))
        [next(lives[-1]) for _ in range(5)]
    last = dataset.iterator(epoch=0).restore(state)
    learned += last
    for each in [last, *lives]:
        each.close()

    assert sorted(learned) == SQUARES


def test_a_pass_that_was_restored_describes_its_dataset_before_the_dispatcher_answers(monkeypatch):
    """Restored at its end, it yields nothing, so its state is taken at once: it could never be restored."""
    monkeypatch.setattr("spanwise.pipelines.input.service.client.lease_reader._LEAVE_S", 0)
    nobody = inputs.range(3).distribute("127.0.0.1:1", "exactly_once")
    restored = {"job": "job", "dataset": "mine", "holder": "me", "base": 0, "order": [], "done": [], "over": True}
    reader = LeaseReader(nobody.op, "0", restored)

    assert reader.describe()["dataset"] == "mine"
    reader.close()


@pytest.fixture(scope="module")
def shuffled(tmp_path_factory):
    """Makes datasets of the numbers 0 to 19 that are read in a random order, one for each kind of source."""
    folder = tmp_path_factory.mktemp("shuffled")
    pq.write_table(pa.table({"n": range(20)}), folder / "numbers.parquet", row_group_size=1)
    for number in range(20):
        (folder / f"{number:02}.txt").touch()

    def make(kind, seed=None):
        match kind:
            case "random access":
                return inputs.from_random_access(range(20), shuffle=True, seed=seed)
            case "row groups":
                rows = inputs.from_parquet(str(folder / "numbers.parquet"), shuffle=True, seed=seed)
                return rows.map(lambda row: row["n"])
        names = inputs.list_files(str(folder / "*.txt"), shuffle=True, seed=seed)
        return names.map(lambda name: int(name[-6:-4]))

    return make


SHUFFLED = ["random access", "row groups", "names"]


@pytest.mark.parametrize("kind", SHUFFLED)
@pytest.mark.parametrize("mode", ["dynamic", "exactly_once"])
@pytest.mark.parametrize("options", [{}, {"seed": 5}], ids=["no seed", "a seed of the options"])
def test_parts_of_a_shuffled_source_have_one_order(service, shuffled, mode, options, kind):
    """Splits of a source that is read in a random order are cut from the same order: no element is in two of them."""
    dataset = shuffled(kind).options(**options)

    for made, times in ((dataset.cache(), 1), (dataset.repeat(2), 2)):
        assert sorted(made.distribute(service.target, mode)) == sorted([*range(20)] * times)


@pytest.mark.parametrize("kind", SHUFFLED)
@pytest.mark.parametrize("mode", ["dynamic", "exactly_once"])
def test_a_shuffled_source_is_read_in_the_order_of_its_seed_and_pass(shuffled, mode, kind):
    """From one worker as without a service: `list_files` and, under leases, `from_parquet` gave the plain order."""
    dataset = shuffled(kind, seed=3)
    with listed(1) as one:
        found = [list(dataset.distribute(one.target, mode).iterator(epoch=epoch)) for epoch in range(2)]

    assert found == [list(dataset.iterator(epoch=epoch)) for epoch in range(2)]
    assert found[0] != found[1]


@pytest.mark.parametrize("mode", ["dynamic", "exactly_once"])
def test_elements_of_one_key_have_the_same_numbers_in_each_split(service, mode):
    """With a seed of the options these are the numbers of a pass without a service."""
    drawn = inputs.range(20).random_map(lambda n, numbers: (n % 3, int(numbers.integers(10**9))), key=lambda n: n % 3)

    with drawn.distribute(service.target, mode).iterator(epoch=0) as elements:
        assert len(set(elements)) == 3
    seeded = drawn.options(seed=5)
    with seeded.distribute(service.target, mode).iterator(epoch=0) as elements:
        assert set(elements) == set(seeded.iterator(epoch=0))


@pytest.mark.parametrize("mode", ["data", "dynamic", "exactly_once"])
def test_rounds_that_give_nothing_do_not_end_a_count_of_rounds(mode):
    """Each round draws anew, so that a later one may have what an earlier one lacked."""
    drawn = inputs.range(1).random_map(lambda _, numbers: int(numbers.integers(6)), key=lambda n: n, seed=1)
    zeros = drawn.filter(lambda number: number == 0).repeat(40)
    expected = list(zeros.iterator(epoch=0))

    with listed(1) as one, zeros.distribute(one.target, mode).iterator(epoch=0) as elements:
        assert list(elements) == expected
    assert 0 < len(expected) < 40


def test_a_consumer_begins_with_four_splits_for_each_worker(service):
    """It knows nothing of their size yet: it took those that it has used in no time for small, and leased eight."""
    with squares(service, "exactly_once", job_name="begins").iterator() as elements:
        next(elements)
        leased = {job["name"]: job["splits_leased"] for job in service.dispatcher.status()["jobs"]}

    assert leased["begins"] == 8
