"""Graphs of components as templates of Dataflow: DataflowRunner translates and stages them, and asks Google for nothing.

Templates are staged at a server of Google's storage protocol. What was staged is read back and run in this process, on
Beam's own runner, and makes the results of work without Beam. Dataflow itself was never seen.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import tempfile
import uuid
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.components import beam as beam_module
from spanwise.components.beam import lay_out, map_with_user_code
from spanwise.components.statistics.statistics_gen import count
from spanwise.orchestrator.beam_settings import BeamSettings
from spanwise.orchestrator.storage import open_bucket, parse_url
from tests.contract.object_storage import SERVERS, endpoint, serve

pytestmark = pytest.mark.skipif(
    "SPANWISE_TEST_DATAFLOW" not in os.environ or "gs" not in SERVERS, reason="make test-dataflow"
)

ON_BEAM = BeamSettings(runner="FnApiRunner")
IMAGE = "europe-docker.pkg.dev/flights-project/images/spanwise:1"
STEPS = {"Parts", "Spread", "Look", "Work", "Merge", "Collect", "Save"}


@pytest.fixture
def google(monkeypatch):
    """The URL of a bucket that Google's own library finds as well."""
    with serve("gs") as home:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", endpoint("gs"))
        yield parse_url(home) / uuid.uuid4().hex


@pytest.fixture
def templates(google, monkeypatch):
    """Makes a template of each graph that a component has for Beam, and runs what was staged here."""
    made = []

    def run(parts, work, _beam, scratch):
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            results, template = stage(google / str(len(made)), parts, work, Path(folder))
            assert not results.exists(), "the work was not done"
            run_here(template.graph)
            made.append(template)
            return pickle.loads(results.read_bytes())

    monkeypatch.setattr(beam_module, "_run", run)
    return made


def stage(place, parts, work, folder):
    """Where the results will be, and the template: the job, the graph, and the names of all that was staged."""
    import apache_beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.portability.api import beam_runner_api_pb2

    options = PipelineOptions(
        flags=[],
        project="flights-project",
        region="europe-west1",
        job_name="statistics",
        template_location=f"{place}/template",
        temp_location=f"{place}/temporary",
        staging_location=f"{place}/staging",
        sdk_container_image=IMAGE,
        machine_type="n2-standard-4",
        num_workers=3,
        max_num_workers=7,
        save_main_session=False,
        no_auth=True,
    )
    pipeline = apache_beam.Pipeline(runner="DataflowRunner", options=options)
    results = lay_out(apache_beam, pipeline, parts, work, folder)
    assert pipeline.run().wait_until_finish() == "DONE"
    bucket = open_bucket(place.home)
    job = json.loads(bucket.read((place / "template").key)[0])
    written = job["environment"]["sdkPipelineOptions"]["options"]
    graph = bucket.read(parse_url(written["pipelineUrl"]).key)[0]
    assert hashlib.sha256(graph).hexdigest() == written["pipelineProtoHash"]
    staged = [info.key.rpartition("/")[2] for info in bucket.list((place / "staging").key)]
    return results, SimpleNamespace(
        job=job, options=written, graph=beam_runner_api_pb2.Pipeline.FromString(graph), staged=staged
    )


def run_here(graph):
    """Runs a staged graph in this process, in place of its container."""
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.portability import python_urns
    from apache_beam.portability.api import beam_runner_api_pb2
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    local = beam_runner_api_pb2.Pipeline()
    local.CopyFrom(graph)
    for environment in local.components.environments.values():
        environment.urn, environment.payload = python_urns.EMBEDDED_PYTHON, b""
    FnApiRunner().run_via_runner_api(local, PipelineOptions(flags=[])).wait_until_finish()


def names(graph):
    return {transform.unique_name for transform in graph.components.transforms.values()}


def rows_in(folder):
    """The folders of two splits, which are a part of the work each."""
    splits = {split: folder / split for split in ("train", "eval")}
    for split, place in splits.items():
        place.mkdir(parents=True)
        for number in range(3):
            values = [n % 7 + number / 8 for n in range(100)]
            table = pa.table({"value": values, "name": [f"{split}{n % 5}" for n in range(100)]})
            pq.write_table(table, place / f"part-{number:05}.parquet")
    return splits


def written(statistics, folder):
    folder.mkdir()
    statistics.write(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_statistics_of_a_template_are_those_of_a_run_without_beam(templates, tmp_path):
    """The job has the options of its workers; the graph has our steps, survives Beam's own classes, and is all there is."""
    import apache_beam

    splits = rows_in(tmp_path / "rows")
    expected = count(splits, scratch=tmp_path)

    found = count(splits, scratch=tmp_path, beam=ON_BEAM)

    (template,) = templates
    (pool,) = template.job["environment"]["workerPools"]
    assert written(found, tmp_path / "found") == written(expected, tmp_path / "expected")
    assert template.job["type"] == "JOB_TYPE_BATCH"
    assert (pool["machineType"], pool["numWorkers"]) == ("n2-standard-4", 3)
    assert pool["autoscalingSettings"]["maxNumWorkers"] == 7
    assert [image["containerImage"] for image in pool["sdkHarnessContainerImages"]] == [IMAGE]
    assert names(template.graph) >= STEPS
    again = apache_beam.Pipeline.from_runner_api(template.graph, "FnApiRunner", None)
    assert names(again.to_runner_api()) >= STEPS
    assert template.staged == ["pipeline.pb"], "no session of this process, which workers could not load"
    assert not [each for env in template.graph.components.environments.values() for each in env.dependencies]
    assert str(tmp_path) not in json.dumps(template.job)


def test_functions_of_the_user_are_in_the_template(templates, tmp_path):
    """They are shipped by value, so a worker needs no file of the project."""

    def scale(factor, part):
        return factor * part

    assert map_with_user_code(3, scale, [1, 2, 5], beam=ON_BEAM, scratch=tmp_path) == [3, 6, 15]
    assert names(templates[0].graph) >= STEPS - {"Merge"}


def test_a_worker_that_does_not_see_the_folder_of_the_node_says_so(google, tmp_path):
    """As Google's would: the graph names files of the node, which is why the runner is refused."""
    folder = tmp_path / "node"
    folder.mkdir()
    _, template = stage(google, [1, 2], lambda lib, elements: elements | "Work" >> lib.Map(str), folder)
    shutil.rmtree(folder)

    with pytest.raises(Exception, match="this folder of the node is not seen on"):
        run_here(template.graph)
