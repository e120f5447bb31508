"""Settings of servers: what they mean, and what is refused before anything listens."""

import pytest

from spanwise.orchestrator.errors import ParameterError, SettingsError
from spanwise.pipelines.input.service.wire.config import DispatcherConfig, WorkerConfig
from spanwise.pipelines.input.service.wire.security import Security


@pytest.mark.parametrize(
    ("given", "address"),
    [(None, "10.0.0.1:77"), ("here", "here:77"), ("here:%port%", "here:77"), ("here:80", "here:80")],
)
def test_the_port_of_a_worker_is_added_to_its_address(given, address):
    """Where it takes a free one, nobody can know it before."""
    assert WorkerConfig(dispatcher_address="d:1", host="10.0.0.1", worker_address=given).address_at(77) == address


def test_a_journal_at_a_url_wants_an_address_that_others_can_find():
    """A dispatcher that listens everywhere cannot know it; other schemes than those of object storage are refused."""
    place = {"work_dir": "s3://bucket/journal", "fault_tolerant_mode": True}
    with pytest.raises(SettingsError, match="--address HOST:PORT"):
        DispatcherConfig(**place, host="0.0.0.0")
    with pytest.raises(SettingsError, match="wants at least 1 s"):
        DispatcherConfig(**place, takeover_after_s=0.5)
    with pytest.raises(ParameterError, match=r"work_dir is 'hdfs://bucket/journal', a URL"):
        DispatcherConfig(work_dir="hdfs://bucket/journal", fault_tolerant_mode=True)
    assert DispatcherConfig(**place, host="0.0.0.0", address="here").address_at(77) == "here:77"


def test_a_token_from_a_file_has_no_newline():
    """At its end it is dropped; elsewhere it would end the header, so it is refused, and never shown."""
    assert Security(token="secret\n").headers() == [(b"authorization", b"Bearer secret")]
    for token in ("sec\nret", "sec\rret", "geheim\x00", " \n", "schlüssel"):
        with pytest.raises(SettingsError, match="printable ASCII") as refused:
            Security(token=token)
        assert "sec" not in str(refused.value).replace("-hex", "")
