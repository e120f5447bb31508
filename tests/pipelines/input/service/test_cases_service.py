"""Facts about the data service: a test for each case of `tests/conformance/cases/data.json`, named by its id."""

import gc
import itertools
import json
import random
import re
import threading
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.orchestrator.errors import DatasetError, ServiceError, SettingsError, SpanwiseError, UnreadableInput
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.service.client.reader import JobReader
from spanwise.pipelines.input.service.dispatcher import dispatcher
from spanwise.pipelines.input.service.dispatcher.dispatcher import DispatchServer
from spanwise.pipelines.input.service.wire.config import DispatcherConfig
from spanwise.pipelines.input.service.wire.connection import ServiceConnection, UnknownTask, Unreachable, this_process
from spanwise.pipelines.input.service.wire.requests import ExchangeSplits, Fetch, GetStatus, JoinJob, PollJob
from spanwise.pipelines.input.service.wire.security import Security
from spanwise.pipelines.input.service.worker import task
from spanwise.pipelines.input.snapshot import split_writer
from tests.pipelines.input.service.servers import Service, listed
from tests.servers import eventually, free_ports

HERE = Path(__file__).parent
AREAS = ("sharding", "jobs", "splits", "journal", "coordinated", "sharing")
OFF, DYNAMIC = "off", "dynamic"
SOON_S = 300.0


def test_every_case_is_a_test_or_a_difference():
    """No case of these areas is left out, and none is both."""
    cases = json.loads((HERE.parents[2] / "conformance" / "cases" / "data.json").read_text())
    ids = {case["id"] for case in cases if case["area"] in {f"service.{area}" for area in AREAS}}
    tests = "".join(
        path.read_text() for path in [*HERE.glob("test_cases_*.py"), *HERE.glob("dispatcher/test_*journal.py")]
    )
    tested = {"-".join(found) for found in re.findall(r"^def test_([A-Z]{2})_(\d+)_", tests, re.MULTILINE)}
    differ = tomllib.loads((HERE.parent / "differences.toml").read_text()).keys() & ids

    assert ids - tested == differ
    assert tested <= ids


@pytest.fixture
def one():
    with Service(1) as service:
        yield service


@pytest.fixture
def three():
    with Service(3) as service:
        yield service


