"""Where snapshots are kept: one contract for a local folder, an S3 server and objects in memory."""

import os
import socket
import threading
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from spanwise.orchestrator.errors import DatasetError
from spanwise.orchestrator.storage import bucket, forget_buckets
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.snapshot import inventory, split_writer
from spanwise.pipelines.input.snapshot.folder import SnapshotFolder
from spanwise.pipelines.input.snapshot.state import Metadata
from spanwise.pipelines.input.snapshot.storage import LocalFiles, files_at

FINGERPRINT, RUN = "0123456789abcdef" * 2, "0123456789abcdef"
HOUR_S, NEVER = 3600, 1e11  # by when all is old


@pytest.fixture(params=["local", "s3", "memory"])
def place(request, tmp_path):
    """A path or URL at which nothing is yet."""
    if request.param == "local":
        return str(tmp_path / "snapshots")
    name = f"{request.node.name.partition('[')[0]}-{os.getpid()}"
    if request.param == "s3":
        return f"{request.getfixturevalue('s3_url')}/{name}"
    return f"memory://{name}"


@pytest.fixture
def files(place):
    found = files_at(place)
    found.make_folder("f")
    return found


def test_what_was_put_is_there_whole(files):
    """Parts are one file."""
    files.replace("f/a", [b"one", memoryview(b"two")])

    assert files.read("f/a") == b"onetwo"
    assert files.map("f/a").to_pybytes() == b"onetwo"
    assert files.sizes("f") == {"a": 6}


def test_a_file_that_is_not_there(files):
    """None where absence means something, an error where it does not."""
    assert files.read("f/none") is None
    assert files.sizes("none") == {}
    assert files.folders("none") == []
    with pytest.raises(FileNotFoundError):
        files.map("f/none")


def test_replace_takes_the_place_of_a_file(files):
    """And leaves nothing else."""
    files.replace("f/a", [b"old"])
    files.replace("f/a", [b"new"])

    assert files.read("f/a") == b"new"
    assert list(files.sizes("f")) == ["a"]


def test_create_lets_the_first_one_win(files):
    """The second is told so, and changes nothing."""
    assert files.create("f/a", [b"first"])
    assert not files.create("f/a", [b"second"])

    assert files.read("f/a") == b"first"
    assert list(files.sizes("f")) == ["a"]


