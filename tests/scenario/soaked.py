"""Pipelines whose runs take as long as dice say, with a schedule for every overrun policy. What the soak test plays.

Some runs take longer than a day, some ignore SIGTERM, some leave a daemon in a session of its own. Each says when it
began and when it was last at work, by a clock that nobody sets. A gate refuses some of the spans, and some of the
models are not blessed.
"""

import json
import os
import random
import signal
import subprocess
import time
from datetime import date, timedelta
from pathlib import Path
from typing import ClassVar

from spanwise.orchestrator import (
    Attempt,
    Blessing,
    Calendar,
    Component,
    Examples,
    Gate,
    Input,
    Model,
    Output,
    Pipeline,
    Refused,
    Retry,
)
from spanwise.orchestrator.run import Trigger
from spanwise.resolvers import LatestBlessed, LatestSpans
from spanwise.scheduler import OverrunPolicy, Schedule, days_before
from tests.scenario.compressed import boottime

WHERE = Path(os.environ["SPANWISE_COMPRESSED"])
DAYS = int(os.environ["SPANWISE_SOAK_DAYS"])
FIRST = date(2025, 3, 6)
REFUSED = 0.25  # of the spans


class Ingest(Component):
    cacheable = False
    prepared: ClassVar = ("span", "version")
    calendar = Calendar.DAY

    def available(self, spans=None):
        first = Calendar.DAY.parse(f"{FIRST}") - 1
        return {span: 1 for span in range(first, first + DAYS) if spans is None or span in spans}

    def prepare(self, run, history):
        return {"span": run.span, "version": 1}

    def run(self, *, examples: Output[Examples], attempt: Attempt, span: int, version: int) -> None:
        run = attempt.run
        began = boottime()
        dice = random.Random(f"{(WHERE / 'seed').read_text()} {run.pipeline} {run.cause}")
        if dice.random() < 0.25:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if dice.random() < 0.25:
            subprocess.Popen(["sleep", "600"], start_new_session=True)
        days = dice.uniform(1.1, 2.5) if dice.random() < 0.3 else dice.uniform(0.05, 0.4)
        until = began + days * float((WHERE / "day_s").read_text())
        while run.trigger is Trigger.SCHEDULE and boottime() < until:
            stamp(run, began)
            time.sleep(0.02)
        stamp(run, began)
        examples.span, examples.version, examples.calendar = span, version, "day"
        examples.split_names = ["train"]


class Check(Gate):
    def run(self, examples: Input[Examples], attempt: Attempt) -> None:
        if random.Random(f"{(WHERE / 'seed').read_text()} {attempt.run.pipeline} {examples.span}").random() < REFUSED:
            raise Refused("as the dice say")


class Learn(Component):
    cacheable = False

    def run(self, examples: Input[list[Examples]], model: Output[Model]) -> None:
        (model.path / "spans").write_text(str([each.span for each in examples]))
        model.spans = [each.span for each in examples]


class Judge(Component):
    cacheable = False

    def run(self, model: Input[Model], champion: Input[Model | None], blessing: Output[Blessing]) -> None:
        (blessing.path / "champion").write_text("" if champion is None else champion.name)
        blessing.blessed = int(model.spans[-1] % 3 > 0)
        blessing.current_model, blessing.current_model_id = model.name, model.id
        blessing.reasons = [] if blessing.blessed else ["as it is every third time"]


def stamp(run, began):
    """Says that this run is at work now."""
    draft = WHERE / "stamps" / f".{run.pipeline}.{run.number}"
    draft.write_text(
        json.dumps({"pipeline": run.pipeline, "tick": run.cause, "run": run.number, "began": began, "seen": boottime()})
    )
    draft.replace(draft.with_name(f"{run.pipeline}.{run.number}.json"))


def _every_day(policy: OverrunPolicy) -> Schedule:
    ingest = Ingest()
    check = Check(examples=ingest["examples"])
    recent = LatestSpans(check["examples"], n=3)
    learn = Learn(examples=recent["examples"])
    champion = LatestBlessed(learn["model"])
    judge = Judge(model=learn["model"], champion=champion["model"])
    return Schedule(
        Pipeline(policy.value, [ingest, check, recent, learn, champion, judge]),
        cron="30 2 * * *",
        zone="America/New_York",  # where the fourth of these nights has no 02:30
        span=days_before(1),
        overrun=policy,
        retry=Retry(times=1, backoff_s=0.1),
        end=FIRST + timedelta(days=DAYS - 1),
    )


killandrun = _every_day(OverrunPolicy.KILL_AND_RUN)
allowtocomplete = _every_day(OverrunPolicy.ALLOW_TO_COMPLETE)
