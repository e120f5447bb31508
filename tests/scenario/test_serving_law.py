"""A law of what serves: after any history of runs, verdicts, pushes and edits by hand, a folder serves what may be served.

The pipeline judges a model, tries it, exports it and pushes the export to one of two folders. A history is generated
from a number and driven through the real command line; `SPANWISE_TEST_HISTORIES=2000` is the long form.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from spanwise.orchestrator.artifact import Model
from spanwise.orchestrator.history import History
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.store import Address, Store
from spanwise.scheduler.main import main
from tests.scenario.inline import run_inline

HISTORIES = max(6, int(os.environ.get("SPANWISE_TEST_HISTORIES", "100")) // 20)
STEPS = 16
FOLDERS = ("blue", "green")

PIPELINE = """
from spanwise import Blessing, Champion, Component, Input, Model, Output, Pipeline, Pusher
from spanwise.orchestrator import InfraBlessing


class Learn(Component):
    def run(self, model: Output[Model], score: int) -> None:
        (model.path / "score").write_text(str(score))


class Judge(Component):
    def run(self, model: Input[Model], champion: Input[Model | None], blessing: Output[Blessing]) -> None:
        rival = -1 if champion is None else int((champion.path / "exported").read_text())
        blessing.blessed = int(int((model.path / "score").read_text()) >= rival)
        blessing.current_model, blessing.current_model_id = model.name, model.id
        (blessing.path / "judged").touch()


class Try(Component):
    cacheable = False

    def run(self, model: Input[Model], blessing: Output[InfraBlessing], loads: bool) -> None:
        blessing.blessed, blessing.model = int(loads), model.name
        (blessing.path / "tried").touch()


class Export(Component):
    def run(self, model: Input[Model], exported: Output[Model]) -> None:
        (exported.path / "exported").write_text((model.path / "score").read_text())


def serving(score: int = 0, loads: bool = True, to: str = "blue") -> Pipeline:
    learn = Learn(score=score)
    export = Export(model=learn["model"])
    champion = Champion(export["exported"])
    judge = Judge(model=learn["model"], champion=champion["exported"])
    tried = Try(model=export["exported"], loads=loads)
    push = Pusher(
        model=export["exported"], blessing=judge["blessing"], infra_blessing=tried["blessing"], destination=to
    )
    return Pipeline("serving", [learn, export, champion, judge, tried, push])
