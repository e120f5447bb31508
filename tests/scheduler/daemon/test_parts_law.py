"""A pipeline by parts that is edited, paused, retired, moved and recovered at random, beside what must hold of it.

The loop, the ledger and the outbox are real. A file is described in this process, since children would take most of the
time, and a run is its records.
"""

import contextlib
import json
import os
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

import pytest

from spanwise import Component, Examples, Input, Model, Output, Part, Pipeline, RollingWindow, Schedule, days_before
from spanwise.orchestrator import lease
from spanwise.orchestrator.artifact import PushedModel
from spanwise.orchestrator.errors import Held, LoadError
from spanwise.orchestrator.lease import Clock
from spanwise.orchestrator.run import Execution, Run, State, Trigger
from spanwise.orchestrator.store import AlreadyClaimed, MemoryStore
from spanwise.scheduler.alerts import alert, outbox, watchdog
from spanwise.scheduler.alerts.recovery import record_closing, record_recovery
from spanwise.scheduler.daemon import pipeline_files, scheduled_run
from spanwise.scheduler.daemon.description import _describe_schedule
from spanwise.scheduler.daemon.loop import SchedulerLoop
from spanwise.scheduler.daemon.metrics import SchedulerMetrics
from spanwise.scheduler.daemon.services import SchedulerServices
from spanwise.scheduler.ledger.missed import list_missed
from spanwise.scheduler.ledger.pauses import PAUSED, pause_schedule, resume_schedule
from spanwise.scheduler.ledger.schedule_status import explain_ticks, read_status
from spanwise.scheduler.ledger.schedules import list_keys, list_schedules, read_schedule
from spanwise.scheduler.ledger.ticks import OverrunCause, attempt_claim, list_ticks, mark_overrun
from spanwise.scheduler.project import root, settings
from spanwise.scheduler.project.load import Loaded
from spanwise.scheduler.schedule.division import HALVES, PartStart
from spanwise.scheduler.schedule.outcome import Closing, TickClosure, TickOutcome
from spanwise.scheduler.schedule.part import completed_parts, select_part
from spanwise.scheduler.schedule.schedule import timetables_of
from spanwise.scheduler.schedule.schedule_key import format_cause, parse_cause, pipeline_of
from spanwise.scheduler.schedule.timetable import Catchup, OverrunPolicy
from tests.scheduler.daemon.test_pipeline_scheduler import Child

HISTORIES = int(os.environ.get("SPANWISE_TEST_PARTS", "2"))  # the full form: 500
FIRST = int(os.environ.get("SPANWISE_TEST_PARTS_FIRST", "0"))

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
DEEDS = {
    "let_pass": 12, "edit": 3, "take_out": 1.5, "bring_back": 2, "move": 1, "break_file": 0.7, "pause": 1, "resume": 2,
    "die": 1.5, "stay_away": 1, "watch": 2, "run_by_hand": 2, "acknowledge": 2,
}  # fmt: skip
OF_A_FILE = ("edit", "take_out", "move", "run_by_hand")  #: what happens only to a pipeline that a file has
LASTING = ("overdue", "freshness", "forecast")
LOST = ("failure", "overrun", "missed")


class Ingest(Component):
    def run(self, examples: Output[Examples]) -> None: ...


class Learn(Component):
    def run(self, examples: Input[list[Examples]], model: Output[Model]) -> None: ...


class Push(Component):
    def run(self, model: Input[Model], pushed: Output[PushedModel]) -> None: ...


def build(name, push):
    ingest = Ingest()
    recent = RollingWindow(ingest["examples"], size=2)
    learn = Learn(examples=recent["examples"])
    return Pipeline(name, [ingest, recent, learn, Push(model=learn["model"], name=push)])


CRONS = ["0 * * * *", "30 * * * *", "15 */2 * * *", "45 */3 * * *", "0 13 * * *"]