@pytest.fixture(scope="module")
def five():
    with listed(5) as service:
        yield service


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Ten files with ten records each, numbered through."""
    folder = tmp_path_factory.mktemp("files")
    paths = [str(folder / f"{number}.parquet") for number in range(10)]
    for number, path in enumerate(paths):
        pq.write_table(pa.table({"n": range(number * 10, number * 10 + 10)}), path)
    return paths


def tens(*numbers):
    return [record for number in numbers for record in range(number * 10, number * 10 + 10)]


def numbers(dataset):
    return [element["n"] for element in dataset]


def at(service, index, dataset, mode):
    return dataset.distribute(service.target, mode, target_workers=[service.workers[index].address])


def test_SV_01_off_with_one_worker(one):
    """The elements in their order."""
    assert list(inputs.range(10).distribute(one.target, OFF)) == list(range(10))


def test_SV_02_off_gives_the_whole_dataset_of_every_worker(three):
    """Three workers, three times every element."""
    assert Counter(inputs.range(10).distribute(three.target, OFF)) == dict.fromkeys(range(10), 3)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_SV_04_dynamic_gives_every_element_once(workers):
    """None is missing, none is there twice, however many workers there are."""
    with Service(workers) as service:
        assert sorted(inputs.range(300).distribute(service.target, DYNAMIC)) == list(range(300))


def test_SV_07_dynamic_over_restarts_of_the_dispatcher(tmp_path):
    """Four restarts in mid pass: every element of every round once."""
    with Service(2, fault_tolerant_mode=True, work_dir=str(tmp_path)) as service:
        dataset = inputs.range(100).repeat(5).distribute(service.target, DYNAMIC)
        found = []
        with dataset.iterator() as elements:
            for number, element in enumerate(elements):
                found.append(element)
                if number in {50, 250, 450, 499}:
                    service.restart_dispatcher()

    assert Counter(found) == dict.fromkeys(range(100), 5)


def test_SV_09_off_with_a_worker_added_in_mid_job(one):
    """The one that comes later gives the whole dataset too."""
    with inputs.range(2_000_000).batch(1000).distribute(one.target, OFF).iterator() as batches:
        found = Counter(next(batches)[0] for _ in range(5))
        one.add_worker()
        found.update(batch[0] for batch in batches)

    assert found == dict.fromkeys(range(0, 2_000_000, 1000), 2)


def test_SV_10_more_workers_removed_than_requests_outstanding():
    """Four of five are gone, one request is allowed at a time, and a thousand elements still come."""
    with Service(5) as service:
        dataset = inputs.range(10).repeat().distribute(service.target, OFF, max_outstanding_requests=1)
        with dataset.iterator() as elements:
            next(elements)
            for worker in service.workers[:4]:
                worker.stop()
            assert len(list(itertools.islice(elements, 1000))) == 1000


def test_SV_11_servers_that_start_after_the_client(monkeypatch):
    """The consumer tries until somebody answers."""
    (port,) = free_ports(1)
    found = []
    dataset = inputs.range(10).distribute(f"grpc://127.0.0.1:{port}", OFF)
    has_failed = threading.Event()
    join = JobReader._join

    def try_to_join(self):
        try:
            join(self)
        except Unreachable:
            has_failed.set()
            raise

    monkeypatch.setattr(JobReader, "_join", try_to_join)
    reading = threading.Thread(target=lambda: found.extend(dataset))
    reading.start()
    assert has_failed.wait(SOON_S)
    with Service(1, port=port):
        reading.join(SOON_S)

    assert found == list(range(10))


@pytest.mark.parametrize("mode", [DYNAMIC, "exactly_once"])
def test_a_consumer_that_waits_for_workers_is_woken_by_the_first(mode, monkeypatch):
    """It need not ask again and again."""
    with Service(0, client_timeout_s=600) as service, ThreadPoolExecutor() as pool:
        changed, waiting = service.dispatcher._keeper.changed, threading.Event()
        wait = changed.wait
        monkeypatch.setattr(changed, "wait", lambda _: waiting.set() or wait())  # whose time is never up
        reading = pool.submit(list, inputs.range(20).distribute(service.target, mode))
        waiting.wait(SOON_S)
        monkeypatch.undo()
        service.add_worker()

        assert sorted(reading.result(SOON_S)) == list(range(20))


def test_SV_12_workers_go_on_without_their_dispatcher(one):
    """What is being read is read on while the dispatcher is not there."""
    with inputs.range(100).distribute(one.target, OFF).iterator() as elements:
        found = [next(elements)]
        one.dispatcher.stop()
        found += itertools.islice(elements, 99)

    assert found == list(range(100))


def test_SV_13_a_dispatcher_without_a_journal_forgets(one):
    """A consumer learns that its job is not there any more, and what would have kept it."""
    with inputs.range(10).repeat().distribute(one.target, OFF).iterator() as elements:
        next(elements)
        one.restart_dispatcher()
        with pytest.raises(ServiceError, match="without fault_tolerant_mode"):
            for _ in elements:
                pass


def test_SV_14_fault_tolerance_wants_a_work_directory():
    """Refused when the configuration is made."""
    with pytest.raises(SettingsError, match="Cannot enable fault tolerant mode without configuring a work dir"):
        DispatcherConfig(fault_tolerant_mode=True)


def test_SV_15_file_gives_a_worker_its_files(five, files):
    """Of five workers the fourth reads files 3 and 8, in order."""
    assert numbers(at(five, 3, inputs.from_parquet(files), "file")) == tens(3, 8)


def test_SV_16_file_with_a_shuffled_list(five, files):
    """The files are shared out before they are shuffled."""
    dataset = inputs.from_elements(files).shuffle(seed=1).interleave(inputs.from_parquet)

    assert sorted(numbers(at(five, 3, dataset, "file"))) == tens(3, 8)


def test_SV_17_data_gives_a_worker_its_elements(five, files):
    """Element i is that of worker i % 5."""
    expected = [record for record in range(100) if record % 5 == 3]

    assert numbers(at(five, 3, inputs.from_parquet(files), "data")) == expected


def test_SV_19_too_few_files_is_an_error_for_both(five, files):
    """FILE_OR_DATA too: it falls back where there are no files, not where there are few."""
    for mode in ("file", "file_or_data"):
        with pytest.raises(DatasetError, match="not enough for the required 5 shards/workers"):
            list(at(five, 3, inputs.from_parquet(files[:4]), mode))


def test_a_consumer_that_is_garbage_leaves_whatever_the_collector_interrupts(one, caplog):
    """A dispatcher's thread that collected it in the middle of an answer waited for itself, until its time was up."""
    caplog.set_level("INFO", "spanwise.service.consumer")
    cycle = [iter(inputs.range(1000).distribute(one.target, OFF))]
    next(cycle[0])
    cycle.append(cycle)
    del cycle

    with one.dispatcher._keeper.changed:
        gc.collect()
    eventually(lambda: not one.dispatcher.status()["jobs"])

    assert "leave-failed" not in caplog.messages


def test_SV_20_file_or_data_without_files(five):
    """Shards by elements."""
    assert list(at(five, 1, inputs.range(20), "file_or_data")) == [1, 6, 11, 16]


def test_SV_21_file_without_files(five):
    """An error that says what to use, before any worker is asked."""
    with pytest.raises(DatasetError, match="unshardable source dataset was found: Range reads no files; use 'data'"):
        at(five, 1, inputs.range(20), "file")


