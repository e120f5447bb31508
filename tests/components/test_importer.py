"""Importer: files of elsewhere become an artifact, by content."""

import shutil
import uuid

import pytest

from spanwise.components import Importer, Trainer
from spanwise.orchestrator import Examples, Model, ParameterError, PipelineError
from spanwise.orchestrator.errors import UnreadableInput
from spanwise.orchestrator.storage import machine_copies, open_bucket, parse_url
from tests.components.flow import Bench, Lake, only
from tests.contract.object_storage import serve
from tests.contract.web_server import serve_web


@pytest.fixture
def source(tmp_path):
    """A model in a folder of its own."""
    folder = tmp_path / "given" / "model"
    (folder / "variables").mkdir(parents=True)
    (folder / "variables" / "weights").write_bytes(b"\0\1\2")
    return folder


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "root")


def imported(bench, uri, **arguments):
    return bench.run(Importer(uri=str(uri), **arguments)).executions["Importer"]


def test_a_folder_becomes_an_artifact_of_its_kind(bench, source):
    """The artifact has the files and the properties that were said of them."""
    artifact = only(imported(bench, source, kind=Model, properties={"spans": [1, 2]}), "artifact")

    assert artifact.kind == "Model"
    assert artifact.properties["spans"] == [1, 2]
    assert (artifact.path / "variables" / "weights").read_bytes() == b"\0\1\2"


def test_a_single_file_is_imported_under_its_name(bench, source):
    """A file becomes the one file of the artifact."""
    artifact = only(imported(bench, source / "variables" / "weights"), "artifact")

    assert [p.name for p in artifact.path.iterdir()] == ["weights"]


def test_a_file_url_is_imported(bench, source):
    """With what is quoted in it: `%20` is a space."""
    folder = source.rename(source.with_name("my model"))

    artifact = only(imported(bench, folder.as_uri()), "artifact")

    assert (artifact.path / "variables" / "weights").exists()


def test_the_same_content_is_the_same_artifact(bench, source):
    """A second import of what has not changed is served from the cache, though it was written anew."""
    first = imported(bench, source)
    weights = source / "variables" / "weights"
    weights.write_bytes(weights.read_bytes())

    again = imported(bench, source)

    assert again.reused == first.id
    assert only(again, "artifact").id == only(first, "artifact").id


def test_changed_content_is_a_new_artifact(bench, source):
    """An edit, of whatever size, is seen; the old artifact keeps its files."""
    first = only(imported(bench, source), "artifact")
    (source / "variables" / "weights").write_bytes(b"\0\1\3")

    second = only(imported(bench, source), "artifact")

    assert second.id != first.id
    assert (first.path / "variables" / "weights").read_bytes() == b"\0\1\2"
    assert (second.path / "variables" / "weights").read_bytes() == b"\0\1\3"


def test_a_source_that_changes_before_it_is_copied_is_refused(source, tmp_path):
    """The artifact would be found again by the content that it no longer has."""
    importer, draft = Importer(uri=str(source)), Model(str(tmp_path / "draft"))
    content = importer.prepare(None, None)["content"]
    (source / "variables" / "weights").write_bytes(b"\0\1\3")

    with pytest.raises(UnreadableInput, match="changed while it was copied; run again"):
        importer.run(artifact=draft, uri=str(source), content=content, revisions={})


def test_what_was_imported_outlives_its_source(bench, source):
    """The artifact is a copy: removing the source takes nothing away."""
    artifact = only(imported(bench, source), "artifact")
    shutil.rmtree(source)

    assert (artifact.path / "variables" / "weights").exists()


@pytest.fixture(scope="module")
def home():
    with serve("moto") as home:
        yield home


