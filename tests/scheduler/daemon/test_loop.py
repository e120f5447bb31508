"""The loop, in this process: real files described by real children, a real database, a clock that the test moves."""

import fcntl
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

import pytest

from spanwise.orchestrator.errors import LoadError, StoreUnavailable
from spanwise.orchestrator.lease import Clock
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.storage import StorageBucket
from spanwise.scheduler.alerts import alert, outbox
from spanwise.scheduler.daemon.loop import SchedulerLoop
from spanwise.scheduler.daemon.services import SchedulerServices
from spanwise.scheduler.ledger.heartbeat import register
from spanwise.scheduler.ledger.missed import list_missed
from spanwise.scheduler.ledger.schedule_status import read_status
from spanwise.scheduler.ledger.schedules import read_schedule
from spanwise.scheduler.ledger.ticks import claim_tick, list_ticks
from spanwise.scheduler.project import root, settings
from spanwise.scheduler.schedule.ticks import ticks
from tests.contract.object_storage import serve
from tests.scheduler.daemon.test_pipeline_scheduler import Child

FILE = """
from spanwise.orchestrator import Component, Output, Pipeline, Report
from spanwise.scheduler import Schedule, days_before

class Work(Component):
    def run(self, report: Output[Report]) -> None: ...

def {name}() -> Pipeline:
    return Pipeline("{name}", [Work()])

daily = Schedule({name}, cron="{cron}", span=days_before(1))
"""
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Told(SchedulerServices):
    """Notes the subjects of alerts, beside putting them into the outbox."""

    told: ClassVar = []

    def send(self, message):
        self.told[-1].append(message.subject)
        return super().send(message)


class Loop:
    """A scheduler in a folder."""

    def __init__(self, folder, monkeypatch):
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        monkeypatch.chdir(folder)
        self.folder = folder
        self.root = folder / "root"
        self.now, self.monotonic = NOON, 1000.0
        self.jobs = []
        self.crons = []
        self.told = []

    def write(self, name, cron="0 * * * *"):
        path = self.folder / f"{name}.py"
        path.write_text(FILE.format(name=name, cron=cron))
        return str(path)

    def open(self, *files, **options):
        known = settings.read(root=self.root)
        clock = Clock(now=lambda: self.now, monotonic=lambda: self.monotonic)
        services = Told(root=known.root, config=None, site=alert.local_site(), start=self.start)
        services.told.append(self.told)
        self.cron = SchedulerLoop(files, known, clock=clock, services=services, **options)
        self.crons.append(self.cron)
        return self.cron

    def start(self, job):
        self.jobs.append((job.pipeline, job.tick))
        return Child(job, self)

    def turn(self, by=timedelta(0)):
        """One turn, and as many more as the files take to be described."""
        self.now += by
        self.monotonic += by.total_seconds()
        over = self.cron.turn()
        while self.cron.files.loading:
            time.sleep(0.01)
            over = self.cron.turn()
        return over


@pytest.fixture
def loop(tmp_path, monkeypatch):
    made = Loop(tmp_path, monkeypatch)
    yield made
    for one in made.crons:
        one.close()


def test_several_files_are_looked_after_in_one_loop(loop):
    """Each pipeline at its time."""
    loop.open(loop.write("first", "0 * * * *"), loop.write("second", "30 * * * *"))
    loop.turn()

    loop.turn(timedelta(minutes=30))
    loop.turn(timedelta(minutes=30))

    assert loop.jobs == [("second", "2026-03-01T12:30Z"), ("first", "2026-03-01T13:00Z")]


def test_ticks_are_claimed_while_the_object_storage_of_the_root_is_away(loop, monkeypatch):
    """The metadata alone are needed for them, so an idle scheduler asks the storage for nothing after its start."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(loop.folder / "cache"))
    with serve("moto") as home:
        loop.root = f"{home}/root"
        loop.open(loop.write("first"))
        loop.turn()
        with monkeypatch.context() as patch:
            patch.setattr(StorageBucket, "read", lambda *_: pytest.fail("the storage was asked"))
            loop.turn(timedelta(minutes=30))
            loop.turn(timedelta(minutes=30))
            loop.cron.close()

    assert loop.jobs == [("first", "2026-03-01T13:00Z")]
    assert loop.told == []


PARTS = """
from spanwise.orchestrator import Component, Examples, Input, Model, Output, Pipeline
from spanwise.resolvers import RollingWindow
from spanwise.scheduler import Schedule, days_before

