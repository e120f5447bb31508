"""A root in object storage is one place, whatever folder a host copies it to: a push knows the pushes of other hosts."""

from __future__ import annotations

import json

import pytest

from spanwise.orchestrator.storage import open_bucket, parse_url
from spanwise.scheduler.main import main
from tests.contract.object_storage import serve

PIPELINE = """
from spanwise import Component, Model, Output, Pipeline, Pusher
from spanwise.orchestrator import Attempt


class Learn(Component):
    cacheable = False

    def run(self, model: Output[Model], attempt: Attempt) -> None:
        (model.path / "weights").write_text(str(attempt.run.number))


def models() -> Pipeline:
    learn = Learn()
    push = Pusher(model=learn["model"], destination="{destination}", keep_versions=2)
    return Pipeline("models", [learn, push])
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def destination(tmp_path, monkeypatch):
    with serve("moto") as home:
        (tmp_path / "models.py").write_text(PIPELINE.replace("{destination}", f"{home}/serving"))
        (tmp_path / "spanwise.toml").write_text(f'root = "{home}/root"\n')
        monkeypatch.chdir(tmp_path)
        yield f"{home}/serving"


def run_on(host, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / host))
    assert main(["run", "models.py"]) == 0


def pointer_of(destination):
    top = parse_url(destination)
    return json.loads(open_bucket(top.home).read((top / "serving.json").key)[0])


def test_an_older_run_of_another_host_is_fenced_off(destination, tmp_path, monkeypatch):
    """All hosts of a root raise one fence: the token of the newest run that has pushed."""
    for host in ("one", "two", "one"):
        run_on(host, tmp_path, monkeypatch)

    assert list(pointer_of(destination)["fences"].values()) == [3]


def test_versions_that_another_host_has_pushed_are_removed(destination, tmp_path, monkeypatch):
    """`keep_versions` counts those of the pipeline, not of a host."""
    for host in ("one", "two", "three"):
        run_on(host, tmp_path, monkeypatch)

    pushed = pointer_of(destination)["versions"].values()
    assert [record["run"] for record in pushed] == ["models/2", "models/3"]
    assert len({record["home"] for record in pushed}) == 1
