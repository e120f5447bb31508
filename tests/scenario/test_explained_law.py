"""A law over histories: what is said of the past is what the models themselves say that they have learned.

The histories are those of `test_system`, with its pipeline. Each model holds what it read, so lineage, taint, why and
diff are compared with that, after each step. `SPANWISE_TEST_EXPLAINED=100` is the long form.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
from typing import Any

import pytest

from spanwise.orchestrator.run import Execution, Run, State
from spanwise.orchestrator.store import Store
from tests.scenario.deaths import InlineDeaths
from tests.scenario.inline import run_inline
from tests.scenario.system_model import Learned, SystemModel
from tests.scenario.test_system import Bench, Story, read

SEEDS = range(int(os.environ.get("SPANWISE_TEST_EXPLAINED", "3")))
STEPS = 28
RECENT = 6  # runs that are explained


class Audit:
    """What each model has learned, by its name, and what the commands say of it."""

    def __init__(self, bench: Bench, store: Store, chance: random.Random) -> None:
        self.bench, self.store, self.chance = bench, store, chance
        self.learned: dict[str, Learned] = {}
        self.examples: dict[str, tuple[int, int, int]] = {}

    def note(self) -> None:
        """Reads what was published since, while its files are there; forgets what a restore has undone."""
        made = {a.name: a for run in self.store.runs("system") for e in self.store.executions(run) for a in outputs(e)}
        for name, artifact in made.items():
            if name.startswith("system/Learn/model") and name not in self.learned:
                self.learned[name] = read(artifact.path)
            if name.startswith("system/Ingest/examples") and name not in self.examples:
                edition = self.bench._edition(artifact)
                self.examples[name] = (edition.span, edition.version, edition.value)
        self.learned = {n: learned for n, learned in self.learned.items() if n in made}
        self.examples = {n: edition for n, edition in self.examples.items() if n in made}

    def ask(self, *words: str) -> Any:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            self.code = self.bench.spanwise(*words, "--json")
        return json.loads(said.getvalue())

    def check(self) -> None:
        runs = list(self.store.runs("system"))
        if self.learned:
            self.check_lineage(self.chance.choice(sorted(self.learned)))
        if self.examples:
            self.check_taint(*self.chance.choice(sorted(self.examples.values()))[:2], runs)
        if runs:
            self.check_why(self.chance.choice(runs[:RECENT]))
            self.check_diff(*self.chance.choices(runs[:RECENT], k=2))

    def check_lineage(self, model: str) -> None:
        """It goes up to the examples that the model read, and no further."""
        found = self.ask("lineage", model)
        assert {a["name"] for a in found["artifacts"]} <= {model, *self.examples}
        assert sorted(self.examples[a["name"]] for a in found["artifacts"] if a["name"] != model) == sorted(
            (e.span, e.version, e.value) for e in self.learned[model].window
        )

    def check_taint(self, span: int, version: int, runs: list[Run]) -> None:
        """It finds the models that read the version, what serves, and whether ordinary runs have better ones."""
        found = self.ask("tainted", "--span", str(span), "--version", str(version))
        tainted = {n for n, m in self.learned.items() if any((e.span, e.version) == (span, version) for e in m.window)}
        serving = {m["name"] for m in found["models"] if m["serves"]}

        assert {m["name"] for m in found["models"]} == tainted
        assert all(self.learned[name] == self.bench.serves() for name in serving)
        assert self.code == bool(serving)
        assert found["outlived"] == (self.current(runs) not in tainted)

    def current(self, runs: list[Run]) -> str:
        """The model that an ordinary run has trained, or found in the cache, last."""
        ordinary = (learn for run in runs if not run.replay and "Learn" in run.nodes and (learn := self.learn(run)))
        return next((outputs(learn)[0].name for learn in ordinary), "")

    def learn(self, run: Run) -> Execution | None:
        """How a run trained, or its base run; None where it did not."""
        done = [e for e in self.store.executions(run) if e.node == "Learn" and e.state.succeeded]
        return done[-1] if done else None

    def model(self, run: Run) -> Learned | None:
        learn = self.learn(run)
        return None if learn is None else self.learned[outputs(learn)[0].name]

    def check_why(self, run: Run) -> None:
        """What had changed since: the code, what was read, or nothing, and then the reason says why it was executed."""
        for execution in self.store.executions(run):
            found = self.ask("why", run.name, execution.node)
            if execution.node != "Learn" or not execution.state.succeeded or not found["compared_with"]:
                continue
            before = self.store.run("system", int(found["compared_with"].split("/")[1]))
            changes = {(c["kind"], c["name"]) for c in found["changes"]}
            if self.model(before) is not None:
                assert changes - {("replay", "")} == self.differences(before, run), found
                unchanged = execution.state is State.COMPLETE and not changes
                assert not unchanged or "is unusable" in found["reason"], found

    def check_diff(self, before: Run, after: Run) -> None:
        found = self.ask("diff", before.name, after.name)["differences"]
        said = {(d["topic"].removesuffix("s"), d["what"]) for d in found if d["node"] == "Learn"}
        if self.model(before) is not None and self.model(after) is not None:
            assert said - {("node", "state"), ("replay", ""), ("time", "took")} == self.differences(before, after), (
                found
            )

    def differences(self, before: Run, after: Run) -> set[tuple[str, str]]:
        one, other = self.model(before), self.model(after)
        assert one is not None
        assert other is not None
        code = {("parameter", "code")} if one.code != other.code else set()
        return code | ({("input", "examples")} if one.window != other.window else set())


def outputs(execution: Execution) -> list[Any]:
    return [artifact for row in execution.outputs.values() for artifact in row]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_said_of_the_past_is_what_the_models_say(tmp_path, monkeypatch, capsys, seed):
    """After each step, lineage, taint, why and diff name the models, the data and the changes that there were."""
    monkeypatch.chdir(tmp_path)
    store = run_inline(monkeypatch)
    bench, model = Bench(tmp_path), SystemModel()
    bench.deaths = InlineDeaths(tmp_path, store, monkeypatch)
    audit, past = Audit(bench, store, random.Random(seed)), []

    for step, _ in zip(Story(bench, random.Random(1000 + seed)).steps(), range(STEPS), strict=False):
        past.append(step.text)
        try:
            step.take(model)
            audit.note()
            audit.check()
        except AssertionError as error:
            raise AssertionError(
                "\n".join([*filter(None, past), repr(error), capsys.readouterr()[1][-2000:]])
            ) from None
