"""What holds for every bucket: objects are whole or absent, and a writer can insist on what it replaces."""

from __future__ import annotations

import glob
import os
import shutil
import threading
import time
import uuid

import pytest

from spanwise.orchestrator.errors import Conflict, ParameterError, StorageError
from spanwise.orchestrator.span_pattern import SpanPattern
from spanwise.orchestrator.storage import (
    BucketArchive,
    LocalCopies,
    find_newest_span,
    list_objects,
    open_bucket,
    parse_url,
)
from spanwise.orchestrator.storage.archive import _lock
from spanwise.orchestrator.storage.use_lock import UseLock
from tests.contract.object_storage import SERVERS, begin_upload, make_folder, serve


@pytest.fixture(scope="module", params=["moto", *SERVERS])
def home(request):
    with serve(request.param) as home:
        yield parse_url(home)


@pytest.fixture
def folder(home):
    """A folder of its own for each test."""
    return home / uuid.uuid4().hex


@pytest.fixture
def bucket(home):
    return open_bucket(home)


@pytest.mark.parametrize(
    "name", ["a b.csv", "100%.csv", "%41.csv", "ü#&+.csv", "[x].csv", "~t", "v=1,2", "'quoted'", "日本.csv"]
)
def test_a_key_is_the_text_that_was_written(bucket, folder, name):
    """Listed and read under the same name, whatever is in it."""
    key = (folder / name).key

    etag = bucket.write(key, b"one")

    assert [info.key for info in bucket.list(folder.key)] == [key]
    assert bucket.read(key) == (b"one", etag)


def test_what_is_not_there_is_none(bucket, folder):
    """Neither its bytes nor its facts; and deleting it is no error."""
    key = (folder / "gone").key

    bucket.delete([key])

    assert bucket.read(key) is None
    assert bucket.head(key) is None
    assert list(bucket.list(folder.key)) == []


def test_what_is_gone_does_not_keep_others_from_being_deleted(bucket, folder):
    """Of many that are deleted at once, some may be gone; the others go, wherever they stand."""
    keys = [(folder / f"{number:03}").key for number in range(120)]
    for key in keys[10:-10:2]:
        bucket.write(key, b"x")

    bucket.delete(keys)

    assert list(bucket.list(folder.key)) == []


