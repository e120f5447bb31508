"""Garbage collection: what goes, what stays and why; killed, beside runs, and what happens when it is needed again."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spanwise.orchestrator import (
    Artifact,
    Component,
    Examples,
    Execution,
    Input,
    Model,
    Output,
    Pipeline,
    Report,
    Resolver,
    Run,
    State,
    Trigger,
    lease,
    process,
)
from spanwise.orchestrator.collection import Retention
from spanwise.orchestrator.errors import SettingsError, UsageError
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.store import Claim, MemoryStore
from spanwise.orchestrator.testing import Trial
from spanwise.orchestrator.verdict import Verdict, append
from spanwise.resolvers import RollingWindow
from spanwise.scheduler.backfill import record
from spanwise.scheduler.backfill.record import Backfill, BackfillStage
from spanwise.scheduler.formatting import Document
from spanwise.scheduler.inspect.disk_inventory import ASIDE
from spanwise.scheduler.ledger.holder import find_holder
from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule
from spanwise.scheduler.project import settings
from spanwise.scheduler.project.load import Loaded
from spanwise.scheduler.run.models import decide
from spanwise.scheduler.schedule.division import HALVES
from spanwise.scheduler.schedule.timetable import Timetable
from spanwise.scheduler.storage import formatting, gc
from spanwise.scheduler.storage.pins import pin, unpin
from tests.scheduler.conftest import Command
from tests.scheduler.records import begun, published
from tests.scheduler.yard import NOTHING, Yard, examples, short


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path)
    yield yard
    yard.store.close()


# --- what stays


def test_what_the_newest_run_used_stays(yard: Yard) -> None:
    """What it made, read and chose, however little is to be kept; all before it goes."""
    for span in (1, 2, 3):
        yard.day(span)

    assert yard.removals() == ["ExampleGen/examples/1/1", "Trainer/model/1", "Trainer/model/2"]
    assert yard.kept()["ExampleGen/examples/2/1"] == (
        "chosen by Recent in flights/3",
        "read by Trainer in flights/3",
    )


def test_what_a_node_used_the_last_time_stays(yard: Yard) -> None:
    """Runs of another part, and runs that failed, do not put an end to the window of the last training."""
    for span in (1, 2, 3):
        yard.day(span)
    for span in (4, 5):
        run = yard.run(span=span, state=State.FAILED)
        yard.do(run, "Recent", state=State.FAILED)

    assert yard.removals() == ["ExampleGen/examples/1/1", "Trainer/model/1", "Trainer/model/2"]


def test_what_the_last_training_read_stays_however_often_was_ingested_since(yard: Yard) -> None:
    """A week has 168 hours, and the next training reads most of the same spans."""
    for span in (1, 2, 3):
        yard.day(span)
    for _ in range(168):
        yard.do(yard.run(nodes=("ExampleGen",), span=3), "ExampleGen")

    assert yard.removals() == ["ExampleGen/examples/1/1", "Trainer/model/1", "Trainer/model/2"]


def test_what_a_later_part_reads_stays(yard: Yard) -> None:
    """The newest run that completed the part before it, whatever was run of that part alone, or failed, since."""
    timetable = Timetable("flights:train", cron="@daily", division=HALVES)
    put_schedule(yard.store, ScheduleRecord(timetable=timetable, since=yard.now))
    for state in (State.COMPLETE, State.COMPLETE, State.FAILED):
        run = yard.run(nodes=("Describe", "Trainer"), state=state)
        yard.do(run, "Describe", report=Report(""))
        yard.do(run, "Trainer", state=state, model=Model(""))
    yard.do(yard.run(nodes=("ExampleGen",)), "ExampleGen", examples=examples(2))

    assert yard.removals() == ["Describe/report/1", "Trainer/model/1"]


def test_runs_of_which_every_node_has_succeeded_since_are_not_read(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes four questions, and a pipeline has hundreds; one of a node that is gone is read."""
    for nodes in [("Trainer", "Once"), *[("Trainer",)] * 4]:
        run = yard.run(nodes=nodes)
        for node in nodes:
            yard.do(run, node, model=Model(""))
    read: list[int] = []
    executions = yard.store.executions

    def counted(run: Run) -> list[Execution]:
        read.append(run.number)
        return executions(run)

    monkeypatch.setattr(yard.store, "executions", counted)

    uses = gc.find_uses(yard.store, [*yard.store.runs("flights")])

    assert read == [5, 1]
    assert sorted(uses.values()) == [["published by Once in flights/1"], ["published by Trainer in flights/5"]]


@pytest.mark.parametrize("mark", ["blessed", "pushed"])
def test_what_was_blessed_or_pushed_stays_with_what_serves_it(yard: Yard, mark: str) -> None:
    """Its transform graph too; with other marks wanted, it goes."""
    yard.day(1, mark=mark, graph=True)
    yard.day(2, graph=True)
    yard.day(3, graph=True)
    kept = replace(NOTHING, marked=("blessed", "pushed"))

    assert yard.kept(kept)["Trainer/model/1"] == (mark,)
    assert yard.kept(kept)["Transform/graph/1"] == ("belongs to flights/Trainer/model/1",)
    assert "Transform/graph/2" in yard.removals(kept)
    assert {"Trainer/model/1", "Transform/graph/1"} <= set(yard.removals(replace(NOTHING, marked=())))