def test_SV_22_data_with_few_files(five, files):
    """How many files there are does not matter."""
    expected = [record for record in range(40) if record % 5 == 3]

    assert numbers(at(five, 3, inputs.from_parquet(files[:4]), "data")) == expected


def test_SV_23_hint_is_filled_in(five, files):
    """Behind the records it is like DATA, before the reader like FILE."""
    behind = inputs.from_parquet(files).shard(inputs.SHARD_HINT, 0)
    before = inputs.from_elements(files).shard(inputs.SHARD_HINT, 0).flat_map(inputs.from_parquet)

    assert numbers(at(five, 3, behind, "hint")) == [record for record in range(100) if record % 5 == 3]
    assert numbers(at(five, 3, before, "hint")) == tens(3, 8)


def test_SV_24_hint_without_a_placeholder(five):
    """A shard that says its numbers stays as it is; a placeholder that nobody fills in is refused."""
    assert list(at(five, 3, inputs.range(20).shard(1, 0), "hint")) == list(range(20))
    with pytest.raises(DatasetError, match="only distribute"):
        list(inputs.range(3).shard(inputs.SHARD_HINT, 0))


def test_SV_25_static_sharding_read_from_every_worker(five, files):
    """Allowed: the union is the dataset, every element once."""
    dataset = inputs.from_parquet(files).distribute(five.target, "file_or_data")

    assert sorted(numbers(dataset)) == list(range(100))


def test_SV_26_a_worker_that_is_not_in_the_list():
    """Refused when it starts."""
    with (
        Service(0, worker_addresses=("fake_worker_0",)) as service,
        pytest.raises(ServiceError, match="The worker's address is not configured"),
    ):
        service.add_worker()


def test_SV_29_static_sharding_without_a_list(one):
    """An error that says what the dispatcher lacks."""
    with pytest.raises(ServiceError, match="not in the workers list, which is empty"):
        list(inputs.range(10).distribute(one.target, "file_or_data"))


def test_SV_30_data_counts_the_elements_of_the_last_op(five):
    """Batches, if it makes batches."""
    found = [batch.tolist() for batch in at(five, 1, inputs.range(20).batch(3), "data")]

    assert found == [[3, 4, 5], [18, 19]]


def test_SV_31_every_branch_is_sharded(five, files):
    """Zip pairs the same files, concatenate has them twice."""
    dataset = inputs.from_parquet(files)
    pairs = list(at(five, 3, inputs.zip(dataset, inputs.from_parquet(files)), "file_or_data"))

    assert [(left["n"], right["n"]) for left, right in pairs] == [(n, n) for n in tens(3, 8)]
    assert numbers(at(five, 3, dataset.concatenate(inputs.from_parquet(files)), "file_or_data")) == tens(3, 8, 3, 8)


def test_SV_32_nothing_to_share_out(five):
    """An empty dataset is empty."""
    assert list(at(five, 1, inputs.range(0), "file_or_data")) == []


def test_SV_33_restarts_between_registrations(tmp_path):
    """Each dataset is complete, whichever life of the dispatcher it was registered in."""
    with Service(1, fault_tolerant_mode=True, work_dir=str(tmp_path)) as service:
        ids = []
        for count in range(10, 15):
            ids.append(inputs.register_dataset(service.target, inputs.range(count)))
            service.restart_dispatcher()
        found = [list(inputs.from_dataset_id(OFF, service.target, each)) for each in ids]

    assert found == [list(range(count)) for count in range(10, 15)]


def test_SV_34_off_with_local_target(five):
    """Only workers of this process are read; at one address, only that one."""
    assert list(at(five, 2, inputs.range(20), OFF)) == list(range(20))
    local = inputs.range(20).distribute(five.target, OFF, target_workers="local")
    assert Counter(local) == dict.fromkeys(range(20), 5)


def test_SV_35_a_restarted_worker_repeats_its_shard(files):
    """From its beginning."""
    with listed(2) as service:
        dataset = inputs.from_parquet(files).repeat().map(lambda row: row["n"])
        with at(service, 1, dataset, "file").iterator() as elements:
            first = list(itertools.islice(elements, 1000))
            service.restart_worker(1)
            begun = first[:50]
            window: list[int] = []
            for element in elements:  # what was on its way, and then the shard from its beginning
                window = [*window, element][-50:]
                if window == begun:
                    break

    assert window == tens(1, 3, 5, 7, 9)


def test_JB_01_anonymous_jobs_are_private(one):
    """Two consumers get every element each."""
    dataset = inputs.range(10).distribute(one.target, DYNAMIC)
    with dataset.iterator(epoch=0) as left, dataset.iterator(epoch=0) as right:
        found = [(next(left), next(right)) for _ in range(10)]

    assert sorted(each for each, _ in found) == sorted(each for _, each in found) == list(range(10))


