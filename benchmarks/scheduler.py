"""What a scheduler costs that looks after a thousand pipelines, and how soon after its tick a run begins.

Where a goal is about work, CPU time is measured, so that other programs of the machine do not count.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

from benchmarks.figures import Figure, at_most, show
from spanwise.orchestrator import Run, State
from spanwise.orchestrator.lease import Clock
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.run import Trigger
from spanwise.orchestrator.store import Store
from spanwise.scheduler.alerts import alert
from spanwise.scheduler.daemon.loop import SchedulerLoop
from spanwise.scheduler.daemon.scheduled_run import ScheduledJob
from spanwise.scheduler.daemon.services import SchedulerServices
from spanwise.scheduler.ledger.pauses import pause_schedule
from spanwise.scheduler.ledger.ticks import attempt_claim, list_ticks, newest_tick
from spanwise.scheduler.project import settings
from spanwise.scheduler.schedule.due import find_due
from spanwise.scheduler.schedule.duration import Duration
from spanwise.scheduler.schedule.overrun import decide_overrun
from spanwise.scheduler.schedule.simulate import simulate
from spanwise.scheduler.schedule.span_rule import hours_before
from spanwise.scheduler.schedule.timetable import Timetable

PROJECT = Path(__file__).parents[1]
PIPELINES = 1000
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
YEAR = 365 * DAY
QUIET_S, PAUSED_MINUTES, STARTS, EVERY_S = 20.0, 2, 8, 6

FILE = """
from spanwise.orchestrator import Component, Output, Pipeline, Report
from spanwise.scheduler import Schedule, days_before

class Work(Component):
    cacheable = False

    def run(self, report: Output[Report]) -> None:
        (report.path / "text").write_text("done")

for number in range({count}):
    globals()[f"often{{number}}"] = Schedule(Pipeline(f"p{{number}}", [Work()]), cron=f"{cron}", span=days_before(1))
"""


def measured() -> Iterator[Figure]:
    yield at_most(f"CPU: what is due of {PIPELINES:,} minute schedules, decided", _deciding_ms(), "ms", 250)
    yield at_most("CPU: a year of hourly ticks, simulated", _simulating_s(), "s", 2)
    yield at_most(f"CPU of the loop with {PIPELINES:,} pipelines, no tick due", _idle_percent(), "%", 5)
    yield Figure(
        name=f"CPU of the loop, {PIPELINES:,} paused ones noted each minute", value=_paused_percent(), unit="%"
    )
    first, last, ticks = _held_mib()
    yield Figure(name=f"memory of the loop after an hour, {PIPELINES:,} pipelines", value=first, unit="MiB")
    yield at_most(f"after 24 simulated hours and {ticks:,} ticks, to the first", last / first, "x", 1.05)
    late_s, work_s = _late_s()
    yield at_most("CPU of a run of one trivial node, all its processes", work_s, "s", 1)
    yield at_most("from a tick to the start of its run, median", statistics.median(late_s), "s", 1)
    yield at_most(f"from a tick to the start of its run, worst of {len(late_s)}", max(late_s), "s", 1)


def _deciding_ms() -> float:
    tables = [Timetable(f"p{n}", cron="* * * * *", span=hours_before(1)) for n in range(PIPELINES)]
    taken = []
    for minute in range(5):
        began = time.process_time()
        now = NOON + minute * MINUTE
        for table in tables:
            found = find_due(table, now - MINUTE, now)
            assert len(found.run) == 1
            decide_overrun(table.overrun, None)
        taken.append(time.process_time() - began)
    return statistics.median(taken[1:]) * 1000


def _simulating_s() -> float:
    table = Timetable("p", cron="0 * * * *", zone="America/New_York", span=hours_before(1))
    began = time.process_time()
    played = simulate(table, NOON, NOON + YEAR, Duration.parse("normal(50m,10m)"))
    taken = time.process_time() - began
    assert len(played.plays) == YEAR / HOUR
    return taken


def _idle_percent() -> float:
    with _scheduler(PIPELINES, "@yearly") as (pid, _):
        return _load_percent(pid, QUIET_S)


def _paused_percent() -> float:
    def pause(store: Store) -> None:
        for number in range(PIPELINES):
            pause_schedule(store, f"p{number}", who="a benchmark", why="no thousand runs", now=datetime.now(UTC))

    with _scheduler(PIPELINES, "* * * * *", pause) as (pid, root):
        before = _newest(root)
        load = _load_percent(pid, 60.0 * PAUSED_MINUTES)
        assert _newest(root) - before in (PAUSED_MINUTES, PAUSED_MINUTES + 1)
        return load


def _newest(root: Path) -> int:
    """The number of the newest tick of the first pipeline."""
    store = open_store(str(root / "metadata.db"))
    newest = newest_tick(store, "p0")
    store.close()
    return 0 if newest is None else newest.number


def _late_s() -> tuple[list[float], float]:
    """From ticks to the starts of their runs; and the CPU time of a run, which other programs do not lengthen."""
    with _scheduler(1, f"* * * * * */{EVERY_S}") as (pid, root):
        before = _cpu_s(pid, children=True)
        time.sleep(EVERY_S * STARTS)
        taken = _cpu_s(pid, children=True) - before
        store = open_store(str(root / "metadata.db"))
        ticks = {entry.tick.name: entry.tick.at for entry in list_ticks(store, "p0")}
        late = [(run.started - ticks[run.cause]).total_seconds() for run in store.runs("p0") if run.started]
        store.close()
    assert len(late) >= STARTS - 1
    assert min(late) >= 0
    return late, taken / len(late)


@contextmanager
def _scheduler(
    pipelines: int, cron: str, before: Callable[[Store], object] = lambda _store: None
) -> Iterator[tuple[int, Path]]:
    """A scheduler that has loaded so many pipelines, in a process of its own: its id, and its root."""
    with tempfile.TemporaryDirectory() as folder:
        home, root = Path(folder), Path(folder) / "root"
        root.mkdir()
        store = open_store(str(root / "metadata.db"))
        before(store)
        store.close()
        (home / "often.py").write_text(FILE.format(count=pipelines, cron=cron))
        with (home / "log").open("w") as log:
            started = subprocess.Popen(
                [sys.executable, "-m", "spanwise", "schedule", "start", "often.py", "--root", root],
                cwd=home,
                env={**os.environ, "PYTHONPATH": str(PROJECT / "src")},
                stderr=log,
            )
        try:
            while (home / "log").read_text().count("schedule-loaded") < pipelines:
                assert started.poll() is None, (home / "log").read_text()
                time.sleep(0.1)
            yield started.pid, root
        finally:
            started.send_signal(signal.SIGTERM)
            started.wait()


def _load_percent(pid: int, seconds: float) -> float:
    """How much of a core a process takes, its children left out."""
    time.sleep(2.0)  # what it has loaded is settled then
    before, began = _cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return (_cpu_s(pid) - before) / (time.monotonic() - began) * 100


def _cpu_s(pid: int, *, children: bool = False) -> float:
    """What a process has taken, or the children that it has seen end, with theirs."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = fields[13:15] if children else fields[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