def draw_schedule(dice):
    """What a file says of a pipeline."""
    parts = dice.choice([[], ["ingest", "train"], ["ingest", "train", "push"], ["ingest", "train", "deploy"]])
    return {
        "crons": [dice.choice(CRONS) for _ in parts or [""]],
        "parts": parts,
        "push": dice.choice(["Push", "Push", "Deploy"]),
        "overrun": dice.choice(list(OverrunPolicy)).value,
        "catchup": dice.choice(list(Catchup)).value,
        "fresh": dice.choice([None, 5]),
    }


def make_schedule(name, said):
    pipeline = build(name, said["push"])
    clocks = dict(zip(said["parts"], said["crons"], strict=True)) if said["parts"] else {}
    for part in said["parts"][2:]:
        clocks[part] = Part(clocks[part], at=said["push"])
    return pipeline, Schedule(
        pipeline,
        **({"parts": clocks} if clocks else {"cron": said["crons"][0]}),
        span=days_before(1),
        overrun=OverrunPolicy(said["overrun"]),
        catchup=Catchup(said["catchup"]),
        freshness=None if said["fresh"] is None else said["fresh"] * HOUR,
    )


class Described:
    """The answer of a file, in this process."""

    def __init__(self, reference, config, ticks=(), **_options):
        self.reference, self.moments = reference, ticks

    def answer(self):
        text = Path(self.reference.partition(":")[0]).read_text()
        if text == "broken":
            raise LoadError("a mistake")
        found = []
        for name, said in json.loads(text).items():
            pipeline, schedule = make_schedule(name, said)
            loaded = Loaded(pipeline=pipeline, source=f"{self.reference}:{name}")
            tables = timetables_of(schedule, name)
            found += [_describe_schedule(schedule, loaded, table, self.moments) for table in tables]
        return found

    def end(self):
        pass


class RunChild(Child):
    """A process that makes a run of a part."""

    def begin(self):
        world, pipeline = self.world, pipeline_of(self.job.pipeline)
        if self.job.close is not None:
            self.returncode = 0
            return
        try:
            self.lease = lease.acquire(world.store, pipeline, "a run", clock=world.clock)
        except Held:
            other = next(c for c in world.children if c.running and pipeline_of(c.job.pipeline) == pipeline)
            if self.job.end_others and other.job.pipeline == self.job.pipeline:
                mark_overrun(
                    world.store, *parse_cause(pipeline, other.run.cause), OverrunCause(by="it", tick=self.job.tick)
                )
                other.finish(State.CANCELED, "stopped")
                self.begin()
            elif not self.job.end_others:
                self.returncode = scheduled_run.HELD
            return
        made = world.built(self.job.source)
        chosen = select_part(made, self.job.part, world.division(self.job))
        wanted = Run(
            pipeline=pipeline,
            trigger=Trigger.SCHEDULE,
            cause=format_cause(self.job.pipeline, self.job.tick),
            span=self.job.span,
            token=self.lease.token,
            started=world.now,
            nodes=made.order if chosen is None else chosen.run,
        )
        try:
            self.run = world.store.begin_run(wanted, attempt_claim(self.job.pipeline, self.job.tick, self.job.attempt))
        except AlreadyClaimed:
            self.lease.release()
            self.returncode = scheduled_run.TAKEN

    @property
    def running(self):
        return self.run is not None and not self.run.state.ended

    def finish(self, state=State.COMPLETE, error=None, **options):
        if state is State.COMPLETE:
            self.world.complete(self.run)
        super().finish(state, error, **options)
        if state is State.COMPLETE:
            self.world.recover(self.run)


class Told(SchedulerServices):
    """Notes what is alerted of lost ticks."""

    notes: ClassVar = [[]]

    def record(self, message):
        self.notes[-1].append(message)
        return super().record(message)


