"""Health: the pages of a real server, and where it listens."""

import http.client
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as families

from spanwise.orchestrator.errors import UsageError
from spanwise.scheduler.daemon import health
from spanwise.scheduler.daemon.health import ListenAddress, parse_address
from spanwise.scheduler.daemon.metrics import SchedulerMetrics


@pytest.fixture
def metrics(tmp_path: Path) -> SchedulerMetrics:
    return SchedulerMetrics(tmp_path)


@contextmanager
def asking(metrics: SchedulerMetrics, host: str = "127.0.0.1") -> Iterator[str]:
    """The URL of a server."""
    with health.serve_metrics(ListenAddress(host, 0), metrics) as where:
        yield f"http://{where}"


def get(url: str, **headers: str) -> tuple[int, str, str]:
    """Status, kind and text of a page."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=300) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def test_metrics_are_read_as_prometheus_reads_them(metrics: SchedulerMetrics) -> None:
    """The page parses, and holds what was counted, with the process's own numbers."""
    metrics.turned(0.2)
    with asking(metrics) as url:
        status, kind, text = get(f"{url}/metrics?name=all")

    found = {family.name: family for family in families(text)}
    assert status == 200
    assert kind.startswith("text/plain")
    assert found["spanwise_loop_duration_seconds"].type == "histogram"
    assert [s.value for s in found["spanwise_loop_duration_seconds"].samples if s.name.endswith("_count")] == [1.0]
    assert "process_resident_memory_bytes" in found


def test_openmetrics_is_served_to_who_accepts_it(metrics: SchedulerMetrics) -> None:
    """As a current Prometheus asks for it."""
    with asking(metrics) as url:
        _, kind, text = get(f"{url}/metrics", Accept="application/openmetrics-text; version=1.0.0")

    assert kind.startswith("application/openmetrics-text")
    assert "spanwise_ticks" in {family.name for family in openmetrics(text)}


def test_a_loop_that_turns_is_healthy(metrics: SchedulerMetrics) -> None:
    """200, and how long ago it turned."""
    metrics.turned(0.0)
    with asking(metrics) as url:
        status, _, text = get(f"{url}/healthz")

    assert (status, text) == (200, "the loop last ran 0.0 s ago\n")


def test_a_loop_that_is_stuck_is_not_healthy(metrics: SchedulerMetrics) -> None:
    """503 once it has not turned for two minutes; healthy again when it turns."""
    metrics.turned_s -= health.LATE_S + 1
    with asking(metrics) as url:
        stuck, _, _ = get(f"{url}/healthz")
        metrics.turned(125.0)
        again, _, _ = get(f"{url}/healthz")

    assert (stuck, again) == (503, 200)


def test_other_pages_and_verbs_are_refused(metrics: SchedulerMetrics) -> None:
    """What is not there says what is; nothing can be changed."""
    with asking(metrics) as url:
        status, _, text = get(url)
        line = http.client.HTTPConnection(url.removeprefix("http://"), timeout=300)
        line.request("POST", "/metrics", body="x")
        refused = line.getresponse().status
        line.close()
        head = urllib.request.urlopen(urllib.request.Request(f"{url}/metrics", method="HEAD"), timeout=300)

    assert (status, text) == (404, "The pages are /metrics and /healthz\n")
    assert refused == 501
    assert (head.status, head.read()) == (200, b"")


def test_a_page_that_fails_takes_the_server_not_down(
    metrics: SchedulerMetrics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is logged, and the next page comes."""

    def fail(_accept: str) -> tuple[bytes, str]:
        raise OSError("the outbox cannot be read")

    with asking(metrics) as url:
        monkeypatch.setattr(metrics, "page", fail)
        with pytest.raises(http.client.RemoteDisconnected):
            get(f"{url}/metrics")
        status, _, _ = get(f"{url}/healthz")

    assert status == 200
    assert [record.getMessage() for record in caplog.records] == ["request-failed"]


def test_who_says_nothing_keeps_nobody_waiting(metrics: SchedulerMetrics) -> None:
    """A connection on which nothing is asked does not stop others from asking."""
    with asking(metrics) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))):
            status, _, _ = get(f"{url}/healthz")

    assert status == 200


def test_it_ends_with_its_block(metrics: SchedulerMetrics) -> None:
    """Afterwards nobody listens."""
    with asking(metrics) as url:
        pass

    with pytest.raises(urllib.error.URLError):
        get(url)


@pytest.mark.parametrize(
    ("typed", "meant", "shown"),
    [
        ("9188", ListenAddress("127.0.0.1", 9188), "127.0.0.1:9188"),
        ("0.0.0.0:9188", ListenAddress("0.0.0.0", 9188), "0.0.0.0:9188"),
        ("localhost:0", ListenAddress("localhost", 0), "localhost:0"),
        ("[::1]:9188", ListenAddress("::1", 9188), "[::1]:9188"),
    ],
)
def test_an_address_is_read(typed: str, meant: ListenAddress, shown: str) -> None:
    """A port alone is on this machine; every other place is named."""
    assert parse_address(typed) == meant
    assert str(meant) == shown


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (":9188", "For this machine alone write --listen 9188; for all that reach it, --listen 0.0.0.0:9188"),
        ("[]:9188", "no address"),
        ("localhost", "no port"),
        ("99999", "no port"),
        ("", "no port"),
    ],
)
def test_what_is_no_address_is_refused(typed: str, words: str) -> None:
    """Above all an empty host, which elsewhere means every network of the machine."""
    with pytest.raises(UsageError, match=words):
        parse_address(typed)


@pytest.mark.parametrize(
    ("host", "alone"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("192.0.2.7", False), ("example.org", False)],
)  # fmt: skip
def test_only_loopback_is_this_machine_alone(host: str, alone: bool) -> None:
    """An address that others can reach is none of it."""
    assert ListenAddress(host, 1).loopback is alone


def test_a_port_alone_is_not_reachable_from_elsewhere(metrics: SchedulerMetrics) -> None:
    """The server of a bare port is not there on the machine's other addresses."""
    with health.serve_metrics(parse_address("0"), metrics) as where, pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", where.port), timeout=5)


def test_listening_for_all_is_warned_of(metrics: SchedulerMetrics, caplog: pytest.LogCaptureFixture) -> None:
    """There is no password, so whoever reaches it reads it; it is done when it is asked for."""
    with health.serve_metrics(ListenAddress("0.0.0.0", 0), metrics) as where:
        status, _, _ = get(f"http://127.0.0.2:{where.port}/healthz")

    assert status == 200
    assert "metrics-exposed" in [record.getMessage() for record in caplog.records]


def test_a_port_that_is_taken_is_told(metrics: SchedulerMetrics) -> None:
    """Two schedulers on a machine need two ports."""
    with (
        health.serve_metrics(ListenAddress("127.0.0.1", 0), metrics) as where,
        pytest.raises(UsageError, match=f"--listen {where}: Address already in use. Name another"),
        health.serve_metrics(where, metrics),
    ):
        pass