def test_JB_03_names_are_independent(one):
    """Two names, two passes."""
    for name in ("a", "b"):
        dataset = inputs.range(10).distribute(one.target, DYNAMIC, name)
        assert sorted(dataset) == list(range(10))


def test_JB_05_a_shared_job_with_repeat(one):
    """Two consumers share the rounds."""
    shared = [inputs.range(100).repeat(3).distribute(one.target, DYNAMIC, "j") for _ in range(2)]
    found: list[int] = []
    with shared[0].iterator() as left, shared[1].iterator() as right:
        found.append(next(left))
        reading = [threading.Thread(target=lambda each=each: found.extend(each)) for each in (left, right)]
        for thread in reading:
            thread.start()
        for thread in reading:
            thread.join(SOON_S)

    assert Counter(found) == dict.fromkeys(range(100), 3)


ALL_HAVE_JOINED = threading.Event()


def when_all_have_joined(line):
    ALL_HAVE_JOINED.wait(SOON_S)
    return line


@pytest.mark.parametrize("mode", [DYNAMIC, "data"])
def test_a_pass_that_fails_is_an_error_for_each_consumer_of_its_job(mode, tmp_path):
    """What is missing is missing from what all of them get, and one that heard nothing would take that for all."""
    ALL_HAVE_JOINED.clear()
    paths = [tmp_path / f"{number}.txt" for number in range(2)]
    for path, content in zip(paths, (b"line", b"\xff"), strict=True):
        path.write_bytes(content)
    lines = inputs.from_text(paths).map(when_all_have_joined)
    with listed(1) as service, ThreadPoolExecutor() as consumers:
        reading = [consumers.submit(list, lines.distribute(service.target, mode, "j")) for _ in range(2)]
        eventually(lambda: [job.consumers for job in jobs(service)] == [2])
        ALL_HAVE_JOINED.set()

        assert [type(each.exception(SOON_S)) for each in reading] == [UnreadableInput] * 2


def test_a_consumer_hears_of_a_pass_that_failed_from_a_worker_that_is_gone(monkeypatch, tmp_path):
    """It was busy when the others heard of it, and took what it had for all there was; once, and also after a restart."""
    for name in ("BUFFER_BYTES", "REPLY_BYTES"):
        monkeypatch.setattr(f"spanwise.pipelines.input.service.client.reader.{name}", 1)
    ALL_HAVE_JOINED.clear()
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    lines = inputs.range(20).map(when_all_have_joined).concatenate(inputs.from_text(tmp_path / "bad.txt"))
    with (
        listed(1, work_dir=str(tmp_path / "journal"), fault_tolerant_mode=True) as service,
        ThreadPoolExecutor() as consumers,
    ):
        busy, other = (lines.distribute(service.target, "data", "j").iterator() for _ in range(2))
        with busy, other:
            first = [consumers.submit(next, each) for each in (busy, other)]
            eventually(lambda: [job.consumers for job in jobs(service)] == [2])
            ALL_HAVE_JOINED.set()
            found = [each.result(SOON_S) for each in first]
            with pytest.raises(UnreadableInput):
                found.extend(other)
            eventually(lambda: jobs(service)[0].tasks_finished == 1)
            service.restart_worker(0)
            service.restart_dispatcher()
            eventually(lambda: not jobs(service)[0].tasks_finished)
            with pytest.raises(UnreadableInput):
                found.extend(iter(lambda: consumers.submit(next, busy).result(SOON_S), None))
            rest = [consumers.submit(list, each).result(SOON_S) for each in (busy, other)]

    assert sorted(found) == sorted(set(found))
    assert rest == [[], []]


def test_a_consumer_that_was_busy_while_others_read_the_rest_comes_to_the_end(monkeypatch):
    """However long: a worker knows a task until its job is over, not for half a minute."""
    monkeypatch.setattr("spanwise.pipelines.input.service.worker.worker._IDLE_S", 0.0)
    for name in ("BUFFER_BYTES", "REPLY_BYTES"):
        monkeypatch.setattr(f"spanwise.pipelines.input.service.client.reader.{name}", 1)
    ALL_HAVE_JOINED.clear()
    with listed(2) as service, ThreadPoolExecutor() as consumers:
        numbers = inputs.range(20).map(when_all_have_joined)
        busy, other = (numbers.distribute(service.target, DYNAMIC, "j").iterator() for _ in range(2))
        with busy, other:
            first = [consumers.submit(next, each) for each in (busy, other)]
            eventually(lambda: [job.consumers for job in jobs(service)] == [2])
            ALL_HAVE_JOINED.set()
            found = [each.result(SOON_S) for each in first]
            found += other
            eventually(lambda: jobs(service)[0].tasks_finished == 2)
            beats = service.dispatcher.status()["requests"]["heartbeat"]
            eventually(lambda: service.dispatcher.status()["requests"]["heartbeat"] > beats + 6)
            found += consumers.submit(list, busy).result(SOON_S)

    assert sorted(found) == list(range(20))


