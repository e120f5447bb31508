"""A pipeline of five small nodes that ingests a day and learns from seven. What `benchmarks.backfill` runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import ClassVar

from spanwise.orchestrator import Calendar, Component, Examples, History, Input, Model, Output, Pipeline, Report
from spanwise.orchestrator.run import Run
from spanwise.resolvers import RollingWindow

FIRST = Calendar.DAY.parse("2024-01-01")


class Ingest(Component):
    """The newest version of a day, of a folder with one empty file for each: `<span>.<version>`."""

    prepared: ClassVar = ("span", "version")
    calendar = Calendar.DAY

    def available(self, spans: Collection[int] | None = None) -> Mapping[int, int | None]:
        found: dict[int, int | None] = {}
        for file in Path(str(self.parameters["data"])).iterdir():
            span, version = (int(part) for part in file.name.split("."))
            if spans is None or span in spans:
                found[span] = max(version, found.get(span) or 0)
        return found

    def prepare(self, run: Run, history: Callable[[str], History]) -> Mapping[str, object]:  # noqa: ARG002
        assert run.span is not None
        return {"span": run.span, "version": self.available([run.span])[run.span]}

    def run(self, *, examples: Output[Examples], span: int, version: int, data: str, work_s: float) -> None:  # noqa: ARG002
        time.sleep(work_s)
        (examples.path / "rows").write_text(str(span))
        examples.span, examples.version, examples.calendar = span, version, "day"
        examples.split_names = ["train"]


class Check(Component):
    def run(self, examples: Input[Examples], report: Output[Report]) -> None:
        (report.path / "text").write_text((examples.path / "rows").read_text())


class Train(Component):
    def run(self, *, examples: Input[list[Examples]], model: Output[Model], work_s: float) -> None:
        time.sleep(work_s)
        (model.path / "sum").write_text(str(sum(int((e.path / "rows").read_text()) for e in examples)))


class Push(Component):
    cacheable = False

    def run(self, model: Input[Model], report: Output[Report], serving: str) -> None:
        (report.path / "text").write_text("pushed")
        Path(serving).write_text((model.path / "sum").read_text())


def days(data: str, serving: str, work_s: float = 0.0, name: str = "days") -> Pipeline:
    ingest = Ingest(data=data, work_s=work_s)
    check = Check(examples=ingest["examples"])
    recent = RollingWindow(ingest["examples"], size=7, since=FIRST, after=[check])
    train = Train(examples=recent["examples"], work_s=work_s)
    push = Push(model=train["model"], serving=serving)
    return Pipeline(name, [ingest, check, recent, train, push])
