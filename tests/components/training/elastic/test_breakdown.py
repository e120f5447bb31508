"""The breakdown of a worker's loop: what it does, how its sizes are found, and what is made of its times."""

from dataclasses import replace

import numpy as np
import pytest

from spanwise.components.training.elastic import breakdown
from spanwise.components.training.elastic.breakdown import DOCUMENT_S, Breakdown, Form, Sizes, Work
from spanwise.components.training.elastic.phases import Phase

SMALL = Sizes(tail_bytes=100, hidden=4, table=10)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    with breakdown._parameter_server() as server:
        yield Work.of(SMALL, tmp_path_factory.mktemp("records"), server)


def test_a_batch_is_the_same_however_it_is_made(work):
    """Record by record as it was, or a block at once: the same pictures and labels, batch after batch."""
    records = breakdown._records(work.path, work.record_bytes)
    blocks = breakdown._blocks(work.path, work.record_bytes)
    for _ in range(breakdown.BLOCKS + 1):
        features, labels = breakdown.input_fn(breakdown._taken(records))
        vectorised, same_labels = breakdown.preprocess(next(blocks))

        np.testing.assert_allclose(vectorised, features, atol=1e-5)
        np.testing.assert_array_equal(same_labels, labels)
        assert vectorised.dtype == features.dtype == np.float32


def test_a_damaged_record_is_found_by_both_readers(work, tmp_path):
    """Each of them checks every byte that it reads."""
    damaged = tmp_path / "records"
    content = bytearray(work.path.read_bytes())
    content[5000] ^= 1
    blocks = breakdown._blocks(damaged, work.record_bytes)
    damaged.write_bytes(work.path.read_bytes())
    next(blocks)
    damaged.write_bytes(content)

    with pytest.raises(ValueError, match="damaged"):
        breakdown._taken(breakdown._records(damaged, work.record_bytes))
    next(blocks)  # the second record is damaged, the second block is not: the first comes again after the last
    for _ in range(breakdown.BLOCKS - 2):
        next(blocks)
    with pytest.raises(ValueError, match="damaged"):
        next(blocks)


def test_the_compiled_step_gives_the_eager_gradient(work):
    """But for the last digits: it counts with 32 bits. A second batch finds nothing left of the first."""
    compiled = breakdown.Compiled(work.model)
    blocks = breakdown._blocks(work.path, work.record_bytes)
    for _ in range(2):
        batch = breakdown.preprocess(next(blocks))
        wanted = breakdown.eager(work.model, batch)
        for name, value in compiled(work.model, batch).items():
            np.testing.assert_allclose(value, wanted[name], rtol=1e-3, atol=1e-6)


def test_the_gradient_is_the_slope_of_the_loss(work):
    """As differences of the loss have it, in some of the parameters."""
    batch = breakdown.preprocess(next(breakdown._blocks(work.path, work.record_bytes)))
    model = {name: value.astype(np.float64) for name, value in work.model.items()}

    def loss(parameters):
        features, labels = batch
        hidden = np.maximum(features @ parameters["hidden"] + parameters["hidden_bias"], 0)
        scores = hidden @ parameters["classes"] + parameters["classes_bias"]
        chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        decay = breakdown.DECAY / 2 * sum(float((value**2).sum()) for value in parameters.values())
        return -np.log(chances[np.arange(len(labels)), labels]).mean() + decay

    gradient = breakdown.eager(model, batch)
    for name, at in (
        ("hidden", (7, 2)),
        ("hidden_bias", (1,)),
        ("classes", (3, 4)),
        ("classes_bias", (0,)),
        ("table", (5,)),
    ):
        up, down = ({**model, name: model[name].copy()} for _ in range(2))
        up[name][at] += 1e-4
        down[name][at] -= 1e-4

        assert gradient[name][at] == pytest.approx((loss(up) - loss(down)) / 2e-4, rel=1e-3, abs=1e-7)


def test_the_model_of_the_server_goes_down_the_gradient(work):
    """Each report makes the next version of it."""
    before = dict(work.model)
    with breakdown._input(breakdown.Kind(name="", change="", gradient=breakdown.eager), work) as take:
        step = breakdown._step(take, breakdown.eager, work.server)
    found, content = work.server.call("get_model", {})
    after = breakdown.unpacked(found["layout"], content)

    assert all(step.seconds[phase] > 0 for phase in Phase)
    np.testing.assert_allclose(after["table"], before["table"] * (1 - breakdown.RATE * breakdown.DECAY), rtol=1e-6)
    assert not np.array_equal(after["hidden"], before["hidden"])


