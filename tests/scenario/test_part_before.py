"""Parts that read the newest run of the part before: which run that is, whatever has come since."""

import shlex

import pytest

from spanwise.orchestrator.errors import UsageError
from spanwise.orchestrator.run import Run
from spanwise.scheduler.daemon.scheduled_run import ScheduledJob
from spanwise.scheduler.daemon.scheduled_run import _run as run_job
from spanwise.scheduler.project import settings
from tests.scenario.command_line import CommandLine

TEXT = """
from pathlib import Path

from spanwise import *
from tests.scenario.random_life import Ingest, read_text


class Listed(Ingest):
    takes_span = True

    def available(self, spans=None):
        found = {int(file.name): int(file.read_text().split()[0]) for file in Path("lake").iterdir()}
        return {span: version for span, version in found.items() if spans is None or span in spans}


class Check(Gate):
    def run(self, examples: Input[Examples]) -> None:
        pass


class Learn(Component):
    def run(self, examples: Input[list[Examples]], model: Output[Model]) -> None:
        (model.path / "text").write_text(" ".join(map(read_text, examples)))
        model.spans = [one.span for one in examples]


class Judge(Component):
    def run(self, model: Input[Model], report: Output[Report]) -> None:
        if Path("doubtful").exists():
            raise RuntimeError("not judged")
        (report.path / "text").write_text("fine")


class Push(Component):
    def run(self, model: Input[Model], report: Input[Report], pushed: Output[Report]) -> None:
        if Path("down").exists():
            raise RuntimeError("serving is down")
        Path("served").write_text(read_text(model))
        (pushed.path / "text").touch()


def flow() -> Pipeline:
    ingest = Listed(lake="lake", name="Ingest")
    check = Check(examples=ingest["examples"])
    window = RollingWindow(check["examples"], size=2, since=1, missing=2, name="Window")
    learn = Learn(examples=window["examples"])
    judge = Judge(model=learn["model"])
    push = Push(model=learn["model"], report=judge["report"])
    return Pipeline("flow", [ingest, check, window, learn, judge, push])
"""


@pytest.fixture
def bench(tmp_path, monkeypatch):
    bench = CommandLine(tmp_path, monkeypatch, TEXT)
    for span in range(1, 7):
        bench.arrive(span, "a")
    return bench


def tick(name, part, *, span=None, push_at="Push", base=None):
    """Runs a part of the schedule, as its scheduler does; the last one begins at `push_at`."""
    known = settings.read(config=None, root=None)
    division = (("ingest", ()), ("train", ()), ("push", (push_at,)))
    job = ScheduledJob(
        source="flow.py",
        pipeline=f"flow:{part}",
        part=part,
        division=division,
        tick=name,
        span=span,
        attempt=1 if base is None else 2,
        root=str(known.place),
        base=base,
    )
    return run_job(job, known)


def served(bench):
    return (bench.folder / "served").read_text()


def test_a_part_reads_no_older_run_where_its_boundary_was_moved(bench):
    """No run has judged in the part before yet; the model of the first run of all is not pushed over newer ones."""
    assert bench("run", "flow.py", "--span", "1") == 0
    for span in (2, 3):
        assert tick(f"i{span}", "ingest", span=span) == 0
        assert tick(f"t{span}", "train", push_at="Judge") == 0
        assert tick(f"p{span}", "push", push_at="Judge") == 0
    assert served(bench) == "2v1a 3v1a"

    with pytest.raises(UsageError, match=r"run 1, but something newer exists in that part: .*Learn gave \S+ in") as why:
        tick("p4", "push")
    assert served(bench) == "2v1a 3v1a"

    command = shlex.split(str(why.value).rpartition("spanwise ")[2])
    assert bench(*command) == 0
    assert tick("p5", "push") == 0
    assert served(bench) == "2v1a 3v1a"


def test_a_part_passes_over_what_was_ingested_and_chosen_and_what_failed_in_the_part_before(bench):
    """Only another output of that part, of a run that did not fail in it, is newer."""
    assert bench("run", "flow.py", "--span", "1") == 0
    assert bench("run", "flow.py", "--span", "2", "--to", "Window") == 0
    (bench.folder / "doubtful").touch()
    assert bench("run", "flow.py", "--from", "Window", "--to", "Judge") == 1
    assert bench("run", "flow.py", "--from", "Window", "--to", "Judge") == 1

    assert tick("p1", "push") == 0

    assert served(bench) == "1v1a"


def test_a_part_finds_the_part_before_beyond_many_runs_of_others(bench, monkeypatch):
    """Those have done none of its nodes, so their executions are not read."""
    assert tick("i1", "ingest", span=1) == 0
    with pytest.raises(UsageError, match=r"Judge\), and no run has"):
        tick("p1", "push")
    assert tick("t1", "train") == 0
    for _ in range(120):
        bench.store.begin_run(Run(pipeline="flow", nodes=("Ingest",)))

    assert tick("p2", "push") == 0

    monkeypatch.setattr("spanwise.orchestrator.base_run._LOOK_BACK", 50)
    for _ in range(50):
        bench.store.begin_run(Run(pipeline="flow", nodes=("Ingest",)))
    with pytest.raises(UsageError, match="and none of the last 50 runs has"):
        tick("p3", "push")


@pytest.mark.parametrize("again", ["resume", "retry"])
def test_a_resumed_part_keeps_the_rule_of_its_part(bench, again):
    """What was ingested after the training holds back neither the part nor the rest of it."""
    assert tick("i1", "ingest", span=1) == 0
    assert tick("t1", "train") == 0
    assert tick("i2", "ingest", span=2) == 0
    (bench.folder / "down").touch()
    assert tick("p1", "push", push_at="Judge") == 1
    assert bench("resume", "flow/4") == 1
    (bench.folder / "down").unlink()

    if again == "resume":
        assert bench("resume", "flow/5") == 0
    else:
        assert tick("p1", "push", push_at="Judge", base=4) == 0

    assert served(bench) == "1v1a"
    assert next(bench.store.runs("flow")).nodes == ("Push",)


def test_a_part_is_not_resumed_with_what_the_part_before_has_replaced(bench, capsys):
    """A newer training is what its next tick reads."""
    assert tick("i1", "ingest", span=1) == 0
    assert tick("t1", "train") == 0
    (bench.folder / "down").touch()
    assert tick("p1", "push") == 1
    (bench.folder / "down").unlink()
    assert tick("i2", "ingest", span=2) == 0
    assert tick("t2", "train") == 0

    assert bench("resume", "flow/3") == 2

    assert "flow/3 cannot be resumed" in (said := capsys.readouterr().err)
    assert "Learn gave flow/Learn/model/2 in run 5, which is newer" in said
    assert tick("p1", "push", base=3) == 0
    assert served(bench) == "1v1a 2v1a"


def test_a_part_is_not_resumed_with_what_was_refused_since(bench, capsys):
    """Neither is what the part before has learned from it."""
    assert tick("i1", "ingest", span=1) == 0
    assert tick("t1", "train") == 0
    (bench.folder / "down").touch()
    assert tick("p1", "push") == 1
    (bench.folder / "down").unlink()
    assert bench("refuse", "flow.py", "--span", "1", "--because", "wrong unit") == 0

    assert bench("resume", "flow/3") == 2

    assert "does not count any more: refused by" in capsys.readouterr().err
