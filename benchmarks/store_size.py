"""What reading costs in a PostgreSQL of 1,000 pipelines and 1,000,000 artifacts: commands, a tick's decision, gc.

One pipeline is recorded by the verbs that the program uses, and its rows are copied for the others under their names;
one of the copies is then read through the program, and compared with what was recorded.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path

from benchmarks.days import FIRST
from benchmarks.figures import Figure, Timed, at_most, median_s, show
from benchmarks.pipeline_copies import copy_pipeline, list_places
from spanwise.orchestrator import Artifact, Examples, Execution, Model, Report, Run, State, lease
from spanwise.orchestrator.collection import Retention
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.run import Trigger
from spanwise.orchestrator.store import Store
from spanwise.pipelines.demo_servers import serve_postgresql
from spanwise.scheduler.alerts import alert
from spanwise.scheduler.daemon import due_tick
from spanwise.scheduler.daemon.description import ScheduleDescription
from spanwise.scheduler.daemon.schedule_observer import NewestTick, ScheduleObserver
from spanwise.scheduler.daemon.services import SchedulerServices
from spanwise.scheduler.ledger.heartbeat import HeartbeatWatch
from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule
from spanwise.scheduler.ledger.ticks import attempt_claim, claim_tick, end_tick, read_tick, settle_ticks
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.span_rule import days_before
from spanwise.scheduler.schedule.ticks import Tick
from spanwise.scheduler.schedule.timetable import Timetable
from spanwise.scheduler.storage.gc import CollectionContext, plan_collections

PROJECT = Path(__file__).parents[1]
PIPELINES, RUNS = 1_000, 250
OF_A_RUN = 4  #: artifacts
COLLECTED = 100_000
WINDOW = 7
NODES = ("Ingest", "Check", "RollingWindow", "Train", "Push")
TIMES = 5


def measured() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="size-", dir="/tmp") as folder, contextlib.ExitStack() as stack:
        place = Path(folder)
        place.chmod(0o755)  # PostgreSQL may be another user's
        url = stack.enter_context(serve_postgresql(place / "postgresql", durable=False))
        fill(url, place / "root", PIPELINES, RUNS)
        yield from figures(url, place / "root", PIPELINES, RUNS)


def figures(url: str, root: Path, pipelines: int, runs: int) -> Iterator[Figure]:
    """What reading costs in a database that `fill` has filled."""
    where = f"{pipelines * runs * OF_A_RUN:,} artifacts on PostgreSQL"
    name = pipeline_name(pipelines // 2)
    for what, command in commands(name, root).items():
        yield at_most(f"{what}, {where}, inside the command", _inside_s(command, url, root) * 1000, "ms", 300)
        shell = _from_shell(command, url, root)
        yield at_most(f"{what}, {where}, from the shell", shell.wall_s * 1000, "ms", 300)
        yield Figure(name=f"{what}, {where}, from the shell: processor", value=shell.cpu_s * 1000, unit="ms")
    with contextlib.closing(open_store(url, root=root)) as store:
        first, next_ = _deciding_s(store, root, name, runs)
        yield at_most(f"a tick's decision, {where}", next_ * 1000, "ms", 50)
        yield Figure(name=f"the first of a scheduler that has just started, {where}", value=first * 1000, unit="ms")
    names = [pipeline_name(number) for number in range(min(pipelines, COLLECTED // (runs * OF_A_RUN)))]
    planned, timed = _collecting(url, root, names)
    assert planned == len(names) * runs * OF_A_RUN
    yield at_most(f"gc --dry-run of {planned:,} of {where}", timed.wall_s, "s", 5)
    yield Figure(name=f"gc --dry-run of {planned:,} of {where}: processor", value=timed.cpu_s, unit="s")


def pipeline_name(number: int) -> str:
    return f"p{number:04}"


def commands(name: str, root: Path) -> dict[str, list[str]]:
    """The commands that read one pipeline, by what they are called in a figure."""
    file = f"{PROJECT / 'benchmarks' / 'days.py'}:days"
    words = [f"name={name}", f"data={root / 'data'}", "serving=serving"]
    return {
        "runs": ["runs", name],
        "show": ["show", name],
        "status": ["schedule", "status", name],
        "window": ["window", file, *(word for each in words for word in ("--param", each))],
    }


def fill(url: str, root: Path, pipelines: int, runs: int) -> None:
    """Records one pipeline with so many runs, and copies it; what is read of a copy is what is read of the first."""
    (root / "data").mkdir(parents=True)
    (root / "data" / f"{FIRST}.1").touch()
    first = pipeline_name(0)
    with contextlib.closing(open_store(url, root=root)) as store:
        _record(store, root, first, runs)
    names = [pipeline_name(number) for number in range(1, pipelines)]
    copy_pipeline(url, first, names)
    with contextlib.closing(open_store(url, root=root)) as store:
        for name in (first, *names):
            put_schedule(store, ScheduleRecord(timetable=_timetable(name), since=_day(0)))
        for name in (names[0], names[-1]):
            assert _read(store, root, name) == _read(store, root, first), "a copy differs from what was recorded"


def _timetable(name: str) -> Timetable:
    return Timetable(name, cron="@daily", span=days_before(1))


def _day(number: int) -> datetime:
    return datetime(2024, 1, 2, tzinfo=UTC) + timedelta(days=number)


def _record(store: Store, root: Path, name: str, runs: int) -> None:
    """Records runs on successive days, each for its tick, as a scheduler and its children do."""
    recent: list[Artifact] = []
    for number in range(runs):
        at = _day(number)
        tick = Tick(name=f"{at:%Y-%m-%d}", at=at, wall=at, span=FIRST + number)
        taken = claim_tick(store, name, tick, holder=1, now=at, seen=number)
        assert taken is not None
        held = lease.acquire(store, name, "run")
        wanted = Run(
            pipeline=name, trigger=Trigger.SCHEDULE, cause=tick.name, span=tick.span, calendar="day", nodes=NODES,
            source=f"{PROJECT}/benchmarks/days.py:days", parameters={"name": name}, token=held.token, started=at,
        )  # fmt: skip
        begin = attempt_claim(name, tick.name, 1)
        run = held.write(lambda place, run=wanted, begin=begin: store.begin_run(run, place, begin))  # type: ignore[misc]
        work = _Work(store, root, run)
        (examples,) = work.publish("Ingest", {}, {"examples": _examples(tick.span or 0)})
        work.publish("Check", {"examples": (examples,)}, {"report": Report("")})
        recent = [*recent, examples][-WINDOW:]
        work.choose("RollingWindow", tuple(recent))
        (model,) = work.publish("Train", {"examples": tuple(recent)}, {"model": Model("", properties={"spans": [1]})})
        work.publish("Push", {"model": (model,)}, {"report": Report("")})
        store.update_run(replace(run, state=State.COMPLETE, ended=at + timedelta(minutes=9)))
        held.release()
        open_tick = read_tick(store, name, tick.name)
        assert open_tick is not None
        assert end_tick(store, open_tick, TickEnd(outcome=TickOutcome.RAN, run=run.number), now=at)
        settle_ticks(store, name)


class _Work:
    """The executions of one run."""

    def __init__(self, store: Store, root: Path, run: Run) -> None:
        self._store = store
        self._root = root
        self._run = run

    def publish(
        self, node: str, inputs: Mapping[str, tuple[Artifact, ...]], outputs: dict[str, Artifact]
    ) -> tuple[Artifact, ...]:
        begun = self._begin(node)
        drafts: dict[str, tuple[Artifact, ...]] = {}
        for key, draft in outputs.items():
            uri = str(self._root / self._run.pipeline / node / key / str(begun.id))
            drafts[key] = (
                type(draft)(uri, content=f"{begun.id:032x}", size_bytes=1000, properties=dict(draft.properties)),
            )
        done = self._end(begun, State.COMPLETE, inputs, drafts)
        return tuple(each for row in done.outputs.values() for each in row)

    def choose(self, node: str, chosen: tuple[Artifact, ...]) -> None:
        self._end(self._begin(node), State.CACHED, {}, {"examples": chosen})

    def _begin(self, node: str) -> Execution:
        return self._store.begin(
            Execution(pipeline=self._run.pipeline, run=self._run.number, node=node, component=node, key=f"{node:0>32}")
        )

    def _end(
        self,
        begun: Execution,
        state: State,
        inputs: Mapping[str, tuple[Artifact, ...]],
        outputs: Mapping[str, tuple[Artifact, ...]],
    ) -> Execution:
        assert self._run.started is not None
        ended = replace(
            begun, state=state, inputs=inputs, outputs=outputs, parameters={"work_s": "0.0"},
            reason="no cached result matched", started=self._run.started,
            ended=self._run.started + timedelta(seconds=30),
            log=str(self._root / self._run.pipeline / ".runs" / str(self._run.number) / "logs" / f"{begun.node}.log"),
        )  # fmt: skip
        return self._store.publish(ended)


def _examples(span: int) -> Examples:
    return Examples(
        "", properties={"span": span, "version": 1, "calendar": "day", "split_names": ["train"], "rows": {"train": 900}}
    )  # fmt: skip


def _read(store: Store, root: Path, name: str) -> list[object]:
    """What the program reads of the newest runs of a pipeline, without what differs between pipelines."""
    found: list[object] = []
    for run in list(store.runs(name))[:3]:
        found.append((run.number, run.span, run.cause, run.state, run.nodes))
        for each in store.executions(run):
            artifacts = [
                (key, a.name.partition("/")[2], a.kind, sorted(a.properties))
                for side in (each.inputs, each.outputs)
                for key, row in side.items()
                for a in row
            ]
            places = [Path(a.uri).parent.relative_to(root / name) for row in each.outputs.values() for a in row]
            found.append((each.node, each.state, each.reason, artifacts, places))
    return found


# --- measuring


def _environment(url: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PROJECT / "src"), "SPANWISE_METADATA": url, "COLUMNS": "200"}


def _from_shell(command: list[str], url: str, root: Path) -> Timed:
    """The median by wall time; the first turn, which reads what nobody has read yet, does not count."""
    full = [sys.executable, "-m", "spanwise", *command, "--root", str(root)]

    def once() -> None:
        done = subprocess.run(full, capture_output=True, text=True, check=False, env=_environment(url), cwd=root)
        _check(done.returncode, done.stdout, done.stderr)

    _, *timed = (Timed.of(once) for _ in range(TIMES + 1))
    return sorted(timed, key=lambda each: each.wall_s)[TIMES // 2]


def _inside_s(command: list[str], url: str, root: Path) -> float:
    """What a command takes from the moment that its modules are there; each turn opens the metadata anew."""
    program = (
        "import contextlib, io, os, sys, time\n"
        "from spanwise.scheduler.main import main\n"
        "for _ in range(int(sys.argv.pop(1)) + 1):\n"
        "    out, began, code = io.StringIO(), time.perf_counter(), 0\n"
        "    with contextlib.redirect_stdout(out):\n"
        "        try:\n"
        "            code = main(sys.argv[1:])\n"
        "        except SystemExit as end:\n"
        "            code = end.code or 0\n"
        "    assert code in (0, 1) and out.getvalue(), code\n"
        "    print(time.perf_counter() - began)\n"
    )
    full = [sys.executable, "-c", program, str(TIMES), *command, "--root", str(root)]
    done = subprocess.run(full, capture_output=True, text=True, check=False, env=_environment(url), cwd=root)
    _check(done.returncode, done.stdout, done.stderr)
    return statistics.median([float(line) for line in done.stdout.splitlines()[1:]])


def _check(code: int, out: str, err: str) -> None:
    if code not in (0, 1) or not out:  # 1 from `schedule status` and `window` where something needs attention
        raise AssertionError(err)


def _deciding_s(store: Store, root: Path, name: str, runs: int) -> tuple[float, float]:
    """What a scheduler asks and decides at a tick: at its first one, and when it knows the one before."""
    record = ScheduleRecord(timetable=_timetable(name), since=_day(0))
    description = ScheduleDescription(timetable=record.timetable, source=f"{PROJECT}/benchmarks/days.py:days")
    services = SchedulerServices(root=root, config=None, site=alert.local_site())

    def decide(*, newest: NewestTick | None) -> None:
        observer = ScheduleObserver(description, record, services, HeartbeatWatch())
        observer.newest = newest
        now = _day(runs)
        seen = observer.observe_due(store, now, 0.0, now)
        assert len(seen.due.run) == 1
        assert due_tick.decide_due(seen, description.timetable)

    known = NewestTick(at=_day(runs - 1), number=runs)
    return median_s(lambda: decide(newest=None), times=20), median_s(lambda: decide(newest=known), times=20)


def _collecting(url: str, root: Path, names: Sequence[str]) -> tuple[int, Timed]:
    """Plans the collection of some pipelines, of which nearly all artifacts are unused: how many, and what it took.

    The median of some turns, each in a process that has done nothing else, as that of a command has not.
    """
    for place in list_places(url, names):  # where a run would have written them
        (root / place).mkdir(parents=True, exist_ok=True)
    turns = []
    for _ in range(TIMES):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            turns.append(process.submit(_plan_collections, url, root, names).result())
    return sorted(turns, key=lambda turn: turn[1].wall_s)[TIMES // 2]


def _plan_collections(url: str, root: Path, names: Sequence[str]) -> tuple[int, Timed]:
    planned = 0
    with contextlib.closing(open_store(url, root=root)) as store:
        context = CollectionContext(
            store=store, root=root, retention=Retention(younger=timedelta(0)), now=datetime.now(UTC)
        )

        def plan() -> None:
            nonlocal planned
            planned = sum(len(plan.decisions) for plan in plan_collections(context, names))

        timed = Timed.of(plan)
    return planned, timed


if __name__ == "__main__":
    sys.exit(show(measured()))