def test_a_job_is_not_shared_by_datasets_that_cannot_be_compared(one):
    """Each of its consumers would have a job of its own, with all elements, and none would know."""
    ALL_HAVE_JOINED.set()  # an object without a fingerprint
    left, right = (inputs.range(6).map(when_all_have_joined).batch(size) for size in (2, 3))
    with left.distribute(one.target, DYNAMIC, "j").iterator() as first:
        next(first)
        with pytest.raises(ServiceError, match=r"cannot be known: Map\(function=\).*give each the same dataset_id"):
            list(right.distribute(one.target, DYNAMIC, "j"))
        assert len(list(right.distribute(one.target, DYNAMIC, "j", dataset_id="known"))) == 2


def test_JB_06_one_name_with_two_modes(one):
    """The second consumer is refused."""
    with inputs.range(10_000).map(large).distribute(one.target, DYNAMIC, "j").iterator() as first:
        next(first)
        with pytest.raises(ServiceError, match="existing job with different parameters"):
            list(inputs.range(10_000).map(large).distribute(one.target, OFF, "j"))


def test_JB_07_one_name_for_two_datasets(one):
    """Two jobs: a job is its name and its dataset."""
    found = [sorted(inputs.range(100).distribute(one.target, DYNAMIC, "j", dataset_id=each)) for each in ("d1", "d2")]

    assert found == [list(range(100))] * 2


@pytest.mark.parametrize(
    "arguments",
    [{"job_name": ""}, {"job_name": 1}, {"service": 1}, {"service": ""}, {"compression": "foo"}],
    ids=str,
)
def test_JB_08_arguments_are_checked(arguments):
    """When the graph is built."""
    with pytest.raises(DatasetError, match="wants"):
        inputs.range(3).distribute(**{"service": "here:1", "processing_mode": OFF, **arguments})


def test_JB_09_unused_jobs_are_forgotten(monkeypatch):
    """Not those that are dealt out by splits, unless the dispatcher is told so."""
    with Service(1, job_gc_timeout_s=0.02) as service:
        for mode in (OFF, DYNAMIC):
            with inputs.range(10).repeat().distribute(service.target, mode, mode).iterator() as elements:
                next(elements)
        eventually(lambda: len(jobs(service)) == 1)
        sweeps = count_calls(monkeypatch, service.dispatcher, "_collect_idle")
        eventually(lambda: sweeps.total() >= 2)
        assert [job.mode for job in jobs(service)] == [DYNAMIC]
    with Service(1, job_gc_timeout_s=0.02, gc_dynamic_sharding_jobs=True) as service:
        with inputs.range(10).repeat().distribute(service.target, DYNAMIC, "j").iterator() as elements:
            next(elements)
        eventually(lambda: jobs(service) == ())


def count_calls(monkeypatch, owner, name):
    calls, method = Counter(), getattr(owner, name)

    def count(*arguments):
        result = method(*arguments)
        calls[name] += 1
        return result

    monkeypatch.setattr(owner, name, count)
    return calls


def jobs(service):
    return ServiceConnection(service.target, Security()).ask(GetStatus())[0].jobs


def test_JB_10_a_forgotten_name_can_be_used_again():
    """Each time it begins at 0."""
    with Service(1, job_gc_timeout_s=0.02) as service:
        for _ in range(3):
            with inputs.range(10_000).distribute(service.target, OFF, "t").iterator() as elements:
                assert list(itertools.islice(elements, 50)) == list(range(50))
            eventually(lambda: jobs(service) == ())


@pytest.mark.parametrize("gc_s", [300, 0.02], ids=["there", "forgotten"])
def test_a_job_name_used_again_is_an_error(gc_s):
    """In every mode, whether the job is still there or not: no rows and no error would be a training on nothing."""
    with Service(1, job_gc_timeout_s=gc_s) as service:
        for mode in (OFF, DYNAMIC, "exactly_once", "at_least_once"):
            if mode == OFF and gc_s < 1:
                continue  # begins again, with all elements
            first, again = (inputs.range(6).distribute(service.target, mode, job_name=f"train-{mode}") for _ in "ab")
            assert sorted(first) == sorted(first) == list(range(6)), "each pass of a dataset is a job"
            if gc_s < 1:
                eventually(lambda: jobs(service) == ())
            with pytest.raises(ServiceError, match="was read to its end"):
                list(again)


def large(number):
    """Few of them fill the buffers."""
    return number, bytes(100_000)


