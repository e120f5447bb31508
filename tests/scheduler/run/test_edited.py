"""Pipeline files that are edited between a run and the part, or the rest, that reads what it has made."""

import re
import shlex
import sys

import pytest

from spanwise.orchestrator import code_digest
from spanwise.orchestrator.store import Address
from tests.scenario.inline import run_inline

CHAIN = """
from pathlib import Path
from spanwise.orchestrator import Component, Input, Output, Pipeline, Report


class Node(Component):
    def run(self, above: Input[Report | None], report: Output[Report], value: int = 0) -> None:
        before = (above.path / "value").read_text() if above is not None else ""
        if value == 3 and Path("boom").exists():
            raise RuntimeError("boom")
        (report.path / "value").write_text(before + str(value))


def chain(value: int = 1) -> Pipeline:
    load = Node(name="Load", value=value)
    add = Node(name="Add", above=load["report"], value=2)
    sub = Node(name="Sub", above=add["report"], value=3)
    return Pipeline("chain", [load, add, sub])
"""


DAYS = """
from spanwise.orchestrator import Artifact, Calendar, Component, Examples, Input, Model, Output, Pipeline
from spanwise.resolvers import RollingWindow


class Features(Artifact):
    span: int


class Ingest(Component):
    prepared = ("span",)
    calendar = Calendar.NUMBER

    def available(self, spans=None):
        return dict.fromkeys((1, 2, 4, 5))

    def prepare(self, run, history):
        return {"span": run.span}

    def run(self, examples: Output[Examples], span: int) -> None:
        examples.span, examples.version, examples.split_names = span, None, ["train"]


class Scale(Component):
    def run(self, examples: Input[Examples], features: Output[Features], by: int) -> None:
        features.span = examples.span
        (features.path / "by").write_text(str(by))


class Learn(Component):
    def run(self, features: Input[list[Features]], model: Output[Model]) -> None:
        (model.path / "saw").write_text(" ".join((each.path / "by").read_text() for each in features))


def chain() -> Pipeline:
    ingest = Ingest()
    scale = Scale(examples=ingest["examples"], by=10)
    recent = RollingWindow(scale["features"], size=4, since=1, missing=1)
    return Pipeline("chain", [ingest, scale, recent, Learn(features=recent["features"])])
"""


class Edited:
    """Commands typed in a folder, and the pipeline file edited between them."""

    def __init__(self, folder, spanwise, store):
        self.folder, self._spanwise, self._store = folder, spanwise, store

    def __call__(self, line, code=0):
        for name in [n for n, m in sys.modules.items() if getattr(m, "__file__", "") == str(self.file)]:
            del sys.modules[name]  # as in a process of its own
        found, out, err = self._spanwise(*shlex.split(line))
        assert found == code, f"{line} ended with {found}:\n{out}\n{err}"
        return out + err

    @property
    def file(self):
        return self.folder / "chain.py"

    def edit(self, written, by):
        assert written in self.file.read_text()
        self.file.write_text(self.file.read_text().replace(written, by, 1))

    def suggested(self, refusal):
        return [found.strip() for found in re.findall(r":  spanwise (.+)$", refusal, re.MULTILINE)]

    @property
    def result(self):
        """What Sub has made last."""
        return (next(self._store.newest(Address("chain", "Sub", "report"))).path / "value").read_text()

    @property
    def learned(self):
        """What Learn has read last."""
        return (next(self._store.newest(Address("chain", "Learn", "model"))).path / "saw").read_text()


@pytest.fixture
def typed(folder, spanwise, monkeypatch):
    monkeypatch.setattr(
        sys, "dont_write_bytecode", True
    )  # which counts as fresh for a second where the size is the same
    (folder / "chain.py").write_text(CHAIN)
    return Edited(folder, spanwise, run_inline(monkeypatch))


@pytest.mark.parametrize(
    ("written", "edited", "says", "result"),
    [
        ("value=2)", "value=7)", "Add is defined otherwise now than in run 1 (parameter value)", "173"),
        ("before + str", "before + '-' + str", "Add is defined otherwise now than in run 1 (code)", "-1-2-3"),
        ('above=load["report"], ', "", "Add is defined otherwise now than in run 1 (input above)", "23"),
        ('name="Load"', 'name="Read"', "Add is defined otherwise now than in run 1 (input above)", "123"),
    ],
)
def test_a_part_does_not_read_what_was_made_before_an_edit(typed, written, edited, says, result):
    """A parameter, the code or a connection of a node that is left out was edited; the commands that are printed work."""
    typed("run chain.py")
    typed.edit(written, edited)
    refusal = typed("run chain.py --from Sub", code=2)
    between, insisted = typed.suggested(refusal)

    assert says in refusal
    typed(insisted)
    assert typed.result.removeprefix("12").lstrip("-") == "3"
    typed(between)
    assert typed.result == result