class Ingest(Component):
    def run(self, examples: Output[Examples]) -> None: ...

class Learn(Component):
    def run(self, examples: Input[list[Examples]], model: Output[Model]) -> None: ...

def one() -> Pipeline:
    ingest = Ingest()
    recent = RollingWindow(ingest["examples"], size=2)
    return Pipeline("one", [ingest, recent, Learn(examples=recent["examples"])])

apart = Schedule(one, parts={"ingest": "0 * * * *", "train": "30 * * * *"}, span=days_before(1))
"""


def test_a_pipeline_that_two_files_schedule_is_of_the_first(loop):
    """Also where one schedules it as a whole and the other by parts: not both, and an alert says so."""
    (loop.folder / "apart.py").write_text(PARTS)
    loop.open(loop.write("one"), str(loop.folder / "apart.py"))
    for _ in range(3):
        loop.turn()

    loop.turn(timedelta(hours=1))

    assert len({pipeline.partition(":")[2] == "" for pipeline in loop.cron.schedulers}) == 1
    assert len({pipeline.partition(":")[2] == "" for pipeline, _ in loop.jobs}) == 1
    assert [subject for subject in loop.told if "defines a pipeline of another file" in subject] != []


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_pipeline_that_moves_to_another_file_goes_on_in_that_one(loop, monkeypatch, first):
    """Whichever of the two is loaded first; that both had it meanwhile is over then."""
    monkeypatch.setattr(outbox, "wants_delivery", lambda _place: False)
    files = {"a": loop.write("one"), "b": loop.write("two")}
    for name, path in files.items():
        Path(path).rename(loop.folder / f"{name}.py")
    files = {name: str(loop.folder / f"{name}.py") for name in files}
    loop.open(files[first], files["b" if first == "a" else "a"])
    loop.turn()

    Path(files["b"]).write_text(FILE.format(name="one", cron="0 * * * *"))
    loop.turn(timedelta(seconds=10))
    Path(files["a"]).write_text(FILE.format(name="three", cron="0 * * * *"))
    for _ in range(3):
        loop.turn(timedelta(seconds=10))
    loop.turn(timedelta(hours=1))

    assert sorted(key for key, _ in loop.jobs) == ["one", "three"]
    assert [subject for subject in waiting(loop) if "defines a pipeline" in subject] != []
    assert [subject for subject in waiting(loop) if "recovered" in subject] != []


def test_a_tick_that_a_replaced_schedule_left_open_is_taken_over(loop):
    """Its scheduler died, and its file has parts since: the tick comes to its end, and no other is taken for it."""
    file = loop.write("one")
    loop.open(file)
    loop.turn()
    loop.turn(timedelta(hours=1))
    loop.cron.close()
    Path(file).write_text(PARTS)

    loop.open(file)
    loop.turn()
    loop.turn()
    assert loop.jobs == [("one", "2026-03-01T13:00Z")] * 2
    (left,) = loop.cron.schedulers["one"].open.values()
    left.child.returncode = 1
    loop.turn(timedelta(hours=1))
    loop.turn()

    assert "one" not in loop.cron.schedulers
    assert {pipeline for pipeline, tick in loop.jobs if tick > "2026-03-01T13:00Z"} == {"one:ingest", "one:train"}
    known = settings.read(root=loop.folder / "root")
    with root.open_for_reading(known) as store:
        assert [tick.end.outcome.value for tick in list_ticks(store, "one")] == ["failed"]


def test_a_file_that_breaks_is_told_and_its_schedule_goes_on(loop):
    """Its runs will tell, too; the other file's go on, and once it is mended, that is told."""
    broken = loop.write("first")
    loop.open(broken, loop.write("second"))
    loop.turn()

    Path(broken).write_text("import nothing_of_that_name")
    loop.turn(timedelta(seconds=10))
    loop.turn(timedelta(hours=1))
    assert {name for name, _ in loop.jobs} == {"first", "second"}
    assert loop.told == ["scheduler: could not load first.py"]

    loop.write("first", "15 * * * *")
    loop.turn(timedelta(seconds=10))

    assert loop.told[1:] == ["scheduler recovered: it was loaded"]
    assert loop.cron.schedulers["first"].due_at == NOON + timedelta(hours=1, minutes=15)


