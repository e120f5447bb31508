"""Everything that an earlier run supplies for work not done belongs to one generation, typed as a person types it."""

import re
import shlex

import pytest

from tests.scheduler.conftest import run_warm
from tests.scheduler.histories import live

CHAIN = """
from spanwise.orchestrator import Component, Input, Output, Pipeline, Report


class Node(Component):
    def run(self, above: Input[Report | None], report: Output[Report], value: int = 0) -> None:
        before = (above.path / "value").read_text() if above is not None else ""
        print("read", before or "nothing")
        (report.path / "value").write_text(before + str(value))


def chain(value: int = 1) -> Pipeline:
    load = Node(name="Load", value=value)
    add = Node(name="Add", above=load["report"], value=2)
    sub = Node(name="Sub", above=add["report"], value=3)
    return Pipeline("chain", [load, add, sub])
"""

DAYS = """
from pathlib import Path
from spanwise.orchestrator import Component, Examples, Input, Model, Output, Pipeline, Report
from spanwise.resolvers import LatestBlessed, RollingWindow


class Ingest(Component):
    prepared = ("span", "version", "text")

    def prepare(self, run, history):
        versions = sorted(Path("data", str(run.span)).iterdir())
        return {"span": run.span, "version": int(versions[-1].name), "text": versions[-1].read_text()}

    def run(self, examples: Output[Examples], span: int, version: int, text: str) -> None:
        examples.span, examples.version, examples.split_names = span, version, ["train"]
        (examples.path / "text").write_text(text)


class Train(Component):
    def run(self, examples: Input[list[Examples]], model: Output[Model]) -> None:
        if Path("boom").exists():
            raise RuntimeError("boom")
        saw = " ".join(f"{a.span}v{a.version}" for a in examples)
        print("SAW", saw)
        (model.path / "saw").write_text(saw)


class Count(Component):
    def run(self, examples: Input[Examples], report: Output[Report]) -> None:
        (report.path / "count").write_text(str(examples.span))


class Judge(Component):
    def run(
        self, model: Input[Model], champion: Input[Model | None], count: Input[Report], report: Output[Report]
    ) -> None:
        print("JUDGED", (model.path / "saw").read_text())
        (report.path / "x").touch()


class Serve(Component):
    cacheable = False

    def run(self, model: Input[Model], judged: Input[Report], report: Output[Report]) -> None:
        Path("served").write_text((model.path / "saw").read_text())
        (report.path / "x").touch()


def days(size: int = 3) -> Pipeline:
    ingest = Ingest()
    window = RollingWindow(ingest["examples"], size=size, since=1, name="Window")
    train = Train(examples=window["examples"])
    champion = LatestBlessed(train["model"], name="Champion")
    count = Count(examples=ingest["examples"])
    judge = Judge(model=train["model"], champion=champion["model"], count=count["report"])
    serve = Serve(model=train["model"], judged=judge["report"])
    return Pipeline("days", [ingest, count, window, train, champion, judge, serve])
"""


class Typed:
    """Commands typed in a folder, one after the other."""

    def __init__(self, folder, spanwise):
        self.folder = folder
        self._spanwise = spanwise

    def __call__(self, line, code=0):
        """Types a command line, and gives what it printed."""
        found, out, err = self._spanwise(*shlex.split(line))
        assert found == code, f"{line} ended with {found}:\n{out}\n{err}"
        return out + err

    def lived(self, *lines):
        """These commands were typed, when the spans that they name had just arrived."""
        live(self.folder, lines, _type)

    def suggested(self, refusal):
        """The commands in a message, as they would be pasted."""
        return [found.strip() for found in re.findall(r":  spanwise (.+)$", refusal, re.MULTILINE)]

    def arrive(self, span, version=1):
        _arrive(self.folder, span, version)

    @property
    def served(self):
        return (self.folder / "served").read_text()


def _arrive(folder, span, version=1):
    where = folder / "data" / str(span)
    where.mkdir(parents=True, exist_ok=True)
    (where / str(version)).write_text(f"{span} {version}")


def _type(folder, line):
    if found := re.search(r"--span (\d+)", line):
        _arrive(folder, found[1])
    done = run_warm(*shlex.split(line), cwd=folder)
    assert done.returncode == 0, f"{line}:\n{done.stdout}\n{done.stderr}"


