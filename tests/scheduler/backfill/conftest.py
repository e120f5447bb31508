"""A lake of days and a pipeline that ingests one, checks it, learns from three and puts the model into service."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.run import Run, State
from spanwise.orchestrator.store import Store
from tests.scheduler.conftest import run_warm
from tests.scheduler.histories import live

DAYS = '''
"""Days: each run ingests one, and learns from a window of three."""

import json
import time
from pathlib import Path

from spanwise.orchestrator import Calendar, Component, Examples, Input, Model, Output, Pipeline, Report
from spanwise.orchestrator.errors import SpanNotFound
from spanwise.resolvers import RollingWindow


class Ingest(Component):
    """The newest version of a day: `data/2024-05-01/v2`; one whose file says `broken` fails."""

    prepared = ("span", "version")
    calendar = Calendar.DAY

    def available(self, spans=None):
        found = {}
        for folder in Path(self.parameters["data"]).glob("*/v*"):
            span, version = Calendar.DAY.parse(folder.parent.name), int(folder.name[1:])
            if spans is None or span in spans:
                found[span] = max(version, found.get(span, 0))
        return found

    def prepare(self, run, history):
        there = self.available()
        span = max(there) if run.span is None else run.span
        if span not in there:
            raise SpanNotFound(f"no {Calendar.DAY.label(span)}")
        return {"span": span, "version": there[span]}

    def run(self, *, examples: Output[Examples], span: int, version: int, data: str, work_s: float) -> None:
        said = (Path(data) / Calendar.DAY.label(span) / f"v{version}" / "rows").read_text()
        time.sleep(work_s)
        if said == "broken":
            raise ValueError("these rows are broken")
        (examples.path / "rows").write_text(said)
        examples.span, examples.version, examples.calendar = span, version, "day"
        examples.split_names, examples.rows, examples.columns, examples.fingerprint = ["train"], {"train": 1}, {}, said


class Check(Component):
    def run(self, examples: Input[Examples], report: Output[Report]) -> None:
        (report.path / "text").write_text((examples.path / "rows").read_text())


class Train(Component):
    """Learns by heart what it has read."""

    prepared = ("scratch",)

    def prepare(self, run, history):
        return {"scratch": run.from_scratch}

    def run(self, *, examples: Input[list[Examples]], model: Output[Model], scratch: bool, fail: bool) -> None:
        if fail:
            raise ValueError("as asked for")
        learned = {f"{Calendar.DAY.label(e.span)} v{e.version}": (e.path / "rows").read_text() for e in examples}
        (model.path / "model.json").write_text(json.dumps({"learned": learned, "from_scratch": scratch}, sort_keys=True))
        model.spans = [e.span for e in examples]


class Push(Component):
    cacheable = False

    def run(self, model: Input[Model], report: Output[Report], serving: str) -> None:
        said = (model.path / "model.json").read_text()
        (report.path / "text").write_text(said)
        Path(serving).write_text(said)


def days(
    data: str = "data", serving: str = "serving.json", fail: bool = False, work_s: float = 0.0, name: str = "days"
) -> Pipeline:
    ingest = Ingest(data=data, work_s=work_s)
    check = Check(examples=ingest["examples"])
    recent = RollingWindow(ingest["examples"], size=3, since="2024-05-01", after=[check])
    train = Train(examples=recent["examples"], fail=fail)
    push = Push(model=train["model"], serving=serving)
    return Pipeline(name, [ingest, check, recent, train, push])
'''


@dataclass
class World:
    """A folder with `days.py`, its lake, and the commands that were typed there."""

    folder: Path
    spanwise: Callable[..., tuple[int, str, str]]

    def arrive(self, day: int, version: int = 1, rows: str | None = None) -> None:
        _arrive(self.folder, day, version, rows or f"{day} v{version}")

    def rewrite(self, old: str, new: str) -> None:
        """From now on the pipeline file is another, also for this process."""
        file = self.folder / "days.py"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
        for name in ("days", "pipeline_file_days"):
            sys.modules.pop(name, None)

    def lived(self, days: int) -> None:
        """So many days have passed, each with its run, which was somewhere else: a folder can be copied."""
        assert [path.name for path in self.folder.iterdir()] == ["days.py"]
        live(self.folder, tuple(map(str, range(1, days + 1))), _pass)

    def __call__(self, *words: str) -> tuple[int, str, str]:
        return self.spanwise(*words)

    @property
    def serving(self) -> str:
        return (self.folder / "serving.json").read_text()

    def runs(self) -> list[Run]:
        """All runs, oldest first."""
        with self.store() as store:
            return list(store.runs("days"))[::-1]

    @contextlib.contextmanager
    def store(self) -> Iterator[Store]:
        with contextlib.closing(
            open_store(str(self.folder / ".spanwise" / "metadata.db"), root=self.folder / ".spanwise")
        ) as store:
            yield store

    def states(self) -> list[tuple[str, State]]:
        return [("-" if r.span is None else Calendar.DAY.label(r.span)[-2:], r.state) for r in self.runs()]


def _pass(folder: Path, day: str) -> None:
    _arrive(folder, int(day), 1, f"{day} v1")
    done = run_warm("run", "days.py", "--span", f"2024-05-{day:0>2}", cwd=folder)
    assert done.returncode == 0, done.stderr


def _arrive(folder: Path, day: int, version: int, rows: str) -> None:
    place = folder / "data" / f"2024-05-{day:02}" / f"v{version}"
    place.mkdir(parents=True)
    (place / "rows").write_text(rows)


@pytest.fixture
def world(folder: Path, spanwise: Callable[..., tuple[int, str, str]]) -> World:
    (folder / "days.py").write_text(DAYS)
    return World(folder, spanwise)
