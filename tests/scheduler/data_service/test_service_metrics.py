"""The metrics of a data service, as Prometheus reads them from its members over HTTP."""

import re
import subprocess
import sys
import urllib.request
from contextlib import ExitStack, contextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families as families
from typer.testing import CliRunner

from spanwise.pipelines import input as inputs
from spanwise.scheduler.cli import app
from spanwise.scheduler.daemon import health
from spanwise.scheduler.daemon.health import ListenAddress
from spanwise.scheduler.daemon.metrics import MetricsPage
from spanwise.scheduler.data_service import service_metrics
from tests.pipelines.input.service.servers import Service
from tests.servers import eventually


def read(url):
    """Samples of a page, by name."""
    with urllib.request.urlopen(url, timeout=300) as answer:
        assert answer.status == 200
        text = answer.read().decode()
    found = {}
    for family in families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(value for _, value in sorted(sample.labels.items()))] = sample.value
    return found


@contextmanager
def shown(member, status):
    with health.serve_metrics(
        ListenAddress("127.0.0.1", 0), MetricsPage(lambda: service_metrics.families(member, status()))
    ) as where:
        yield f"http://{where}"


def _large(_number):
    """Few of them fill the buffers of workers and consumers."""
    return bytes(100_000)


def test_members_tell_what_they_do():
    """A dispatcher of jobs, workers and splits; a worker of elements, bytes and requests; both are alive."""
    with ExitStack() as stack:
        service = stack.enter_context(Service(2))
        url = stack.enter_context(shown("dispatcher", service.dispatcher.status))
        of_worker = stack.enter_context(shown("worker", service.workers[0].status))
        elements = inputs.range(1 << 40).map(_large).distribute(service.target, "dynamic", "training").iterator()
        stack.callback(elements.close)
        for _ in range(1000):
            next(elements)
        eventually(lambda: read(f"{url}/metrics")["spanwise_service_consumers"])
        dispatcher, worker = read(f"{url}/metrics"), read(f"{of_worker}/metrics")
        with urllib.request.urlopen(f"{url}/healthz", timeout=300) as answer:
            assert answer.status == 200

    ((job, mode, name),) = dispatcher["spanwise_service_consumers"]
    assert (name, mode) == ("training", "dynamic")
    assert dispatcher["spanwise_service_consumers"][job, mode, name] == 1
    assert 0 <= dispatcher["spanwise_service_starved_ratio"][job, mode, name] <= 1
    assert dispatcher["spanwise_service_workers"][()] == 2
    assert dispatcher["spanwise_service_workers_wanted"][()] >= 1
    assert dispatcher["spanwise_service_splits_dealt_total"][()] > 0
    assert dispatcher["spanwise_service_dispatcher_requests_total"][("join",)] == 1
    assert len(dispatcher["spanwise_service_worker_busy_ratio"]) == 2
    assert sum(worker["spanwise_service_worker_given_elements_total"].values()) > 0
    assert worker["spanwise_service_worker_requests_total"][("get",)] > 0
    assert "spanwise_service_worker_busy_ratio" not in worker
    assert "process_resident_memory_bytes" in worker


@pytest.mark.slow
def test_the_commands_serve_their_metrics():
    """Where `--metrics-port` says; on this machine alone if it names no address."""

    def serve(*arguments):
        command = [sys.executable, "-m", "spanwise", "service", *arguments, "--metrics-port", "0"]
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(process.terminate)
        return [process.stdout.readline().split()[-1] for _ in range(2)]

    with ExitStack() as stack:
        target, of_dispatcher = serve("dispatcher", "--port", "0")
        _, of_worker = serve("worker", target)
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", of_dispatcher)
        eventually(lambda: read(of_dispatcher)["spanwise_service_workers"][()] == 1)
        assert "spanwise_service_worker_tasks" in read(of_worker)


def test_an_address_that_is_none_is_refused():
    """By the option's own name."""
    result = CliRunner().invoke(app, ["service", "dispatcher", "--port", "0", "--metrics-port", "here"])

    assert "--metrics-port here: no port" in str(result.exception)