@pytest.fixture
def copies(tmp_path, monkeypatch):
    """Of this machine, in a folder of their own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    machine_copies.cache_clear()
    yield tmp_path / "cache"
    machine_copies.cache_clear()


def test_objects_are_imported_by_content(bench, home, copies):
    """All that is below a folder, or one object; what was uploaded again is the same, what was replaced is another."""
    url = f"{home}/{uuid.uuid4().hex}"
    bucket, key = open_bucket(parse_url(home)), parse_url(url).key
    for name, content in {"model/variables/weights": b"1", "model/graph": b"2", "model-2/graph": b"3"}.items():
        bucket.write(f"{key}/{name}", content)

    first = imported(bench, f"{url}/model")
    bucket.write(f"{key}/model/graph", b"2")
    again = imported(bench, f"{url}/model")
    bucket.write(f"{key}/model/graph", b"4")
    other = imported(bench, f"{url}/model")
    single = imported(bench, f"{url}/model/variables/weights")

    files = {
        path.relative_to(only(first, "artifact").path).as_posix() for path in only(first, "artifact").path.rglob("*")
    }
    assert files == {"variables", "variables/weights", "graph"}
    assert again.reused == first.id
    assert only(other, "artifact").path.joinpath("graph").read_bytes() == b"4"
    assert [path.name for path in only(single, "artifact").path.iterdir()] == ["weights"]
    assert f"there is nothing at {url}/none" in imported(bench, f"{url}/none").error


def test_a_file_of_a_web_server_is_imported(bench, copies):
    """Under its name, and once as long as it stays the same."""
    with serve_web() as web:
        web.files["/models/a b.bin"] = b"weights"
        first = imported(bench, f"{web.url}/models/a%20b.bin")
        again = imported(bench, f"{web.url}/models/a%20b.bin")

    assert [path.name for path in only(first, "artifact").path.iterdir()] == ["a b.bin"]
    assert again.reused == first.id


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("ftp://host/x", "Give a path, or a URL of object storage: s3://…, gs://…, az://…, https://…"),
        ("https://host/x?sig=secret", "'https://host/x\\?…', a URL with a query, which may be a secret"),
        ("https://me:secret@host/x", "holds a password"),
        ("file://host/x%20y", r"'file://host/x%20y' is on the host 'host', .* Give /x y\."),
    ],
)
def test_a_url_that_cannot_be_imported_is_refused_when_the_pipeline_is_made(uri, said):
    """Without what may be a secret."""
    with pytest.raises(ParameterError, match=said) as error:
        Importer(uri=uri)
    assert "secret" not in str(error.value).replace("may be a secret", "")


def test_nothing_there_is_told_with_the_path(bench, tmp_path):
    """A uri that leads nowhere fails the node and names the path."""
    assert f"could not import {tmp_path / 'nowhere'}" in imported(bench, tmp_path / "nowhere").error


def test_an_imported_model_connects_where_a_model_is_wanted(source):
    """The kind is known when the pipeline is made: a model is a base, and is no examples."""
    lake = Lake(rows={}, splits=[])
    first = Importer(uri=str(source), kind=Model)

    Trainer(examples=lake["examples"], base=first["artifact"], run_fn=print)

    with pytest.raises(PipelineError, match="takes Examples as 'examples'"):
        Trainer(examples=first["artifact"], run_fn=print)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"kind": Model, "properties": {"span": 3}}, "Model has no property 'span'"),
        ({"kind": Model, "properties": {"spans": 3}}, "Model.spans takes list"),
        ({"kind": Examples, "properties": {"span": 3}}, "Examples requires split_names"),
        ({"kind": "Model"}, "kind"),
    ],
)
def test_properties_that_the_kind_does_not_have_are_refused_when_the_pipeline_is_made(arguments, said):
    """Unknown, ill-typed and missing properties are told before anything is copied."""
    with pytest.raises(ParameterError, match=said):
        Importer(uri="x", **arguments)


def test_every_importer_is_shown_as_one():
    """Its class is called Importer, whatever the kind, and so is its node."""
    first = Importer(uri="x", kind=Model)

    assert type(first).__name__ == first.name == "Importer"
    assert isinstance(first, Importer)
