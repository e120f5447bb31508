"""Models that are trained on from others, on features that the user keeps in a type of their own: each is judged anew."""

import pytest

from spanwise.orchestrator.serving import pushes
from spanwise.orchestrator.verdict import find_standing_of_model
from tests.scenario.command_line import CommandLine

PIPELINE = '''
from spanwise import Artifact, Blessing, Component, Examples, Input, Latest, Model, Output, Pipeline, Pusher, RollingWindow, past
from tests.scenario.random_life import Ingest, read_text

class Features(Artifact, kind="Features"):
    """What was prepared of a window."""

class Prepare(Component):
    def run(self, examples: Input[list[Examples]], features: Output[Features]) -> None:
        (features.path / "text").write_text(" ".join(map(read_text, examples)))

class Learn(Component):
    def run(self, features: Input[Features], base: Input[Model | None], model: Output[Model]) -> None:
        before = read_text(base) if base else ""
        (model.path / "text").write_text(f"{before} {read_text(features)}")
        RECORD

class Judge(Component):
    cacheable = False
    def run(self, model: Input[Model], blessing: Output[Blessing]) -> None:
        blessing.blessed = int("bad" not in read_text(model))
        blessing.reasons = [] if blessing.blessed else ["it is bad"]
        blessing.current_model, blessing.current_model_id = model.name, model.id
        (blessing.path / "text").write_text(model.name)

def flow() -> Pipeline:
    ingest = Ingest(lake="lake")
    window = RollingWindow(ingest["examples"], size=1, name="Window")
    prepare = Prepare(examples=window["examples"])
    before = Latest(past("Learn", "model", Model), name="Before")
    learn = Learn(features=prepare["features"], base=before["model"])
    judge = Judge(model=learn["model"])
    push = Pusher(model=learn["model"], blessing=judge["blessing"], destination="serving")
    return Pipeline("flow", [ingest, window, prepare, before, learn, judge, push])
'''
RECORDED = "model.spans, model.base = [1], base.name if base else None"


@pytest.mark.parametrize("record", [RECORDED, "pass"])
@pytest.mark.parametrize(
    ("said", "second", "pushed"), [("bless", "bad", [1]), ("unbless", "good", [1, 2]), (None, "bad", [1])]
)
def test_what_a_person_says_of_a_model_is_not_said_of_the_next(tmp_path, monkeypatch, said, second, pushed, record):
    """A refused one was pushed since a person had blessed the one before; a good one was not, since it was taken back."""
    bench = CommandLine(tmp_path, monkeypatch, PIPELINE.replace("RECORD", record))
    bench.arrive(1, "good")
    bench.arrive(2, second)
    assert bench("run", "flow.py", "--span", "1") == 0
    if said is not None:
        assert bench(said, "flow/Learn/model/1", "--because", "looked at") == 0
    assert bench("run", "flow.py", "--span", "2") == 0

    found = {push.model for push in pushes(bench.store, "flow/Learn/model")}
    assert found == {f"flow/Learn/model/{number}" for number in pushed}


def test_a_model_that_records_a_base_is_no_export_of_it(tmp_path, monkeypatch):
    """Though its component reads no rows that the metadata know of, as one that asks a database for them."""
    text = PIPELINE.replace("RECORD", RECORDED).replace("features: Input[Features], base:", "base:")
    text = text.replace("{read_text(features)}", "good").replace('Learn(features=prepare["features"], ', "Learn(")
    bench = CommandLine(tmp_path, monkeypatch, text)
    for span in (1, 2):
        bench.arrive(span, f"day{span}")
    for span in ("1", "2"):
        assert bench("run", "flow.py", "--span", span) == 0
    assert bench("unbless", "flow/Learn/model/1", "--because", "looked at") == 0

    assert find_standing_of_model(bench.store, bench.store.artifact("flow/Learn/model/2")).holds()