def test_a_part_may_be_edited_itself(typed):
    """What is edited in the nodes that run is why they run."""
    typed("run chain.py")
    typed.edit('above=add["report"], value=3', 'above=load["report"], value=4')
    typed("run chain.py --from Sub")

    assert typed.result == "14"


def test_a_part_with_another_argument_does_not_read_what_was_made_without_it(typed):
    """The argument would have no effect, and the run would be recorded as if it had; what was typed before may be read."""
    typed("run chain.py")
    between, _ = typed.suggested(typed("run chain.py --from Sub --param value=5", code=2))

    assert between == "run chain.py --param value=5"
    typed(between)
    assert typed.result == "523"
    typed("run chain.py --from Sub")


def test_an_edit_of_a_value_that_was_typed_for_another_node_counts(typed):
    """Load was given 2 as an argument; that Add had 2 in the file, and has 7 now, is an edit all the same."""
    typed("run chain.py --param value=2")
    typed.edit("value=2)", "value=7)")
    refusal = typed("run chain.py --from Sub", code=2)

    assert "Add is defined otherwise now than in run 1 (parameter value)" in refusal
    assert "Load is defined otherwise" not in refusal


def test_a_run_is_not_resumed_with_what_was_made_before_an_edit(typed):
    """Add had succeeded before it was edited: what follows would read what the pipeline does not make any more."""
    (typed.folder / "boom").touch()
    typed("run chain.py", code=1)
    (typed.folder / "boom").unlink()
    typed.edit("value=2)", "value=7)")
    again, insisted = typed.suggested(typed("resume chain", code=2))

    assert insisted == "run chain.py --from Sub --base-run 1"
    typed(again)
    assert typed.result == "173"


def test_a_failed_node_may_be_edited_and_resumed(typed):
    """The usual way to repair a run."""
    (typed.folder / "boom").touch()
    typed("run chain.py", code=1)
    typed.edit('above=add["report"], value=3', 'above=add["report"], value=4')
    typed("resume chain")

    assert typed.result == "124"


@pytest.mark.parametrize(
    ("ingests", "ways"),
    [
        ("available", ["backfill chain.py --span 2 --train-once", "backfill chain.py --span 4 --train-once"]),
        ("found", ["run chain.py --span 2 --to Scale", "run chain.py --span 4 --to Scale"]),
    ],
)
def test_a_window_names_the_spans_that_were_made_before_an_edit(typed, ingests, ways):
    """It reads them, and says so with the commands that make them anew; these empty the list."""
    typed.file.write_text(DAYS.replace("available", ingests))
    for span in (1, 2, 4):
        assert "edited-since" not in typed(f"run chain.py --span {span}")
    typed.edit("by=10", "by=99")
    warning = typed("run chain.py --span 5")

    assert "RollingWindow reads 2, 4, made before Scale was edited (parameter by). Make them anew:  " in warning
    shown = typed("window chain.py")
    marked = [line.split()[0] for line in shown.splitlines() if "made before Scale was edited (parameter by)" in line]
    assert marked == ["2", "4"]
    assert ways == re.findall(r"  spanwise (.+)", warning) == re.findall(r"  spanwise (.+)", shown)
    for command in ways:
        typed(command)
    assert "made before" not in typed("window chain.py")
    typed("run chain.py --span 5")
    assert typed.learned == "99 99 99"


def test_an_upgrade_of_spanwise_is_no_edit_of_the_spans_before(typed, monkeypatch):
    """Its components count by the files that it comes with; nobody has edited them."""
    typed.file.write_text(
        DAYS.replace("Ingest()", 'ExampleGen(pattern="day-{SPAN}.csv")')
        .replace("import RollingWindow", "import RollingWindow\nfrom spanwise.components import ExampleGen")
        .replace('scale["features"]', 'ingest["examples"]')
        .replace('recent["features"]', 'recent["examples"]')
        .replace("list[Features]", "list[Examples]")
        .replace('(each.path / "by").read_text()', "str(each.span)")
    )
    for span in (1, 2):
        (typed.folder / f"day-{span}.csv").write_text("a\n1\n")
    typed("run chain.py --span 1")
    monkeypatch.setattr(code_digest, "_content", lambda _folders: "that of another release")
    code_digest.distribution_of.cache_clear()
    try:
        upgraded = typed("run chain.py --span 2")
        assert "edited-since" not in upgraded
        typed.edit('csv")', 'csv", ratios={"all": 1})')
        assert "made before ExampleGen was edited (parameter ratios)" in typed("run chain.py --span 2")
    finally:
        code_digest.distribution_of.cache_clear()
