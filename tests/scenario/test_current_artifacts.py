"""What a run's source has given for its span is what the window reads, also when it was reused."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

import pytest

from spanwise.orchestrator import Component, Examples, Input, Model, Output, Pipeline, past
from spanwise.orchestrator.collection import Retention
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.testing import MemoryStore, Trial
from spanwise.resolvers import Latest, RollingWindow
from spanwise.scheduler.inspect.taint import trace_taint
from spanwise.scheduler.storage.gc import CollectionContext, plan_collection


class Ingest(Component):
    """Publishes the text of a span's file; the text is part of the cache key, as the fingerprint of ExampleGen is."""

    prepared: ClassVar = ("span", "text")

    def prepare(self, run, history):
        return {"span": run.span, "text": Path(self.parameters["folder"], str(run.span)).read_text()}

    def run(self, examples: Output[Examples], folder: str, span: int, text: str) -> None:
        examples.span, examples.split_names = span, ["train"]
        (examples.path / "text").write_text(text)


class Scale(Component):
    """A node between the ingested rows and the window."""

    def run(self, examples: Input[Examples], scaled: Output[Examples], factor: int) -> None:
        scaled.span, scaled.split_names = examples.span, examples.split_names
        (scaled.path / "factor").write_text(str(factor))


class Learn(Component):
    """A model that depends on what it read and on a parameter."""

    def run(self, examples: Input[list[Examples]], model: Output[Model], rate: int) -> None:
        (model.path / "rate").write_text(str(rate))


def pipeline(lake, *, factor=1, rate=1):
    ingest = Ingest(folder=str(lake))
    scale = Scale(examples=ingest["examples"], factor=factor)
    raw = RollingWindow(ingest["examples"], size=2, since=1, name="Raw")
    scaled = RollingWindow(scale["scaled"], size=2, since=1, name="Scaled")
    before = Latest(past("Learn", "model", Model), name="Before")
    learn = Learn(examples=scaled["scaled"], rate=rate)
    return Pipeline("p", [ingest, scale, raw, scaled, before, learn])


@pytest.fixture
def lake(tmp_path):
    folder = tmp_path / "lake"
    folder.mkdir()
    return folder


@pytest.fixture(params=["memory", "mlmd"])
def trial(tmp_path, request):
    store = MemoryStore() if request.param == "memory" else open_store(str(tmp_path / "metadata.db"))
    yield Trial(tmp_path / "root", store)
    store.close()


def chosen(run, window):
    (key,) = run[window].outputs
    return [a.name.rpartition("/")[2] for a in run[window].outputs[key]]


def test_a_window_reads_the_files_that_were_restored(trial, lake):
    """A, B, then A again: the publication of A is reused, and is what the window reads."""
    for span in (1, 2):
        (lake / str(span)).write_text(str(span))
        trial.run(pipeline(lake), span=span)
    (lake / "2").write_text(str(77))
    wrong = trial.run(pipeline(lake), span=2)
    (lake / "2").write_text(str(2))
    restored = trial.run(pipeline(lake), span=2)

    assert chosen(wrong, "Raw") == ["1", "2"]
    assert restored["Ingest"].outputs["examples"][0].name == "p/Ingest/examples/2/1"
    assert chosen(restored, "Raw") == ["1", "1"]


def test_a_window_reads_what_reverted_code_made(trial, lake):
    """A node between source and window changes and is reverted: its first output is current again."""
    for span, factor in ((1, 1), (2, 1), (2, 1000), (2, 1)):
        (lake / str(span)).write_text(str(span))
        last = trial.run(pipeline(lake, factor=factor), span=span)

    assert chosen(last, "Scaled") == ["1", "1"]
    assert chosen(last, "Raw") == ["1", "1"]


def test_the_next_run_still_reads_what_was_given_last(trial, lake):
    """The order is recorded: a run of a later span reads the restored files too."""
    for span, tip in ((1, 1), (1, 77), (1, 1), (2, 2)):
        (lake / str(span)).write_text(str(tip))
        last = trial.run(pipeline(lake), span=span)

    assert chosen(last, "Raw") == ["1", "1"]


def test_changing_back_and_forth_always_reads_the_last(trial, lake):
    """A, B, A, B, A, B: each run reads what its own source gave."""
    for turn in range(6):
        (lake / "1").write_text(str(turn % 2))
        last = trial.run(pipeline(lake), span=1)
        assert chosen(last, "Raw") == [str(turn % 2 + 1)]


def test_a_reused_model_is_the_latest(trial, lake):
    """One run with another parameter, then back: the first model was given last, so the next run starts from it."""
    (lake / "1").write_text("1")
    for rate in (1, 2, 1):
        last = trial.run(pipeline(lake, rate=rate), span=1)
    after = trial.run(pipeline(lake, rate=3), span=1)

    assert [a.name for a in last["Learn"].outputs["model"]] == ["p/Learn/model/1"]
    assert [a.name for a in after["Before"].outputs["model"]] == ["p/Learn/model/1"]


def test_a_replay_reads_what_was_current_then(trial, lake):
    """As of a moment between B and the return to A, B was current."""
    moments = []
    for tip in (1, 77, 1):
        (lake / "1").write_text(str(tip))
        moments.append(trial.run(pipeline(lake), span=1).run.ended)
    replay = trial.run(pipeline(lake), RunRequest(as_of=moments[1], replay=True), span=1)
    now = trial.run(pipeline(lake), span=1)

    assert chosen(replay, "Raw") == ["2"]
    assert chosen(now, "Raw") == ["1"]


def test_what_was_current_and_is_wrong_is_tainted(trial, lake):
    """After the return to A, the superseded publication is B's, and the model of B is tainted."""
    for tip in (1, 77, 1):
        (lake / "1").write_text(str(tip))
        trial.run(pipeline(lake), span=1)
    found = trace_taint(trial.store, "p", 1)

    assert [a.name for a in found.wrong] == ["p/Ingest/examples/1/2"]
    assert found.corrected


def test_what_is_current_is_never_collected(trial, lake):
    """Of a span that was rewritten and restored, the superseded publication goes, though it is the younger one."""
    for span, tip in ((1, 1), (1, 77), (1, 1), *((later, later) for later in range(2, 5))):
        (lake / str(span)).write_text(str(tip))
        trial.run(pipeline(lake), span=span)
    retention = Retention(last=4, younger=timedelta(0), marked=())
    context = CollectionContext(store=trial.store, root=trial.root, retention=retention, now=datetime.now(UTC))
    removed = {artifact.name for artifact in plan_collection(context, "p").removals}

    assert "p/Ingest/examples/1/2" in removed
    assert "p/Ingest/examples/1/1" not in removed