def test_a_file_that_is_broken_from_the_start_goes_on_as_it_was_known(loop):
    """A machine that boots does not lose the schedule of a file that somebody broke the day before."""
    file = loop.write("first")
    loop.open(file)
    loop.turn()
    loop.cron.close()
    Path(file).write_text("import nothing_of_that_name")

    loop.open(file)
    loop.turn()
    loop.turn(timedelta(hours=1))

    assert loop.jobs == [("first", "2026-03-01T13:00Z")]


def test_what_a_scheduler_alerted_of_itself_recovers_when_it_is_started_again(loop, monkeypatch):
    """The one that comes after it sees that the file, the metadata and the pipeline are well, and says so once."""
    monkeypatch.setattr(outbox, "wants_delivery", lambda _place: False)
    file = loop.write("first")
    loop.open(file, loop.write("second"))
    loop.turn()
    Path(file).write_text("import nothing_of_that_name")
    object.__setattr__(loop.cron._services, "start", None)
    loop.turn(timedelta(hours=1))
    with monkeypatch.context() as patch:
        patch.setattr(root, "open_for_writing", unavailable)
        loop.turn(timedelta(hours=1))
        loop.turn(timedelta(seconds=30))
    loop.cron.close()
    told = waiting(loop)

    loop.write("first")
    for _ in range(2):
        loop.open(file)
        loop.turn(timedelta(seconds=10))
        loop.turn(timedelta(seconds=10))

    assert sorted(told) == [
        "scheduler: a pipeline is not scheduled (first)",
        "scheduler: a pipeline is not scheduled (second)",
        "scheduler: could not load first.py",
        "scheduler: metadata store unavailable",
    ]
    assert sorted(waiting(loop)[len(told) :]) == [
        "first recovered: it is scheduled again",
        "scheduler recovered: it is available again",
        "scheduler recovered: it was loaded",
    ]


def waiting(loop):
    subjects = [letter.alert.subject for letter in outbox.list_waiting(loop.root)]
    return [subject for subject in subjects if "scheduler: " in subject or "recovered" in subject]


def unavailable(*_args, **_options):
    raise StoreUnavailable("the database does not answer")


def test_where_no_file_can_be_loaded_there_is_nothing_to_start(loop):
    """Somebody is at the terminal and sees why."""
    loop.open(str(loop.folder / "nowhere.py"))

    with pytest.raises(LoadError, match="There is no file"):
        loop.turn()


def test_a_pipeline_that_is_gone_from_its_file_takes_no_ticks(loop):
    """What it has open comes to its end."""
    file = loop.write("first")
    loop.open(file)
    loop.turn()
    loop.write("second")
    Path(file).write_text((loop.folder / "second.py").read_text())

    loop.turn(timedelta(seconds=10))
    loop.turn(timedelta(hours=1))

    assert loop.jobs == [("second", "2026-03-01T13:00Z")]
    assert list(loop.cron.schedulers) == ["second"]


@pytest.mark.parametrize("again", [False, True])
def test_a_schedule_that_its_file_no_longer_has_is_over(loop, again):
    """None of its ticks is overdue, also where the scheduler was started anew; brought back, it counts from then."""
    file = loop.write("first")
    loop.open(file)
    loop.turn()
    loop.turn(timedelta(hours=1))
    (tick,) = loop.cron.schedulers["first"].open.values()
    tick.child.returncode = 1
    loop.turn()
    loop.write("second")
    Path(file).write_text((loop.folder / "second.py").read_text())
    if again:
        loop.cron.close()
        loop.open(file)
    loop.turn(timedelta(seconds=10))
    loop.turn(timedelta(hours=3))
    with root.open_for_reading(settings.read(root=loop.root)) as store:
        over = read_status(store, "first", loop.now)
        assert (over.schedule.replaced, over.next, over.overdue, over.missed) == (True, None, None, 1)
        assert not read_schedule(store, "second").replaced

    loop.write("first")
    loop.turn(timedelta(seconds=10))
    loop.turn(timedelta(hours=1))

    assert [tick for key, tick in loop.jobs if key == "first"] == ["2026-03-01T13:00Z", "2026-03-01T17:00Z"]


def standing(loop, key):
    """What was alerted of a schedule key and has not recovered."""
    kinds = ("overdue", "freshness", "forecast", "overrun", "missed", "failure", "stall")
    return [kind for kind in kinds if outbox.was_alerted(loop.root, f"{kind} {key}")]


