"""Settings of servers: what they mean, and what is refused before anything listens."""

import pytest

from spanwise.orchestrator.errors import SettingsError
from spanwise.pipelines.input.service.wire.config import DispatcherConfig, WorkerConfig
from spanwise.pipelines.input.service.wire.security import Security


@pytest.mark.parametrize(
    ("given", "address"),
    [(None, "10.0.0.1:77"), ("here", "here:77"), ("here:%port%", "here:77"), ("here:80", "here:80")],
)
def test_the_port_of_a_worker_is_added_to_its_address(given, address):
    """Where it takes a free one, nobody can know it before."""
    assert WorkerConfig(dispatcher_address="d:1", host="10.0.0.1", worker_address=given).address_at(77) == address


def test_a_journal_on_a_url_is_refused():
    """An object store can neither lock it nor append to it."""
    with pytest.raises(SettingsError, match=r"s3://bucket/journal.*is a URL"):
        DispatcherConfig(work_dir="s3://bucket/journal", fault_tolerant_mode=True)


def test_a_token_from_a_file_has_no_newline():
    """At its end it is dropped; elsewhere it would end the header, so it is refused, and never shown."""
    assert Security(token="secret\n").headers() == [(b"authorization", b"Bearer secret")]
    for token in ("sec\nret", "sec\rret", "geheim\x00", " \n", "schlüssel"):
        with pytest.raises(SettingsError, match="printable ASCII") as refused:
            Security(token=token)
        assert "sec" not in str(refused.value).replace("-hex", "")
