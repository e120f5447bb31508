"""The journal in a folder: what was answered is there after a crash, whole."""

import hashlib
import resource

import pytest

from spanwise.orchestrator.errors import ServiceError
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.service.dispatcher.dispatcher import DispatchServer
from spanwise.pipelines.input.service.dispatcher.folder_journal import FolderJournal
from spanwise.pipelines.input.service.dispatcher.state import records_of
from spanwise.pipelines.input.service.wire.config import DispatcherConfig, WorkerConfig
from spanwise.pipelines.input.service.worker.worker import WorkerServer
from tests.pipelines.input.service.dispatcher.journals import begin, dealt
from tests.pipelines.input.service.dispatcher.test_state import as_records, do


def begun(folder, splits=1000):
    return begin(FolderJournal(folder), splits)


@pytest.mark.parametrize("cut", [1, 7, 30])
def test_JR_05_a_torn_last_record_is_cut_off(tmp_path, cut):
    """All whole records are there, the torn one is not, and what is written next stands on a line of its own."""
    journal = begun(tmp_path)
    before = as_records(journal.state)
    journal.write([dealt(0)])
    journal.close()
    content = journal.path.read_bytes()
    journal.path.write_bytes(content[:-cut])

    again = FolderJournal(tmp_path)
    seen = as_records(again.state)
    again.write([dealt(0)])
    again.close()

    assert seen == before
    assert journal.path.read_bytes() == content


def test_damage_before_the_end_is_refused(tmp_path):
    """It says which line, and does not go on without it."""
    journal = begun(tmp_path)
    journal.close()
    content = bytearray(journal.path.read_bytes())
    content[20] ^= 1
    journal.path.write_bytes(content)

    with pytest.raises(ServiceError, match="line 1 is not what was written"):
        FolderJournal(tmp_path)


def test_a_folder_has_one_dispatcher(tmp_path):
    """A second one is refused while the first one holds it."""
    journal = begun(tmp_path)

    with pytest.raises(ServiceError, match="running dispatcher"):
        FolderJournal(tmp_path)
    journal.close()
    FolderJournal(tmp_path).close()


def test_a_long_journal_is_made_shorter(tmp_path):
    """The state is the same, and what is written afterwards is kept too."""
    journal = begun(tmp_path)
    do(journal.state, [dealt(number) for number in range(500)])
    journal.write([dealt(number) for number in range(500)])
    long = journal.path.stat().st_size
    journal.compact(records_of(journal.state))
    short = journal.path.stat().st_size
    journal.sync(journal.write(do(journal.state, [dealt(500)])))
    journal.close()
    again = FolderJournal(tmp_path)
    again.close()

    assert short < long / 10
    assert as_records(again.state) == as_records(journal.state)


def test_a_hundred_thousand_splits_are_replayed(tmp_path):
    """A restart leads to the same state, however long the journal is; `benchmarks.service` limits its time."""
    journal = begun(tmp_path, splits=100_000)
    journal.write([dealt(number) for number in range(100_000)])
    journal.close()

    again = FolderJournal(tmp_path)
    again.close()

    assert again.state.jobs[1].sources[0].below == 1


def test_a_full_disk_leaves_whole_records_only(tmp_path):
    """What could not be written whole is not there, and what comes when there is room again is."""
    journal = begun(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (journal.path.stat().st_size + 20, limits[1]))
    try:
        with pytest.raises(ServiceError, match="free space"):
            journal.write([dealt(0)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    journal.write(do(journal.state, [dealt(0)]))
    journal.close()
    again = FolderJournal(tmp_path)
    again.close()

    assert as_records(again.state) == as_records(journal.state)


def test_a_journal_of_an_earlier_version_is_read(tmp_path):
    """It does not say under which names graphs are stored: they followed from the ids of datasets."""
    folder = tmp_path / "work"
    config = DispatcherConfig(fault_tolerant_mode=True, work_dir=str(folder))
    with DispatchServer(config) as dispatcher:
        inputs.register_dataset(dispatcher.target, inputs.range(3), dataset_id="d")
        (graph,) = (folder / "datasets").iterdir()
        graph.rename(graph.with_name(hashlib.sha256(b"d").hexdigest()[:32]))
    lines = (folder / "journal").read_bytes().splitlines(keepends=True)
    (folder / "journal").write_bytes(b"".join(line for line in lines if b"StoreGraph" not in line))

    with (
        DispatchServer(config) as again,
        WorkerServer(WorkerConfig(dispatcher_address=again.target)),
    ):
        assert sorted(inputs.from_dataset_id("dynamic", again.target, "d")) == [0, 1, 2]
