"""How the jobs of a data service are shown, by a real service."""

import json

from typer.testing import CliRunner

from pipelines import input as inputs
from scheduler import starving
from scheduler.cli import app
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
    assert lines[2][:4] == ["training", "dynamic", "1", "0/2"]
    assert [job["name"] for job in document["jobs"]] == ["training"]


def test_hungry_consumers_are_told_of():
    """Where they wait for most of their time, the table says what would help."""
    job = {"name": "j", "job": 1, "mode": "off", "consumers": 1, "tasks": 1, "tasks_finished": 0, "rate": 10.0}
    status = {"target": "here", "workers": [{}], "datasets": 1}

    hungry = starving.table({**status, "jobs": [{**job, "starved": 0.9, "finished": False}]})
    fed = starving.table({**status, "jobs": [{**job, "starved": 0.1, "finished": False}]})

    assert "more workers would help" in hungry
    assert "more workers would help" not in fed
    assert starving.table({**status, "jobs": []}).endswith("no job")


def test_a_service_that_is_not_there_is_an_error():
    """With its address."""
    with Service(0) as service:
        pass
    result = shown(service, "--once")

    assert result.exit_code == 1
    assert "does not answer" in str(result.exception)
