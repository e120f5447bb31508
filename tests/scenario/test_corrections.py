"""Corrected spans: they reach models, and what judges these, also through resolvers that are no windows."""

import pytest

from tests.scenario.command_line import CommandLine
from tests.scenario.test_said_since import HEAD

EXAM = f"""{HEAD}
class Judge(Component):
    def run(self, model: Input[Model], examples: Input[list[Examples]], report: Output[Report]) -> None:
        (report.path / "text").write_text(" ".join(map(read_text, examples)))

def flow() -> Pipeline:
    ingest = Listed(lake="lake", name="Ingest")
    window = RollingWindow(ingest["examples"], size=2, since=1, name="Window")
    exam = Fixed(ingest["examples"], first=1, last=2, name="Exam")
    learn = Learn(examples=window["examples"])
    judge = Judge(model=learn["model"], examples=exam["examples"])
    return Pipeline("flow", [ingest, window, exam, learn, judge])
"""

LAG = f"""{HEAD}
class Features(Component):
    def run(self, examples: Input[Examples], before: Input[Examples | None], features: Output[Examples]) -> None:
        (features.path / "text").write_text(f"[{{read_text(examples)}} after {{before and read_text(before)}}]")
        features.span, features.version, features.split_names = examples.span, examples.version, ["train"]

def flow() -> Pipeline:
    ingest = Listed(lake="lake", name="Ingest")
    before = Previous(ingest["examples"], name="Before")
    features = Features(examples=ingest["examples"], before=before["examples"])
    window = RollingWindow(features["features"], size=3, since=1, name="Window")
    return Pipeline("flow", [ingest, before, features, window, Learn(examples=window["features"])])
"""


def made_last(bench, node):
    """What a node wrote in its newest execution."""
    done = (e for run in bench.store.runs("flow") for e in bench.store.executions(run) if e.node == node)
    ((made,),) = next(e for e in done if e.state.succeeded).outputs.values()
    return (made.path / "text").read_text().strip()


def live(bench, *spans, first):
    """Each span comes and is run, the first one up to a node."""
    for span in spans:
        bench.arrive(span, "a")
        assert bench("run", "flow.py", "--span", str(span), *(("--to", first) if span == 1 else ())) == 0


@pytest.mark.parametrize(
    "words",
    [["--stale"], ["--span", "1..2", "--train-once"], ["--span", "1..2", "--train-once", "--parallel", "2"]],
    ids=["stale", "once", "parallel"],
)
def test_a_model_is_judged_on_the_corrected_spans_of_a_fixed_range(tmp_path, monkeypatch, words):
    """No window reads them any more; the range is chosen once all of them are there."""
    bench = CommandLine(tmp_path, monkeypatch, EXAM)
    live(bench, 1, 2, 3, 4, 5, first="Ingest")
    for span in (1, 2):
        bench.arrive(span, "b", version=2)

    assert bench("backfill", "flow.py", *words) == 0

    assert made_last(bench, "Judge") == "1v2b 2v2b"
    assert bench("backfill", "flow.py", "--stale", "--dry-run") == 0
    assert bench.ask("backfill", "flow.py", "--stale", "--dry-run")["targets"] == []


@pytest.mark.parametrize("once", [["--train-once"], []], ids=["once", "each"])
def test_a_resumed_backfill_runs_again_what_was_made_of_a_span_before_it_was_corrected(
    tmp_path, monkeypatch, capsys, once
):
    """The features of span 2 had been made of span 1 as it was; those of a span that has failed again wait."""
    bench = CommandLine(tmp_path, monkeypatch, LAG)
    live(bench, 1, 2, first="Features")
    for span in (1, 2):
        bench.arrive(span, "b", version=2)
    (bench.folder / "lake" / "1").write_text("2 ")
    assert bench("backfill", "flow.py", "--span", "1..2", *once) == 1
    assert bench("backfill", "--resume", "flow") == 1
    assert len(list(bench.store.runs("flow"))) == 5
    capsys.readouterr()
    assert bench("backfill", "--resume", "flow", "--dry-run") == 0
    assert "0 of 2 spans done, 1 failed, 1 left" in capsys.readouterr().out

    bench.arrive(1, "b", version=2)
    assert bench("backfill", "--resume", "flow") == 0

    assert made_last(bench, "Learn") == "[1v2b after None] [2v2b after 1v2b]"


def test_parallel_runs_do_not_choose_what_models_learn_from(tmp_path, monkeypatch, capsys):
    """They would read the spans that the others are about to replace; one after the other reads what they made."""
    bench = CommandLine(tmp_path, monkeypatch, LAG)
    live(bench, 1, 2, first="Features")
    for span in (1, 2):
        bench.arrive(span, "b", version=2)

    assert bench("backfill", "flow.py", "--span", "1..2", "--train-once", "--parallel", "2") == 2
    assert "Before chooses among spans what models learn from" in capsys.readouterr().err
    assert bench("backfill", "flow.py", "--span", "1..2", "--train-once") == 0
    assert made_last(bench, "Learn") == "[1v2b after None] [2v2b after 1v2b]"
