"""Importer: files of elsewhere become an artifact, by content."""

import shutil

import pytest

from spanwise.components import Importer, Trainer
from spanwise.orchestrator import Examples, Model, ParameterError, PipelineError
from spanwise.orchestrator.errors import UnreadableInput
from tests.components.flow import Bench, Lake, only


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
        importer.run(artifact=draft, uri=str(source), content=content)


def test_what_was_imported_outlives_its_source(bench, source):
    """The artifact is a copy: removing the source takes nothing away."""
    artifact = only(imported(bench, source), "artifact")
    shutil.rmtree(source)

    assert (artifact.path / "variables" / "weights").exists()


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