class World:
    """Two files, a ledger, and a scheduler after another."""

    def __init__(self, folder, dice, monkeypatch):
        self.folder, self.dice = folder, dice
        self.now, self.monotonic = NOON + MINUTE, 1000.0
        self.store = self.records = MemoryStore(lambda: self.now)
        self.clock = Clock(now=lambda: self.now, monotonic=lambda: self.monotonic, sleep=self.sleep)
        self.children, self.log, self.pauses = [], [], {}
        self.says = {"a.py": {"p": draw_schedule(dice)}, "b.py": {"q": draw_schedule(dice)}}
        self.places = {}
        self.notes = []
        Told.notes.append(self.notes)
        self.write()
        monkeypatch.setattr(pipeline_files, "DescriptionRequest", Described)
        monkeypatch.setattr(root, "open_for_writing", lambda *_a, **_o: contextlib.nullcontext(self.store))
        monkeypatch.setattr(outbox, "wants_delivery", lambda _place: False)
        self.known = settings.read(root=folder / "root")
        self.known.root.mkdir()
        self.open()

    def sleep(self, seconds):
        self.now += timedelta(seconds=seconds)
        self.monotonic += seconds

    def write(self):
        for name, said in self.says.items():
            (self.folder / name).write_text(json.dumps(said))

    def built(self, source):
        path, _, name = source.rpartition(":")
        return build(name, json.loads(Path(path).read_text())[name]["push"])

    def division(self, job):
        return tuple(PartStart(name, tuple(at)) for name, at in job.division) or HALVES

    def open(self):
        services = Told(root=self.known.root, config=None, site=alert.local_site(), start=self.start)
        self.metrics = SchedulerMetrics(self.known.root, clock=lambda: self.now)
        files = [str(self.folder / name) for name in self.says]
        self.cron = SchedulerLoop(files, self.known, clock=self.clock, services=services, metrics=self.metrics)

    def start(self, job):
        child = RunChild(job, self)
        self.children.append(child)
        return child

    def turn(self, by=timedelta(0)):
        self.now += by
        self.monotonic += by.total_seconds()
        self.cron.turn()

    def complete(self, run):
        """Records the push of a run that pushes."""
        for node in set(run.nodes) & {"Push", "Deploy"}:
            begun = self.store.begin(Execution(pipeline=run.pipeline, run=run.number, node=node, component="Push"))
            pushed = PushedModel(f"/pushed/{run.name}", properties={"pushed": 1, "model": "m"})
            self.store.publish(replace(begun, state=State.COMPLETE, outputs={"pushed": (pushed,)}))

    def recover(self, run):
        def is_done(tick):
            record = read_schedule(self.store, tick.key)
            push = next((n for n in run.nodes if n in ("Push", "Deploy")), self.push_of(run.pipeline))
            parts = completed_parts(build(run.pipeline, push), run.nodes, record.timetable.division or HALVES)
            return tick.tick.part in parts

        spans = [] if run.span is None else [run.span]
        record_recovery(self.store, run, spans, str(self.known.root), is_done=is_done)

    def push_of(self, pipeline):
        return next((said[pipeline]["push"] for said in self.says.values() if pipeline in said), "Push")

    # --- what happens

    def settle(self, fail=0.0, slow=0.0):
        """Turns until nothing follows any more; runs fail, or go on, by chance."""
        for _ in range(30):
            before = (len(self.children), sum(c.returncode is None for c in self.children))
            self.turn(timedelta(seconds=3))
            for child in list(self.children):
                if child.returncode is None and child.run is None:
                    child.begin()
                if child.running and self.dice.random() >= slow:
                    failed = self.dice.random() < fail
                    child.finish(*((State.FAILED, "it broke") if failed else (State.COMPLETE,)))
            self.turn()
            if before == (len(self.children), sum(c.returncode is None for c in self.children)):
                return

    def act(self):
        """One of the things that happen, to one of the pipelines."""
        what, name = self.dice.choices(list(DEEDS), [*DEEDS.values()])[0], self.dice.choice("pq")
        file = next((file for file, said in self.says.items() if name in said), None)
        self.log.append((f"{self.now:%d %H:%M}", what, name))
        if file is not None or what not in OF_A_FILE:
            getattr(self, what)(name, file)

    def let_pass(self, _name, _file):
        for _ in range(self.dice.choice([1, 4, 10])):
            self.turn(self.dice.choice([7, 20, 30]) * MINUTE)
            self.settle(fail=0.25, slow=0.3)

    def edit(self, name, file):
        self.says[file][name] = draw_schedule(self.dice)
        self.write()

    def take_out(self, name, file):
        self.places[name] = file, self.says[file].pop(name)
        self.write()
        self.settle(slow=0.5)

    def bring_back(self, name, file):
        if file is None:
            place, said = self.places[name]
            self.says[place][name] = said
            self.write()

    def move(self, name, file):
        said = self.says[file].pop(name)
        self.says["b.py" if file == "a.py" else "a.py"][name] = said
        self.write()
        self.settle(slow=0.5)

    def break_file(self, _name, _file):
        (self.folder / "a.py").write_text("broken")
        self.turn(timedelta(seconds=3))
        self.turn(20 * MINUTE)
        self.write()
        self.settle()
        self.turn(timedelta(seconds=31))

    def pause(self, name, _file):
        if list_keys(self.store, name):
            pause_schedule(self.store, name, who="ann", why="disks", now=self.now)
            self.note_resumed(name)
            self.pauses.setdefault(name, []).append([self.now, None])

    def resume(self, name, _file):
        if resume_schedule(self.store, name, who="ann", now=self.now) is not None:
            self.note_resumed(name)

    def note_resumed(self, name):
        for pause in self.pauses.get(name, [])[-1:]:
            pause[1] = pause[1] or self.now

    def die(self, _name, _file):
        if self.dice.random() < 0.5:
            self.cron.close()
        else:  # without a word
            self.cron._woken.close()
            self.cron._wake.close()
        self.open()
        self.settle(slow=0.5)

    def stay_away(self, name, file):
        self.cron.close()
        self.sleep(5 * HOUR.total_seconds())
        self.watch(name, file)
        self.open()

    def watch(self, _name, _file):
        """Looks from outside, as `spanwise schedule check` does."""
        for key in list_schedules(self.store):
            for each in watchdog.list_alerts(read_status(self.store, key, self.now), self.now, alert.local_site()):
                outbox.put(self.known.root, each)

    def acknowledge(self, name, _file):
        missed = [each for key in list_keys(self.store, name) for each in list_missed(self.store, key)]
        some = [each for each in missed if self.dice.random() < 0.7]
        closure = TickClosure(how=Closing.ACKNOWLEDGED, at=self.now, who="ann", because="no")
        record_closing(self.store, some, closure, str(self.known.root))

    def run_by_hand(self, name, _file):
        """A person runs all of it."""
        try:
            held = lease.acquire(self.store, name, "a run", clock=self.clock)
        except Held:
            return
        order = build(name, self.push_of(name)).order
        span = days_before(1)(self.now)
        run = self.store.begin_run(Run(pipeline=name, span=span, token=held.token, started=self.now, nodes=order))
        self.turn(10 * MINUTE)
        run = replace(run, state=State.COMPLETE, ended=self.now)
        self.complete(run)
        self.store.update_run(run)
        held.release(closed=True)
        self.recover(run)
        self.settle()

    # --- what must hold

    def keys(self):
        """The schedule keys that the files have now."""
        found = {}
        for said in self.says.values():
            for name in said:
                for part in said[name]["parts"] or [""]:
                    found[f"{name}:{part}" if part else name] = said[name]
        return found

    def stands(self, cause):
        return outbox.was_alerted(self.known.root, cause)

    def check_all(self, about):
        for name in "pq":
            known = {key: found for key in every_key(name) if (found := read_schedule(self.store, key)) is not None}
            for key, schedule in known.items():
                self.check_ticks(key, about)
                if key in self.keys():
                    self.check_status(key, schedule, about)
                else:
                    assert schedule.replaced, (about, key)
                    assert not any(self.stands(f"{kind} {key}") for kind in LASTING), (about, key)
            missed = [each for key in known for each in list_missed(self.store, key)]
            assert missed == [
                each for key in known if key in list_keys(self.store, name) for each in list_missed(self.store, key)
            ]
            for each in missed:
                assert each.end.quiet or any(self.stands(f"{kind} {each.key}") for kind in LOST), (about, each)
            assert missed or not any(self.stands(f"{kind} {key}") for key in known for kind in LOST), (about, name)
        troubles = [f"{file} defines a pipeline of another file" for file in self.says] + ["could not load a.py"]
        assert not any(self.stands(alert.trouble_cause(what, alert.local_site())) for what in troubles), about
        sent = Counter(note.pipeline for note in self.notes if note.kind == "failure")
        assert sent == self.count_failed(), about

    def check_ticks(self, key, about):
        """Each tick has one outcome; it was missed for a pause if, and only if, it fell into one."""
        records = list(list_ticks(self.store, key))
        assert len({each.tick.name for each in records}) == len(records), (about, key)
        for each in records:
            pauses = self.pauses.get(pipeline_of(key), [])
            held = any(since <= each.tick.at and (end is None or each.tick.at < end) for since, end in pauses)
            for_pause = each.end.outcome is TickOutcome.MISSED and each.end.why.startswith(PAUSED)
            assert for_pause == held == each.end.quiet, (about, each, pauses)

    def check_status(self, key, schedule, about):
        """None is overdue, none is left, and the age of the model is alerted as it is."""
        status = read_status(self.store, key, self.now)
        assert (schedule.replaced, status.overdue) == (False, None), (about, key, status.overdue)
        pauses = self.pauses.get(pipeline_of(key), [])
        assert (status.paused is not None) == (pauses != [] and pauses[-1][1] is None), (about, key)
        past = explain_ticks(self.store, schedule.timetable, schedule, schedule.since, self.now)
        assert not [each for each in past if each.outcome in ("open", "waiting")], (about, key)
        looked = self.now - 2 * MINUTE  # at the latest
        if status.pushed is None or status.pushed < looked:
            before = read_status(self.store, key, looked)
            assert bool(before.stale) != bool(status.stale) or self.stands(f"freshness {key}") == bool(status.stale), (
                about, key, status.stale,
            )  # fmt: skip

    def count_failed(self):
        records = [each for name in "pq" for key in every_key(name) for each in list_ticks(self.store, key)]
        return Counter(each.key for each in records if each.end.outcome is TickOutcome.FAILED)

    def rest(self):
        """Lets all runs end, and time pass until nothing is open."""
        for _ in range(25):
            for child in self.children:
                if child.running:
                    child.finish()
            self.turn(timedelta(seconds=61))
            self.settle()
            if not any(one.open for one in self.cron.schedulers.values()):
                break
        self.turn(timedelta(seconds=61))
        self.settle()


def every_key(name):
    return [name, *(f"{name}:{part}" for part in ("ingest", "train", "push", "deploy"))]


@pytest.mark.parametrize("seed", range(FIRST, FIRST + HISTORIES))
def test_whatever_becomes_of_a_schedule_its_ticks_have_one_outcome_and_no_alert_stays_open(tmp_path, monkeypatch, seed):
    """It is edited, retired, brought back, moved, paused and recovered, while its scheduler dies and comes again."""
    world = World(tmp_path, random.Random(seed), monkeypatch)
    world.settle()
    for step in range(25):
        world.act()
        world.settle(slow=0.3)
        world.rest()
        world.check_all((seed, step, world.log))
    world.cron.close()
