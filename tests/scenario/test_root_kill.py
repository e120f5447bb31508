"""A run on a root in object storage, killed at a write: what is published is whole, and gc finds what is not."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import uuid
from urllib.parse import unquote

import pytest

from spanwise.orchestrator.integrity import find_damage
from spanwise.orchestrator.run import State
from spanwise.orchestrator.storage import forget_buckets, open_bucket, parse_url
from spanwise.scheduler.client import connect
from spanwise.scheduler.main import main
from tests.contract.faulty_proxy import proxied
from tests.contract.object_storage import SERVERS, at_endpoint, endpoint, serve

KILLS = int(os.environ.get("SPANWISE_TEST_KILLS", "2"))  # the full form: 1000, which is every write
PIPELINE = """
from spanwise import Component, ExampleGen, Examples, Input, Model, Output, Pipeline


class Count(Component):
    def run(self, examples: Input[Examples], model: Output[Model]) -> None:
        print("counting")
        (model.path / "large").write_bytes(bytes(17 << 20))
        (model.path / "rows").write_text(str(examples.span))


def rows() -> Pipeline:
    ingest = ExampleGen(pattern="{data}/{{SPAN}}/*.csv")
    return Pipeline("rows", [ingest, Count(examples=ingest["examples"])])
"""

pytestmark = pytest.mark.slow


@pytest.fixture(
    scope="module", params=["s3" if "s3" in SERVERS else "moto", *(kind for kind in SERVERS if kind == "gs")]
)
def server(request):
    kind = request.param
    with serve(kind) as home, proxied(endpoint(kind)) as proxy, pytest.MonkeyPatch.context() as patch:
        for name, value in at_endpoint(kind, proxy.url).items():
            patch.setenv(name, value)
        forget_buckets()
        yield home, proxy


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    (folder / "data/1").mkdir(parents=True)
    (folder / "data/1/a.csv").write_text("x\n1\n2\n")
    (folder / "rows.py").write_text(PIPELINE.format(data=folder / "data"))
    return folder


@pytest.fixture(scope="module")
def writes(server, project):
    """Those of a run that nobody kills."""
    home, proxy = server
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        _use(project, patch, f"{home}/{uuid.uuid4().hex}", "whole")
        code, writes = killed_run(proxy, 0, before=True)
    assert code == 0
    return writes


def killed_run(proxy, at, *, before):
    """A run whose controller is killed at its write number `at`, before the server has it or after; its writes."""
    writes = []
    forward = proxy.forward

    def decide(method, path):
        if method == "PUT":
            writes.append(path)
            if before and len(writes) == at:
                os.kill(run.pid, signal.SIGKILL)

    def pass_on(handler, body):
        answer = forward(handler, body)
        if handler.command == "PUT" and not before and writes[at - 1 : at] == [handler.path]:  # others may be under way
            os.kill(run.pid, signal.SIGKILL)
        return answer

    proxy.decide, proxy.forward = decide, pass_on
    run = subprocess.Popen(
        [sys.executable, "-P", "-m", "spanwise", "run", "rows.py", "--span", "1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        code = run.wait(300)
    finally:
        run.kill()
        run.wait()
        del proxy.forward
        proxy.decide = lambda _method, _path: None
    return code, writes


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_run_killed_at_a_write_leaves_only_what_gc_finds(server, project, writes, monkeypatch, capsys, before):
    """The next run goes on; another machine reads all that is published; after gc only that is there."""
    home, proxy = server
    monkeypatch.chdir(project)
    dice = random.Random(os.environ.get("SPANWISE_TEST_SEED", "spanwise"))
    assert any("/large/00001" in unquote(path) for path in writes), "a file of several objects"

    for at in sorted(dice.sample(range(1, len(writes) + 1), min(KILLS, len(writes)))):
        url = f"{home}/{uuid.uuid4().hex}"
        machine = f"{'before' if before else 'after'}-{at}"
        _use(project, monkeypatch, url, machine)
        code, done = killed_run(proxy, at, before=before)
        # Logs are written by the clock, so that this run may have had fewer writes than the one that was counted.
        assert code == -signal.SIGKILL or len(done) < at, at
        forget_buckets()
        monkeypatch.setenv("XDG_CACHE_HOME", str(project / f"not-{machine}"))  # nothing of the first one is needed
        assert _all_published_is_whole() <= 2

        assert main(["run", "rows.py", "--span", "1"]) == 0
        assert _all_published_is_whole() == 2
        assert main(["gc", "rows", "--keep-younger", "0s", "--keep-logs", "0s"]) == 0

        top = parse_url(url)
        left = [info.key.removeprefix(f"{top.key}/") for info in open_bucket(top.home).list(top.key)]
        with connect() as client:
            places = {str(a.uri).partition("rows/")[2] for a in _published(client)}
        strangers = [k for k in left if k != ".spanwise-store" and _output(k) not in places]
        assert strangers == [], f"killed at write {at} of {len(writes)}"
        assert len([key for key in left if key.endswith(".json")]) == 2
    capsys.readouterr()


def _use(project, monkeypatch, url, machine):
    monkeypatch.setenv("XDG_CACHE_HOME", str(project / machine))
    (project / "spanwise.toml").write_text(f'root = "{url}"\nmetadata = "{machine}.db"\n')
    forget_buckets()


def _output(key):
    return "/".join(key.removesuffix(".json").split("/")[1:4])


def _published(client):
    store = client.session.store
    executions = [e for name in store.pipelines() for run in store.runs(name) for e in store.executions(run)]
    made = {a.id: a for e in executions if e.state is State.COMPLETE for row in e.outputs.values() for a in row}
    return list(made.values())


def _all_published_is_whole():
    """How many artifacts are published; each is fetched and compared."""
    with connect() as client:
        found = _published(client)
        assert [damage for damage in map(find_damage, found) if damage is not None] == []
    return len(found)
