"""A push to object storage that was killed leaves hidden parts, which cost money until somebody removes them."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import replace
from datetime import timedelta

import pytest

from spanwise.components.serving import bucket_push
from spanwise.orchestrator import Execution, Run, State
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.storage import open_bucket, parse_url
from spanwise.scheduler.main import main
from spanwise.scheduler.storage import unfinished_pushes
from tests.contract.object_storage import SERVERS, begin_upload, serve

PIPELINE = """
from spanwise import Importer, Model, Pipeline, Pusher


def models() -> Pipeline:
    model = Importer(uri="model", kind=Model, properties={{"spans": [1]}})
    return Pipeline("models", [model, Pusher(model=model["artifact"], destination="{place}")])
"""


@pytest.fixture(scope="module", params=["s3" if "s3" in SERVERS else "moto"])
def home(request):
    with serve(request.param) as home:
        yield home


def test_gc_and_the_next_push_remove_uploads_that_nobody_completes(home, tmp_path, monkeypatch, capsys):
    """Those of its destinations that are older than any push takes."""
    place = f"{home}/{uuid.uuid4().hex}"
    bucket, top = open_bucket(parse_url(home)), parse_url(place).key
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").write_text("1")
    (tmp_path / "models.py").write_text(PIPELINE.format(place=place))
    assert main(["run", "models.py"]) == 0
    begin_upload(f"{place}/7/weights")

    monkeypatch.setattr(unfinished_pushes, "SAFE_AGE", timedelta(days=20_000))
    assert main(["gc", "models"]) == 0
    assert len(bucket.list_uploads(top)) == 1, "it may still go on"
    monkeypatch.setattr(unfinished_pushes, "SAFE_AGE", timedelta(days=-1))
    capsys.readouterr()
    assert main(["gc", "models", "--dry-run"]) == 0
    assert f"{place}/7/weights" in capsys.readouterr().out
    assert main(["gc", "models"]) == 0
    assert bucket.list_uploads(top) == ()

    begin_upload(f"{place}/8/weights")
    monkeypatch.setattr(bucket_push, "_ABANDONED_AFTER_S", -86_400.0)
    (tmp_path / "model").write_text("2")
    assert main(["run", "models.py"]) == 0
    assert bucket.list_uploads(top) == ()


def test_gc_lists_uploads_below_the_destinations_of_older_runs(home, tmp_path, monkeypatch, capsys):
    """Of a Pusher whose destination has changed, and whose newest push was killed before its parameters were recorded."""
    before, after = f"{home}/{uuid.uuid4().hex}", f"{home}/{uuid.uuid4().hex}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(unfinished_pushes, "SAFE_AGE", timedelta(days=-1))
    (tmp_path / "model").write_text("1")
    for file, place in (("first.py", before), ("then.py", after)):
        (tmp_path / file).write_text(PIPELINE.format(place=place))
        assert main(["run", file]) == 0
        begin_upload(f"{place}/7/weights")
    with contextlib.closing(open_store(str(tmp_path / ".spanwise" / "metadata.db"))) as store:
        run = store.begin_run(Run(pipeline="models", nodes=("Importer", "Pusher")))
        store.begin(Execution(pipeline="models", run=run.number, node="Pusher", component="Pusher"))
        store.update_run(replace(run, state=State.FAILED))
    capsys.readouterr()

    assert main(["gc", "models", "--dry-run"]) == 0

    printed = capsys.readouterr().out
    assert f"{before}/7/weights" in printed
    assert f"{after}/7/weights" in printed
