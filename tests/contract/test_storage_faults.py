"""What goes wrong with object storage is tried again, or told in one clear sentence; no file is ever half a file."""

from __future__ import annotations

import contextlib
import os
import shutil
import urllib.error
import urllib.request
import uuid
from datetime import timedelta
from pathlib import Path

import pytest

from spanwise.orchestrator import fingerprint
from spanwise.orchestrator.errors import Conflict, DamagedArtifact, StorageError
from spanwise.orchestrator.span_pattern import SpanPattern
from spanwise.orchestrator.storage import (
    BucketArchive,
    bucket,
    find_newest_span,
    forget_buckets,
    list_objects,
    open_bucket,
    parse_url,
)
from spanwise.orchestrator.storage.bucket import explain
from tests.contract.faulty_proxy import Fault, proxied
from tests.contract.object_storage import SERVERS, at_endpoint, endpoint, serve

KINDS = ["s3" if "s3" in SERVERS else "moto", *(kind for kind in SERVERS if kind == "gs")]

SLOW_DOWN = Fault(status=503, code="SlowDown")
TOO_MANY = Fault(status=429, code="SlowDown")  # what Google answers to writes of one object within a second
INTERNAL = Fault(status=500, code="InternalError")
RESET = Fault(reset=True)
LOST = Fault(lost=True)
LATE = Fault(delay_s=0.3)


def use_endpoint(patch, kind, address):
    for name, value in at_endpoint(kind, address).items():
        patch.setenv(name, value)


@pytest.fixture(scope="module", params=KINDS)
def server(request):
    with serve(request.param) as home, proxied(endpoint(request.param)) as proxy:
        yield request.param, home, proxy


@pytest.fixture
def proxy(server, monkeypatch):
    kind, _, proxy = server
    proxy.decide = lambda _method, _path: None
    use_endpoint(monkeypatch, kind, proxy.url)
    monkeypatch.setattr(bucket, "_RETRY_FOR", timedelta(seconds=3))
    forget_buckets()
    yield proxy
    forget_buckets()


@pytest.fixture
def impatient(proxy, monkeypatch):
    """What fails for good is not tried again for long."""
    monkeypatch.setattr(bucket, "_RETRY_FOR", timedelta(seconds=0.3))


@pytest.fixture
def place(server, proxy):
    _, home, _ = server
    return parse_url(f"{home}/{uuid.uuid4().hex}")


@pytest.fixture
def artifact(tmp_path):
    folder = tmp_path / "root/rows/Count/model/1"
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "large").write_bytes(os.urandom(17 << 20))
    (folder / "small").write_text("small")
    return folder


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "fault", [SLOW_DOWN, TOO_MANY, INTERNAL, RESET, LOST, LATE], ids=["503", "429", "500", "reset", "lost", "slow"]
)
@pytest.mark.parametrize("method", ["PUT", "GET", "HEAD"])
def test_what_passes_is_tried_again(tmp_path, artifact, place, proxy, fault, method):
    """Twice in a row, by the library: the artifact arrives, and comes back as it was."""
    archive = BucketArchive(tmp_path / "root", place)
    before = contents(artifact)
    failed = proxy.fail(fault, 2, method=method)

    archive.keep(artifact)
    artifact.rename(tmp_path / "aside")
    assert archive.has(str(artifact))
    archive.fetch(str(artifact), "")

    assert contents(artifact) == before
    assert len(failed) == (1 if (method, fault) == ("HEAD", LATE) else 2)


