"""How the jobs of a data service are shown, by a real service."""

import json

from typer.testing import CliRunner

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.service.dispatcher.load import RecentLoad
from spanwise.pipelines.input.service.wire.requests import WorkerLoad
from spanwise.scheduler.cli import app
from spanwise.scheduler.data_service import service_status
from tests.pipelines.input.service.servers import Service


def shown(service, *words):
    return CliRunner().invoke(app, ["service", "top", service.target, *words])


def test_jobs_are_listed_with_those_who_read_them():
    """A named job by its name, with its mode, consumers and tasks; the same facts as JSON."""
    with Service(2) as service:
        with inputs.range(10).repeat().distribute(service.target, "dynamic", "training").iterator() as elements:
            next(elements)
            table = shown(service, "--once").stdout
            document = json.loads(shown(service, "--json").stdout)
        target = service.target

    lines = [line.split() for line in table.splitlines()]
    assert lines[0] == ["dispatcher", target, "workers", "2", "datasets", "1"]
    assert lines[3][:4] == ["training", "dynamic", "1", "0/2"]
    assert [job["name"] for job in document["jobs"]] == ["training"]


def test_the_table_says_what_helps_consumers_that_wait():
    """Where they wait for most of their time, the table says what would help."""
    job = {"name": "j", "job": 1, "mode": "off", "consumers": 1, "tasks": 1, "tasks_finished": 0, "rate": 10.0}
    worker = {"address": "there", "tasks": 1, "busy": 0.9, **RecentLoad(WorkerLoad(buffered_bytes=2048), 0.0).facts()}
    status = {"target": "here", "workers": [worker], "datasets": 1}

    def shown(starved, wanted, *, finished=False):
        return service_status.format_status(
            {**status, "wanted": wanted, "jobs": [{**job, "starved": starved, "finished": finished}]}
        )

    assert "run 4 workers instead of 1" in shown(0.9, 4)
    assert "although workers are idle" in shown(0.9, 1)
    assert "0 of 1 are enough" in shown(0.0, 0)
    assert "wait" not in shown(0.1, 1)
    assert "run 4 workers" not in shown(0.9, 4, finished=True)
    assert "2.0 kB" in shown(0.1, 1)
    assert "no job" in service_status.format_status({**status, "wanted": 1, "jobs": []})


def test_a_service_that_is_not_there_is_an_error():
    """With its address."""
    with Service(0) as service:
        pass
    result = shown(service, "--once")

    assert result.exit_code == 1
    assert "does not answer" in str(result.exception)