@pytest.fixture
def typed(folder, spanwise):
    (folder / "chain.py").write_text(CHAIN)
    (folder / "days.py").write_text(DAYS)
    return Typed(folder, spanwise)


def test_a_part_does_not_skip_something_newer(typed):
    """Load was run again with another value, Add was not: a run from Sub is refused, and two ways on are printed."""
    typed.lived("run chain.py", "run chain.py --param value=5 --to Load")
    refusal = typed("run chain.py --from Sub", code=2)

    assert "Load" in refusal
    assert "run 2" in refusal
    between, insisted = typed.suggested(refusal)
    assert between == "run chain.py --from Add"
    assert insisted == "run chain.py --from Sub --base-run 1"


def test_a_part_does_not_read_what_another_run_left_out_by_name(typed):
    """`--exclude` is for one run: the next part is refused, since the window would hold the span again."""
    typed.lived("run days.py --span 1", "run days.py --span 2")
    typed("run days.py --span 2 --exclude 1")

    refusal = typed("run days.py --from Judge", code=2)
    between, insisted = typed.suggested(refusal)

    assert "Window chose 2 v1 in run 3, and would choose 1 to 2 v1 now" in refusal
    typed(insisted)
    assert typed.served == "2v1"
    typed(between)
    assert typed.served == "1v1 2v1"


def test_the_first_way_on_runs_what_lies_between(typed):
    """The printed command reads the newer Load."""
    typed.lived("run chain.py", "run chain.py --param value=5 --to Load")
    between, _ = typed.suggested(typed("run chain.py --from Sub", code=2))

    assert "Add | read 5" in (out := typed(between))
    assert "Sub | read 52" in out


def test_the_second_way_on_insists(typed):
    """The printed command reads the older run, which was named."""
    typed.lived("run chain.py", "run chain.py --param value=5 --to Load")
    _, insisted = typed.suggested(typed("run chain.py --from Sub", code=2))

    assert "chain/1" in typed(insisted)


def test_files_that_are_gone_are_recreated_and_the_run_is_resumed(typed):
    """By the two commands that the failed run prints; its window had chosen what is gone, so it chooses again."""
    typed.lived("run days.py --span 1", "run days.py --span 2")
    (gone,) = typed.folder.glob(".spanwise/days/Ingest/examples/1/text")
    gone.unlink()
    typed.arrive(3)

    recreate, resume = typed.suggested(typed("run days.py --span 3", code=1))
    typed(recreate)
    typed(resume)

    assert typed.served == "1v1 2v1 3v1"


def test_no_way_on_reads_files_that_are_gone(typed):
    """The older run can supply nothing any more, so only the way that makes it anew is printed; it works."""
    typed.lived("run chain.py", "run chain.py --param value=5 --to Load")
    (gone,) = typed.folder.glob(".spanwise/chain/Add/report/*/value")
    gone.unlink()

    (between,) = typed.suggested(typed("run chain.py --from Sub", code=2))

    assert "Sub | read 52" in typed(between)


def test_what_an_insisting_run_has_read_is_not_the_newest(typed):
    """A run that was based on an older one makes nothing newer: the next part is refused again."""
    typed.lived("run chain.py", "run chain.py --param value=5 --to Load")
    typed("run chain.py --from Sub --base-run 1")

    assert "run 2" in typed("run chain.py --from Sub", code=2)


def test_the_same_outputs_made_again_are_no_newer_generation(typed):
    """Load was executed again and made the same: what it supplies is consistent with it."""
    typed.lived("run chain.py")
    typed("run chain.py --to Load --no-cache")

    assert "Sub" in typed("run chain.py --from Sub")


def test_the_run_that_supplies_is_printed(typed):
    """Its number, its span, when it ran, and what it supplies."""
    typed.lived("run days.py --span 1", "run days.py --span 2")
    out = typed("run days.py --from Train")

    assert re.search(r"Run days/2 of span 2 \(\d{4}-\d\d-\d\d \d\d:\d\d.*\) supplies Ingest, Count, Window", out)