def test_what_was_made_of_a_blessed_model_without_rows_stays(yard: Yard) -> None:
    """At any remove; what read rows as well is another model, which has to be blessed itself."""
    yard.day(1, mark="blessed")
    yard.day(2)
    for number in (1, 2):
        model = yard.store.artifact(f"flights/Trainer/model/{number}")
        run = yard.run()
        (exported,) = yard.do(run, "Export", {"model": [model]}, model=Model("")).outputs["model"]
        yard.do(run, "Shrink", {"model": [exported]}, model=Model(""))
        rows = [yard.store.artifact(f"flights/ExampleGen/examples/{number}/1")]
        yard.do(run, "Tune", {"model": [exported], "examples": rows}, model=Model(""))
    yard.day(3)
    for node in ("Export", "Shrink", "Tune"):
        yard.do(yard.run(), node, model=Model(""))

    kept = yard.kept(replace(NOTHING, marked=("blessed",)))

    assert {name for name, reasons in kept.items() if "blessed" in reasons} == {
        "Trainer/model/1", "Export/model/1", "Shrink/model/1"
    }  # fmt: skip


def test_what_a_pushed_model_was_made_of_without_rows_stays_and_with_it_its_graph(yard: Yard) -> None:
    """At any remove: it serves too, so Champion chooses it."""
    for span in (1, 2, 3):
        model = yard.day(span, graph=True)
        run = yard.run()
        (quantized,) = yard.do(run, "Quantize", {"model": [model]}, model=Model("")).outputs["model"]
        (packed,) = yard.do(run, "Pack", {"model": [quantized]}, model=Model("")).outputs["model"]
        if span == 1:
            yard.push(run, packed)

    kept = yard.kept(replace(NOTHING, marked=("pushed",)))

    assert {name for name, reasons in kept.items() if "pushed" in reasons} == {
        "Trainer/model/1", "Quantize/model/1", "Pack/model/1"
    }  # fmt: skip
    assert kept["Transform/graph/1"] == ("belongs to flights/Trainer/model/1",)
    assert "Trainer/model/2" not in kept


