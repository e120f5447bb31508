"""What a component reads of its run is part of its cache key; what it does not read is not."""

import shutil
import subprocess

import pytest

from spanwise.orchestrator import Attempt, Component, Output, Pipeline, Report, Run, component
from spanwise.orchestrator.run_facts import read_run_facts
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.testing import Trial

RUN = Run(pipeline="p", number=9, span=3, parameters={"depth": 7})


def describe(run):
    return f"the weather of span {run.span}"


class Span(Component):
    def run(self, report: Output[Report], attempt: Attempt) -> None:
        (report.path / "text").write_text(str(attempt.run.span))


class Within(Component):
    def run(self, report: Output[Report], attempt: Attempt) -> None:
        (report.path / "text").write_text(" ".join(str(attempt.run.parameters[name]) for name in ("depth",)))


class Stored(Component):
    def run(self, report: Output[Report], attempt: Attempt) -> None:
        run = attempt.run
        (report.path / "text").write_text(str(run.span))


class PassedOn(Component):
    def run(self, report: Output[Report], attempt: Attempt) -> None:
        (report.path / "text").write_text(describe(attempt.run))


@component
def number(report: Output[Report], attempt: Attempt) -> None:
    (report.path / "text").write_text(str(attempt.run.number))


class Scratch(Component):
    """Reads nothing of the run, though it runs a program."""

    def run(self, report: Output[Report], attempt: Attempt) -> None:
        subprocess.run([shutil.which("true")], cwd=attempt.scratch, check=True)
        (report.path / "text").write_text("nothing")


ANY = {"run.span": "3", "run.spans": "{}", "run.parameters": '{"depth":7}'}


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        (Span, {"run.span": "3"}),
        (Within, {"run.parameters": '{"depth":7}'}),
        (Stored, ANY),
        (PassedOn, ANY),
        (number, {"run.number": "9"}),
        (Scratch, {}),
    ],
)
def test_what_is_read_of_a_run_is_found_in_the_code(kind, facts):
    """Where the run is stored or passed on, all of it that results may depend on counts."""
    assert read_run_facts(kind(), RUN) == facts


def test_a_result_for_another_span_is_not_reused(tmp_path):
    """The model of one day learned from the weather of the day before."""
    trial, pipeline = Trial(tmp_path), Pipeline("p", [Span(), Scratch()])
    first, second, third = (trial.run(pipeline, RunRequest(span=span)) for span in (1, 2, 2))

    assert (first.artifact("Span", "report").path / "text").read_text() == "1"
    assert (second.artifact("Span", "report").path / "text").read_text() == "2"
    assert second.artifact("Scratch", "report") == first.artifact("Scratch", "report")
    assert third.artifact("Span", "report") == second.artifact("Span", "report")