def alert_of(loop, key):
    """Alerts what lasts of a schedule key, as its scheduler and the watchdog do."""
    site, hour = alert.local_site(), timedelta(hours=1)
    for each in (
        alert.freshness_alert(key, at=loop.now, site=site, pushed=None, allowed=hour),
        alert.forecast_alert(key, at=loop.now, site=site, forecast="soon", facts={}),
        alert.missed_alert(key, at=loop.now, site=site, ticks=["13"], why="nobody took it", overdue=True),
    ):
        outbox.put(loop.root, each)


@pytest.mark.parametrize("again", [False, True])
def test_the_alerts_of_a_schedule_that_another_has_replaced_recover(loop, monkeypatch, again):
    """As those of one that its file no longer has: by parts after as a whole, and the reverse."""
    monkeypatch.setattr(outbox, "wants_delivery", lambda _place: False)
    file = loop.write("one")
    loop.open(file)
    loop.turn()
    alert_of(loop, "one")

    Path(file).write_text(PARTS)
    if again:
        loop.cron.close()
        loop.open(file)
    loop.turn(timedelta(seconds=10))
    assert standing(loop, "one") == []
    alert_of(loop, "one:train")
    loop.write("one")
    loop.turn(timedelta(seconds=10))

    assert standing(loop, "one:train") == []


def test_a_schedule_that_is_over_alerts_no_longer_what_lasts(loop, monkeypatch):
    """Its last run goes on: that no model is pushed any more is as it should be."""
    monkeypatch.setattr(outbox, "wants_delivery", lambda _place: False)
    file = loop.write("first")
    fresh = "from datetime import timedelta\n" + Path(file).read_text()
    Path(file).write_text(fresh.replace("span=days_before(1)", "span=days_before(1), freshness=timedelta(hours=2)"))
    loop.open(file)
    loop.turn()
    loop.turn(timedelta(hours=1))
    loop.write("second")
    Path(file).write_text((loop.folder / "second.py").read_text())

    loop.turn(timedelta(seconds=10))
    assert list(loop.cron.schedulers["first"].open) == ["2026-03-01T13:00Z"]
    loop.turn(timedelta(hours=4))

    assert standing(loop, "first") == []


@pytest.mark.parametrize("again", [False, True])
def test_the_alert_of_a_stale_model_recovers_when_its_schedule_allows_any_age(loop, monkeypatch, again):
    """Nobody asks any more how old the model is, and the alert would stay open until a scheduler is asked that."""
    monkeypatch.setattr(outbox, "wants_delivery", lambda _place: False)
    file = loop.write("first")
    plain = Path(file).read_text()
    fresh = "from datetime import timedelta\n" + plain
    Path(file).write_text(fresh.replace("span=days_before(1)", "span=days_before(1), freshness=timedelta(hours=2)"))
    loop.open(file)
    loop.turn()
    loop.turn(timedelta(hours=3))
    assert standing(loop, "first") == ["freshness", "missed"]

    Path(file).write_text(plain)
    if again:
        loop.cron.close()
        loop.open(file)
    loop.turn(timedelta(seconds=10))

    assert "freshness" not in standing(loop, "first")
    assert [subject for subject in waiting(loop) if "recovered" in subject] == [
        "first recovered: its schedule no longer limits the age of the model"
    ]
    Path(file).write_text(fresh.replace("span=days_before(1)", "span=days_before(1), freshness=timedelta(hours=2)"))
    loop.turn(timedelta(seconds=10))
    loop.turn(timedelta(minutes=2))
    assert "freshness" in standing(loop, "first")


@pytest.mark.parametrize("again", [False, True])
def test_a_stall_of_a_pipeline_that_its_file_no_longer_has_recovers_once_no_run_goes_on(loop, monkeypatch, again):
    """Nothing of it will succeed any more; while the run goes on, it may still be stalled."""
    monkeypatch.setattr(outbox, "wants_delivery", lambda _place: False)
    file = loop.write("first")
    loop.open(file)
    loop.turn()
    loop.turn(timedelta(hours=1))
    stalled = Run(pipeline="first", number=1, started=loop.now)
    outbox.put(loop.root, alert.stall_alert(stalled, at=loop.now, site=alert.local_site(), quiet=timedelta(hours=1)))
    loop.write("second")
    Path(file).write_text((loop.folder / "second.py").read_text())
    if again:
        loop.cron.close()
        loop.open(file)
    loop.turn(timedelta(seconds=10))
    loop.turn(timedelta(seconds=10))
    assert "stall" in standing(loop, "first")

    (tick,) = loop.cron.schedulers["first"].open.values()
    tick.child.returncode = 1
    loop.turn()
    loop.turn(timedelta(seconds=10))

    assert "first" not in loop.cron.schedulers
    assert "stall" not in standing(loop, "first")


