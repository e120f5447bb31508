"""A law of one answer: whoever is asked about a fact, a command, the client, the page or the metrics, says the same.

A history is generated from a number and driven through the real command line, beside a page of rules that say what is
true of models, spans and runs. After each step all are asked, also a page that has been open since the first step.
`SPANWISE_TEST_FACTS=300` is the long form.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spanwise.orchestrator.run import Run, State
from spanwise.orchestrator.serving import pushes
from spanwise.orchestrator.store import MemoryStore
from spanwise.scheduler.client import Client
from spanwise.scheduler.ledger.schedule_status import read_status
from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule
from spanwise.scheduler.main import main
from spanwise.scheduler.project import root, settings
from spanwise.scheduler.run import openlineage
from spanwise.scheduler.schedule.span_rule import days_before
from spanwise.scheduler.schedule.timetable import Timetable
from spanwise.scheduler.web.access import make_policy
from spanwise.scheduler.web.api import find_endpoint
from spanwise.scheduler.web.queries.overview import read_overview
from spanwise.scheduler.web.site import Ask, WebSite
from tests.scenario.deaths import InlineDeaths, Outage
from tests.scenario.inline import run_inline

HISTORIES = int(os.environ.get("SPANWISE_TEST_FACTS", "3"))
STEPS = 16
SIZE = 2  # spans of the window
MANY = 21  # runs that do something else
OUTAGES: tuple[Outage | None, ...] = (None, "once", "from then on")
ENDS = {State.COMPLETE: "COMPLETE", State.CACHED: "COMPLETE", State.FAILED: "FAIL"}

PIPELINE = '''
"""Ingests, checks, learns what it read, judges, exports, pushes."""

from pathlib import Path

from spanwise import Blessing, Champion, Component, Evaluation, Examples, Gate, Input, Model, Output, Pipeline, Pusher, Refused
from spanwise import RollingWindow
from tests.scenario.random_life import Ingest, read_text


class Check(Gate):
    def run(self, examples: Input[Examples]) -> None:
        if read_text(examples).endswith("bad"):
            raise Refused("it is bad")


class Learn(Component):
    def run(self, examples: Input[list[Examples]], model: Output[Model], score: int, method: str) -> None:
        (model.path / "score").write_text(str(score))
        (model.path / "method").write_text(method)
        (model.path / "window").write_text(" ".join(map(read_text, examples)))
        model.spans = [a.span for a in examples]


class Judge(Component):
    cacheable = False

    def run(
        self, model: Input[Model], baseline: Input[Model | None], evaluation: Output[Evaluation],
        blessing: Output[Blessing],
    ) -> None:
        if Path("stop").exists():
            raise RuntimeError("no memory left")
        score, *rival = [int((m.path / "score").read_text()) for m in (model, baseline) if m]
        evaluation.metrics = {"auc": score / 10}
        evaluation.baseline_metrics = {"auc": rival[0] / 10} if rival else None
        blessing.blessed = int(not rival or score >= rival[0])
        blessing.reasons = [] if blessing.blessed else ["the champion is better"]
        blessing.current_model, blessing.current_model_id = model.name, model.id
        for made in (evaluation, blessing):
            (made.path / "scores").write_text(f"{score} {rival}")


class Export(Component):
    def run(self, model: Input[Model], exported: Output[Model]) -> None:
        for name in ("score", "method", "window"):
            (exported.path / name).write_text((model.path / name).read_text())


def facts(score: int = 1, trainer: str = "Learn", pusher: str = "Pusher") -> Pipeline:
    ingest = Ingest(lake="lake")
    check = Check(examples=ingest["examples"])
    window = RollingWindow(check["examples"], size=2, since=1, name="Window")
    learn = Learn(examples=window["examples"], score=score, method=trainer, name=trainer)
    export = Export(model=learn["model"])
    champion = Champion(export["exported"])
    judge = Judge(model=learn["model"], baseline=champion["exported"])
    push = Pusher(model=export["exported"], blessing=judge["blessing"], destination="serving", name=pusher)
    return Pipeline("facts", [ingest, check, window, learn, export, champion, judge, push])
'''


class Fails(Exception):
    """A run fails at the node that the message names."""


@dataclass(frozen=True)
class Edition:
    """What a version of a span held."""

    span: int
    version: int
    text: str

    @property
    def content(self) -> str:
        return f"{self.span}v{self.version}{self.text}"


@dataclass
class Trained:
    """A model."""

    name: str
    run: int
    trainer: str
    window: tuple[Edition, ...]
    score: int
    exported: str = ""
    auc: float | None = None  #: as it was judged last
    baseline: float | None = None
    judged: bool | None = None

    @property
    def same(self) -> tuple[object, ...]:
        """What models that are the same have in common."""
        return self.trainer, self.window, self.score


@dataclass
class Truth:
    """What is true, by a page of rules."""

    lake: dict[int, Edition] = field(default_factory=dict)
    given: list[Edition] = field(default_factory=list)  #: in the order in which runs were given them last
    accepted: dict[Edition, bool] = field(default_factory=dict)  #: by the gate
    overruled: dict[Edition, bool] = field(default_factory=dict)  #: by a person
    asked: dict[int, tuple[State, bool]] = field(
        default_factory=dict
    )  #: by span: the last run of it, and if it was refused
    models: list[Trained] = field(default_factory=list)
    ruled: dict[object, bool] = field(default_factory=dict)  #: by a person, of models that are the same
    pushed: list[tuple[Trained, int]] = field(default_factory=list)  #: with the run that pushed it
    window: tuple[Edition, ...] = ()  #: of the newest run that has a model
    collected: set[str] = field(default_factory=set)  #: names of artifacts
    states: list[State] = field(default_factory=list)  #: of runs

    def holds(self, edition: Edition) -> bool:
        return self.overruled.get(edition, self.accepted.get(edition, False))

    def current(self, span: int) -> Edition | None:
        newest = max((e.version for e in self.given if e.span == span), default=None)
        return next((e for e in reversed(self.given) if (e.span, e.version) == (span, newest)), None)

    def ingest(self, span: int) -> None:
        if span not in self.lake:
            raise Fails("Ingest")
        edition = self.lake[span]
        self.give(edition)
        if edition not in self.overruled:
            self.accepted[edition] = edition.text != "bad"
        if not self.holds(edition):
            raise Fails("Check")

    def give(self, edition: Edition) -> None:
        if edition in self.given:
            self.given.remove(edition)
        self.given.append(edition)

    def find_window(self) -> tuple[Edition, ...]:
        end = max((e.span for e in self.given), default=0)
        found = [self.current(span) for span in range(max(1, end - SIZE + 1), end + 1)]
        if not found or not all(e is not None and self.holds(e) for e in found):
            raise Fails("Window")
        return tuple(e for e in found if e is not None)

    def learn(self, trainer: str, score: int) -> Trained:
        window = self.find_window()
        known = (
            m for m in reversed(self.models) if m.same == (trainer, window, score) and m.name not in self.collected
        )
        model = next(known, None)
        if model is None:
            place = sum(m.trainer == trainer for m in self.models) + 1
            model = Trained(f"facts/{trainer}/model/{place}", len(self.states), trainer, window, score)
            self.models.append(model)
        self.window = window
        return model

    def is_blessed(self, model: Trained) -> bool | None:
        return self.ruled.get(model.same, model.judged)

    def champion(self, candidate: Trained) -> Trained | None:
        served = (m for m, _ in reversed(self.pushed) if self.ruled.get(m.same, True) and m is not candidate)
        return next(served, None)

    def judge(self, model: Trained) -> None:
        rival = self.champion(model)
        model.auc, model.baseline = model.score / 10, None if rival is None else rival.score / 10
        model.judged = rival is None or model.score >= rival.score

    def push(self, model: Trained) -> None:
        if self.is_blessed(model) and self.serves is not model:
            self.pushed.append((model, len(self.states)))

    @property
    def serves(self) -> Trained | None:
        return self.pushed[-1][0] if self.pushed else None

    def status(self, span: int) -> str:
        """Of a span on the page."""
        edition, run = self.current(span), self.asked.get(span, 0)
        state = self.states[run - 1] if run else State.COMPLETE
        if state is State.RUNNING:
            return "running"
        if edition is None:
            return "failed" if state is not State.COMPLETE else "missing"
        learned = [e for e in (self.serves.window if self.serves else ()) if e.span == span]
        if (edition in self.accepted or edition in self.overruled) and not self.holds(edition):
            return "tainted" if edition in learned else "refused"
        return "tainted" if any(e != edition for e in learned) else "ingested"


class Life:
    """A history, on both sides."""

    def __init__(self, folder: Path, store: MemoryStore, chance: random.Random, deaths: InlineDeaths) -> None:
        self.folder, self.store, self.chance, self.deaths = folder, store, chance, deaths
        self.truth = Truth()
        self.log: list[str] = []
        self.score, self.trainer, self.pusher = 1, "Learn", "Pusher"
        self.moments = [datetime.now(UTC)]
        self.pinned: set[str] = set()
        self.unsent: set[str] = set()  #: the runs that died once their end was recorded, until another run begins
        (folder / "facts.py").write_text(PIPELINE)
        (folder / "lake").mkdir()
        self.opened = [Client(settings.read(folder=folder)) for _ in range(2)]
        self.kept, _ = self.sites = [WebSite(each, make_policy("127.0.0.1", tokens={})) for each in self.opened]
        self.load_schedule()

    def load_schedule(self) -> None:
        """A scheduler reads the file."""
        table = Timetable("facts", cron="0 3 * * *", span=days_before(1), freshness=timedelta(days=1))
        pushes = (f"{self.pusher}/pushed_model",)
        put_schedule(self.store, ScheduleRecord(timetable=table, since=datetime.now(UTC), pushes=pushes))

    def spanwise(self, *words: str) -> int:
        self.log.append(" ".join(words))
        file = str(self.folder / "facts.py")
        for name in [n for n, m in sys.modules.items() if getattr(m, "__file__", None) == file]:
            del sys.modules[name]
        return main(list(words))

    def ask(self, *words: str) -> Any:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            main([*words, "--json"])
        return json.loads(said.getvalue())

    # --- what happens

    def step(self) -> None:
        kinds = {self.pass_day: 5, self.correct: 3, self.retrain: 3, self.ingest: 2, self.stop_judge: 2, self.judge_again: 2,
                 self.replay: 1, self.rule: 3, self.roll_back: 2, self.judge_span: 2, self.collect: 2, self.pin: 1, self.rename: 1,
                 self.die: 2, self.interrupt: 3, self.do_something_else: 1}  # fmt: skip
        (kind,) = self.chance.choices(list(kinds), list(kinds.values()))
        (kind if self.truth.states else self.pass_day)()
        self.check()

    def arrive(self, span: int, version: int) -> None:
        text = self.chance.choice(["a", "b", "c", "bad"])
        self.truth.lake[span] = Edition(span, version, text)
        (self.folder / "lake" / str(span)).write_text(f"{version} {text}")

    def type_run(self, *words: str) -> int:
        names = {"score": self.score, "trainer": self.trainer, "pusher": self.pusher}
        return self.spanwise("run", "facts.py", *words, *(w for n, v in names.items() for w in ("--param", f"{n}={v}")))

    def begin(self, *, run: bool = True) -> None:
        """A command takes the lease and closes a run that was left open; a run also sends what one has not sent."""
        if run:
            self.unsent.clear()
        self.truth.states = [State.FAILED if state is State.RUNNING else state for state in self.truth.states]

    def run(self, span: int, *words: str, stopped: bool = False) -> None:
        truth, fails = self.truth, ""
        self.begin()
        truth.states.append(State.COMPLETE)
        truth.asked[span] = len(truth.states)
        try:
            truth.ingest(span)
            if not words:
                model = truth.learn(self.trainer, self.score)
                fails = "Judge" if stopped else ""
                if not stopped:
                    truth.judge(model)
                    truth.push(model)
        except Fails as error:
            fails = str(error)
        if fails:
            truth.states[-1] = State.FAILED
        code = self.type_run("--span", str(span), *words)
        assert (code == 0) == (not fails), f"exit code {code}, expected {fails or 'success'}"

    def follow(self) -> None:
        """What the newest run has recorded, which the model did not foresee, as far as it came."""
        truth = self.truth
        newest = next(self.store.runs("facts"))
        if newest.number == len(truth.states):  # refused, with the lease or before
            truth.states[-1] = newest.state
            return
        self.begin()
        truth.states.append(newest.state)
        done = {e.node: e for e in self.store.executions(newest) if e.state.succeeded and e.node in newest.nodes}
        failed = {e.node for e in self.store.executions(newest) if e.state is State.FAILED}
        if newest.span is not None:
            truth.asked[newest.span] = newest.number
        if "Ingest" in done and newest.span is not None:
            edition = truth.lake[newest.span]
            truth.give(edition)
            is_bad = edition.text == "bad"
            if edition not in truth.overruled and "Check" in (failed if is_bad else done):
                truth.accepted[edition] = not is_bad
        model = truth.learn(self.trainer, self.score) if self.trainer in done else None
        if "Judge" in done:
            read = done["Judge"].inputs["model"][0].name
            model = next(m for m in truth.models if m.name == read)
            truth.judge(model)
        if self.pusher in done:
            read = done[self.pusher].inputs["model"][0]
            truth.push(next((m for m in truth.models if m.exported == read.name), model or truth.models[-1]))

    def pass_day(self) -> None:
        if len(self.truth.lake) < 6:
            self.arrive(len(self.truth.lake) + 1, 1)
        self.run(len(self.truth.lake))

    def correct(self) -> None:
        span = self.chance.randint(max(1, len(self.truth.lake) - SIZE), len(self.truth.lake))
        self.arrive(span, self.truth.lake[span].version + 1)
        self.run(span)

    def retrain(self) -> None:
        self.score = self.chance.randint(1, 3)
        self.run(len(self.truth.lake))

    def ingest(self) -> None:
        self.run(self.chance.randint(1, len(self.truth.lake)), "--to", "Check")

    def stop_judge(self) -> None:
        """The models of a run are judged by another one, which resumes it."""
        self.score = self.chance.randint(1, 3)
        (self.folder / "stop").touch()
        self.run(len(self.truth.lake), stopped=True)
        (self.folder / "stop").unlink()
        self.check()
        self.spanwise("resume", "facts")
        self.follow()

    def judge_again(self) -> None:
        self.type_run("--from", "Champion")
        self.follow()

    def replay(self) -> None:
        """What was true then, which says nothing of today."""
        self.type_run("--from", "Window", "--to", "Judge", "--as-of", self.chance.choice(self.moments).isoformat())
        newest = next(self.store.runs("facts"))
        if newest.number > len(self.truth.states):
            self.begin()
            self.truth.states.append(newest.state)
        self.truth.states[-1] = newest.state

    def die(self) -> None:
        """What a run has recorded holds."""
        moment, outage = self.chance.random(), self.chance.choice(OUTAGES)
        there = [m.exported for m in self.truth.models if m.exported and m.exported not in self.truth.collected]
        span, before = str(len(self.truth.lake)), len(self.truth.states)
        command = self.chance.choice(
            [
                lambda: self.type_run("--span", span),
                lambda: self.type_run("--span", span),
                lambda: self.type_run("--from", "Champion"),
                lambda: self.spanwise("resume", "facts"),
                lambda: self.spanwise("push", self.chance.choice(there or ["facts"]), "--because", "rolled back"),
            ]
        )
        what = "its process dies" if outage is None else f"the metadata is away {outage}"
        self.log.append(f"at {moment:.3f} of the next command, {what}")
        self.deaths.kill_during(command, moment, outage=outage)
        unsent = set(self.unsent)
        self.follow()
        newest = next(self.store.runs("facts"))
        if outage is None and newest.state.ended and newest.number > before:
            unsent.add(newest.name)  # it may have died before it could send what it had recorded
        self.unsent = unsent

    def interrupt(self) -> None:
        """A person decides something, and the command dies or loses the metadata: what was recorded holds."""
        given, outage = self.chance.random() < 0.5, self.chance.choice(OUTAGES)
        model, edition = None, self.truth.current(self.chance.randint(1, len(self.truth.lake)))
        if self.truth.models and self.chance.random() < 0.7:
            model = self.chance.choice(self.truth.models)
            words = ["bless" if given else "unbless", model.name]
        elif edition is not None:
            words = ["accept" if given else "refuse", "facts.py", "--span", str(edition.span)]
        else:
            return
        before = len(self.store._claims)
        self.log.append(
            f"of the next command, {'the process dies' if outage is None else f'the metadata is away {outage}'}"
        )
        moment = self.chance.random() * 0.2  # it asks a fifth of what a run asks
        self.deaths.kill_during(lambda: self.spanwise(*words, "--because", "seen"), moment, outage=outage)
        if len(self.store._claims) == before:
            return
        if model is not None:
            self.truth.ruled[model.same] = given
        elif edition is not None:
            self.truth.overruled[edition] = given

    def rule(self) -> None:
        if not self.truth.models:
            return
        model, given = self.chance.choice(self.truth.models), self.chance.random() < 0.4
        if model.name in self.truth.collected and given:
            return
        assert self.spanwise("bless" if given else "unbless", model.name, "--because", "seen") == 0
        self.truth.ruled[model.same] = given

    def roll_back(self) -> None:
        there = [m for m in self.truth.models if self.truth.is_blessed(m) and m.trainer == self.trainer]
        if there and (model := self.chance.choice(there)).exported and model.exported not in self.truth.collected:
            self.begin()
            self.truth.states.append(State.COMPLETE)
            self.truth.push(model)
            assert self.spanwise("push", model.exported, "--because", "rolled back") == 0

    def judge_span(self) -> None:
        span, given = self.chance.randint(1, len(self.truth.lake)), self.chance.random() < 0.6
        if (edition := self.truth.current(span)) is not None:
            code = self.spanwise("accept" if given else "refuse", "facts.py", "--span", str(span), "--because", "seen")
            if code == 0:
                self.truth.overruled[edition] = given

    def collect(self) -> None:
        """What a plan would remove is removed, and is gone for everybody."""
        words = ["gc", "facts.py", "--keep-younger", "0s", "--keep-last", "0"]
        (plan,) = self.ask(*words, "--dry-run")
        planned = {each["name"] for each in plan["artifacts"]}
        assert not planned & self.pinned
        self.begin(run=False)
        assert self.spanwise(*words) == 0
        (then,) = self.ask(*words, "--dry-run")
        assert then["artifacts"] == []
        self.truth.collected |= planned
        assert {each["artifact"] for each in plan["kept"]} == {each["artifact"] for each in then["kept"]}

    def pin(self) -> None:
        name = self.chance.choice([a.name for a in self.store._artifacts.values()] or [""])
        if name and name not in self.truth.collected and self.spanwise("pin", name) == 0:
            self.pinned.add(name)

    def rename(self) -> None:
        self.trainer, self.pusher = self.chance.choice(["Learn", "Fit"]), self.chance.choice(["Pusher", "Deploy"])
        self.load_schedule()
        self.run(len(self.truth.lake))

    def do_something_else(self) -> None:
        """Runs of other nodes, more than are looked through for what recent runs have made."""
        if State.RUNNING in self.truth.states:
            return  # the next run would have closed it
        self.log.append(f"{MANY} runs of Ingest are canceled")
        for _ in range(MANY):
            self.truth.states.append(State.CANCELED)
            now = datetime.now(UTC)
            run = Run(pipeline="facts", nodes=("Ingest",), state=State.CANCELED, started=now, ended=now)
            self.store.begin_run(run)

    # --- what is said of it

    def check(self) -> None:
        truth = self.truth
        for model in truth.models:
            if not model.exported:
                made = self.store.consumers(self.store.artifact(model.name))
                model.exported = next((a.name for e in made for a in e.outputs.get("exported", ())), "")
        self.moments.append(datetime.now(UTC))
        documents = self.ask_pages()
        self.check_models(documents["/api/pipelines/facts/models?limit=1000"])
        self.check_serving()
        self.check_runs(documents["/api/pipelines/facts/runs?limit=1000"])
        self.check_spans(documents.get("/api/pipelines/facts/spans"))
        self.check_collected()

    def ask_pages(self) -> dict[str, Any]:
        """What a page says that was opened now; one that has been open all the time says the same."""
        self.sites[1] = WebSite(self.opened[1], make_policy("127.0.0.1", tokens={}))
        self.opened[1]._pipelines.clear()
        questions = ["/api/pipelines", "/api/pipelines/facts/models?limit=1000", "/api/pipelines/facts/runs?limit=1000"]
        if self.truth.given:
            questions.append("/api/pipelines/facts/spans")
        answers: dict[str, Any] = {}
        for question in questions:
            kept, fresh = (self.answer(site, question) for site in self.sites)
            assert kept == fresh, f"{question} of a page that was opened before"
            answers[question] = fresh
        return answers

    def answer(self, site: WebSite, question: str) -> Any:
        path, _, query = question.partition("?")
        found = find_endpoint(path)
        assert found is not None
        endpoint, places = found
        asked = Ask(places, dict(each.split("=") for each in query.split("&") if each))
        return json.loads(json.dumps(endpoint.answer(site, asked)))

    def check_models(self, listed: list[Any]) -> None:
        truth = self.truth
        assert [each["model"] for each in listed] == [m.name for m in reversed(truth.models)]
        by_name = {each.name: each for each in self.opened[1].pipeline("facts").models(1000)}
        assert by_name.keys() == {name for m in truth.models for name in (m.name, m.exported) if name}
        for model, page in zip(reversed(truth.models), listed, strict=True):
            metrics = {} if model.auc is None else {"auc": model.auc}
            baseline = {} if model.baseline is None else {"auc": model.baseline}
            assert (page["metrics"], page["baseline_metrics"]) == (metrics, baseline), page
            assert page["blessed"] is truth.is_blessed(model), page
            assert page["run"] == f"facts/{model.run}"
            for name in filter(None, (model.name, model.exported)):
                record = by_name[name]
                assert (record.metrics, record.baseline_metrics) == (metrics, baseline), name
                assert record.blessed is truth.is_blessed(model), name
                assert bool(record.reasons) is (truth.is_blessed(model) is False), name
                assert record.serves is (truth.serves is model), name
            said = by_name[model.name].verdicts()
            assert any(verdict.personal for verdict in said) is (model.same in truth.ruled), model.name

    def check_serving(self) -> None:
        truth = self.truth
        (kept,), (row,) = (read_overview(site, 1).rows for site in self.sites)
        assert (kept.pushed, kept.metric, kept.value) == (row.pushed, row.metric, row.value)
        serving = self.opened[1].pipeline("facts").serving()
        status = read_status(self.store, "facts", datetime.now(UTC))
        if truth.serves is None:
            assert (serving, row.serving, row.pushed, status.pushed) == (None, None, None, None)
            return
        last = next(pushes(self.store, f"facts/{truth.serves.trainer}/model"))
        assert last.model == truth.serves.name
        assert serving is not None
        assert serving.name == truth.serves.exported
        assert row.serving is not None
        assert row.serving.name == serving.name
        assert row.pushed == status.pushed == serving.pushes[0].created
        assert row.value == truth.serves.auc

    def check_runs(self, listed: list[Any]) -> None:
        assert [each["state"] for each in reversed(listed)] == [state.value for state in self.truth.states]
        assert self.ask("runs", "--limit", "1000") == listed
        both = (self.ask("schedule", "status"), self.answer(self.sites[1], "/api/schedules"))
        for schedule in (each for said in both for each in said["schedules"]):
            del schedule["forecast"]  # a trend is of its moment
        assert both[0] == both[1]
        name = self.chance.choice(listed)["run"]
        assert self.ask("show", name) == self.answer(self.sites[1], f"/api/runs/{name}")

    def check_spans(self, listed: list[Any] | None) -> None:
        truth = self.truth
        if listed is None:
            return
        assert {each["span"]: each["state"] for each in listed} == {
            each["span"]: truth.status(each["span"]) for each in listed
        }
        assert {each["span"] for each in listed if each["in_window"]} == {e.span for e in truth.window}
        versions = {
            span: None if (e := truth.current(span)) is None else e.version for span in (s["span"] for s in listed)
        }
        assert {each["span"]: each["version"] for each in listed} == versions
        if not truth.given:
            return
        edition = self.chance.choice(truth.given)
        found = self.ask("tainted", "--span", str(edition.span), "--version", str(edition.version))
        read = [m for m in truth.models if edition in m.window]
        exports = [m.exported for m in read if m.exported]
        named = {m["name"] for m in found["models"]}
        assert {name for name in named if "@" not in name} == {*(m.name for m in read), *exports}
        assert bool(found["serving"]) is (truth.serves is not None and edition in truth.serves.window)
        assert set(found["serving"]) == {name for name in named if self.opened[1].model(name).serves}
        question = f"/api/pipelines/facts/tainted/{edition.span}?version={edition.version}"
        assert self.answer(self.sites[1], question) == found
        self.check_window()

    def check_window(self) -> None:
        """What the next run reads."""
        try:
            wanted = {edition.span: edition.version for edition in self.truth.find_window()}
        except Fails:
            wanted = None
        (said,) = self.ask("window", "facts.py")
        assert (said["refusal"] is None) is (wanted is not None), said["refusal"]
        if wanted is not None:
            assert {each["span"]: each["chosen"]["version"] for each in said["spans"]} == wanted

    def check_collected(self) -> None:
        for artifact in list(self.store._artifacts.values()):
            record = self.opened[1].artifact(artifact.id)
            gone = artifact.name in self.truth.collected
            assert (record.collected is not None, record.present) == (gone, not gone), artifact.name


class LineageServer:
    """What a server of OpenLineage was sent."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def emit(self, event: Any) -> None:
        self.events.append(event)

    def close(self, _timeout_s: float) -> None:
        pass

    def check(self, store: MemoryStore, unsent: Collection[str]) -> None:
        """Of each run and node the last event says what is recorded of it; but of these runs it may not."""
        converter = openlineage.EventConverter(namespace="spanwise", home=root.identity(store) or "")
        last = {event.run.runId: event for event in self.events}
        for run in store.runs("facts"):
            if run.nodes == ("Ingest",) or run.state is State.RUNNING or run.name in unsent:
                continue  # recorded by hand, or died and not closed yet
            assert last[converter._id(run.name)].eventType.value == ENDS[run.state], run.name
            for execution in store.executions(run):
                if execution.node not in run.nodes:
                    continue  # supplied by another run
                event = last[converter._id(execution.name)]
                assert event.eventType.value == ENDS[execution.state], execution.name
                read = {a.name for row in execution.inputs.values() for a in row}
                made = set() if execution.chosen else {a.name for row in execution.outputs.values() for a in row}
                assert list_partitions(event.inputs, "input") == read
                assert list_partitions(event.outputs, "output") == made


def list_partitions(datasets: Iterable[Any], side: str) -> set[str]:
    conditions = (getattr(getattr(each, f"{side}Facets")["subset"], f"{side}Condition") for each in datasets)
    return {partition.identifier for condition in conditions for partition in condition.partitions}


@pytest.mark.parametrize("number", range(HISTORIES))
def test_all_say_the_same(tmp_path, monkeypatch, capsys, number):
    """Of models, what serves, spans, runs and collected files, after each step of a history."""
    monkeypatch.chdir(tmp_path)
    store, server = run_inline(monkeypatch), LineageServer()
    assert isinstance(store, MemoryStore)
    monkeypatch.setattr(openlineage, "is_enabled", lambda _settings: True)
    monkeypatch.setattr(openlineage, "_client", lambda _settings: server)
    life = Life(tmp_path, store, random.Random(f"facts {number}"), InlineDeaths(tmp_path, store, monkeypatch))
    for _ in range(STEPS):
        try:
            life.step()
            server.check(store, life.unsent)
        except AssertionError as error:
            said = "".join(capsys.readouterr())
            raise AssertionError("\n".join([f"history {number}:", *life.log, repr(error), said[-3000:]])) from error
        capsys.readouterr()
