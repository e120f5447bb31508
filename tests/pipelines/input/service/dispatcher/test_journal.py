"""Journals, in a folder and in object storage: what was answered is there for whoever opens it next, whole."""

import contextlib
import os
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanwise.orchestrator.errors import ServiceError
from spanwise.orchestrator.storage import bucket, forget_buckets, open_bucket
from spanwise.pipelines.input.service.dispatcher import decisions, records
from spanwise.pipelines.input.service.dispatcher.journal import line_of, record_of
from spanwise.pipelines.input.service.dispatcher.records import StoreGraph
from spanwise.pipelines.input.service.dispatcher.state import records_of
from tests.contract.faulty_proxy import Fault, proxied
from tests.contract.object_storage import SERVERS, serve
from tests.pipelines.input.service.dispatcher.journals import FolderPlace, StoredPlace, begin, dealt
from tests.pipelines.input.service.dispatcher.test_state import as_records, dataset, do, job

PLACES = ["folder", *(SERVERS or ["moto"])]


@pytest.fixture(scope="module", params=PLACES)
def make_place(request):
    """Makes an empty place for a journal."""
    with contextlib.ExitStack() as stack:
        if request.param == "folder":
            yield lambda: FolderPlace(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        else:
            home = stack.enter_context(serve(request.param))
            yield lambda: StoredPlace(home)


@pytest.fixture
def place(make_place):
    return make_place()


def begun(place, splits=1000):
    return begin(place.open(), splits)


def test_a_record_is_a_line_that_says_when_it_is_damaged():
    """Every kind comes back as it was; a line with one bit changed does not."""
    line = line_of(dealt(5))

    assert record_of(line) == dealt(5)
    assert record_of(line.replace(b"5", b"6", 1) if b"5" in line[:8] else line[:-3] + b"7]\n") is None
    assert record_of(line[:-1]) is None


def test_a_record_of_a_later_version_is_refused(monkeypatch):
    """It is not taken for damage, which might be cut off."""
    from spanwise.pipelines.input.service.dispatcher import journal

    line = line_of(StoreGraph(dataset="d", name="n"))
    monkeypatch.delitem(journal._ADAPTERS, b"StoreGraph")

    with pytest.raises(ServiceError, match="a record 'StoreGraph', which this version of spanwise does not know"):
        record_of(line)


def test_JR_02_the_split_cursor_is_part_of_it(place):
    """After k splits the next one is number k; behind the last one the next round begins at 0."""
    journal = begun(place, splits=5)
    journal.sync(journal.write([dealt(number) for number in range(3)]))
    journal.close()
    middle = place.open()
    third = decisions.next_splits(middle.state, 3, 100, 0, 0)
    middle.sync(middle.write([dealt(3), dealt(4)]))
    middle.close()
    end = place.open()

    assert third.first == 3
    assert decisions.next_splits(end.state, 3, 100, 0, 0) is None
    assert decisions.next_splits(end.state, 3, 100, 0, 1).first == 0
    end.close()


def test_JR_03_ids_go_on_after_replay(place):
    """No id is given twice, not after the journal was made shorter either."""
    journal = begun(place)
    state = journal.state
    journal.write(do(state, [records.ReleaseClient(client=2), records.CollectJob(job=1)]))
    journal.compact(records_of(state))
    journal.close()
    again = place.open()
    again.close()

    (made, client, task) = decisions.join(again.state, job())
    assert (made.job, client.client, task.task) == (4, 5, 6)


def test_what_is_written_behind_a_compaction_is_kept_too(place):
    """The state is the same as without it."""
    journal = begun(place)
    journal.write(do(journal.state, [dealt(number) for number in range(500)]))
    journal.compact(records_of(journal.state))
    journal.sync(journal.write(do(journal.state, [dealt(500)])))
    journal.close()
    again = place.open()
    again.close()

    assert as_records(again.state) == as_records(journal.state)


STEPS = st.lists(st.sampled_from(["write", "write", "sync", "compact", "close", "kill"]), max_size=12)


@given(steps=STEPS)
@settings(max_examples=25, deadline=None)
def test_whoever_opens_it_next_finds_what_was_acknowledged(make_place, steps):
    """All that was synced, and of the rest what was written first: no gap, nothing twice, whoever was killed."""
    place = make_place()
    written, safe = [], 0
    journal = place.open()
    with contextlib.ExitStack() as later:
        for step in [*steps, "kill"]:
            match step:
                case "write":
                    written.append(f"d{len(written)}")
                    do(journal.state, [dataset(written[-1])])
                    journal.write([dataset(written[-1])])
                case "sync":
                    journal.sync(journal.written)
                    safe = len(written)
                case "compact":
                    journal.compact(records_of(journal.state))
                    safe = len(written)
                case _:
                    if step == "close":
                        journal.sync(journal.written)
                        safe = len(written)
                        journal.close()
                    else:
                        place.kill(journal)
                    journal = place.open()
                    found = list(journal.state.datasets)
                    assert found == written[: len(found)]
                    assert len(found) == (len(written) if place.keeps_unsynced else safe)
                    written, safe = found, len(found)
        later.callback(journal.close)


# In object storage.


@pytest.fixture(scope="module")
def storage():
    with serve(next(iter(SERVERS), "moto")) as home:
        yield home


@pytest.fixture
def stored(storage):
    return StoredPlace(storage)


def names(place):
    bucket = open_bucket(place.home.home)
    return sorted(info.key[len(place.home.key) + 1 :] for info in bucket.list(place.home.key))


def test_one_that_was_overtaken_writes_nothing_more(stored):
    """Its segment is refused by the seal, whatever it believes; it says who has the journal, and so does each later call."""
    from spanwise.pipelines.input.service.wire.connection import Unreachable

    paused = begun(stored)
    stored.kill(paused)
    successor = stored.open()
    before = as_records(successor.state)

    number = paused.write([dealt(0)])
    with pytest.raises(Unreachable, match="another dispatcher has taken over"):
        paused.sync(number)
    with pytest.raises(Unreachable, match="another dispatcher has taken over"):
        paused.check()
    with pytest.raises(Unreachable):
        paused.compact(records_of(paused.state)) or paused.sync(paused.written)
    assert "has lost" in str(paused.lost)
    successor.close()
    again = stored.open()
    again.close()
    assert as_records(again.state) == before


def test_a_seal_holds_after_what_is_before_it_was_removed(stored):
    """Two more dispatchers have taken over, compacted and cleaned: the first one's next segment is still refused."""
    from spanwise.pipelines.input.service.wire.connection import Unreachable

    paused = begun(stored)
    stored.kill(paused)
    for _ in range(2):
        successor = stored.open()
        successor.sync(successor.write(do(successor.state, [dataset("more")])))
        successor.compact(records_of(successor.state))
        successor._clean({successor._lead.record.snapshot.rpartition("/")[2]})
        stored.kill(successor)

    with pytest.raises(Unreachable):
        paused.sync(paused.write([dealt(0)]))
    assert [name for name in names(stored) if name.startswith("journal/000001")] == ["journal/000001/000000001"]


def test_a_successor_that_dies_before_it_has_begun_leaves_all_to_the_next(stored, monkeypatch):
    """Killed between taking the record, sealing, writing its snapshot and naming it."""
    from spanwise.pipelines.input.service.dispatcher.leadership import Leadership
    from spanwise.pipelines.input.service.dispatcher.stored_journal import StoredJournal

    journal = begun(stored)
    expected = as_records(journal.state)
    stored.kill(journal)

    class Killed(BaseException):
        pass

    def die(*_, **__):
        raise Killed

    for where, name in ((StoredJournal, "_replay"), (StoredJournal, "_begin"), (Leadership, "amend")):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, die)
            patch.setattr(Leadership, "release", lambda self: self._ended.set())
            with pytest.raises(Killed):
                stored.open()
        record = open_bucket(stored.home.home).read((stored.home / "dispatcher.json").key)
        content = record[0].replace(b'"released": false', b'"released": true')  # it is dead, and nobody waits for it
        open_bucket(stored.home.home).write((stored.home / "dispatcher.json").key, content)
    again = stored.open()
    again.close()

    assert as_records(again.state) == expected


