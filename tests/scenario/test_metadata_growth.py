"""What one run adds to the metadata depends on its nodes, not on how many runs there were before."""

from collections import Counter
from typing import ClassVar

import pytest
from ml_metadata.metadata_store import MetadataStore
from ml_metadata.proto import metadata_store_pb2 as pb

from spanwise.orchestrator import Component, Examples, Input, Model, Output, Pipeline
from spanwise.orchestrator.mlmd import layout, open_store
from spanwise.orchestrator.testing import Trial
from spanwise.resolvers import RollingWindow


class Ingest(Component):
    """Publishes the examples of the run's span."""

    prepared: ClassVar = ("span",)

    def prepare(self, run, history):
        return {"span": run.span}

    def run(self, examples: Output[Examples], span: int) -> None:
        examples.span, examples.split_names = span, ["train"]
        (examples.path / "rows").write_text(str(span))


class Learn(Component):
    """A model of the window."""

    def run(self, examples: Input[list[Examples]], model: Output[Model]) -> None:
        (model.path / "weights").write_text(str([each.span for each in examples]))


def pipeline():
    ingest = Ingest()
    window = RollingWindow(ingest["examples"], size=2, since=1)
    return Pipeline("p", [ingest, window, Learn(examples=window["examples"])])


@pytest.fixture
def trial(tmp_path):
    store = open_store(str(tmp_path / "metadata.db"))
    yield Trial(tmp_path / "root", store)
    store.close()


def contexts(tmp_path):
    """How many contexts there are, by type; claims by kind."""
    config = pb.ConnectionConfig()
    config.sqlite.filename_uri = str(tmp_path / "metadata.db")
    config.sqlite.connection_mode = pb.SqliteMetadataSourceConfig.READONLY
    found = MetadataStore(config).get_contexts()
    return Counter(c.name.partition(":")[0] if c.type == layout.CLAIM else c.type for c in found)


def test_each_run_adds_the_same_number_of_contexts(trial, tmp_path):
    """Two journal places for each of three nodes and two for the run, its lease, itself and two cache keys: 12."""
    grown = []
    before = Counter()
    for span in range(1, 6):
        trial.run(pipeline(), span=span)
        now = contexts(tmp_path)
        grown.append(now - before)
        before = now

    assert grown[1:] == [Counter(journal=2 * 3 + 2, lease=1, pipeline_run=1, execution_cache=2)] * 4


def test_a_run_that_reuses_everything_adds_no_cache_key(trial, tmp_path):
    """A repeated run adds its journal, its lease and itself, however often it is repeated."""
    trial.run(pipeline(), span=1)
    before = contexts(tmp_path)

    for _ in range(3):
        trial.run(pipeline(), span=1)

    assert contexts(tmp_path) - before == Counter(journal=3 * (2 * 3 + 2), lease=3, pipeline_run=3)