"""


@dataclass
class Truth:
    """What is true of the models, which are named by their scores, and of the folders."""

    models: list[int] = field(default_factory=list)  #: in the order of their first publication
    judged: dict[int, bool] = field(default_factory=dict)
    ruled: dict[int, bool] = field(default_factory=dict)  #: by a person, of the model or its export
    named: dict[int, bool] = field(default_factory=dict)  #: by a person, of the export itself
    served: dict[int, bool] = field(default_factory=dict)  #: whether it loaded when it was tried last
    overruled: set[int] = field(default_factory=set)  #: blessed by a person since it was tried last
    pushed: list[tuple[int, str]] = field(default_factory=list)  #: the model and its version
    versions: dict[str, list[str]] = field(default_factory=lambda: {folder: [] for folder in FOLDERS})  #: of a folder
    holds: dict[str, int] = field(default_factory=dict)  #: the model of a version
    damaged: set[str] = field(default_factory=set)
    to: str | None = None  #: the folder of the last push

    def is_blessed(self, model: int) -> bool:
        return self.ruled.get(model, self.judged[model])

    def champion(self, candidate: int | None = None) -> int | None:
        pushed = (model for model, _ in reversed(self.pushed) if self.ruled.get(model, True))
        blessed = (model for model in reversed(self.models) if self.named.get(model) and self.ruled[model])
        return next((model for model in (*pushed, *blessed) if model != candidate), None)

    def run(self, model: int, loads: bool) -> bool:
        """Whether a run pushes or leaves in place what may be served."""
        rival = self.champion(model)
        self.judged[model] = rival is None or model >= rival
        if model not in self.models:
            self.models.append(model)
        self.served[model] = loads
        self.overruled.discard(model)
        return self.is_blessed(model) and loads

    def may_push(self, model: int) -> bool:
        return self.is_blessed(model) and (self.served[model] or model in self.overruled)


class Life:
    """A history, on both sides."""

    def __init__(self, folder: Path, store: Store, chance: random.Random) -> None:
        self.folder, self.store, self.chance = folder, store, chance
        self.truth = Truth()
        self.log: list[str] = []
        self.last = (0, True, "blue")  #: of the newest run
        (folder / "serving.py").write_text(PIPELINE)

    def step(self) -> None:
        kinds = {self.run: 6, self.part: 2, self.rule: 3, self.push: 3, self.push_raw: 1}
        kinds |= {self.remove: 1, self.damage: 1, self.place: 1}
        if not self.truth.models:
            kinds = {self.run: 1}
        (kind,) = self.chance.choices(list(kinds), list(kinds.values()))
        kind()
        self.check()

    def spanwise(self, *words: str) -> int:
        self.log.append(" ".join(words))
        file = str(self.folder / "serving.py")
        for name in [n for n, m in sys.modules.items() if getattr(m, "__file__", None) == file]:
            del sys.modules[name]
        return main(list(words))

    def run(self) -> None:
        score, loads, to = self.chance.randrange(4), self.chance.random() < 0.75, self.chance.choice(FOLDERS)
        assert self.start(score, loads, to) == 0
        self.last = score, loads, to
        if self.truth.run(score, loads):
            self.expect(score, to)

    def part(self) -> None:
        """The Pusher once more, on what the newest run has judged: a person may have decided since."""
        score, loads, to = self.last
        if self.start(score, loads, to, "--from", "Pusher") == 0 and self.truth.is_blessed(score) and loads:
            self.expect(score, to)

    def start(self, score: int, loads: bool, to: str, *words: str) -> int:
        arguments = [f"score={score}", f"loads={loads}".lower(), f"to={to}"]
        typed = (word for each in arguments for word in ("--param", each))
        return self.spanwise("run", "serving.py", *words, *typed)

    def expect(self, model: int, to: str) -> None:
        """The newest version is of the model: the one that was, if it is whole, or a new one."""
        truth, present = self.truth, sorted(self.present(to), key=int)
        truth.to = to
        newest = f"{to}/{present[-1]}"
        before = truth.versions[to][-1] if truth.versions[to] else None
        serves = before is not None and truth.holds.get(before) == model and before not in truth.damaged
        assert (newest == before) is serves
        if not serves:
            truth.versions[to].append(newest)
            truth.holds[newest] = model
        if not truth.pushed or truth.pushed[-1] != (model, newest):
            truth.pushed.append((model, newest))

    def rule(self) -> None:
        model, given = self.chance.choice(self.truth.models), self.chance.random() < 0.5
        name = self.chance.choice([self.learned(model), self.exported(model)])
        assert self.spanwise("bless" if given else "unbless", name, "--because", "seen") == 0
        self.truth.ruled[model] = given
        if name == self.exported(model):
            self.truth.named[model] = given
        (self.truth.overruled.add if given else self.truth.overruled.discard)(model)

    def push(self) -> None:
        model = self.chance.choice([*self.truth.models, None])
        named = "serving" if model is None else self.exported(model)
        chosen = self.truth.champion() if model is None else model
        code = self.spanwise("push", named, "--because", "rolled back")
        assert (code == 0) is (chosen is not None and self.truth.may_push(chosen))
        if code == 0:
            assert chosen is not None
            self.expect(chosen, self.truth.to or self.last[2])

    def push_raw(self) -> None:
        assert (
            self.spanwise("push", self.learned(self.chance.choice(self.truth.models)), "--because", "by mistake") == 2
        )

    def remove(self) -> None:
        """Somebody removes the version that serves."""
        to = self.chance.choice(FOLDERS)
        if self.truth.versions[to]:
            version = self.truth.versions[to].pop()
            self.log.append(f"rm -r {version}")
            shutil.rmtree(self.folder / version)
            self.truth.holds.pop(version, None)
            self.truth.damaged.discard(version)

    def damage(self) -> None:
        """Somebody empties the version that serves."""
        to = self.chance.choice(FOLDERS)
        if self.truth.versions[to] and self.truth.versions[to][-1] in self.truth.holds:
            self.log.append(f"rm {self.truth.versions[to][-1]}/exported")
            self.truth.damaged.add(self.truth.versions[to][-1])
            (self.folder / self.truth.versions[to][-1] / "exported").unlink(missing_ok=True)

    def place(self) -> None:
        """Somebody places a version by hand."""
        to = self.chance.choice(FOLDERS)
        last = self.truth.versions[to][-1] if self.truth.versions[to] else f"{to}/1"
        version = f"{to}/{int(last.partition('/')[2]) + 1}"
        self.log.append(f"mkdir {version}")
        (self.folder / version).mkdir(parents=True)
        self.truth.versions[to].append(version)

    def check(self) -> None:
        truth = self.truth
        for to in FOLDERS:
            assert sorted(self.present(to), key=int) == [each.partition("/")[2] for each in truth.versions[to]]
        for version in (each for every in truth.versions.values() for each in every if each in truth.holds):
            file = self.folder / version / "exported"
            assert version in truth.damaged or file.read_text() == str(truth.holds[version])
        address = Address("serving", "Export", "exported")
        champion = History(self.store, address, Model, Run(pipeline="serving")).champion()
        wanted = truth.champion()
        assert (champion and champion.name) == (None if wanted is None else self.exported(wanted))

    def present(self, to: str) -> list[str]:
        place = self.folder / to
        return [path.name for path in place.iterdir() if path.name.isdigit()] if place.is_dir() else []

    def learned(self, model: int) -> str:
        return f"serving/Learn/model/{self.truth.models.index(model) + 1}"

    def exported(self, model: int) -> str:
        return f"serving/Export/exported/{self.truth.models.index(model) + 1}"


@pytest.mark.parametrize("number", range(HISTORIES))
def test_what_serves_is_what_may_be_served(tmp_path, monkeypatch, capsys, number):
    """After each step, the versions of both folders and the champion are what a page of rules says."""
    monkeypatch.chdir(tmp_path)
    life = Life(tmp_path, run_inline(monkeypatch), random.Random(f"serving {number}"))
    for _ in range(STEPS):
        try:
            life.step()
        except AssertionError as error:
            said = "".join(capsys.readouterr())
            raise AssertionError("\n".join([f"history {number}:", *life.log, repr(error), said[-3000:]])) from error
        capsys.readouterr()