def test_of_many_creators_one_wins(files):
    """However close together they come."""
    won = []
    threads = [threading.Thread(target=lambda n=n: won.append(files.create("f/a", [b"%d" % n]))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(won) == [False] * 7 + [True]


def test_a_shared_file_outlives_its_first_name(files):
    """As a finished chunk does that another run takes up."""
    files.make_folder("f/r1")
    files.make_folder("f/r2")
    files.replace("f/r1/a", [b"kept"])
    files.share("f/r1/a", "f/r2/a")
    files.remove("f/r1")

    assert files.read("f/r2/a") == b"kept"
    assert files.folders("f") == ["r2"]


def test_removing_twice_is_no_error(files):
    """Two losers of a race may do so."""
    files.make_folder("f/r1")
    files.replace("f/r1/a", [b""])

    for _ in range(2):
        files.remove("f/r1/a")
        files.remove("f/r1")

    assert files.folders("f") == []


def test_a_pass_writes_and_another_one_reads(place, monkeypatch):
    """Over several chunks, in order; damage is found and mended; gc leaves it whole."""
    monkeypatch.setattr(split_writer, "CHUNK_BYTES", 4_096)
    dataset = inputs.range(1000).snapshot(place)

    def passed():
        with dataset.iterator() as iterator:
            return list(iterator), iterator.reports[0]

    written, read = passed(), passed()
    files = files_at(place)
    final = SnapshotFolder(files, dataset.op.fingerprint).look().final
    name = f"{final.fingerprint}/{final.run_id}/{final.chunks[1].file}"
    files.replace(name, [files.read(name)[:-1] + b"!"])
    mended = passed()
    inventory.collect(files, now=final.started + 1)
    after = passed()

    assert written[0] == read[0] == mended[0] == after[0] == list(range(1000))
    assert [use.state for _, use in (written, read, mended, after)] == ["write", "read", "write", "read"]
    assert mended[1].damaged == [final.chunks[1].file]
    assert mended[1].elements_read > 0


def test_gc_leaves_what_is_not_a_snapshot(place):
    """Folders beside the snapshots, whatever lies in them, and a folder that is only named like a snapshot's."""
    list(inputs.range(10).snapshot(place))
    files = files_at(place)
    others = ("2024-05-01/v1/rides.csv", f"{FINGERPRINT}/{RUN}/rides.csv", f"{FINGERPRINT}/notes.txt")
    for name in others:
        files.make_folder(name.rpartition("/")[0])
        files.replace(name, [b"1"])

    collected = inventory.collect(files, now=NEVER, whole_s=0)
    unknown = list(inventory.unknown_folders(files))

    assert [each.why for each in collected] == ["written long ago"]
    assert [files.read(name) for name in others] == [b"1"] * 3
    assert [(each.name, each.why) for each in unknown] == [
        (FINGERPRINT, "no snapshot holds notes.txt"),
        ("2024-05-01", "no snapshot has such a name"),
    ]


@pytest.mark.parametrize("wrote", ["a heartbeat", "a chunk"])
def test_gc_behind_a_url_keeps_what_is_written_for_more_than_a_day(request, wrote):
    """Nobody can be marked there, so a run is kept until nothing has been written to it for a day."""
    files, written_at = files_at(f"memory://{request.node.name}"), time.time()
    folder = SnapshotFolder(files, FINGERPRINT)
    run = Metadata(run_id=RUN, fingerprint=FINGERPRINT, started=written_at - 25 * HOUR_S, writer="elsewhere/1/2")
    assert folder.claim(run, folder.look())
    if wrote == "a chunk":
        files.replace(f"{FINGERPRINT}/{RUN}/00000000.snapshot", [b"1"])
    else:
        folder.beat(RUN, written_at)

    found = [list(inventory.garbage(files, now=written_at + hours * HOUR_S)) for hours in (23, 25)]

    assert [[each.name for each in garbage] for garbage in found] == [[], [FINGERPRINT]]


def test_gc_leaves_chunks_without_metadata_to_the_next_writer_for_a_day(place):
    """A pass that was closed before its end has left them."""
    dataset = inputs.range(1000).snapshot(place)
    with dataset.iterator() as closed:
        next(closed)
    files = files_at(place)
    files.make_folder(f"{dataset.op.fingerprint}/{RUN}")
    files.replace(f"{dataset.op.fingerprint}/{RUN}/00000000.snapshot", [b"1"])

    found = [list(inventory.garbage(files, now=time.time() + hours * HOUR_S)) for hours in (23, 25)]

    assert [[each.name for each in garbage] for garbage in found] == [[], [dataset.op.fingerprint]]


def test_two_passes_at_once_write_once(place):
    """Behind a URL too: the second finds that somebody writes."""
    first, second = (inputs.range(100).snapshot(place).iterator() for _ in range(2))

    assert list(zip(first, second, strict=True)) == [(n, n) for n in range(100)]
    assert [each.reports[0].state for each in (first, second)] == ["write", "passthrough"]


def test_marks_of_a_folder_end_with_their_context(tmp_path):
    """On a local disk it can be told whether somebody reads there."""
    files = LocalFiles(tmp_path)
    files.make_folder("r1")

    with ExitStack() as marks:
        marks.enter_context(files.mark_used("r1"))
        marks.enter_context(files.mark_used("r1"))
        during = files.is_used("r1")
    assert (during, files.is_used("r1"), files.is_used("none")) == (True, False, False)


def test_a_write_that_fails_leaves_no_draft(tmp_path, monkeypatch):
    """A full disk is not made fuller."""
    files = LocalFiles(tmp_path)
    monkeypatch.setattr(os, "fsync", fail)

    with pytest.raises(OSError, match="No space"):
        files.replace("a", [b"text"])

    assert list(tmp_path.iterdir()) == []


def fail(_handle):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("url", ["nosuch://x", "https://host/x"])
def test_a_url_of_an_unknown_kind_is_refused(url):
    """In words of the one who typed it, when it is typed."""
    with pytest.raises(DatasetError, match=rf"^the place of snapshots is '{url}', a URL, .* s3://…, gs://…, az://…"):
        inputs.range(10).snapshot(url)


@pytest.mark.parametrize("use", [lambda place: inputs.range(10).snapshot(place), inputs.load, files_at])
@pytest.mark.parametrize("place", [Path("s3://lake/snapshots"), "file://host/snapshots", Path("file:///snapshots")])
def test_a_url_is_never_taken_for_a_folder(use, place, tmp_path, monkeypatch):
    """A `Path` leaves one slash of two, and folders called `s3:` and `localhost` were made below the current one."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(DatasetError, match=r"a URL, but|is on the host 'host'"):
        use(place)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("host", ["", "localhost"])
def test_a_file_url_is_read_as_one(tmp_path, host):
    """With what is quoted in it."""
    files_at(f"file://{host}{tmp_path}/my%20snapshots").make_folder("f")

    assert [path.name for path in tmp_path.iterdir()] == ["my snapshots"]


def test_a_store_that_cannot_be_reached_is_passed_through(s3_url, monkeypatch):
    """Training goes on; the report says why nothing was kept."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free.getsockname()[1]}")
    monkeypatch.setattr(bucket, "_RETRY_FOR", timedelta(seconds=1))
    forget_buckets()
    with inputs.range(10).snapshot(f"{s3_url}/x").iterator() as iterator:
        elements = list(iterator)
    forget_buckets()

    assert elements == list(range(10))
    assert iterator.reports[0].failed