def test_a_copy_is_digested_while_it_is_written(tmp_path, artifact, place, proxy, monkeypatch):
    """Only a file of several objects is read again; the digest is that of the files all the same."""
    archive = BucketArchive(tmp_path / "root", place)
    content = fingerprint.of_tree(artifact).digest
    archive.keep(artifact, content)
    artifact.rename(tmp_path / "aside")
    read, again = fingerprint._read, []
    monkeypatch.setattr(
        fingerprint, "_read", lambda file, buffer, *, sync: again.append(file) or read(file, buffer, sync=sync)
    )

    archive.fetch(str(artifact), content)

    assert [Path(file).name for file in again] == ["large"]
    assert fingerprint.of_tree(artifact).digest == content
    shutil.rmtree(artifact)
    place_of_small = (place / "rows/Count/model/1/small").key
    open_bucket(place.home).write(place_of_small, b"smalL")
    with pytest.raises(DamagedArtifact, match="does not have the content that was published"):
        archive.fetch(str(artifact), content)
    assert not artifact.exists()


def test_a_download_goes_on_where_it_breaks_off(tmp_path, place, proxy, monkeypatch):
    """However long it takes, it is tried again for as long as more of it has come each time; of one revision."""
    content, key = os.urandom(9 << 20), (place / "large").key
    open_bucket(place.home).write(key, content)
    monkeypatch.setattr(bucket, "_RETRY_FOR", timedelta(0))
    forget_buckets()
    info = open_bucket(place.home).head(key)

    proxy.fail(Fault(short=True), 2, method="GET", containing="large")
    open_bucket(place.home).download(key, tmp_path / "copy", etag=info.etag)
    proxy.fail(Fault(short=True), 2, method="GET", containing="large")
    (tmp_path / "part").touch()
    open_bucket(place.home).download_part(key, tmp_path / "part", 0)
    failed = proxy.fail(Fault(short=True), 2, method="GET", containing="large")
    some = open_bucket(place.home).read_range(key, 5, 8 << 20)

    assert len(failed) == 2
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "part").read_bytes() == content
    assert some == content[5 : 5 + (8 << 20)]


def test_a_download_that_breaks_off_is_never_half_a_file(tmp_path, artifact, place, proxy, impatient):
    """It fails where nothing more comes, and is not there."""
    archive = BucketArchive(tmp_path / "root", place)
    before = contents(artifact)
    archive.keep(artifact)
    artifact.rename(tmp_path / "aside")
    proxy.fail(Fault(cut=True), method="GET", containing="large")

    with pytest.raises(StorageError):
        archive.fetch(str(artifact), "")
    assert not artifact.exists()
    proxy.decide = lambda _method, _path: None
    archive.fetch(str(artifact), "")

    assert contents(artifact) == before


def test_an_upload_may_take_longer_than_an_answer(tmp_path, place, proxy, impatient, monkeypatch):
    """Nothing says how far it has come: on a slow line no artifact was ever kept."""
    monkeypatch.setattr(bucket, "_SILENT_FOR", timedelta(seconds=0.1))
    forget_buckets()
    (tmp_path / "file").write_bytes(b"weights")
    proxy.fail(LATE)

    with pytest.raises(StorageError, match="the storage could not be reached"):
        open_bucket(place.home).read((place / "file").key)
    open_bucket(place.home).upload_part(tmp_path / "file", (place / "file").key, 0, 7)
    open_bucket(place.home).upload(tmp_path / "file", (place / "whole").key)

    proxy.decide = lambda _method, _path: None
    assert [info.size_bytes for info in open_bucket(place.home).list(place.key)] == [7, 7]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault(status=400, code="ExpiredToken"), "the credentials have expired, or this machine's clock is wrong"),
        (Fault(status=403, code="RequestTimeTooSkewed"), "or this machine's clock is wrong. Renew them, or set the"),
        (Fault(status=403, code="AccessDenied"), "access was denied. Check the credentials in the environment"),
        (Fault(status=403, code="InvalidAccessKeyId"), "access was denied. Check the credentials in the environment"),
        (Fault(status=404, code="NoSuchBucket"), "there is no such bucket. Create it, or correct its name."),
        (Fault(status=301, code="PermanentRedirect"), "the bucket is in another region. Set AWS_REGION to its region."),
        (Fault(status=400, code="AuthorizationHeaderMalformed"), "the bucket is in another region. Set AWS_REGION"),
        (Fault(status=503, code="SlowDown"), "the storage is overloaded or down"),
        (Fault(status=404, code="NotFound"), "the server does not answer as object storage does. Check the endpoint"),
        (Fault(status=409, code="BlobArchived"), "the object was moved to an archive, where it cannot be read"),
        (RESET, "the storage could not be reached. Check the network"),
    ],
    ids=[
        "expired",
        "skewed",
        "denied",
        "unknown key",
        "no bucket",
        "region",
        "region2",
        "503",
        "gateway",
        "archived",
        "reset",
    ],
)
@pytest.mark.parametrize("act", ["write", "read", "list", "delete"])
@pytest.mark.usefixtures("impatient")
def test_what_does_not_pass_is_told_in_a_sentence(place, proxy, fault, said, act):
    """With what to do, without what a signed request holds; and not only after minutes."""
    proxy.fail(fault)
    opened = open_bucket(place.home)
    acts = {
        "write": lambda: opened.write((place / "x").key, b"x"),
        "read": lambda: opened.read((place / "x").key),
        "list": lambda: list(opened.list(place.key)),
        "delete": lambda: opened.delete([(place / "x").key]),
    }

    with pytest.raises(StorageError) as error:
        acts[act]()

    text = str(error.value)
    assert said in text
    assert "\n" not in text
    assert "Signature" not in text
    assert "X-Amz" not in text
    assert len(text) < 300