def test_a_later_start_removes_what_nobody_needs(stored):
    """Seals, the snapshot and graphs that are used stay."""
    journal = begun(stored)
    used, unused = journal.put(b"graph"), journal.put(b"graph of a request that was refused")
    journal.sync(journal.write(do(journal.state, [StoreGraph(dataset="d", name=used)])))
    open_bucket(stored.home.home).write((stored.home / "snapshots/000001-000000099").key, b"never named")
    stored.kill(journal)
    again = stored.open()
    again._clean({used, again._lead.record.snapshot.rpartition("/")[2]})

    assert names(stored) == [
        f"datasets/{used}",
        "dispatcher.json",
        "journal/000001/000000002",
        again._lead.record.snapshot,
    ]
    assert again.get(used) == b"graph"
    with pytest.raises(ServiceError, match="is gone"):
        again.get(unused)
    again.close()


def test_damage_is_refused(stored):
    """Whichever object it is in; the message names it."""
    journal = begun(stored)
    stored.kill(journal)
    key = (stored.home / "journal/000001/000000000").key
    content = bytearray(open_bucket(stored.home.home).read(key)[0])
    content[-5] ^= 1
    open_bucket(stored.home.home).write(key, bytes(content))

    with pytest.raises(ServiceError, match=r"journal/000001/000000000 is damaged"):
        stored.open()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"format": 2, "token": 1, "id": "", "machine": "", "pid": 1, "started": 1, "ttl_s": 1}', "has format 2"),
        (b"{", "is damaged"),
    ],
)
def test_a_record_of_another_format_is_refused(stored, content, said):
    """Nobody guesses what another version has written."""
    open_bucket(stored.home.home).write((stored.home / "dispatcher.json").key, content)

    with pytest.raises(ServiceError, match=said):
        stored.open()