def test_JB_11_a_client_that_is_silent_is_dropped():
    """Its next request is refused; one that has a heart may read as slowly as it likes."""
    with Service(1, client_timeout_s=5) as service:
        inputs.register_dataset(service.target, inputs.range(3), dataset_id="d")
        connection = ServiceConnection(service.target, Security())
        silent, _ = connection.ask(JoinJob(dataset="d", mode=OFF, name="", epoch="0"))
        look = PollJob(client=silent.client, targets="any", process=this_process(), wait_s=0)
        with (
            inputs.range(1_000_000)
            .map(large)
            .distribute(service.target, OFF, max_outstanding_requests=1)
            .iterator() as elements
        ):
            next(elements)
            eventually(lambda: len(jobs(service)) == 1)  # that of the silent one is forgotten
            assert next(elements)[0] == 1
        with pytest.raises(ServiceError, match=r"was silent for more than 5 s"):
            connection.ask(look)


def test_a_consumer_that_is_gone_is_not_waited_for(monkeypatch):
    """A killed one never says that its last answer has arrived; the others come to the end when it is dropped."""
    monkeypatch.setattr(task, "RECEIPT_S", 3600.0)
    with Service(1, client_timeout_s=1) as service:
        dataset = inputs.register_dataset(service.target, inputs.range(5))
        connection = ServiceConnection(service.target, Security())
        killed = connection.ask(JoinJob(dataset=dataset, mode=OFF, name="shared", epoch="0"))[0].client
        poll = PollJob(client=killed, targets="any", process=this_process(), wait_s=0)
        ((number, address),) = connection.ask(poll)[0].tasks
        ticket = Fetch(task=number, client=killed, limit_bytes=1).model_dump_json().encode()
        eventually(lambda: is_answered(address, ticket))

        assert list(inputs.range(5).distribute(service.target, OFF, "shared")) == [1, 2, 3, 4]


def is_answered(address, ticket):
    with suppress(UnknownTask):  # it has not begun
        return bool(ServiceConnection(address, Security()).fetch(ticket, 60.0))


def test_JB_12_registration(one):
    """Other datasets have other ids, equal ones the same; an id stands for one structure."""
    ten = inputs.register_dataset(one.target, inputs.range(10))

    assert ten != inputs.register_dataset(one.target, inputs.range(20))
    assert ten == inputs.register_dataset(one.target, inputs.range(10))
    assert inputs.register_dataset(one.target, inputs.range(10), dataset_id="x") == "x"
    assert inputs.register_dataset(one.target, inputs.range(10), dataset_id="x") == "x"
    with pytest.raises(ServiceError, match="Datasets with the same id must have the same structure"):
        inputs.register_dataset(one.target, inputs.from_elements(["a"]), dataset_id="x")
    with pytest.raises(ServiceError, match="'y' is not registered"):
        inputs.from_dataset_id(OFF, one.target, "y")


def test_JB_13_each_iteration_is_a_new_job(one):
    """An anonymous dataset starts over each time."""
    dataset = inputs.range(3).distribute(one.target, DYNAMIC)

    assert [sorted(dataset) for _ in range(4)] == [[0, 1, 2]] * 4


def test_JB_16_seeds_under_off():
    """Without a seed workers shuffle differently, with one alike."""
    with Service(2) as service:
        free = [list(at(service, index, inputs.range(100).shuffle(), OFF)) for index in range(2)]
        fixed = [list(at(service, index, inputs.range(100).shuffle(seed=10), OFF)) for index in range(2)]

    assert free[0] != free[1]
    assert fixed[0] == fixed[1]


def test_JB_17_the_rest_of_a_batch_is_each_workers_own():
    """Short batches are given by each worker, or dropped by each."""
    with Service(2) as service:
        kept = list(inputs.range(10).batch(1000).distribute(service.target, OFF))
        dropped = list(inputs.range(10).batch(1000, drop_remainder=True).distribute(service.target, OFF))

    assert [batch.tolist() for batch in kept] == [list(range(10))] * 2
    assert dropped == []


def test_JB_19_a_service_behind_a_service(one):
    """A worker may be a consumer."""
    assert list(inputs.range(10).distribute(one.target, OFF).distribute(one.target, OFF)) == list(range(10))


def test_JB_21_generators(one):
    """Python's own functions go to workers like all others."""
    dataset = inputs.from_generator(lambda: iter(range(10))).distribute(one.target, OFF)

    assert list(dataset) == list(range(10))


def test_SP_01_a_snapshot_is_split_by_its_chunks_once_it_is_there(one, tmp_path):
    """Until then it cannot be: a split is a part of what it keeps."""
    dataset = inputs.range(100).snapshot(tmp_path)
    with pytest.raises(ServiceError, match="snapshot keeps a whole pass"):
        list(dataset.distribute(one.target, DYNAMIC))
    list(dataset)

    assert list(dataset.distribute(one.target, DYNAMIC)) == list(range(100))