def test_an_evaluation_does_not_take_an_older_model(typed):
    """A model was trained alone; a run from its judge reads that model, not the one of the last whole run."""
    typed.lived("run days.py --span 1", "run days.py --span 2 --to Train")
    between, insisted = typed.suggested(typed("run days.py --from Judge", code=2))

    assert "JUDGED 1v1 2v1" in typed(between)
    assert "JUDGED 1v1\n" in typed(insisted + " --no-cache")


def test_a_window_that_would_choose_otherwise_now_is_not_supplied(typed):
    """A span was ingested alone: a run from Train would leave it out in silence."""
    typed.lived("run days.py --span 1", "run days.py --span 2")
    typed.arrive(2, version=2)
    typed("run days.py --span 2 --to Ingest")
    refusal = typed("run days.py --from Train", code=2)
    between, _ = typed.suggested(refusal)

    assert "Window chose 1 to 2 v1 in run 2, and would choose 1 v1, 2 v2 now" in refusal
    assert between == "run days.py --from Count --from Window"
    assert "SAW 1v1 2v2" in typed(between)


def test_a_parameter_of_a_node_left_out_is_not_ignored(typed):
    """Another size of the window has no effect on a part without the window, so it is refused."""
    typed.lived("run days.py --span 1", "run days.py --span 2")
    between, _ = typed.suggested(typed("run days.py --from Train --param size=1", code=2))

    assert between == "run days.py --from Window --param size=1"
    assert "SAW 2v1" in typed(between)


def test_the_base_run_of_a_named_span_has_that_span(typed):
    """A part that names a span is not supplied with another."""
    typed.lived("run days.py --span 1", "run days.py --span 2")

    assert "SAW" in typed("run days.py --span 1 --from Window --param size=1 --no-cache")
    assert "base run    days/1" in typed("show days")


@pytest.mark.parametrize("part", ["", "--to Load"])
def test_a_base_run_that_supplies_nothing_is_refused(typed, part):
    """--base-run has no meaning where no node is left out, or none that could be supplied."""
    typed.lived("run chain.py")

    assert "--base-run" in typed(f"run chain.py {part} --base-run 1", code=2)


# --- resuming


def test_an_old_failed_run_is_not_resumed_over_a_newer_model(typed):
    """Run 3 failed, run 4 is complete, and day 3 was corrected: resuming run 3 would serve its old window."""
    typed.lived("run days.py --span 1", "run days.py --span 2")
    typed.arrive(3)
    (typed.folder / "boom").touch()
    typed("run days.py --span 3", code=1)
    (typed.folder / "boom").unlink()
    typed.arrive(3, version=2)
    typed("run days.py --span 3")
    refusal = typed("resume days/3", code=2)
    again, insisted = typed.suggested(refusal)

    assert typed.served == "1v1 2v1 3v2"
    assert "Ingest" in refusal or "Window" in refusal
    assert again == "run days.py --span 3"
    typed(again)
    assert typed.served == "1v1 2v1 3v2"
    typed(insisted)
    assert typed.served == "1v1 2v1 3v1"


def test_a_run_is_resumed_while_nothing_newer_exists(typed):
    """The daily case: a run failed, its code was fixed, and it goes on."""
    typed.lived("run days.py --span 1")
    typed.arrive(2)
    (typed.folder / "boom").touch()
    typed("run days.py --span 2", code=1)
    (typed.folder / "boom").unlink()

    assert "SAW 1v1 2v1" in typed("resume days/2")
    assert typed.served == "1v1 2v1"


def test_a_gap_that_was_filled_meanwhile_does_not_prevent_a_resume(typed):
    """The window of span 4 lacked span 3, which was ingested alone: an older span is nothing newer for span 4."""
    for span in (2, 3, 4):
        typed.arrive(span)
    typed("run days.py --span 2 --to Count")
    typed("run days.py --span 4 --param size=3", code=1)
    typed("run days.py --span 3 --to Ingest")

    assert "SAW 2v1 3v1 4v1" in typed("resume days/2")


def test_a_newer_span_is_newer_for_a_part_without_a_window(typed):
    """Count reads what this run ingested: a part from Count takes the newest span, or none."""
    for span in (1, 2):
        typed.arrive(span)
        typed(f"run days.py --span {span} --to {'Ingest' if span == 2 else 'Count'}")

    assert "supplies Ingest" in (out := typed("run days.py --from Count --to Count"))
    assert "days/2 of span 2" in out
