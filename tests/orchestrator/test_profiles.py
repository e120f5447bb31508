"""Profiles of `~/.aws`: what a tool has renewed is used from then on, by processes that live for months as well."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from spanwise.orchestrator.errors import StorageError
from spanwise.orchestrator.storage import forget_buckets, open_bucket, parse_url
from spanwise.orchestrator.storage.profiles import ProfileCredentials, has_profiles
from tests.contract.object_storage import serve

pytest.importorskip("obstore")
pytest.importorskip("boto3")

CREDENTIALS = (
    "[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\naws_session_token = token of {key}\n"
)


@pytest.fixture
def profile(tmp_path, monkeypatch):
    """Writes the file of credentials; there is nothing else that has any."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    forget_buckets()
    yield lambda key: file.write_text(CREDENTIALS.format(key=key))
    forget_buckets()


def test_credentials_that_a_tool_has_renewed_are_used(profile, tmp_path):
    """Whether the file was written anew, or names a process by now; one that is being written changes nothing."""
    profile("first")
    credentials = ProfileCredentials()
    found = [credentials()]
    profile("the second")
    found.append(credentials())
    (tmp_path / "credentials").write_text("[default\naws_acc")
    found.append(credentials())
    (tmp_path / "credentials").unlink()
    answer = '{"Version": 1, "AccessKeyId": "third", "SecretAccessKey": "secret", "Expiration": "2099-01-01T00:00:00Z"}'
    (tmp_path / "answer").write_text(answer)
    (tmp_path / "config").write_text(f"[default]\ncredential_process = cat {tmp_path / 'answer'}\n")
    found.append(credentials())

    assert [each["access_key_id"] for each in found] == ["first", "the second", "the second", "third"]
    assert [each["token"] for each in found[:2]] == ["token of first", "token of the second"]


def test_requests_of_a_process_use_them_from_then_on(profile, monkeypatch):
    """The library asks again, since it believes that the credentials expire soon."""
    used = []
    ask = ProfileCredentials.__call__
    monkeypatch.setattr(ProfileCredentials, "__call__", lambda self: used.append(ask(self)) or used[-1])
    monkeypatch.setattr("spanwise.orchestrator.storage.profiles._VALID_FOR", timedelta(minutes=5))
    with serve("moto") as home:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        profile("first")
        bucket = open_bucket(parse_url(home))
        bucket.read("nothing")
        profile("the second")
        while used[-1]["access_key_id"] == "first":  # asked again after a tenth of a second
            bucket.read("nothing")

    assert used[-1]["access_key_id"] == "the second"


def test_the_library_asks_again_within_seconds(profile):
    """It does so 5 minutes before the end that it is told."""
    profile("first")

    left = ProfileCredentials()()["expires_at"] - datetime.now(UTC)

    assert timedelta(minutes=5) < left < timedelta(minutes=5, seconds=10)


@pytest.mark.parametrize("content", ["[default\n", "[default]\ncredential_process = false\n"])
def test_a_profile_that_gives_nothing_is_told_in_a_sentence(profile, tmp_path, monkeypatch, content):
    """And one that is not there."""
    (tmp_path / "config").write_text(content)
    with pytest.raises(StorageError, match="s3://lake: the profile gave no credentials") as broken:
        open_bucket(parse_url("s3://lake"))
    (tmp_path / "config").unlink()
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StorageError, match="nobody"):
        open_bucket(parse_url("s3://lake"))

    assert "\n" not in str(broken.value)


def test_a_machine_without_profiles_has_its_identity(profile):
    """That of its role, say; a file that has no profile for it changes nothing of that."""
    assert not has_profiles()
    assert ProfileCredentials().is_empty