def test_SP_02_a_service_cannot_be_split(one):
    """Nor can a generator; it is refused when the graph is built, or by the dispatcher where the graph is not here."""
    for dataset in (inputs.range(10).distribute(one.target, OFF).map(str), inputs.from_generator(lambda: [1])):
        with pytest.raises(DatasetError, match=r"workers get parts of the dataset, and .* has no splits"):
            dataset.distribute(one.target, DYNAMIC)
        number = inputs.register_dataset(one.target, dataset)
        with pytest.raises(ServiceError, match=r"cannot be split: .* has no splits"):
            list(inputs.from_dataset_id(DYNAMIC, one.target, number))


def test_SP_05_repeats(three):
    """Before and behind, and with more workers than elements."""
    before = inputs.range(20).repeat(5).distribute(three.target, DYNAMIC)
    behind = inputs.range(20).distribute(three.target, DYNAMIC).repeat(5)
    endless = inputs.range(1).repeat().distribute(three.target, DYNAMIC).take(20)

    assert Counter(before) == Counter(behind) == dict.fromkeys(range(20), 5)
    assert list(endless) == [0] * 20


@pytest.mark.parametrize("mode", [OFF, DYNAMIC])
def test_an_endless_repeat_of_nothing_ends(three, mode):
    """As it does in one process: a worker that gave nothing of a whole round, or of its part of many, ends its part."""
    dataset = inputs.range(9).filter(lambda number: number > 9).repeat()

    assert list(dataset) == list(dataset.distribute(three.target, mode)) == []


def test_an_endless_repeat_of_little_goes_on(three):
    """Workers that get nothing for long leave the splits to others, of whom one always has what there is."""
    dataset = inputs.range(9).filter(lambda number: number == 3).repeat()

    assert list(dataset.distribute(three.target, DYNAMIC).take(100)) == [3] * 100


@pytest.mark.parametrize("mode", ["at_least_once", "exactly_once", DYNAMIC])
def test_an_element_may_be_None(three, mode):
    """Under leases it was taken for an element that has not come, and lost."""
    assert Counter(inputs.from_elements([1, None, None, 2]).distribute(three.target, mode)) == {None: 2, 1: 1, 2: 1}


def test_JR_01_what_was_answered_is_in_the_journal(tmp_path):
    """A copy of the folder, taken right behind an answer, has what the answer told."""
    with Service(0, fault_tolerant_mode=True, work_dir=str(tmp_path / "a")) as service:
        connection = ServiceConnection(service.target, Security())
        inputs.register_dataset(service.target, inputs.range(10), dataset_id="d")
        joined, _ = connection.ask(JoinJob(dataset="d", mode="exactly_once", name="j", epoch="0"))
        leased, _ = connection.ask(ExchangeSplits(client=joined.client, number=1, want=4))
        copy = tmp_path / "b"
        copy.mkdir()
        (copy / "journal").write_bytes((tmp_path / "a" / "journal").read_bytes())

    with DispatchServer(DispatcherConfig(fault_tolerant_mode=True, work_dir=str(copy))) as again:
        connection = ServiceConnection(again.target, Security())
        after, _ = connection.ask(ExchangeSplits(client=joined.client, number=1, want=4))

    assert leased.held == after.held == ((0, 0), (1, 0), (2, 0), (3, 0))


@pytest.mark.parametrize("mode", ["at_least_once", "exactly_once"])
def test_leases_give_every_element_over_restarts_of_workers_and_dispatcher(tmp_path, mode):
    """At least once: none is missing. Exactly once: none is there twice either."""
    dice = random.Random(mode)
    with Service(2, fault_tolerant_mode=True, work_dir=str(tmp_path)) as service:
        found = []
        with inputs.range(400).distribute(service.target, mode).iterator() as elements:
            for number, element in enumerate(elements):
                found.append(element)
                if number in {20, 150}:
                    service.restart_worker(dice.randrange(2))
                if number in {60, 200}:
                    service.restart_dispatcher()

    assert set(found) == set(range(400))
    if mode == "exactly_once":
        assert len(found) == 400


REFUSED = {  # by what they say: each worker would compute it of its part
    "Take": lambda: inputs.range(10).take(3),
    "Skip": lambda: inputs.range(10).skip(3),
    "Enumerate": lambda: inputs.range(10).enumerate(),
    "Shard": lambda: inputs.range(10).shard(2, 0),
    "Scan": lambda: inputs.range(10).scan(0, lambda total, n: (total + n, total)),
    "Zip": lambda: inputs.zip(inputs.range(10), inputs.range(10)),
    "window reaches": lambda: inputs.range(10).window(3, shift=1).flat_map(lambda window: window),
    "drops the rest": lambda: inputs.range(10).batch(4, drop_remainder=True),
    "stop_on_empty": lambda: inputs.sample_from_datasets([inputs.range(3)] * 2, stop_on_empty=True),
}


