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
from spanwise.orchestrator.storage import BucketArchive, bucket, forget_buckets, open_bucket, parse_url
from spanwise.orchestrator.storage.bucket import explain
from tests.contract.faulty_proxy import Fault, proxied
from tests.contract.object_storage import SERVERS, at_endpoint, endpoint, serve

KINDS = ["s3" if "s3" in SERVERS else "moto", *(kind for kind in SERVERS if kind == "gs")]

SLOW_DOWN = Fault(status=503, code="SlowDown")
TOO_MANY = Fault(status=429, code="SlowDown")  # what Google answers to writes of one object within a second
INTERNAL = Fault(status=500, code="InternalError")
RESET = Fault(reset=True)
LOST = Fault(lost=True)
LATE = Fault(delay_s=1.0)


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


def test_a_download_that_breaks_off_is_never_half_a_file(tmp_path, artifact, place, proxy):
    """Whether it goes on by itself, or fails and is not there."""
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
        (RESET, "the storage could not be reached. Check the network"),
    ],
    ids=["expired", "skewed", "denied", "unknown key", "no bucket", "region", "region2", "503", "reset"],
)
@pytest.mark.parametrize("act", ["write", "read", "list"])
def test_what_does_not_pass_is_told_in_a_sentence(place, proxy, fault, said, act):
    """With what to do, without what a signed request holds; and not only after minutes."""
    proxy.fail(fault)
    opened = open_bucket(place.home)
    acts = {
        "write": lambda: opened.write((place / "x").key, b"x"),
        "read": lambda: opened.read((place / "x").key),
        "list": lambda: list(opened.list(place.key)),
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

    assert unreached == f"the storage could not be reached. Check the network{endpoint}."
    assert nobody == f"found no credentials for {home.scheme}://. Set those of the environment, such as {credentials}."


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