def test_an_object_is_created_once(bucket, folder):
    """Of several that create it at once, one wins; the others are told."""
    key = (folder / "claim").key
    won = []

    def create(number):
        try:
            bucket.write(key, str(number).encode(), replacing="")
        except Conflict:
            return
        won.append(str(number).encode())

    threads = [threading.Thread(target=create, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(won) == 1
    assert bucket.read(key)[0] == won[0]


def test_an_object_is_replaced_only_as_the_writer_knows_it(bucket, folder):
    """With the etag that was read, once; whoever comes second is told."""
    key = (folder / "pointer").key
    first = bucket.write(key, b"1", replacing="")

    second = bucket.write(key, b"2", replacing=first)

    with pytest.raises(Conflict, match="written by somebody else"):
        bucket.write(key, b"3", replacing=first)
    assert bucket.read(key) == (b"2", second)


def test_a_file_arrives_as_it_was(bucket, folder, tmp_path):
    """Also in several parts, and only in the revision that is asked for."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(range(256)) * 80_000)  # 20 MB: three parts
    key = (folder / "large").key
    bucket.upload(source, key)
    info = bucket.head(key)

    bucket.download(key, target, etag=info.etag)

    assert target.read_bytes() == source.read_bytes()
    assert info.size_bytes == source.stat().st_size
    bucket.write(key, b"other")
    with pytest.raises(Conflict):
        bucket.download(key, tmp_path / "again", etag=info.etag)


def test_an_upload_that_was_killed_is_found_and_aborted(bucket, folder):
    """It is hidden in listings; other folders are not looked into. Aborting it twice is no error."""
    begin_upload(f"{folder}/models/1/big file")

    found = bucket.list_uploads((folder / "models").key)

    assert [each.url for each in found] == [folder / "models/1/big file"] * (folder.scheme == "s3")
    assert list(bucket.list(folder.key)) == []
    assert bucket.list_uploads((folder / "model").key) == ()
    for each in (*found, *found):
        assert abs(each.begun_s - time.time()) < 3600 or each.begun_s == 1289422113.0, "moto's uploads are of 2010"
        bucket.abort_upload(each)
    assert bucket.list_uploads(folder.key) == ()


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"])
def test_unfinished_uploads_are_asked_for_where_objects_are_read(bucket, folder, monkeypatch, variable):
    """Whichever variable names the endpoint: such uploads were looked for elsewhere, and stayed."""
    if folder.scheme != "s3":
        pytest.skip("only S3 has them")
    begin_upload(f"{folder}/models/1/big file")
    monkeypatch.setenv(variable, os.environ["AWS_ENDPOINT_URL"])
    monkeypatch.delenv("AWS_ENDPOINT_URL")

    (found,) = bucket.list_uploads((folder / "models").key)
    bucket.abort_upload(found)

    assert bucket.list_uploads(folder.key) == ()


def test_a_listing_finds_what_glob_would(bucket, folder):
    """`*` stays in a folder, `**` goes below, and names with a dot in front are left out."""
    for name in ("d1/v1/a.csv", "d1/v2/a.csv", "d1/v2/.part", "d2/v1/a.csv", "d2/v1/deep/b.csv", "other/v1/a.csv"):
        bucket.write((folder / name).key, b"x")

    def found(pattern):
        return sorted(url.removeprefix(f"{folder}/") for url in list_objects(f"{folder}/{pattern}"))

    assert found("d*/v*/*.csv") == ["d1/v1/a.csv", "d1/v2/a.csv", "d2/v1/a.csv"]
    assert found("d1/v2/*") == ["d1/v2/a.csv"]
    assert found("d[2]/**/*.csv") == ["d2/v1/a.csv", "d2/v1/deep/b.csv"]
    assert found("d1/v1/a.csv") == ["d1/v1/a.csv"]
    assert found("d?/none") == []


@pytest.mark.parametrize("name", ["1//b.csv", "1/./b.csv", "1/a\tb.csv"])
def test_an_object_that_keeps_its_folder_from_being_listed_is_named(bucket, folder, name):
    """With what to do: the library lists no such key, nor what comes after it."""
    bucket.write((folder / "2/a.csv").key, b"x")
    make_folder(folder / name)

    with pytest.raises(StorageError) as error:
        list_objects(f"{folder}/*/*.csv")

    assert f"the object {f'{folder.key}/{name}/'!r} keeps its folder from being listed" in str(error.value)
    assert str(error.value).endswith("Rename or delete it.")


def test_a_folder_in_braces_is_found_under_its_name(bucket, folder):
    """A listing knows no placeholders: `{x}` is a name like any other, as on a disk."""
    for name in ("{x}/a.csv", "{SPAN}/a.csv", "7/a.csv"):
        bucket.write((folder / name).key, b"x")

    assert list(list_objects(f"{folder}/{{x}}/*.csv")) == [f"{folder}/{{x}}/a.csv"]
    assert list(list_objects(f"{folder}/{{SPAN}}/*.csv")) == [f"{folder}/{{SPAN}}/a.csv"]


def test_a_listing_leaves_out_what_glob_would(bucket, folder, tmp_path):
    """A name with a dot in front is found only where the pattern has one in its place, whatever stands elsewhere in it."""
    for name in (".new/1/a.csv", ".new/1/.a.csv", ".new/.old/1/b.csv", "1/a.csv", "1/.b.csv", "x/.y/1/c.csv"):
        bucket.write((folder / name).key, b"x")
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    for pattern in (".new/*/*.csv", ".new/**/*.csv", ".*/1/*.csv", "**/1/*.csv", "1/.*.csv", "1/[.]*", "**/.y/**"):
        wanted = [path for path in glob.glob(pattern, root_dir=tmp_path, recursive=True) if path.endswith("csv")]  # noqa: PTH207
        found = [url.removeprefix(f"{folder}/") for url in list_objects(f"{folder}/{pattern}")]
        assert sorted(found) == sorted(wanted), pattern


def test_what_a_console_creates_to_show_a_folder_is_no_file(bucket, folder):
    """Whether anything lies in the folder or not; a file of no bytes is one."""
    for name in ("d1/a.csv", "d1/empty.csv", "d1/full/b.csv"):
        bucket.write((folder / name).key, b"" if "empty" in name else b"x")
    for name in ("d1", "d1/full", "d1/nothing", "d2"):
        make_folder(folder / name)

    def found(pattern):
        return sorted(url.removeprefix(f"{folder}/") for url in list_objects(f"{folder}/{pattern}"))

    assert found("*/*") == ["d1/a.csv", "d1/empty.csv"]
    assert found("d1/**") == ["d1/a.csv", "d1/empty.csv", "d1/full/b.csv"]
    assert found("d2/*") == []
    assert find_newest_span(SpanPattern.parse(f"{folder}/d{{SPAN}}/*")) == 1


@pytest.mark.parametrize(
    ("pattern", "newest"),
    [
        ("{YYYY}-{MM}-{DD}/v{VERSION}/*.csv", "2024-05-02"),
        ("numbers/n{SPAN}/*.csv", 12),
        ("numbers/{SPAN}.csv", None),
        ("*/n{SPAN}/*.csv", None),
        ("years/{YYYY}/{MM}/{DD}/*.csv", None),
    ],
)
def test_the_newest_span_is_told_by_the_names_of_folders(bucket, folder, pattern, newest):
    """One that has no object of the pattern does not count; where folders do not tell, nothing is claimed."""
    for name in (
        "2024-05-01/v1/a.csv", "2024-05-02/v1/a.csv", "2024-05-03/v1/a.txt", "2024-05-04/readme",
        "numbers/n7/a.csv", "numbers/n12/a.csv", "numbers/n012x/a.csv", "numbers/13.csv", "years/2024/05/01/a.csv",
    ):  # fmt: skip
        bucket.write((folder / name).key, b"x")
    parsed = SpanPattern.parse(f"{folder}/{pattern}")

    found = find_newest_span(parsed)

    assert found == (parsed.calendar.parse(newest) if isinstance(newest, str) else newest)


def test_a_copy_is_made_once_and_is_compared(bucket, folder, tmp_path):
    """A second process finds it; one whose bytes have changed on the disk is made again."""
    url = folder / "a.csv"
    bucket.write(url.key, b"x\n1\n")
    info = bucket.head(url.key)
    path = LocalCopies(tmp_path).get(url, info)
    bucket.delete([url.key])

    assert LocalCopies(tmp_path).get(url, info).read_bytes() == b"x\n1\n"

    path.write_bytes(b"x\n2\n")
    bucket.write(url.key, b"x\n1\n")
    assert LocalCopies(tmp_path).get(url, bucket.head(url.key)).read_bytes() == b"x\n1\n"


@pytest.mark.parametrize("name", ["digest", "digest.digest", "a"])
def test_a_copy_is_what_the_object_was_whatever_its_name(bucket, folder, tmp_path, name):
    """Also where a part of it was deleted on the disk."""
    url = folder / name
    bucket.write(url.key, b"x\n1\n")
    info = bucket.head(url.key)

    path = LocalCopies(tmp_path).get(url, info)

    assert path.read_bytes() == b"x\n1\n"
    for part in list(path.parent.iterdir()):
        part.unlink()
        assert LocalCopies(tmp_path).get(url, info).read_bytes() == b"x\n1\n", part.name


def test_a_replaced_object_is_not_copied(bucket, folder, tmp_path):
    """What was listed is another revision."""
    url = folder / "a.csv"
    bucket.write(url.key, b"one")
    info = bucket.head(url.key)
    bucket.write(url.key, b"two")

    with pytest.raises(Conflict):
        LocalCopies(tmp_path).get(url, info)

    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_copies_beyond_the_limit_are_removed(bucket, folder, tmp_path):
    """The least recently used first, once no process uses any."""
    for number in range(4):
        bucket.write((folder / f"{number}.csv").key, bytes(1000))
    infos = sorted(bucket.list(folder.key), key=lambda info: info.key)
    urls = {parse_url(f"{folder.home}/{info.key}"): info for info in infos}
    copies = LocalCopies(tmp_path)
    paths = [copies.get(url, info) for url, info in urls.items()]
    for age, path in enumerate(paths):
        os.utime(path.parent, (1e9 + age, 1e9 + age))
    os.utime(paths[0].parent)

    assert LocalCopies(tmp_path, most_bytes=3500).evict() == 2080, "of those that nobody has used for a day"
    copies.close()
    assert LocalCopies(tmp_path, most_bytes=1500).evict() == 1040

    assert [path.exists() for path in paths] == [True, False, False, False]


def test_copies_in_use_stay(bucket, folder, tmp_path):
    """Whatever the limit, as long as a process may read them."""
    bucket.write((folder / "a.csv").key, bytes(1000))
    copies = LocalCopies(tmp_path)
    path = copies.get(folder / "a.csv", bucket.head((folder / "a.csv").key))

    assert LocalCopies(tmp_path, most_bytes=1).evict() == 0

    assert path.exists()
    copies.close()
    assert LocalCopies(tmp_path, most_bytes=1).evict() == 1040


def test_what_another_container_copies_is_left_alone(tmp_path):
    """The id of its process means nothing here. What a dead one has left goes once nobody uses copies."""
    home = parse_url(f"memory://{uuid.uuid4().hex}")
    for name in ("1.csv", "2.csv", "3.csv"):
        open_bucket(home).write(name, b"x\n1\n")
    first, second, third = ((home / info.key, info) for info in sorted(open_bucket(home).list(""), key=str))
    other, one = LocalCopies(tmp_path), LocalCopies(tmp_path)
    other.get(*first)
    draft = tmp_path / ".draft-4194305-0"
    draft.mkdir()

    one.get(*second)

    assert draft.exists()
    other.close()
    one.close()
    LocalCopies(tmp_path).get(*third)
    assert not draft.exists()


def test_what_another_container_fetches_of_a_root_is_left_alone(tmp_path):
    """However long it takes: its folder is as old as its first file."""
    archive, other = BucketArchive(tmp_path, parse_url(f"memory://{uuid.uuid4().hex}/home")), UseLock(tmp_path)
    place = tmp_path / "rows/Count/model/1"
    place.mkdir(parents=True)
    (place / "rows").write_text("1")
    archive.keep(place)
    shutil.rmtree(place)
    draft = tmp_path / ".fetching/4194305-0"
    draft.mkdir(parents=True)
    os.utime(draft, (1e9, 1e9))
    other.share()

    archive.fetch(str(place), "")

    assert (place / "rows").exists()
    assert draft.exists()
    other.release()
    _lock(tmp_path).release()
    archive.fetch(str(place), "")
    assert not draft.exists()


def test_a_bucket_that_does_not_exist_is_named(home, bucket):
    """With what to do."""
    other = parse_url(f"{home.scheme}://no-such-bucket-{uuid.uuid4().hex[:8]}")

    with pytest.raises(StorageError, match="there is no such bucket"):
        list(open_bucket(other).list(""))


@pytest.mark.parametrize("text", ["s3://", "s3:///x", "ftp://host/x", "data/x"])
def test_a_url_names_a_bucket(text):
    """And one of the known schemes."""
    with pytest.raises(ParameterError, match=r"s3://bucket/…, gs://bucket/…, az://bucket/…"):
        parse_url(text)