@pytest.mark.parametrize("mode", [DYNAMIC, "at_least_once", "exactly_once", "file"])
@pytest.mark.parametrize("why", REFUSED)
def test_what_a_part_cannot_mean_is_refused_when_the_graph_is_built(mode, why):
    """A `take` of each worker would give more than was asked for, a `zip` pairs that are none."""
    with pytest.raises(DatasetError, match=f"{why}.*behind distribute"):
        REFUSED[why]().map(str).distribute("grpc://127.0.0.1:1", mode)


def test_what_only_single_splits_cannot_mean_is_refused_under_leases():
    """Of an endless dataset no split ends."""
    for dataset in (inputs.range(10).repeat(), inputs.sample_from_datasets([inputs.range(3)] * 2)):
        dataset.distribute("grpc://127.0.0.1:1", DYNAMIC)
        with pytest.raises(DatasetError, match="behind distribute"):
            dataset.distribute("grpc://127.0.0.1:1", "exactly_once")


def test_zip_and_take_of_files_go_by_elements_where_that_is_allowed(five, files):
    """FILE_OR_DATA shares out files only where that gives the dataset's elements."""
    pairs = inputs.zip(inputs.from_parquet(files), inputs.from_parquet(files[5:] * 2)).distribute(
        five.target, "file_or_data"
    )
    few = inputs.from_parquet(files).take(10).distribute(five.target, "file_or_data")

    assert sorted((left["n"], right["n"]) for left, right in pairs) == [(n, 50 + n % 50) for n in range(100)]
    assert sorted(numbers(few)) == list(range(10))


def test_a_cache_of_one_part_is_not_given_for_another(one):
    """Each split, and each job, has a cache of its own on a worker."""
    cached = inputs.range(1_000).cache()
    for mode in ("exactly_once", DYNAMIC, DYNAMIC):
        assert sorted(cached.distribute(one.target, mode)) == list(range(1_000))
    assert Counter(cached.repeat(3).distribute(one.target, DYNAMIC)) == dict.fromkeys(range(1_000), 3)


def test_a_leased_split_that_fails_is_an_error_at_its_element(one):
    """The others come, and the pass goes on behind it."""
    found, failed = [], 0
    with (
        inputs.range(10).map(lambda n: 1 // (n - 4) or n).distribute(one.target, "exactly_once").iterator() as elements
    ):
        while True:
            try:
                found.append(next(elements))
            except StopIteration:
                break
            except SpanwiseError:
                failed += 1

    assert (len(found), failed) == (9, 1)


@pytest.mark.parametrize("mode", [OFF, DYNAMIC, "exactly_once"])
def test_a_snapshot_of_what_a_service_sends_can_be_written_after_an_interruption(one, tmp_path, monkeypatch, mode):
    """The chunks of the interrupted pass belong to a job that is over; the next pass writes all of them."""
    monkeypatch.setattr(split_writer, "CHUNK_BYTES", 1_000)
    dataset = inputs.range(300).distribute(one.target, mode).snapshot(tmp_path)
    with dataset.iterator() as interrupted:
        for _ in range(200):
            next(interrupted)

    elements = dataset.iterator()

    assert sorted(elements) == list(range(300))
    assert elements.reports[0].committed
    assert sorted(dataset) == list(range(300))


@pytest.mark.parametrize("mode", ["off", "dynamic"])
def test_a_seeded_shuffle_on_the_workers_differs_from_epoch_to_epoch(mode):
    """As it does locally: where one worker computes the whole dataset, in the same orders."""
    numbers = inputs.range(40).shuffle(seed=3)
    with Service(1) as service:
        dataset = numbers.distribute(service.target, mode)
        epochs = [list(dataset.iterator(epoch=epoch)) for epoch in (0, 1)]

    assert [sorted(epoch) for epoch in epochs] == [list(range(40))] * 2
    assert epochs[0] != epochs[1]
    if mode == "off":
        assert epochs == [list(numbers.iterator(epoch=epoch)) for epoch in (0, 1)]


def test_lost_workers_are_removed_although_a_sweep_has_failed(monkeypatch):
    """A full disk, for example, does not end the thread that sweeps."""
    monkeypatch.setattr(dispatcher, "_SWEEP_RETRY_S", 0.01)
    with Service(1, worker_timeout_s=0.5) as service:
        failures = []

        def fail(self, state):
            failures.append(state)
            if len(failures) < 3:
                raise OSError("no space left on device")
            return remove(self, state)

        remove = DispatchServer._remove_silent
        monkeypatch.setattr(DispatchServer, "_remove_silent", fail)
        eventually(lambda: len(failures) > 2)
        service.workers[0].stop()
        eventually(lambda: service.dispatcher.status()["workers"] == [])