def test_a_plan_asks_no_more_where_there_are_more_models(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """One question for all of them, whether they were exported or not: a pipeline has hundreds."""
    asked: list[str] = []

    def count(verb: str) -> None:
        ask = getattr(yard.store, verb)

        def counted(*args: object, **named: object) -> object:
            asked.append(verb)
            return ask(*args, **named)

        monkeypatch.setattr(yard.store, verb, counted)

    for verb in ("artifacts_by_id", "executions_by_id", "find_claims", "links", "producer"):
        count(verb)

    def plan(*spans: int) -> list[str]:
        for span in spans:
            run = yard.run()
            yard.do(run, "Export", {"model": [yard.day(span)]}, model=Model(""))
        asked.clear()
        yard.kept(replace(NOTHING, marked=("blessed",)))
        return sorted(asked)

    assert plan(1, 2, 3) == plan(*range(4, 12))


def test_the_model_that_a_kept_one_started_from_stays(yard: Yard) -> None:
    """One step back, and no further."""
    models: list[Model] = []
    for _ in range(4):
        run = yard.run()
        base = models[-1:]
        made = Model("", properties={"base": base[0].name} if base else {})
        models += yard.do(run, "Trainer", {"base": base}, model=made).outputs["model"]  # type: ignore[arg-type]
    yard.push(yard.run(), models[2])

    stays = yard.kept(replace(NOTHING, marked=("pushed",)))

    assert "read by Trainer in flights/4" in stays["Trainer/model/3"]
    assert stays["Trainer/model/2"] == ("belongs to flights/Trainer/model/3",)
    assert "Trainer/model/1" not in stays


def test_what_is_pinned_stays_until_it_is_unpinned(yard: Yard) -> None:
    """With who pinned it and why; a pin can be set, ended and set again."""
    model = yard.day(1)
    yard.day(2)
    yard.day(3)

    pin(yard.store, model, why="the one in the paper", now=yard.now)
    pinned = yard.kept().get("Trainer/model/1")
    unpin(yard.store, model, now=yard.now)
    unpinned = yard.removals()
    pin(yard.store, model, why="", now=yard.now)

    assert pinned is not None
    assert pinned[0].startswith("pinned by ")
    assert pinned[0].endswith(": the one in the paper")
    assert "Trainer/model/1" in unpinned
    assert "Trainer/model/1" in yard.kept()


def test_what_is_not_pinned_cannot_be_unpinned(yard: Yard) -> None:
    """The message says how to see why artifacts stay."""
    with pytest.raises(UsageError, match="gc --dry-run --all"):
        unpin(yard.store, yard.day(1), now=yard.now)


def test_what_is_young_or_among_the_last_stays(yard: Yard) -> None:
    """As the retention says."""
    for span in range(1, 7):
        yard.day(span)

    assert yard.removals(replace(NOTHING, last=3)) == [
        "ExampleGen/examples/1/1", "Trainer/model/1", "ExampleGen/examples/2/1", "Trainer/model/2",
        "ExampleGen/examples/3/1", "Trainer/model/3",
    ]  # fmt: skip
    assert yard.removals(replace(NOTHING, younger=timedelta(days=5))) == ["ExampleGen/examples/1/1", "Trainer/model/1"]


@pytest.mark.parametrize(
    ("stage", "stays"),
    [(BackfillStage.INTERRUPTED, True), (BackfillStage.FAILED, True), (BackfillStage.COMPLETE, False)],
)
def test_what_an_unfinished_backfill_used_stays(yard: Yard, stage: BackfillStage, stays: bool) -> None:
    """It is taken up again where it stopped, however many came after it; a complete one holds nothing."""
    planned = Backfill(
        pipeline="flights", source="flights.py", typed=(), calendar="day", spans=(1,), train=(), parallel=1,
        from_scratch=True, began=yard.now, after_run=0, stage=stage,
    )  # fmt: skip
    backfill = record.record_backfill(yard.store, planned, yard.root)
    for _ in range(25):
        record.record_backfill(yard.store, replace(planned, stage=BackfillStage.COMPLETE), yard.root)
    run = yard.run(span=1, trigger=Trigger.BACKFILL, cause=backfill.cause)
    yard.do(run, "Trainer", model=Model(""))
    yard.day(2, window=1)

    assert ("Trainer/model/1" in yard.kept()) is stays


class Wide(Resolver):
    """Chooses all there is."""

    def resolve(self, history):  # type: ignore[no-untyped-def]
        return [a for span in history.spans() for a in history.of_span(span)]


class ExampleGen(Component):
    def run(self, examples: Output[Examples]) -> None: ...


def test_with_its_file_a_pipelines_resolvers_are_asked(yard: Yard) -> None:
    """A window that has become wider since the last run keeps what it would choose now."""
    for span in (1, 2, 3, 4):
        yard.day(span)
    ingest = ExampleGen()
    pipeline = Pipeline("flights", [ingest, Wide(ingest["examples"], name="Wide", many=True)])

    planned = gc.plan_collection(yard.context(), "flights", Loaded(pipeline=pipeline, source="flights.py"))

    stays = {short(decision.artifact): decision.reasons for decision in planned.decisions}
    assert stays["ExampleGen/examples/1/1"] == ("Wide would choose it now",)
    assert "ExampleGen/examples/1/1" in yard.removals()


def test_a_span_that_has_yet_to_settle_is_no_garbage(yard: Yard) -> None:
    """A window of `skip=1` reads the newest span when the next one has come."""
    for span in (1, 2, 3, 4):
        yard.day(span)
    ingest = ExampleGen()
    pipeline = Pipeline("flights", [ingest, RollingWindow(ingest["examples"], size=1, skip=1)])

    planned = gc.plan_collection(yard.context(), "flights", Loaded(pipeline=pipeline, source="flights.py"))

    stays = {short(decision.artifact): decision.reasons for decision in planned.decisions}
    assert "RollingWindow would choose it now" in stays["ExampleGen/examples/3/1"]
    assert "RollingWindow may choose it later" in stays["ExampleGen/examples/4/1"]


def test_several_pipelines_are_planned_as_each_alone(yard: Yard) -> None:
    """In their order, few ahead of who reads the plans; what fails is told when its turn comes."""
    names = [f"p{number}" for number in range(8)]
    for name in names:
        yard.store.begin_run(Run(pipeline=name, calendar="day"))
    for span in (1, 2, 3):
        yard.day(span)
    context = yard.context()

    def documents(plans: Iterable[gc.CollectionPlan]) -> list[Document]:
        return [formatting.collection_document(plan, None) for plan in plans]

    found = documents(gc.plan_collections(context, ["flights", *names]))
    plans = gc.plan_collections(context, ["flights", "no such pipeline", *names])

    assert found == documents(gc.plan_collection(context, name) for name in ["flights", *names])
    assert documents([next(plans)]) == found[:1]
    with pytest.raises(IndexError):
        next(plans)
    assert list(plans) == []


# --- what is done


def test_what_goes_is_marked_and_then_removed(yard: Yard) -> None:
    """The record stays, with a mark that says who, when and how much; the files and nothing else are gone."""
    for span in (1, 2, 3):
        model = yard.day(span)
    gone = yard.store.artifact("flights/Trainer/model/1")

    done = yard.collect()

    assert [short(a) for a in done.artifacts] == ["ExampleGen/examples/1/1", "Trainer/model/1", "Trainer/model/2"]
    assert (done.failures, done.held) == ((), "")
    assert not Path(gone.uri).exists()
    assert Path(model.uri, "data").exists()
    facts = yard.store.find_claim("collected", gone.name).facts  # type: ignore[union-attr]
    assert (facts["at"], facts["size_bytes"]) == (yard.now.isoformat(), gone.size_bytes)
    assert yard.store.artifact(gone.name).id == gone.id
    assert [s.name for s in Path(gone.uri).parent.iterdir()] == [Path(model.uri).name]


def test_a_second_collection_finds_nothing(yard: Yard) -> None:
    """What was collected is not collected again."""
    for span in (1, 2, 3):
        yard.day(span)
    yard.collect()

    assert yard.removals() == []
    assert yard.collect().artifacts == ()


def test_what_is_left_over_goes_and_strangers_stay(yard: Yard) -> None:
    """The folders of failed executions, and old logs; what no run has written is not touched."""
    yard.day(1)
    yard.do(yard.run(state=State.FAILED), "Trainer", state=State.FAILED, model=Model(""))
    logs = yard.root / "flights" / ".runs" / "1" / "logs"
    logs.mkdir(parents=True)
    tick = yard.root / "flights" / ".schedule" / "2013-01-01.1.log"
    tick.parent.mkdir()
    tick.write_text("said")
    os.utime(tick, (0, 0))
    mine = yard.root / "flights" / "Trainer" / "model" / "mine"
    mine.mkdir()
    yard.now += timedelta(days=100)

    done = yard.collect()

    assert len(done.leftovers) == 3
    assert all(not left.path.exists() for left in done.leftovers)
    assert not logs.parent.exists()
    assert mine.exists()


def test_several_in_one_folder_go_one_by_one(yard: Yard) -> None:
    """The folder goes with the last."""
    run = yard.run()
    begun = yard.store.begin(Execution(pipeline="flights", run=run.number, node="Transform"))
    home = yard.root / "flights" / "Transform" / "models" / str(begun.id)
    for name in ("0", "1"):
        (home / name).mkdir(parents=True)
    drafts = tuple(Model(str(home / name)) for name in ("0", "1"))
    made = yard.store.publish(replace(begun, state=State.COMPLETE, outputs={"models": drafts})).outputs["models"]
    yard.do(yard.run(), "Transform", model=Model(""))

    pin(yard.store, made[1], why="", now=yard.now)
    yard.collect()
    after_one = sorted(path.name for path in home.iterdir())
    unpin(yard.store, made[1], now=yard.now)
    yard.collect()

    assert after_one == ["1"]
    assert not home.exists()


def test_many_are_marked_in_several_turns(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is held for so many at a time, and what a run came to use in between stays."""
    monkeypatch.setattr(gc, "BATCH", 2)
    for span in range(1, 6):
        yard.day(span)
    planned = gc.plan_collection(yard.context(), "flights")
    spared = yard.store.artifact("flights/Trainer/model/3")
    release = lease.Lease.release

    def and_then_a_run(mine: lease.Lease, *, closed: bool = False) -> None:
        release(mine, closed=closed)
        if yard.store.find_claim("lease", f"flights#{mine.token + 1}") is None and mine.token == 1:
            yard.do(yard.run(), "Evaluator", {"model": [spared]}, report=Report(""))

    monkeypatch.setattr(lease.Lease, "release", and_then_a_run)

    done = gc.collect(yard.context(), planned)

    assert len(planned.removals) == 7
    assert len(done.artifacts) == 6
    assert Path(spared.uri).exists()
    assert yard.store.find_claim("lease", "flights#4") is not None


def test_what_is_pinned_after_the_plan_stays(yard: Yard) -> None:
    """Pins are looked up once more under the lease."""
    model = yard.day(1)
    yard.day(2)
    yard.day(3)
    planned = gc.plan_collection(yard.context(), "flights")
    pin(yard.store, model, why="", now=yard.now)

    gc.collect(yard.context(), planned)

    assert "Trainer/model/1" in yard.there()


def test_what_a_person_blesses_after_the_plan_stays(yard: Yard) -> None:
    """No newer run says that anything has changed."""
    model = yard.day(1)
    yard.day(2)
    yard.day(3)
    context = yard.context(Retention(last=0, younger=timedelta(0), marked=("blessed",)))
    planned = gc.plan_collection(context, "flights")
    decide(yard.store, model, given=True, because="it was better")

    gc.collect(context, planned)

    assert "Trainer/model/1" in yard.there()


def test_a_blessing_waits_for_the_collection_that_may_not_have_seen_it(yard: Yard) -> None:
    """Then it says that the files of the champion are gone."""
    model = yard.day(1)
    held = lease.acquire(yard.store, "flights", lease.COLLECTING)

    def collected_meanwhile(seconds: float) -> None:
        yard.store.claim(Claim("collected", model.name, {"at": yard.now.isoformat(), "who": "gc", "size_bytes": 1}))
        held.release()

    decision = decide(
        yard.store, model, given=True, because="it was better", clock=lease.Clock(sleep=collected_meanwhile)
    )

    assert decision.champion is not None
    assert decision.champion.name == model.name
    assert decision.lost


def bless(yard: Yard, model: Artifact) -> None:
    append(yard.store, [Verdict(mark="blessed", artifact=model.name, given=True, by="ann@host", because="")])


def use(yard: Yard, model: Artifact) -> None:
    yard.do(yard.run(), "Evaluator", {"model": [model]}, report=Report(""))


def protect(yard: Yard, model: Artifact) -> None:
    pin(yard.store, model, why="", now=yard.now)


@pytest.mark.parametrize("keep", [protect, bless, use])
def test_what_is_kept_after_the_plan_stays_with_what_serves_it(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, keep: Callable[[Yard, Artifact], None]
) -> None:
    """A model that somebody pins, blesses or uses meanwhile keeps its transform graph, whichever turn it comes in."""
    monkeypatch.setattr(gc, "BATCH", 2)
    models = [yard.day(span, graph=True) for span in range(1, 5)]
    planned = gc.plan_collection(yard.context(), "flights")
    assert {"Transform/graph/2", "Trainer/model/2"} <= {short(a) for a in planned.removals}
    keep(yard, models[1])

    done = gc.collect(yard.context(), planned)

    assert {"Transform/graph/2", "Trainer/model/2"} <= set(yard.there())
    assert {"Transform/graph/1", "Trainer/model/1", "Transform/graph/3"} <= {short(a) for a in done.artifacts}


def test_what_was_collected_cannot_be_pinned(yard: Yard) -> None:
    """The message says who has collected it, and that the files are gone."""
    model = yard.day(1)
    yard.day(2)
    yard.day(3)
    yard.collect()

    with pytest.raises(UsageError, match="files are gone"):
        pin(yard.store, model, why="", now=yard.now)


def test_a_pin_waits_for_the_collection_that_may_not_have_seen_it(yard: Yard) -> None:
    """Only when that has let go of the lease is it known whether the pin came in time."""
    model = yard.day(1)
    held = lease.acquire(yard.store, "flights", lease.COLLECTING)
    waited: list[float] = []

    def collected_meanwhile(seconds: float) -> None:
        waited.append(seconds)
        yard.store.claim(Claim("collected", model.name, {"at": yard.now.isoformat(), "who": "gc", "size_bytes": 1}))
        held.release()

    with pytest.raises(UsageError, match="was collected by gc"):
        pin(yard.store, model, why="", now=yard.now, clock=lease.Clock(sleep=collected_meanwhile))
    assert len(waited) == 1


def test_a_pipeline_that_somebody_holds_is_left_alone(yard: Yard) -> None:
    """A run that goes on may have chosen anything: nothing is marked, nothing removed, and the message says who."""
    for span in (1, 2, 3):
        yard.day(span)
    yard.do(yard.run(state=State.FAILED), "Trainer", state=State.FAILED, model=Model(""))
    before = sorted(yard.root.rglob("*"))
    held = lease.acquire(yard.store, "flights", "run 4")
    planned = gc.plan_collection(yard.context(), "flights")

    done = gc.collect(yard.context(), planned)
    held.release()

    assert planned.held.startswith("run 4 of 'flights' is still going")
    assert done.held == planned.held
    assert (done.artifacts, done.leftovers) == ((), ())
    assert sorted(yard.root.rglob("*")) == before
    assert yard.store.find_claim("collected", "flights/Trainer/model/1") is None
    assert gc.exit_code([done]) == 3


def test_what_a_run_used_while_it_was_waited_for_stays(yard: Yard) -> None:
    """Of runs side by side the newest may have ended before another one has used what was planned to go."""
    models = [yard.day(span) for span in (1, 2, 3)]
    older = yard.run(state=State.RUNNING)
    yard.do(yard.run(), "Other", report=Report(""))
    held = lease.acquire(yard.store, "flights", "backfill 1")

    def go_on(_seconds: float) -> None:
        yard.do(older, "Evaluator", {"model": models[:1]}, report=Report(""))
        yard.store.update_run(replace(older, state=State.COMPLETE, ended=yard.now))
        held.release()

    done = yard.collect(wait=True, clock=lease.Clock(sleep=go_on))

    assert [short(a) for a in done.artifacts] == ["ExampleGen/examples/1/1", "Trainer/model/2"]


def test_with_wait_it_collects_once_the_run_has_ended(yard: Yard) -> None:
    """It looks again after a while, until the lease is free."""
    for span in (1, 2, 3):
        yard.day(span)
    held = lease.acquire(yard.store, "flights", "run 4")
    clock = replace(lease.Clock(), sleep=lambda _seconds: held.release())

    done = yard.collect(wait=True, clock=clock)

    assert len(done.artifacts) == 3


def test_a_collection_is_no_overrun(yard: Yard) -> None:
    """A tick that comes while one holds the lease is not skipped: its run waits for that second."""
    yard.day(1)
    held = lease.acquire(yard.store, "flights", lease.COLLECTING)
    going = find_holder(yard.store, "flights")
    held.release()

    assert going is None


def test_what_a_dead_run_left_open_is_closed_first(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease is taken over, its executions are recorded as abandoned, and what they had written is removed."""
    held = lease.acquire(yard.store, "flights", "run 1")
    run = yard.run(state=State.RUNNING, token=held.token)
    open_ = yard.do(run, "Trainer", state=State.RUNNING, model=Model(""))
    monkeypatch.setattr(process, "is_alive", lambda _who: False)

    yard.collect()

    assert yard.store.run("flights", 1).state is State.FAILED
    assert yard.store.execution(open_.id).state is State.FAILED
    assert not list((yard.root / "flights" / "Trainer" / "model").iterdir())
    assert lease.current(yard.store, "flights").closed  # type: ignore[union-attr]


def test_what_was_begun_is_finished(yard: Yard) -> None:
    """Marked and not moved, moved and not removed, half removed: the next collection ends it, whatever is kept then."""
    models = [yard.day(span) for span in (1, 2, 3, 4)]
    for model in models[:3]:
        yard.store.claim(Claim("collected", model.name, {"at": yard.now.isoformat(), "who": "me", "size_bytes": 1}))
    for model in models[1:3]:
        Path(model.uri).rename(Path(model.uri).with_name(f"{ASIDE}{Path(model.uri).name}"))
    (Path(models[2].uri).parent / f"{ASIDE}{Path(models[2].uri).name}" / "data").unlink()

    done = yard.collect(Retention(last=100))

    assert [short(a) for a in done.artifacts] == ["Trainer/model/1"]
    assert len(done.leftovers) == 2
    assert [path.name for path in Path(models[3].uri).parent.iterdir()] == [Path(models[3].uri).name]


def test_what_cannot_be_removed_is_told_and_tried_again(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest goes; the exit code says that something is left."""
    for span in (1, 2, 3):
        yard.day(span)
    remove = shutil.rmtree
    refused = yard.store.artifact("flights/Trainer/model/1").uri

    def refuses(path: Path) -> None:
        if str(path).endswith(Path(refused).name):
            raise PermissionError(13, "Permission denied")
        remove(path)

    monkeypatch.setattr(shutil, "rmtree", refuses)
    first = yard.collect()
    monkeypatch.undo()
    second = yard.collect()

    assert first.failures == (f"{refused}: Permission denied",)
    assert len(first.artifacts) == 2
    assert gc.exit_code([first]) == 1
    assert [left.why for left in second.leftovers] == ["an interrupted collection has not removed it yet"]
    assert gc.exit_code([second]) == 0


# --- when it is needed again


class Make(Component):
    def run(self, report: Output[Report], word: str) -> None:
        (report.path / "word").write_text(word)


class Read(Component):
    def run(self, one: Input[Report], report: Output[Report]) -> None:
        (report.path / "word").write_text((one.path / "word").read_text() + "!")


class Ingest(Component):
    prepared = ("span",)

    def prepare(self, run, history):  # type: ignore[no-untyped-def]
        return {"span": run.span}

    def run(self, *, examples: Output[Examples], span: int) -> None:
        (examples.path / "rows").write_text(f"rows of {span}")
        examples.span, examples.split_names = span, ["train"]


class Learn(Component):
    def run(self, examples: Input[list[Examples]], report: Output[Report], cut: int = 0) -> None:
        (report.path / "learned").write_text(" ".join((e.path / "rows").read_text()[cut:] for e in examples))


def chain(word: str) -> Pipeline:
    make = Make(word=word)
    return Pipeline("p", [make, Read(one=make["report"])])


def learning(size: int) -> Pipeline:
    ingest = Ingest()
    recent = RollingWindow(ingest["examples"], size=size, since=1, name="Recent")
    return Pipeline("p", [ingest, recent, Learn(examples=recent["examples"])])


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    """Runs for real, with records in ml-metadata."""
    store = open_store(str(tmp_path / "metadata.db"))
    yield Trial(tmp_path, store)
    store.close()


def collect(trial: Trial, *names: str) -> None:
    """Collects these artifacts and no others, with whatever uses them."""
    context = gc.CollectionContext(store=trial.store, root=trial.root, retention=NOTHING, now=datetime.now(UTC))
    planned = gc.plan_collection(context, "p")
    assert set(names) <= {a.name for a in planned.removals}
    chosen = tuple(f if f.artifact.name in names else replace(f, reasons=("not asked for",)) for f in planned.decisions)
    assert len(gc.collect(context, replace(planned, decisions=chosen)).artifacts) == len(names)


def test_a_node_whose_outputs_were_collected_is_done_again(trial: Trial) -> None:
    """A cache hit without files is no hit: what comes out is a new artifact with the same content, and its readers
    are served from the cache.
    """
    first = trial.run(chain("a"))
    trial.run(chain("b"))
    collect(trial, "p/Make/report/1")

    again = trial.run(chain("a"))

    assert again["Make"].reason == "the cached result of p/1/Make/1 is unusable: p/Make/report/1 was collected"
    assert again.artifact("Make", "report").name == "p/Make/report/3"
    assert again.artifact("Make", "report").content == first.artifact("Make", "report").content
    assert again.states == {"Make": State.COMPLETE, "Read": State.CACHED}


def test_what_is_marked_is_gone_though_its_files_are_there(trial: Trial) -> None:
    """Between the mark and the removal nobody begins to read it."""
    first = trial.run(chain("a"))
    trial.store.claim(Claim("collected", first.artifact("Make", "report").name))

    again = trial.run(chain("a"))

    assert again["Make"].state is State.COMPLETE


def test_a_window_over_collected_spans_names_the_commands(trial: Trial) -> None:
    """A run never learns from less without a word; each command that it names makes one span again."""
    for span in (1, 2, 3):
        trial.run(learning(1), span=span)
    collect(trial, "p/Ingest/examples/1/1", "p/Ingest/examples/2/1")

    refused = trial.run(learning(3), span=3)
    for span in (1, 2):
        trial.run(learning(3), RunRequest(selection=learning(3).select(last=["Ingest"])), span=span)
    mended = trial.run(learning(3), span=3)

    assert refused["Learn"].error == (
        "Learn reads p/Ingest/examples/1/1 and 1 more, but the files were garbage-collected.\n"
        "Recreate them:  spanwise run p.py --span 1 --to Ingest\n"
        "  spanwise run p.py --span 2 --to Ingest"
    )
    assert mended["Learn"].state is State.COMPLETE
    learned = mended.artifact("Learn", "report").path / "learned"
    assert learned.read_text() == "rows of 1 rows of 2 rows of 3"


def test_what_is_served_from_the_cache_needs_no_inputs(trial: Trial) -> None:
    """A run over a window whose spans were collected goes through where its work was done before."""
    for span in (1, 2, 3):
        trial.run(learning(3), span=span)
    trial.run(learning(1), span=3)
    trial.run(learning(1), RunRequest(cache=False), span=3)
    collect(trial, "p/Ingest/examples/1/1", "p/Ingest/examples/2/1")

    again = trial.run(learning(3), span=3)

    assert again.run.state is State.COMPLETE
    assert again["Learn"].state is State.CACHED


def test_a_run_whose_outputs_were_collected_is_no_base(trial: Trial) -> None:
    """It is passed over, and an older run does not silently take its place: only by name."""
    old = trial.run(chain("a"))
    new = trial.run(chain("b"))
    trial.store.claim(Claim("collected", new.artifact("Make", "report").name))

    part = chain("a").select(first=["Read"])

    with pytest.raises(UsageError, match="Make gave p/Make/report/2 in run 2, which is newer"):
        trial.run(chain("a"), RunRequest(selection=part))
    part = trial.run(chain("a"), RunRequest(selection=part, base=old.run.number, force_base=True))
    assert part.run.state is State.COMPLETE


def test_a_part_is_not_supplied_by_an_older_run_than_the_one_that_was_collected(trial: Trial) -> None:
    """A part that reads the newest run of the part before it says that its files are gone, and what makes them again."""
    trial.run(chain("a"))
    new = trial.run(chain("b"))
    trial.store.claim(Claim("collected", new.artifact("Make", "report").name))
    part = RunRequest(selection=chain("b").select(first=["Read"]), behind=("Make",))

    with pytest.raises(UsageError, match=r"run 2, .*of Make .* garbage-collected.*again:  spanwise run p.py --to Make"):
        trial.run(chain("b"), part)


# --- set and typed


def test_what_stays_is_set(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the table `[gc]`; a variable wins over it."""
    (folder / "spanwise.toml").write_text(
        '[gc]\nkeep_last = 3\nkeep_last_of = { Model = 9 }\nkeep_younger = "12h"\nkeep_marked = []\nkeep_logs = "2d"\n'
    )
    written = settings.read().gc
    monkeypatch.setenv("SPANWISE_GC", '{"keep_last": 4}')

    assert written == Retention(
        last=3, last_of={"Model": 9}, younger=timedelta(hours=12), marked=(), logs=timedelta(days=2)
    )
    assert settings.read().gc.last == 4


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('keep_younger = "often"', "gc.keep_younger: expected a length of time, such as 12h or 30d."),
        ("keep_last = -1", "gc.keep_last: input should be greater than or equal to 0."),
        ("keep_lots = 1", "gc.keep_lots: is not a setting."),
        ('keep_marked = ["push"]', "gc.keep_marked.0: input should be 'blessed' or 'pushed'."),
    ],
)
def test_what_cannot_be_set_is_refused(folder: Path, line: str, said: str) -> None:
    """With the name of the setting and what it takes."""
    (folder / "spanwise.toml").write_text(f"[gc]\n{line}\n")

    with pytest.raises(SettingsError, match=re.escape(said)):
        settings.read()


def test_a_type_to_keep_is_one_that_exists() -> None:
    """Of the product, or recorded, as one of a pipeline that is not loaded; the others are named instead of it."""
    store, retention = MemoryStore(), Retention(last_of={"Model": 30, "Tides": 3})
    with pytest.raises(UsageError, match=r"(?s)Tides: there is no such type\. .*Types: .*Model, .*spanwise gc FILE"):
        gc.refuse_unknown_types(store, retention)
    published(store, begun(store), "Predict", outputs={"tides": Artifact("/tides", kind="Tides")})

    gc.refuse_unknown_types(store, retention)


def test_where_nothing_ran_there_is_nothing_to_collect(spanwise: Command, folder: Path) -> None:
    """That is no error, and nothing is made."""
    assert spanwise("gc") == (0, "Nothing has run here yet.\n", "")
    assert list(folder.iterdir()) == []


def test_gc_typed(spanwise: Command, project: Path) -> None:
    """What would be removed, what was removed and what is kept, for people and for programs."""
    for text in ("one", "two", "three"):
        assert spanwise("run", "flow.py", "--param", f"text={text}")[0] == 0
    (project / "spanwise.toml").write_text('[gc]\nkeep_last = 0\nkeep_younger = "0s"\n')

    code, planned, _ = spanwise("gc", "flow", "--dry-run", "--all")
    assert code == 0
    assert re.search(r"^flow/First/report/1 +Report ", planned, re.MULTILINE)
    assert re.search(
        r"^flow/First/report/3 +5 B +published by First in flow/3; read by Second in", planned, re.MULTILINE
    )
    assert planned.endswith("\n\nflow: 4 artifacts and 0 leftovers would be removed, 18 B; 3 artifacts are kept.\n")

    assert spanwise("pin", "flow/First/report/1", "--because", "why not")[0] == 0
    document = json.loads(spanwise("gc", "--json", "--dry-run")[1])[0]
    assert "flow/First/report/1" not in [a["name"] for a in document["artifacts"]]
    assert any("why not" in why for kept in document["kept"] for why in kept["why"])
    assert spanwise("gc", "flow", "--keep-last-of", "Report=3")[1].startswith("flow: 0 artifacts")
    assert spanwise("unpin", "flow/First/report/1")[0] == 0

    code, out, _ = spanwise("gc", "flow.py")
    assert code == 0
    assert "removed, 18 B; 3 artifacts are kept. See why: --dry-run --all" in out
    assert "0 artifacts and 0 leftovers would be removed" in spanwise("gc", "--dry-run")[1]


def test_of_many_the_first_are_listed_unless_all_are_asked_for(
    spanwise: Command, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line says how many more there are, and what lists them; the summary and the document cover all."""
    monkeypatch.setattr(formatting, "MOST_LISTED", 2)
    for text in ("one", "two", "three"):
        assert spanwise("run", "flow.py", "--param", f"text={text}")[0] == 0
    for name in ("a", "b", "c"):
        (project / ".spanwise" / "flow" / name).write_text("somebody's")
    options = ("gc", "flow", "--keep-last", "0", "--keep-younger", "0s")

    few, every = (spanwise(*options, "--dry-run", *more)[1] for more in ((), ("--all",)))
    document = json.loads(spanwise(*options, "--dry-run", "--json")[1])[0]
    removed = spanwise(*options)[1]

    artifacts = [a["name"] for a in document["artifacts"]]
    assert len(artifacts) == 4
    assert [name for name in artifacts if re.search(f"^{name} ", few, re.MULTILINE)] == artifacts[:2]
    assert [name for name in artifacts if re.search(f"^{name} ", every, re.MULTILINE)] == artifacts
    assert "\n\nNot listed: 2 artifacts, 1 unknown file. See all: --dry-run --all\n\nflow: 4 artifacts and" in few
    assert "Not listed" not in every
    assert "Not listed: 2 artifacts, 1 unknown file. With --all, gc lists all that it removes.\n" in removed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gc", "--keep-younger", "often"], "'often' is not a length of time"),
        (["gc", "--keep-last-of", "Model"], "such as Model=30"),
        (["gc", "--keep-last-of", "model=30"], "Keep the last of model: there is no such type. Did you mean Model?"),
        (["gc", "--keep-marked", "push"], "--keep-marked push: expected blessed, pushed or none."),
        (["gc", "--keep-marked", "blessed,pushed"], "--keep-marked blessed,pushed: expected blessed, pushed or none."),
        (["gc", "flights"], "No pipeline 'flights' has run here."),
        (["pin", "flow/First/report/9"], "There is no artifact 'flow/First/report/9'."),
        (["unpin", "flow/First/report/1"], "is not pinned"),
    ],
)
def test_what_cannot_be_asked_is_refused(spanwise: Command, project: Path, words: list[str], said: str) -> None:
    """With what was wrong; nothing is removed."""
    assert spanwise("run", "flow.py")[0] == 0

    code, _, err = spanwise(*words)

    assert code == 2
    assert said in err
