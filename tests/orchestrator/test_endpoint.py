"""Endpoints of object storage: what the environment says is checked before anything is asked for."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from spanwise.orchestrator.errors import StorageError
from spanwise.orchestrator.storage import bucket, forget_buckets, open_bucket, parse_url

pytest.importorskip("obstore")


@pytest.fixture(autouse=True)
def own_buckets():
    forget_buckets()
    yield
    forget_buckets()


@pytest.mark.parametrize("value", ["", "127.0.0.1:9000", "minio.example.com", "htp://minio.example.com", " http://a"])
@pytest.mark.parametrize(
    ("variable", "url"),
    [
        ("AWS_ENDPOINT_URL", "s3://lake/rides"),
        ("AWS_ENDPOINT_URL_S3", "s3://lake/rides"),
        ("AWS_ENDPOINT", "s3://lake/rides"),
        ("AZURE_STORAGE_ENDPOINT", "az://lake/rides"),
    ],
)
def test_an_endpoint_that_is_no_url_is_refused_by_name(variable, url, value, monkeypatch):
    """The library would end the process where a scheme is missing, or where a variable is set to nothing."""
    monkeypatch.setenv(variable, value)

    with pytest.raises(StorageError) as caught:
        open_bucket(parse_url(url))

    assert str(caught.value) == (
        f"{parse_url(url)}: {variable} is {value!r}; an endpoint begins with http:// or https://, for example "
        f"http://127.0.0.1:9000. If there is none, unset the variable."
    )


@pytest.mark.parametrize("value", ["http://127.0.0.1:9", "HTTPS://minio.example.com:9000/"])
def test_an_endpoint_with_a_scheme_is_taken(value, monkeypatch):
    """In capitals too, as in any URL."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", value)

    assert open_bucket(parse_url("s3://lake/rides")) is not None


def test_a_bucket_that_was_being_opened_while_all_were_forgotten_is_forgotten_too(monkeypatch):
    """It has the settings of before: whoever asked for the next one went by another endpoint than was set by then."""
    connecting, forgotten, connect = threading.Event(), threading.Event(), bucket._connect

    def connect_late(*arguments):
        made = connect(*arguments)
        connecting.set()
        assert forgotten.wait(60)
        return made

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    monkeypatch.setattr(bucket, "_connect", connect_late)
    with ThreadPoolExecutor(1) as thread:
        opening = thread.submit(open_bucket, parse_url("s3://lake/rides"))
        assert connecting.wait(60)
        forget_buckets()
        forgotten.set()
        assert opening.result() is not open_bucket(parse_url("s3://lake/rides"))