# --- a day in a process of its own


def _held_mib() -> tuple[float, float, int]:
    """What the loop holds after the first hour and after the last of a day; and how many ticks there were."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scheduler", "--a-day"], stdout=subprocess.PIPE, check=True, text=True
    )
    first, last, ticks = json.loads(done.stdout)
    return first, last, ticks


@dataclass
class _Done:
    """A child that has made its run: its records are there, as those of a real one would be."""

    pid: int = 0
    returncode: int = 0

    def poll(self) -> int:
        return self.returncode


def a_day() -> None:
    """Plays a day of the loop, with a tick of each pipeline every eight hours, and prints what it held."""
    now = NOON
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        file = home / "often.py"
        file.write_text(FILE.format(count=PIPELINES, cron="{number % 60} {number // 60 % 8}-23/8 * * *"))
        known = settings.read(root=home / "root")
        known.root.mkdir()
        store = open_store(str(known.root / "metadata.db"))
        made = 0

        def start(job: ScheduledJob) -> subprocess.Popen[bytes]:
            nonlocal made
            made += 1
            wanted = Run(pipeline=job.pipeline, trigger=Trigger.SCHEDULE, cause=job.tick, span=job.span, started=now)
            run = store.begin_run(wanted, attempt_claim(job.pipeline, job.tick, job.attempt))
            store.update_run(replace(run, state=State.COMPLETE, ended=now))
            return cast("subprocess.Popen[bytes]", _Done())

        clock = Clock(now=lambda: now, monotonic=lambda: now.timestamp())  # noqa: PLW0108  it moves
        services = SchedulerServices(root=known.root, config=None, site=alert.local_site(), start=start)
        cron = SchedulerLoop([str(file)], known, clock=clock, services=services)
        cron.turn()
        while cron.files.loading or cron.files.described:
            time.sleep(0.05)
            cron.turn()
        held = []
        for minute in range(DAY // MINUTE):
            now = NOON + (minute + 1) * MINUTE
            cron.turn()
            if (now - NOON) % HOUR == timedelta(0):
                held.append(_held())
        cron.close()
        store.close()
    assert made > PIPELINES
    print(json.dumps([held[0], held[-1], made]))


def _held() -> float:
    """The memory that this process holds now, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


if __name__ == "__main__":
    if sys.argv[1:] == ["--a-day"]:
        a_day()
        sys.exit()
    sys.exit(show(measured()))
