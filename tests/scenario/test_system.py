"""The law of the whole: after any history of commands, what is learned, judged and served is what a model of it says.

A history is generated from a number and driven through the real command line; `SPANWISE_TEST_HISTORIES=2000` is the
long form. A few run with real processes on a real ML Metadata store, the others with the doubles of `inline`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

import pyarrow.parquet as pq
import pytest

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.collection import COLLECTED
from spanwise.orchestrator.renewal import current_of_span
from spanwise.orchestrator.run import Execution, State
from spanwise.orchestrator.store import Address, MemoryStore, Store, is_marked
from spanwise.scheduler.main import main
from spanwise.scheduler.project import root, settings
from tests.scenario.deaths import InlineDeaths, Outage, RealDeaths
from tests.scenario.inline import run_inline
from tests.scenario.system_model import SIZE, Edition, Fails, Learned, SystemModel

HISTORIES = int(os.environ.get("SPANWISE_TEST_HISTORIES", "100"))
REAL = max(2, HISTORIES // 100)
STEPS = 28  # half of them note the moment
FIRST, LAST = 1, 5  # spans
EXAMPLES = Address("system", "Ingest", "examples")
NEWEST = 0.99  # of the models, by the order of their first publication

PIPELINE = '''
"""Ingests, checks, learns what it read, compares the code, pushes."""

import json
from pathlib import Path

import pyarrow.parquet as pq

from spanwise import (
    Blessing, Component, ExampleGen, Examples, Gate, Input, Champion, Model, Output, Pipeline, Pusher, Refused, RollingWindow,
)


def value(examples):
    (found,) = {v for file in examples.path.glob("Split-*/*.parquet") for v in pq.read_table(file)["x"].to_pylist()}
    return found


class Check(Gate):
    def run(self, examples: Input[Examples]) -> None:
        if value(examples) < 0:
            raise Refused("a value is below zero")


class Learn(Component):
    def run(self, examples: Input[list[Examples]], model: Output[Model], code: int) -> None:
        if Path("stop").exists():
            raise RuntimeError("no memory left")
        learned = {"window": [[a.span, a.version, value(a)] for a in examples], "code": code}
        (model.path / "learned.json").write_text(json.dumps(learned))
        model.spans = [a.span for a in examples]


class Judge(Component):
    def run(self, model: Input[Model], champion: Input[Model | None], blessing: Output[Blessing]) -> None:
        codes = [json.loads((m.path / "learned.json").read_text())["code"] for m in (model, champion) if m]
        blessing.blessed = int(codes[0] >= codes[-1])
        blessing.current_model, blessing.current_model_id = model.name, model.id
        blessing.reasons = [] if blessing.blessed else ["the champion has better code"]
        (blessing.path / "codes").write_text(str(codes))


def system(code: int = 1) -> Pipeline:
    ingest = ExampleGen(pattern="lake/{SPAN}/v{VERSION}/*.csv", name="Ingest")
    check = Check(examples=ingest["examples"])
    window = RollingWindow(check["examples"], size=3, since=1, name="Window")
    learn = Learn(examples=window["examples"], code=code)
    champion = Champion(learn["model"])
    judge = Judge(model=learn["model"], champion=champion["model"])
    push = Pusher(model=learn["model"], blessing=judge["blessing"], destination="serving")
    return Pipeline("system", [ingest, check, window, learn, champion, judge, push])
'''


@dataclass(frozen=True)
class Step:
    """One step of a history: what is typed or happens, and how the model follows it."""

    text: str
    take: Callable[[SystemModel], None]  #: does it, on both sides, and compares


class Bench:
    """A folder with the pipeline, a lake, and the command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._settings = settings.read(folder=folder)
        (folder / "system.py").write_text(PIPELINE)

        self.deaths: InlineDeaths | RealDeaths = RealDeaths(folder, self.spanwise)
        self.saved: SystemModel | None = None  #: what was true when the backup was made
        self._loaded: list[str] = []  #: under which names the pipeline's file is imported
        self._values: dict[str, int] = {}  #: of examples, by the digest of their files

    def kill_during(self, words: list[str], moment: float, *, outage: Outage | None = None) -> None:
        if isinstance(self.deaths, RealDeaths):
            self.deaths.kill_during(words, moment)
        else:
            self.deaths.kill_during(lambda: self.spanwise(*words), moment, outage=outage)

    def spanwise(self, *words: str) -> int:
        file = str(self.folder / "system.py")
        self._loaded = self._loaded or [n for n, m in sys.modules.items() if getattr(m, "__file__", None) == file]
        for name in self._loaded:
            sys.modules.pop(name, None)
        return main(list(words))

    def arrive(self, span: int, version: int, value: int) -> None:
        place = self.folder / "lake" / str(span) / f"v{version}"
        place.mkdir(parents=True, exist_ok=True)
        (place / "rows.csv").write_text(f"x\n{value}\n{value}\n{value}\n")

    def vanish(self, span: int, version: int) -> None:
        shutil.rmtree(self.folder / "lake" / str(span) / f"v{version}")

    def accepts(self, span: int, versions: dict[int, int]) -> bool:
        """Whether the newest version of a span in the lake is one that the gate lets pass."""
        file = self.folder / "lake" / str(span) / f"v{versions.get(span)}" / "rows.csv"
        return file.exists() and "-" not in file.read_text()

    def runs(self) -> int:
        """The number of runs so far."""
        with self._opened() as store:
            return next((run.number for run in store.runs("system")), 0)

    def newest_failed(self) -> str | None:
        """The newest run that failed."""
        with self._opened() as store:
            return next((run.name for run in store.runs("system") if run.state is State.FAILED), None)

    def excluded(self) -> frozenset[int]:
        """The spans that the last run has left out."""
        with self._opened() as store:
            return frozenset(map(int, next(store.runs("system")).exclude))

    def failed(self) -> list[str]:
        """The nodes of the last run that failed."""
        return [e.node for e in self._executions().values() if e.state is State.FAILED]

    def ended(self, number: int) -> tuple[dict[str, Execution], list[str]]:
        """The nodes of a run that succeeded, without those of its base run, and those that failed."""
        with self._opened() as store:
            run = store.run("system", number)
            found = {e.node: e for e in store.executions(run) if e.node in run.nodes}
        done = {node: e for node, e in found.items() if e.state.succeeded}
        return done, [node for node, e in found.items() if e.state is State.FAILED]

    def learned(self) -> Learned | None:
        """What the model of the last run learned."""
        trained = self._executions().get("Learn")
        return None if trained is None or not trained.outputs else read(trained.outputs["model"][0].path)

    def _executions(self) -> dict[str, Execution]:
        with self._opened() as store:
            return {execution.node: execution for execution in store.executions(next(store.runs("system")))}

    def models(self) -> list[str]:
        """The names of the models that ordinary runs find and can read, in the order of their publication."""
        with self._opened() as store:
            found = store.newest(Address("system", "Learn", "model"))
            return [a.name for a in found if not is_marked(store, COLLECTED, a)][::-1]

    def checked(self) -> Edition | None:
        """What the gate of the last run has judged, if it is in that run."""
        check = self._executions().get("Check")
        return None if check is None or not check.inputs else self._edition(check.inputs["examples"][0])

    def learned_by(self, model: str) -> Learned:
        with self._opened() as store:
            return read(store.artifact(model).path)

    def gone(self) -> set[Edition]:
        """The editions of which no files are left, as far as they were ever given."""
        gone: set[Edition] = set()
        with self._opened() as store:
            for span in store.spans(EXAMPLES):
                for artifact in current_of_span(store, EXAMPLES, span):
                    edition = self._edition(artifact)
                    (gone.add if is_marked(store, COLLECTED, artifact) else gone.discard)(edition)
        return gone

    def _edition(self, examples: Artifact) -> Edition:
        value = self._values.get(examples.content)
        if value is None:  # the files of each value are the same, whichever span they are of
            files = examples.path.glob("Split-*/*.parquet")
            value = self._values[examples.content] = next(x.as_py() for file in files for x in pq.read_table(file)["x"])
        return Edition(examples.properties["span"], examples.properties["version"], value)

    def foretold(self) -> tuple[Edition, ...] | None:
        """What `spanwise window` says that the next run reads; None where a run would fail."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            code = self.spanwise("window", "system.py", "--json")
        (window,) = json.loads(said.getvalue())
        assert (code == 0) == (window["refusal"] is None)
        if window["refusal"] is not None:
            return None
        with self._opened() as store:
            return tuple(self._edition(store.artifact(each["chosen"]["name"])) for each in window["spans"])

    def serves(self) -> Learned | None:
        versions = [p for p in (self.folder / "serving").glob("*") if p.name.isdigit()]
        return read(max(versions, key=lambda p: int(p.name))) if versions else None

    def _opened(self) -> contextlib.AbstractContextManager[Store]:
        return root.open_for_reading(self._settings)


def read(folder: Path) -> Learned:
    found = json.loads((folder / "learned.json").read_text())
    return Learned(tuple(Edition(*each) for each in found["window"]), found["code"])


class Story:
    """What happens next, drawn by chance: mostly days that pass, with everything that goes wrong between them."""

    WEIGHTS: ClassVar = {
        "pass_day": 8, "skip_day": 1, "correct": 3, "rewrite": 2, "restore": 2, "vanish": 2, "run_again": 3, "change_code": 2,
        "ingest": 2, "backfill": 1, "retrain": 2, "mend": 4, "replay": 1, "accept": 3, "refuse": 1,
        "interrupt": 2, "kill": 4, "collect": 4, "back_up": 1, "restore_backup": 2, "exclude": 1, "bless": 1, "unbless": 2, "push": 2, "backfill_range": 2, "judge_range": 1,
    }  # fmt: skip

    def __init__(self, bench: Bench, chance: random.Random) -> None:
        self.bench, self.chance = bench, chance
        self.code = 1
        self.day = 0
        self.versions: dict[int, int] = {}  #: the newest in the lake, by span
        self.moments: list[Moment] = []
        self.saved: int | None = None  #: how many moments there were when the backup was made

    def steps(self) -> Iterator[Step]:
        """Endlessly."""
        while True:
            self.moments.append(Moment())
            yield self.moments[-1].step()
            (kind,) = self.chance.choices(list(self.WEIGHTS), list(self.WEIGHTS.values()))
            yield from getattr(self, f"_{kind}")()

    def _value(self) -> int:
        return self.chance.choice([1, 2, 3, 4, -1])

    def _outage(self) -> Outage | None:
        """Most of the time there is none: the command dies instead."""
        return self.chance.choice([None, None, None, "once", "from then on"])

    def _span(self) -> int:
        return self.chance.randint(FIRST, max(self.day, FIRST))

    def _arrive(self, span: int, value: int) -> Iterator[Step]:
        yield arrival(self.bench, span, self.versions[span], value)

    def _pass_day(self, days: int = 1) -> Iterator[Step]:
        if self.day < LAST:
            self.day += days
            self.versions[self.day] = 1
            yield from self._arrive(self.day, self._value())
            yield run(self.bench, self.day, self.code)

    def _skip_day(self) -> Iterator[Step]:
        yield from self._pass_day(days=2)

    def _correct(self, versions: int = 1) -> Iterator[Step]:
        if (span := self._span()) in self.versions:
            self.versions[span] += versions
            yield from self._arrive(span, self._value())
            yield run(self.bench, span, self.code)

    def _rewrite(self) -> Iterator[Step]:
        yield from self._correct(versions=0)

    def _restore(self) -> Iterator[Step]:
        """Rewrites the newest day and puts back what was there: A, B, A."""
        if (span := self.day) in self.versions:
            for value in (first := abs(self._value()), first % 4 + 1, first):
                yield from self._arrive(span, value)
                yield run(self.bench, span, self.code)

    def _vanish(self) -> Iterator[Step]:
        span = self._span()
        if self.versions.get(span, 0) == 1:
            self.versions[span] = 2
            yield from self._arrive(span, abs(self._value()))
            yield run(self.bench, span, self.code)
        if self.versions.get(span, 0) > 1:
            yield departure(self.bench, span, self.versions[span])
            self.versions[span] -= 1
            yield run(self.bench, span, self.code)

    def _run_again(self) -> Iterator[Step]:
        yield run(self.bench, self._span(), self.code)

    def _backfill(self) -> Iterator[Step]:
        if (span := self._span()) in self.versions:
            yield backfill(self.bench, span, self.code)

    def _backfill_range(self) -> Iterator[Step]:
        """Once a span of it was corrected, which the gate may refuse in the middle of the backfill."""
        first, last = sorted((self._span(), max(self.day, FIRST)))
        if (span := self.chance.randint(first, last)) in self.versions:
            self.versions[span] += 1
            yield from self._arrive(span, self._value())
        once = self.chance.choice([["--train-once"], []])
        words = ["backfill", "system.py", "--span", f"{first}..{last}", "--param", f"code={self.code}", *once]
        yield observation(self.bench, words)

    def _judge_range(self) -> Iterator[Step]:
        """Of the window, or of any range; what is refused is accepted again, most of the time."""
        days = (max(FIRST, self.day - SIZE + 1), max(self.day, FIRST))
        for kind in self.chance.choice([("refuse", "accept"), ("refuse", "accept"), ("refuse",)]):
            first, last = self.chance.choice([days, days, sorted((self._span(), self._span()))])
            yield range_verdict(self.bench, kind, first, last)
        yield run(self.bench, max(self.day, FIRST), self.code)

    def _change_code(self) -> Iterator[Step]:
        self.code = self.chance.randint(1, 3)
        yield run(self.bench, max(self.day, FIRST), self.code)

    def _ingest(self) -> Iterator[Step]:
        yield ingestion(self.bench, self._span(), self.code)

    def _retrain(self) -> Iterator[Step]:
        first = self.chance.choice(["Window", "Learn", "Judge"])
        yield retraining(self.bench, ["run", "system.py", "--param", f"code={self.code}", "--from", first])

    def _mend(self) -> Iterator[Step]:
        if not self.day:
            return
        window = range(max(FIRST, self.day - SIZE + 1), self.day + 1)
        for span in [span for span in window if not self.bench.accepts(span, self.versions)]:
            self.versions[span] = self.versions.get(span, 0) + 1
            yield from self._arrive(span, abs(self._value()))
            yield ingestion(self.bench, span, self.code)
        yield resumption(self.bench)

    def _replay(self) -> Iterator[Step]:
        yield replay(self.bench, self.chance.choice(self.moments), self.code + 10)  # which no ordinary run trains

    def _accept(self) -> Iterator[Step]:
        yield verdict(self.bench, "accept", self._span())

    def _refuse(self) -> Iterator[Step]:
        yield verdict(self.bench, "refuse", self._span())

    def _interrupt(self) -> Iterator[Step]:
        self.code = self.chance.randint(1, 3)
        yield interruption(self.bench, max(self.day, FIRST), self.code)
        yield from self.chance.choice([self._correct, self._refuse, self._ingest])()
        yield resumption(self.bench)

    def _exclude(self) -> Iterator[Step]:
        yield exclusion(self.bench, max(self.day, FIRST), self.code, self._span())

    def _bless(self) -> Iterator[Step]:
        """A model that its Evaluator did not bless, because the one before it has better code."""
        self.code = self.chance.choice([1, 2])
        for code in (3, self.code):
            yield run(self.bench, max(self.day, FIRST), code)
        yield blessing(self.bench, "bless", self.chance.choice([NEWEST, self.chance.random()]))
        yield run(self.bench, max(self.day, FIRST), self.code)

    def _unbless(self) -> Iterator[Step]:
        """The newest, and another takes its place."""
        yield blessing(self.bench, "unbless", NEWEST)
        yield push(self.bench, self.chance.choice([None, self.chance.random()]))
        yield run(self.bench, max(self.day, FIRST), self.code)

    def _kill(self) -> Iterator[Step]:
        """A run or backfill dies somewhere, or loses the metadata; then something else is done, or the same once more."""
        span, moment = max(self.day, FIRST), self.chance.random()
        words = ["run", "system.py", "--param", f"code={self.code}"]
        kind = self.chance.choice(["run", "run", "correct", "ingest", "train", "backfill"])
        if kind == "correct" and span in self.versions:
            self.versions[span] += 1
            yield from self._arrive(span, self._value())
        more = {"ingest": ["--to", "Check"], "train": ["--from", "Window"]}.get(kind, [])
        named = [] if kind == "train" else ["--span", str(span)]
        if kind == "backfill":
            words[0], moment = "backfill", 3 * moment  # it may make several runs
            named, more = ["--span", f"{self._span()}..{span}"], self.chance.choice([["--train-once"], []])
        yield death(self.bench, [*words, *named, *more], moment, outage=self._outage())
        if self.chance.random() < 0.5:
            yield run(self.bench, span, self.code)

    def _back_up(self) -> Iterator[Step]:
        yield backup(self.bench)
        self.saved = len(self.moments)

    def _restore_backup(self) -> Iterator[Step]:
        yield restoration(self.bench)
        if self.saved is not None:
            del self.moments[self.saved :]  # what was true then is of a history that nobody knows any more

    def _push(self) -> Iterator[Step]:
        yield push(self.bench, self.chance.random())

    def _collect(self) -> Iterator[Step]:
        """With the file of the pipeline, what its window wants is kept; the next run needs it."""
        by_file, died = self.chance.random() < 0.7, self.chance.random() < 0.2
        words = [
            "gc",
            "system.py" if by_file else "system",
            "--keep-younger",
            "0s",
            "--keep-last",
            self.chance.choice("001"),
        ]
        outage = self._outage()
        yield collection(self.bench, words, self.chance.random() if died else None, outage=outage)
        if by_file:
            yield run(self.bench, max(self.day, FIRST), self.code)


class Moment:
    """A moment of the past, and what was true then."""

    def step(self) -> Step:
        return Step("", self._note)

    def _note(self, model: SystemModel) -> None:
        self.time, self.model = datetime.now(UTC), model.copy()


def arrival(bench: Bench, span: int, version: int, value: int) -> Step:
    def take(model: SystemModel) -> None:
        bench.arrive(span, version, value)
        model.arrive(span, version, value)

    return Step(f"v{version} of {span} arrives: {value}", take)


def departure(bench: Bench, span: int, version: int) -> Step:
    def take(model: SystemModel) -> None:
        bench.vanish(span, version)
        model.vanish(span, version)

    return Step(f"v{version} of {span} is removed from the lake", take)


def run(bench: Bench, span: int, code: int) -> Step:
    words = ["run", "system.py", "--span", str(span), "--param", f"code={code}"]
    return strictly(bench, words, lambda model: model.run(span, code))


def backfill(bench: Bench, span: int, code: int) -> Step:
    words = ["backfill", "system.py", "--span", str(span), "--param", f"code={code}"]
    return strictly(bench, words, lambda model: model.backfill(span, code))


def ingestion(bench: Bench, span: int, code: int) -> Step:
    words = ["run", "system.py", "--span", str(span), "--param", f"code={code}", "--to", "Check"]
    return strictly(bench, words, lambda model: model.ingest(span) and None)


def verdict(bench: Bench, kind: str, span: int) -> Step:
    words = [kind, "system.py", "--span", str(span), "--because", "looked at"]
    return strictly(bench, words, lambda model: model.judge(lambda _: kind == "accept", span))


def range_verdict(bench: Bench, kind: str, first: int, last: int) -> Step:
    def judge(model: SystemModel) -> None:
        there = [span for span in range(first, last + 1) if model.current(span) is not None]
        for span in there:
            model.judge(lambda _: kind == "accept", span)
        if not there:
            raise Fails("")

    return strictly(bench, [kind, "system.py", "--span", f"{first}..{last}", "--because", "looked at"], judge)


def observation(bench: Bench, words: list[str]) -> Step:
    """A command that makes several runs, or none, by its own plan; of each it is known how it ends."""

    def take(model: SystemModel) -> None:
        before, refused = bench.runs(), False
        code = bench.spanwise(*words)
        for number in range(before + 1, bench.runs() + 1):
            done, failed = bench.ended(number)
            if "Ingest" in done:
                (span,) = (a.properties["span"] for a in done["Ingest"].outputs["examples"])
                try:
                    model.ingest(span)
                except Fails:
                    refused = True
                    assert failed == ["Check"]
            tried = "Window" in failed or "Learn" in done
            assert not (refused and tried and "--train-once" in words), "training began without a span that it needs"
            if "Learn" in done:
                learned = read(done["Learn"].outputs["model"][0].path)
                assert learned.window == model.window(), f"run {number} learned {learned}"
                model.train(learned.window, learned.code)
        assert code != 0 or not refused

    return Step(f"spanwise {' '.join(words)}", take)


def interruption(bench: Bench, span: int, code: int) -> Step:
    """A run whose training fails, unless it finds its model in the cache."""

    def take(model: SystemModel) -> None:
        stop = bench.folder / "stop"
        stop.touch()
        try:
            strictly(bench, words, lambda model: model.run(span, code, breaks=True)).take(model)
        finally:
            stop.unlink()

    words = ["run", "system.py", "--span", str(span), "--param", f"code={code}"]
    return Step(f"spanwise {' '.join(words)}, where nothing can be trained", take)


def exclusion(bench: Bench, span: int, code: int, excluded: int) -> Step:
    words = ["run", "system.py", "--span", str(span), "--param", f"code={code}", "--exclude", str(excluded)]
    return strictly(bench, words, lambda model: model.run(span, code, exclude=frozenset({excluded})))


def blessing(bench: Bench, kind: str, chance: float) -> Step:
    """A person blesses one of the models, or takes its blessing back."""

    def take(model: SystemModel) -> None:
        if model.trained:
            place = model.any_model(chance)
            learned, words = model.trained[place], [kind, bench.models()[place], "--because", "looked at"]
            strictly(bench, words, lambda model: model.rule(learned, given=kind == "bless")).take(model)

    return Step(f"spanwise {kind} the model at {chance:.2f} of all", take)


def push(bench: Bench, chance: float | None) -> Step:
    """A person pushes one of the models; None: the newest blessed one that does not serve, if there is one."""

    def take(model: SystemModel) -> None:
        if model.trained:
            place = model.spare_model() if chance is None else model.any_model(chance)
            learned, words = model.trained[place], ["push", bench.models()[place], "--because", "looked at"]
            strictly(bench, words, lambda model: model.push(learned)).take(model)

    return Step("spanwise push " + ("a spare model" if chance is None else f"the model at {chance:.2f} of all"), take)


def strictly(bench: Bench, words: list[str], expect: Callable[[SystemModel], Learned | None]) -> Step:
    """A command of which the model knows how it ends, where it fails and what it learns."""

    def take(model: SystemModel) -> None:
        try:
            learned, fails = expect(model), None
        except Fails as error:
            learned, fails = None, str(error)
        code = bench.spanwise(*words)
        assert (code == 0) == (fails is None), f"exit code {code}, expected {f'a failure at {fails}' if fails else 0}"
        if fails:
            assert bench.failed() == [fails]
        if learned is not None:
            assert bench.learned() == learned

    return Step(f"spanwise {' '.join(words)}", take)


def death(bench: Bench, words: list[str], moment: float, *, outage: Outage | None) -> Step:
    """A command that dies at a moment, or to which the metadata are away, for one call or from then on.

    What was recorded holds, and nothing else; the next command copes.
    """

    def take(model: SystemModel) -> None:
        before = bench.runs()
        bench.kill_during(words, moment, outage=outage)
        for number in range(before + 1, bench.runs() + 1):
            done, _ = bench.ended(number)
            judged, learned = None, None
            if "Ingest" in done:
                (span,) = (a.properties["span"] for a in done["Ingest"].outputs["examples"])
                version = max(model.lake[span])
                judged = Edition(span, version, model.lake[span][version])
                model.give(judged)
            if "Learn" in done:
                learned = read(done["Learn"].outputs["model"][0].path)
                model.follow(None, done, judged)
                assert learned.window == model.window(), f"run {number} learned {learned}"
            model.follow(learned, done, judged)
            if learned is not None and number == bench.runs() and bench.serves() != model.serves:
                assert bench.serves() == learned, "something else serves than what was being pushed"
                assert "Judge" in done
                model.serve(learned, recorded=False)

    return Step(f"spanwise {' '.join(words)}, {ended_by(outage)} {moment:.3f}", take)


def ended_by(outage: Outage | None) -> str:
    return "killed at" if outage is None else f"without metadata {outage}, at"


def collection(bench: Bench, words: list[str], moment: float | None, *, outage: Outage | None) -> Step:
    """A collection that keeps nothing for its own sake, or one that dies or loses the metadata."""

    def take(model: SystemModel) -> None:
        if not bench.runs():
            return
        assert bench.gone() == model.gone
        wanted = {edition for span in model.wanted() if (edition := model.current(span)) is not None} - model.gone
        if moment is None:
            assert bench.spanwise(*words) == 0
        else:
            bench.kill_during(words, moment, outage=outage)
        model.collect(bench.gone(), {bench.learned_by(name) for name in bench.models()})
        assert not ("system.py" in words and wanted & model.gone), "the window wants what was collected"

    return Step(f"spanwise {' '.join(words)}" + ("" if moment is None else f", {ended_by(outage)} {moment:.3f}"), take)


def backup(bench: Bench) -> Step:
    def take(model: SystemModel) -> None:
        if bench.runs():
            bench.deaths.back_up()
            bench.saved = model.copy()

    return Step("a backup is made", take)


def restoration(bench: Bench) -> Step:
    """Root and metadata are as they were; the lake and what serves have gone on."""

    def take(model: SystemModel) -> None:
        if bench.saved is not None:
            bench.deaths.restore()
            (bench.folder / "serving" / ".spanwise" / "fences.json").unlink(missing_ok=True)  # as the docs say
            model.restore(bench.saved)

    return Step("the backup is restored", take)


def resumption(bench: Bench) -> Step:
    """The newest run that failed is resumed, whatever has happened since."""

    def take(model: SystemModel) -> None:
        failed = bench.newest_failed()
        if failed is not None:
            retraining(bench, ["resume", failed]).take(model)

    return Step("spanwise resume the newest run that failed", take)


def retraining(bench: Bench, words: list[str]) -> Step:
    """A command that may refuse, by its own rules; when it trains, it learns the window of this moment."""

    def take(model: SystemModel) -> None:
        before = bench.runs()
        if bench.spanwise(*words) == 0 and bench.runs() > before and (learned := bench.learned()) is not None:
            if (checked := bench.checked()) is not None:  # by a resumed run that had died before
                model.check(checked)
            assert learned.window == model.window(bench.excluded())
            model.train(learned.window, learned.code)

    return Step(f"spanwise {' '.join(words)}", take)


def replay(bench: Bench, moment: Moment, code: int) -> Step:
    """A run as of a moment: what it learns was the window then, and nothing follows from it."""

    def take(model: SystemModel) -> None:
        words = ["run", "system.py", "--param", f"code={code}", "--from", "Window", "--to", "Learn"]
        if bench.spanwise(*words, "--as-of", moment.time.isoformat()) == 0:
            learned = bench.learned()
            assert learned is not None
            assert learned.window == moment.model.window()

    return Step("spanwise run system.py --from Window --to Learn --as-of an earlier moment", take)


def drive(bench: Bench, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Drives a history through the command line and the model side by side."""
    model, past = SystemModel(), []
    for step, _ in zip(Story(bench, random.Random(number)).steps(), range(STEPS), strict=False):
        past += [step.text] if step.text else []
        try:
            step.take(model)
            assert bench.serves() == model.serves
            assert len(bench.models()) == len(model.trained), (
                "each is published once, and what a replay makes is none of them"
            )
            if step.text and len(past) % 3 == 0 and bench.runs():  # a third of the steps, as it takes its time
                assert bench.foretold() == foretell(model)
        except (AssertionError, Fails) as error:
            said = "".join(capsys.readouterr())
            raise AssertionError("\n".join([f"history {number}:", *past, repr(error), said[-3000:]])) from None
        capsys.readouterr()


def foretell(model: SystemModel) -> tuple[Edition, ...] | None:
    """What the next run reads; None where it would fail."""
    try:
        return model.window()
    except Fails:
        return None


@pytest.mark.parametrize("number", range(HISTORIES))
def test_any_history_is_what_the_model_says(tmp_path, monkeypatch, capsys, number):
    """What is learned, judged and served after each step is what a hundred lines say it must be."""
    monkeypatch.chdir(tmp_path)

    store = run_inline(monkeypatch)
    bench = Bench(tmp_path)
    assert isinstance(store, MemoryStore)
    bench.deaths = InlineDeaths(tmp_path, store, monkeypatch)

    drive(bench, number, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(REAL))
def test_the_same_holds_with_processes_and_ml_metadata(tmp_path, monkeypatch, capsys, number):
    """The doubles hide nothing: the same histories with the real executor and the real store."""
    monkeypatch.chdir(tmp_path)

    drive(Bench(tmp_path), number, capsys)
