"""`benchmarks.elastic`: every form of its loop does the same work."""

from functools import partial

import numpy as np
import pytest

from benchmarks import elastic_job
from benchmarks import elastic_loop as loop
from benchmarks import elastic_model as model
from benchmarks import elastic_records as records
from spanwise.components.training.elastic.phases import Phase
from spanwise.pipelines import input as inputs

SMALL = loop.LoopSizes(tail_bytes=100, hidden=4, table=10)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    with loop.parameter_server() as server:
        yield loop.LoopData.create(SMALL, tmp_path_factory.mktemp("records"), server)


def test_a_batch_is_the_same_however_it_is_made(data):
    """Record by record, or a block at once: the same pictures and labels, batch after batch."""
    one_by_one = records.read_records(data.path, data.record_bytes)
    blocks = records.read_blocks(data.path, data.record_bytes)
    for _ in range(records.BLOCKS + 1):
        features, labels = records.input_fn(records.take_batch(one_by_one))
        vectorised, same_labels = records.preprocess(next(blocks))

        np.testing.assert_allclose(vectorised, features, atol=1e-5)
        np.testing.assert_array_equal(same_labels, labels)
        assert vectorised.dtype == features.dtype == np.float32


def test_the_compiled_step_gives_the_eager_gradient(data):
    """But for the last digits: it computes with 32 bits. A second batch finds nothing left of the first."""
    compiled = model.CompiledStep(data.model)
    blocks = records.read_blocks(data.path, data.record_bytes)
    for _ in range(2):
        batch = records.preprocess(next(blocks))
        wanted = model.eager(data.model, batch)
        for name, value in compiled(data.model, batch).items():
            np.testing.assert_allclose(value, wanted[name], rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_every_form_of_the_loop_runs(data):
    """A batch, the model, a gradient, a report."""
    forms = [loop.run(form, data, 0.01, warm_up=1) for form in loop.loop_forms(data)]

    assert [form.change for form in forms] == ["", "dataset", *["overlap"] * 5, "compiled step"]
    for form in forms:
        assert form.step_s > 0
        assert all(form.seconds[phase] > 0 for phase in Phase if phase is not Phase.INPUT_FN)
        assert (form.seconds[Phase.INPUT_FN] > 0) == (form.change in {"", "compiled step"})


@pytest.mark.slow
def test_all_changes_together_are_an_elastic_job(data, tmp_path):
    """As a Trainer runs it, on the same records; each form makes the batches of the loop."""
    examples = elastic_job.write_examples(tmp_path, data.path, data.record_bytes)
    rows = inputs.from_parquet(f"{examples.uri}/Split-train/*.parquet")
    features, labels = records.input_fn(records.take_batch(records.read_records(data.path, data.record_bytes)))
    for dataset_fn, _ in elastic_job.FORMS.values():
        batch, same_labels = next(iter(dataset_fn(rows)))
        np.testing.assert_allclose(batch, features, atol=1e-5)
        np.testing.assert_array_equal(same_labels, labels)

    times = elastic_job.run(list(elastic_job.FORMS)[-1], examples, partial(model.create_model, 4, 10), steps=1)

    assert times.step_s > 0
    assert "compute" in times.shares