@pytest.mark.parametrize(
    ("url", "endpoint", "credentials"),
    [
        ("s3://lake", " and the endpoint, such as AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID"),
        ("az://lake", " and the endpoint, such as AZURE_STORAGE_ENDPOINT", "AZURE_STORAGE_ACCOUNT_KEY"),
        ("gs://lake", "", "GOOGLE_APPLICATION_CREDENTIALS"),
    ],
)
def test_the_variables_that_are_named_are_those_of_the_storage(url, endpoint, credentials):
    """Those of Amazon's help nobody who uses another."""
    home = parse_url(url)
    unreached = explain(OSError("error sending request for url"), home)
    nobody = explain(OSError("Error performing GET http://169.254.169.254/computeMetadata/v1"), home)

    moved = explain(OSError("Server returned non-2xx status code: 302 Found: "), home)

    assert moved == "the server sends requests elsewhere (302). Check the endpoint and the region of the bucket."
    assert unreached == f"the storage could not be reached. Check the network{endpoint}."
    assert nobody == f"found no credentials for {home.scheme}://. Set those of the environment, such as {credentials}."


REFUSALS = {
    "denied": Fault(status=403, code="AccessDenied"),
    "unauthorized": Fault(status=401, code="Unauthorized"),
    "expired": Fault(status=400, code="ExpiredToken"),
    "elsewhere": Fault(status=301, code="PermanentRedirect"),
    "no bucket": Fault(status=404, code="NoSuchBucket"),
    "gateway": Fault(status=404, code="NotFound"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refusal_never_reads_as_absence(tmp_path, place, proxy, server, refusal):
    """Whichever request of a question is refused: the answer is that of a storage that works, or an error."""
    if server[0] != "s3" and server[0] != "moto":
        pytest.skip("the codes are those of S3")
    archive = BucketArchive(tmp_path / "root", place)
    folder, working = tmp_path / "root/rows/Count/model/1", tmp_path / "root/rows/.runs/1/Count.checkpoints"
    for name in (folder / "a", working / "a"):
        name.parent.mkdir(parents=True)
        name.write_text("some")
    archive.keep(folder, content := fingerprint.of_tree(folder).digest)
    archive.keep_log(working / "a", 0)
    checkpoints = archive.checkpoints(working, began="2026", attempt=1)
    checkpoints.commit(working)
    archive.claim("mine")
    opened, key = open_bucket(place.home), (place / "rows/Count/model/1/a").key

    def fetch():
        shutil.rmtree(folder, ignore_errors=True)
        archive.fetch(str(folder), content)
        return contents(folder)

    def take_over():
        shutil.rmtree(working, ignore_errors=True)
        checkpoints.take_over(working)
        return contents(working)

    questions = {
        "read": lambda: opened.read(key),
        "head": lambda: opened.head(key),
        "list": lambda: [info.key for info in opened.list(place.key)],
        "list_folder": lambda: opened.list_folder(place.key)[0],
        "read_range": lambda: opened.read_range(key, 1, 2),
        "one": lambda: list(list_objects(str(place.home / key))),
        "many": lambda: list(list_objects(str(place / "rows/*/*/*/a"))),
        "span": lambda: find_newest_span(SpanPattern.parse(str(place / "rows/Count/model/{SPAN}/*"))),
        "has": lambda: archive.has(str(folder)),
        "list_files": lambda: archive.list_files(str(folder)),
        "find_lost": lambda: archive.find_lost(str(folder)),
        "places": lambda: list(archive.places("rows")),
        "run_folders": lambda: archive.run_folders("rows"),
        "read_log": lambda: archive.read_log(str(working / "a")),
        "claimed_by": archive.claimed_by,
        "fetch": fetch,
        "take_over": take_over,
    }
    for question, ask in questions.items():
        proxy.decide = lambda _method, _path: None
        proxy.requests.clear()
        wanted = ask()
        for refused in {*proxy.requests}:
            proxy.decide = lambda *asked, refused=refused: REFUSALS[refusal] if asked == refused else None
            with contextlib.suppress(StorageError):
                assert ask() == wanted, (question, refused)


@pytest.mark.parametrize(
    "ask", [lambda b, k: list(b.list(k)), lambda b, k: b.list_folder(k), lambda b, k: b.list_uploads(k)]
)
def test_a_page_of_html_is_no_empty_folder(place, proxy, ask):
    """A console at the endpoint, or a login that a gateway shows, answers every request with a page."""
    proxy.fail(Fault(status=200, code="SignIn"))

    with pytest.raises(StorageError, match="does not answer as object storage does"):
        ask(open_bucket(place.home), place.key)


def test_a_claim_whose_answer_is_lost_is_not_claimed_twice(place, proxy):
    """The condition holds for the repetition as well: it is told, or it has won, and only one writer has."""
    opened = open_bucket(place.home)
    proxy.fail(LOST, 1, method="PUT")
    told = 0
    for writer in (b"1", b"2"):
        try:
            opened.write((place / "claim").key, writer, replacing="")
        except (Conflict, StorageError):
            told += 1

    found = opened.read((place / "claim").key)

    assert found is not None
    assert found[0] == b"1"
    assert told >= 1


def test_a_root_is_claimed_though_the_answer_is_lost(tmp_path, place, proxy):
    """The claim is read back: the store that has written it knows that it is its own."""
    proxy.fail(LOST, 1, method="PUT")

    assert BucketArchive(tmp_path, place).claim("mine") == "mine"
    assert BucketArchive(tmp_path, place).claim("other") == "mine"


def test_a_server_denies_a_wrong_secret(server, place, proxy, monkeypatch):
    """By its own check."""
    if server[0] != "s3":
        pytest.skip("moto and servers for Google's protocol check no signatures")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    forget_buckets()

    with pytest.raises(StorageError, match="access was denied"):
        open_bucket(place.home).write((place / "x").key, b"x")


def test_a_server_that_is_gone_is_told(server, place, monkeypatch):
    """After it was tried again for a while."""
    monkeypatch.setattr(bucket, "_RETRY_FOR", timedelta(seconds=1))
    use_endpoint(monkeypatch, server[0], "http://127.0.0.1:9")
    forget_buckets()

    with pytest.raises(StorageError, match="the storage could not be reached"):
        open_bucket(place.home).head("x")
    forget_buckets()


def test_the_proxy_passes_what_is_whole(server, proxy):
    """Else the tests above would prove nothing."""
    with contextlib.suppress(urllib.error.HTTPError):  # without credentials
        urllib.request.urlopen(proxy.url).close()

    assert proxy.requests[-1] == ("GET", "/")