def test_a_journal_whose_record_is_gone_is_refused(stored):
    """Its dispatcher ends, and nobody begins with nothing where there was something."""
    from spanwise.pipelines.input.service.wire.connection import Unreachable

    journal = begun(stored)
    open_bucket(stored.home.home).delete([(stored.home / "dispatcher.json").key])

    with pytest.raises(Unreachable, match="its leader record was removed"):
        journal._lead.amend()
    with pytest.raises(ServiceError, match=r"dispatcher\.json is gone, but not the journal beside it"):
        stored.open()


def test_who_stands_by_does_not_take_a_storage_that_was_away_for_a_silent_leader(stored, monkeypatch):
    """Only silence through which it could look counts, by its own clock."""
    from spanwise.pipelines.input.service.dispatcher import leadership

    now = [1000.0]
    journal = begun(stored)
    record = journal._lead.record.model_copy(update={"ttl_s": 10.0})
    journal.close()
    monkeypatch.setattr(leadership.time, "monotonic", lambda: now[0])
    watch = leadership._Watch(stored.home, str)

    def looks(*moments):
        for now[0] in moments:
            is_gone = watch._is_gone(record)
        return is_gone

    assert not looks(1000, 1003, 1006, 1009)
    assert not looks(1050)  # the storage was away
    assert not looks(1054, 1058)
    assert looks(1061)


@pytest.fixture
def faulty(storage, monkeypatch):
    """A place behind a proxy that fails requests, and the proxy."""
    with proxied(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        monkeypatch.setattr(bucket, "_RETRY_FOR", timedelta(seconds=1))
        forget_buckets()
        yield StoredPlace(storage), proxy
        forget_buckets()


@pytest.mark.parametrize("name", ["journal/000001/000000001", "dispatcher.json"])
def test_a_write_whose_answer_is_lost_is_known_to_be_its_own(faulty, name):
    """It has landed, so its repetition is refused, by the storage: nobody else has taken over."""
    from spanwise.pipelines.input.service.wire.connection import Unreachable

    place, proxy = faulty
    journal = begun(place)
    failed = proxy.fail(Fault(lost=True), 1, method="PUT", containing=name)
    number = journal.write(do(journal.state, [dataset("more")]))
    with contextlib.suppress(Unreachable):  # whoever asked asks again
        journal.sync(number)
    journal.sync(number)
    for _ in range(2):
        journal.compact(records_of(journal.state))
    journal.close()
    again = place.open()
    again.close()

    assert len(failed) == 1
    assert journal.lost is None
    assert as_records(again.state) == as_records(journal.state)


@pytest.mark.parametrize("fault", [Fault(status=503, code="SlowDown"), Fault(lost=True)], ids=["refused", "lost"])
def test_what_could_not_be_stored_is_not_acknowledged_and_is_stored_once_when_it_can(faulty, fault):
    """Whether what has failed had landed or not; what was written meanwhile comes behind it."""
    from spanwise.pipelines.input.service.wire.connection import Unreachable

    place, proxy = faulty
    journal = begun(place)
    proxy.fail(fault, containing="journal/000001")
    first = journal.write(do(journal.state, [dataset("first")]))
    with pytest.raises(Unreachable):
        journal.sync(first)
    second = journal.write(do(journal.state, [dataset("second")]))
    with pytest.raises(Unreachable):
        journal.sync(second)
    proxy.decide = lambda _method, _path: None
    journal.sync(second)
    place.kill(journal)
    again = place.open()
    again.close()

    assert as_records(again.state) == as_records(journal.state)