@pytest.mark.slow
def test_every_form_of_the_loop_runs(work):
    """And does the same work: a batch, the model, a gradient, a report."""
    forms = [breakdown._run(kind, work, 0.01, warm_up=1) for kind in breakdown._kinds(work)]

    assert [form.change for form in forms] == ["", "dataset", *["overlap"] * 6, "compiled step", "all"]
    for form in forms:
        assert form.step_s > 0
        assert all(form.seconds[phase] > 0 for phase in Phase if phase is not Phase.INPUT_FN)
        assert (form.seconds[Phase.INPUT_FN] > 0) == (form.change in {"", "compiled step"})


def test_sizes_are_found_with_which_the_shares_are_the_documents():
    """On a machine whose phases are lines over the sizes, in one step; the server's size is made for both its phases."""

    def machine(sizes):
        return {
            Phase.GET_BATCH: 0.001 + 1e-7 * sizes.tail_bytes,
            Phase.INPUT_FN: 0.01,
            Phase.COMPUTE: 0.0005 + 1e-4 * sizes.hidden,
            Phase.GET_MODEL: 0.0003 + 1e-8 * sizes.table,
            Phase.REPORT: 0.0004 + 1e-8 * sizes.table,
        }

    slopes = {"tail_bytes": 1e-7, "hidden": 1e-4, "table": 1e-8}
    seconds = machine(breakdown.nearer(Sizes(), machine(Sizes()), slopes))

    for phase, wanted in DOCUMENT_S.items():
        assert seconds[phase] / sum(seconds.values()) == pytest.approx(wanted / sum(DOCUMENT_S.values()), abs=0.005)


def test_sizes_stay_within_what_a_machine_can_hold():
    """Where a phase is too long already its size is the least, and no noise makes a model of gigabytes."""
    slow = dict.fromkeys(Phase, 1.0)
    none = dict.fromkeys(Phase, 0.0) | {Phase.INPUT_FN: 1.0}
    slopes = {"tail_bytes": 1e-12, "hidden": 1e-12, "table": 1e-12}

    assert breakdown.nearer(Sizes(), slow | {Phase.INPUT_FN: 0.001}, slopes) == breakdown.LEAST
    assert breakdown.nearer(Sizes(), none, slopes) == breakdown.MOST


def made(*, seconds=DOCUMENT_S, overlap_s=26.5, together_s=20.0, core_share=1.0):
    """A breakdown with the document's seconds as milliseconds."""
    first = {str(phase): spent / 1000 for phase, spent in seconds.items()}
    rest = dict.fromkeys(first, 0.0)
    return Breakdown(
        sizes=SMALL,
        core_share=core_share,
        forms=(
            Form(name="as it was", change="", step_s=sum(first.values()), seconds=first),
            Form(name="a prefetch thread", change="overlap", step_s=0.04, seconds=rest),
            Form(name="a process", change="overlap", step_s=overlap_s / 1000, seconds=rest),
            Form(name="all together", change="all", step_s=together_s / 1000, seconds=rest),
        ),
    )


def test_full_overlap_is_the_longer_of_the_input_and_the_rest():
    """The best way to overlap is told as a part of it."""
    found = made()

    assert found.full_overlap_s == pytest.approx(0.0248)  # 24.6 of input, 24.8 without the seconds between the phases
    assert found.overlap == pytest.approx(24.8 / 26.5)
    assert found.speedup(found.together) == pytest.approx(49.4 / 20)


def test_what_was_missed_is_told(monkeypatch):
    """The speed of all together; shares and overlap where cores are idle, since what waits for one takes any time."""
    monkeypatch.setattr(breakdown.os, "cpu_count", lambda: 2)
    other = made(seconds={**DOCUMENT_S, Phase.COMPUTE: 25.0})

    assert made().missed == ()
    assert len(other.missed) == 1
    assert "share" in other.missed[0]
    assert "2.14" in made(together_s=24.0).missed[0]
    assert "overlap" in made(overlap_s=39.0).missed[0]
    assert made(overlap_s=39.0, core_share=0.5).missed == ()
    assert replace(other, core_share=0.5).missed == ()
