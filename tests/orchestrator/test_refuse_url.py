"""Local paths: a URL is refused wherever only a path of this machine works."""

from __future__ import annotations

from pathlib import Path

import pytest

from spanwise import ExampleGen, Importer, Model, Pusher
from spanwise.components.command import Command
from spanwise.orchestrator.artifact import Report
from spanwise.orchestrator.errors import ParameterError
from spanwise.orchestrator.storage.url import refuse_url
from spanwise.scheduler.main import main


@pytest.mark.parametrize("place", ["data", "/data/x", "C:/x", "a:b/c", "data/s3:/x", "./gs://", "", "~/models"])
def test_paths_are_let_through(place):
    """A colon alone makes no URL, nor does a letter before it."""
    refuse_url("root", place)


@pytest.mark.parametrize("place", ["s3://bucket/x", "gs://b", "https://host/x", "S3://B/x", Path("s3://bucket/x")])
def test_urls_are_refused(place):
    """Also as a Path, which leaves one slash of two."""
    with pytest.raises(ParameterError, match=r"^root is '.*', a URL, but only paths of this machine work here\."):
        refuse_url("root", place)


def test_a_file_url_is_refused_with_its_path():
    """What to give instead can be said."""
    with pytest.raises(ParameterError, match=r"Give /data/models\.$"):
        refuse_url("Pusher.destination", "file:///data/models")


def test_a_component_refuses_a_url_when_it_is_made():
    """Not when it runs, in a folder called `s3:`; it says how files of object storage become an input."""
    with pytest.raises(
        ParameterError, match=r"only paths of this machine work here. Import it, .*Importer\(uri='s3://b/x'"
    ):
        Command(shell="cp x {report}/n", reads=["s3://b/x"], outputs={"report": Report})


@pytest.mark.parametrize("home", ["ftp://host", "hdfs://lake", "S3://lake"])
def test_an_input_or_a_destination_is_here_or_in_object_storage(home):
    """Any other URL is refused, with those that work."""
    with pytest.raises(ParameterError, match=r"Give a path, or a URL of object storage: s3://…, gs://…, az://…, https"):
        ExampleGen(pattern=f"{home}/{{SPAN}}/*.csv")
    with pytest.raises(ParameterError, match=r"Give a path, or a URL of object storage: s3://…, gs://…, az://…\.$"):
        Pusher(model=Importer(uri="x", kind=Model)["artifact"], destination=f"{home}/models")
    with pytest.raises(ParameterError, match="a URL, but paths of this machine and object storage work here"):
        Pusher(model=Importer(uri="x", kind=Model)["artifact"], destination="https://host/models")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://KEY:secret@lake", "s3://…@lake/{SPAN} holds a password"),
        ("s3://KEY:sec/secret@lake", "s3://…@lake/{SPAN} holds a password"),
        ("az://lake/x?sv=2022&sig=secret", "az://lake/x?… holds a signature"),
        ("s3://lake/x?X-Amz-Credential=secret", "s3://lake/x?… holds a signature"),
        ("https://me:secret@host", "https://…@host/{SPAN} holds a password"),
    ],
)
def test_a_place_that_holds_a_secret_is_refused(monkeypatch, tmp_path, capsys, url, said):
    """It would be recorded; the message does not show it."""
    with pytest.raises(ParameterError) as pattern:
        ExampleGen(pattern=f"{url}/{{SPAN}}")
    with pytest.raises(ParameterError) as uri:
        Importer(uri=url, kind=Model)
    monkeypatch.chdir(tmp_path)
    assert main(["runs", "--root", url]) == 2

    assert said in str(pattern.value)
    assert "secret" not in f"{pattern.value}{uri.value}{capsys.readouterr().err}"


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_a_backup_at_a_url_is_refused(tmp_path, monkeypatch, capsys, command):
    """And no folder called `s3:` is made."""
    monkeypatch.chdir(tmp_path)

    assert main([command, "s3://lake/backup"]) == 2
    assert "copy it to or from object storage with the tools of the storage" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_dispatcher_keeps_no_journal_at_another_url(tmp_path, monkeypatch, capsys):
    """A folder called `hdfs:` is not what was wanted."""
    monkeypatch.chdir(tmp_path)

    assert main(["service", "dispatcher", "--port", "0", "--work-dir", "hdfs://lake/journal"]) == 2
    assert "the dispatcher's work_dir is 'hdfs://lake/journal', a URL" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_root_that_is_another_url_is_refused(tmp_path, monkeypatch, capsys):
    """By the command line, and no folder is made."""
    monkeypatch.chdir(tmp_path)

    assert main(["runs", "--root", "hdfs://lake/root"]) == 2
    assert "root is 'hdfs://lake/root', a URL" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