def test_a_schedule_that_is_brought_back_while_its_last_run_goes_on_counts_from_then(loop):
    """None of the ticks that came while it was out of its file runs, or is missed."""
    file = loop.write("first")
    loop.open(file)
    loop.turn()
    loop.turn(timedelta(hours=1))
    loop.write("second")
    Path(file).write_text((loop.folder / "second.py").read_text())
    loop.turn(timedelta(seconds=10))
    loop.turn(timedelta(hours=3, minutes=30))

    loop.write("first")
    loop.turn(timedelta(seconds=10))
    (tick,) = loop.cron.schedulers["first"].open.values()
    tick.child.returncode = 1
    loop.turn()
    loop.turn(timedelta(hours=1))

    assert [tick for key, tick in loop.jobs if key == "first"] == ["2026-03-01T13:00Z", "2026-03-01T17:00Z"]
    with root.open_for_reading(settings.read(root=loop.root)) as store:
        assert [each.tick.name for each in list_missed(store, "first")] == ["2026-03-01T13:00Z"]


def test_while_the_metadata_are_locked_nothing_is_lost(loop, monkeypatch):
    """That is told; the tick that came meanwhile is taken once they can be had."""
    impatient(monkeypatch)
    loop.open(loop.write("first"))
    loop.turn()

    with (loop.folder / "root" / "metadata.db.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        loop.turn(timedelta(hours=1))
        loop.turn(timedelta(seconds=30))
        assert loop.jobs == []
        assert loop.told == ["scheduler: metadata store unavailable"]
    loop.turn(timedelta(minutes=1))

    assert loop.jobs == [("first", "2026-03-01T13:00Z")]
    assert loop.told[1:] == ["scheduler recovered: it is available again"]


def test_a_database_server_that_is_restarted_is_no_alert(loop, monkeypatch):
    """It is asked again and again; only one that is away for as long as a command waits is alerted, once."""
    loop.open(loop.write("first"))
    loop.turn()
    for seconds in (29, 60):
        with monkeypatch.context() as patch:
            patch.setattr(root, "open_for_writing", unavailable)
            loop.turn(timedelta(hours=1))
            for _ in range(seconds):
                loop.turn(timedelta(seconds=1))
        told = list(loop.told)
        loop.turn(timedelta(seconds=30))

        assert told == ([] if seconds < 30 else ["scheduler: metadata store unavailable"])
        assert loop.told == [*told, *(["scheduler recovered: it is available again"] if told else [])]
        assert [tick for _, tick in loop.jobs] == ["2026-03-01T13:00Z"]


def test_a_call_from_cron_does_not_wait_for_the_metadata(loop, monkeypatch, caplog):
    """It fails with the reason, without a traceback of ours; the next call takes the tick."""
    impatient(monkeypatch)
    file = loop.write("first")
    loop.open(file)
    loop.turn()
    loop.cron.close()
    loop.now += timedelta(hours=1)

    with (loop.folder / "root" / "metadata.db.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        loop.open(file, once=True)
        with pytest.raises(StoreUnavailable, match="was locked by another process"):
            loop.turn()
    (failed,) = (record for record in caplog.records if record.message == "metadata-failed")
    assert not failed.exc_info
    assert loop.told == ["scheduler: metadata store unavailable"]
    loop.open(file, once=True)
    loop.turn()

    assert loop.jobs == [("first", "2026-03-01T13:00Z")]


def impatient(monkeypatch):
    """Has a locked database be given up after a tenth of a second instead of half a minute."""
    monkeypatch.setattr(
        "spanwise.orchestrator.mlmd.open_store", lambda url, **places: open_store(url, **places, deadline_s=0.1)
    )


def test_a_pipeline_that_cannot_be_looked_after_stops_no_other(loop):
    """It is told once, tried again ever more rarely, and told when it goes on."""
    loop.open(loop.write("first"), loop.write("second"))
    loop.turn()
    start = loop.start

    def no_space(job):
        if job.pipeline == "first":
            raise OSError(28, "No space left on device")
        return start(job)

    object.__setattr__(loop.cron._services, "start", no_space)
    for _ in range(3):
        loop.turn(timedelta(hours=1 if not loop.jobs else 0, seconds=1))
    assert loop.jobs == [("second", "2026-03-01T13:00Z")]
    assert loop.told == ["scheduler: a pipeline is not scheduled (first)"]

    object.__setattr__(loop.cron._services, "start", start)
    loop.turn(timedelta(minutes=1))

    assert loop.jobs[1:] == [("first", "2026-03-01T13:00Z")]


def test_a_one_shot_does_what_is_due_and_ends(loop):
    """The first one ever takes a tick that has just come; what comes while it works is left to the next."""
    loop.now += timedelta(seconds=30)
    loop.open(loop.write("first"), once=True)

    assert not loop.turn()
    assert loop.jobs == [("first", "2026-03-01T12:00Z")]
    (one,) = loop.cron.schedulers["first"].open.values()
    one.child.returncode = 1
    assert loop.turn(timedelta(hours=1))

    assert [e.end.outcome.value for e in entries(loop)] == ["failed"]


def test_a_one_shot_runs_the_tick_that_started_it_however_long_the_file_takes_to_load(loop):
    """Also when newer ticks have come by then: these are left to the next one-shot."""
    loop.open(loop.write("first", cron="* * * * * */2"), once=True)
    loop.now += timedelta(seconds=40)

    assert not loop.turn()

    assert loop.jobs == [("first", "2026-03-01T12:00:00Z")]


def test_the_first_one_shot_counts_from_its_start_however_long_the_file_takes_to_load(loop):
    """A tick that comes meanwhile is left to the next one-shot, and nobody is alerted that the clock was set back."""
    loop.now += timedelta(minutes=59, seconds=50)
    loop.open(loop.write("first"), once=True)
    loop.now += timedelta(seconds=20)

    assert loop.turn()
    assert (loop.jobs, loop.told) == ([], [])
    loop.open(str(loop.folder / "first.py"), once=True)
    loop.turn()

    assert loop.jobs == [("first", "2026-03-01T13:00Z")]


def test_a_scheduler_that_is_gone_is_noticed(loop):
    """Of one on another machine only the heartbeat is known; its ticks are taken over when that stands still."""
    loop.open(loop.write("first"))
    loop.turn()
    with_store(loop, elsewhere)
    loop.turn(timedelta(hours=1))
    assert loop.jobs == []

    for _ in range(8):
        loop.turn(timedelta(seconds=3))

    assert loop.jobs == [("first", "2026-03-01T13:00Z")]


def elsewhere(store):
    """Another machine's scheduler takes the tick, and is not heard of again."""
    other = register(store, NOON)
    claim = store.find_claim("scheduler", f"#{other.number}")
    claim.facts["who"]["machine"] = "elsewhere/0/0"
    store.amend(claim)
    known = read_schedule(store, "first")
    tick = next(ticks(known.timetable, NOON))
    assert claim_tick(store, "first", tick, holder=other.number, now=NOON)


def entries(loop):
    return with_store(loop, lambda store: list(list_ticks(store, "first")))


def with_store(loop, act):
    store = open_store(str(loop.folder / "root" / "metadata.db"))
    try:
        return act(store)
    finally:
        store.close()


def test_a_clock_that_is_set_is_noticed(loop):
    """Forward: what it passed over has been missed. Back: nothing runs again."""
    loop.open(loop.write("first"))
    loop.turn()

    loop.now += timedelta(hours=5, minutes=30)
    loop.turn(timedelta(seconds=1))
    (one,) = loop.cron.schedulers["first"].open.values()
    one.child.returncode = 1
    loop.now -= timedelta(hours=4)
    loop.turn(timedelta(seconds=1))
    loop.turn(timedelta(hours=1))

    assert loop.jobs == [("first", "2026-03-01T17:00Z")]
    assert [e.end.outcome.value for e in entries(loop)] == ["failed", *["missed"] * 4]


def test_a_database_that_answers_late_is_no_clock_set_back(loop, monkeypatch):
    """Another scheduler has taken later ticks meanwhile: the time is asked for after the answer."""
    file = loop.write("first")
    other = loop.open(file)
    loop.turn()
    mine = loop.open(file)
    answer = root.open_for_writing

    def answer_late(known, **options):
        if loop.cron is mine:
            loop.cron = other
            loop.turn(timedelta(hours=1))
            loop.cron = mine
        return answer(known, **options)

    monkeypatch.setattr(root, "open_for_writing", answer_late)
    loop.turn()

    assert len(loop.jobs) >= 1
    assert [subject for subject in loop.told if "clock" in subject] == []
