"""What commands cost from the shell when much has run: 12 nodes in each of 100, 1,000 and 10,000 runs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.days import FIRST
from benchmarks.figures import Figure, Timed, at_most, growth, show
from benchmarks.ui_history import PIPELINE, make_history
from spanwise.orchestrator import Calendar
from spanwise.orchestrator.mlmd import open_store
from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule
from spanwise.scheduler.ledger.ticks import claim_ended_ticks
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.span_rule import days_before
from spanwise.scheduler.schedule.ticks import Tick
from spanwise.scheduler.schedule.timetable import Timetable

PROJECT = Path(__file__).parents[1]
RUNS = (100, 1_000, 10_000)
TIMES = 3
MISSED = 3
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
COMMANDS = {
    "runs": ["runs", PIPELINE],
    "show": ["show", PIPELINE],
    "schedule status": ["schedule", "status"],
    "schedule missed": ["schedule", "missed"],
    "backfill --dry-run": [
        "backfill", f"{PROJECT / 'benchmarks' / 'days.py'}:days", "--dry-run", "--span",
        f"{Calendar.DAY.label(FIRST)}..{Calendar.DAY.label(FIRST + 6)}", "--param", f"name={PIPELINE}",
        "--param", "serving=serving",
    ],
}  # fmt: skip


def measured() -> Iterator[Figure]:
    with contextlib.ExitStack() as opened:
        roots = [_make(Path(opened.enter_context(tempfile.TemporaryDirectory())), runs) for runs in RUNS]
        for name, command in COMMANDS.items():
            timed = [_median(command, root) for root in roots]
            yield at_most(f"{name}, {RUNS[-1]:,} runs of 12 nodes", timed[-1].wall_s, "s", 0.3)
            yield Figure(name="the same: processor", value=timed[-1].cpu_s, unit="s")
            yield growth(f"{name}, {RUNS[0]:,} to {RUNS[-1]:,} runs", RUNS, [each.cpu_s for each in timed])


def _make(root: Path, runs: int) -> Path:
    make_history(root / "metadata.db", runs=runs, hours=0)
    data = root / "data"
    data.mkdir()
    for span in range(FIRST, FIRST + 7):
        (data / f"{span}.1").touch()
    with contextlib.closing(open_store(str(root / "metadata.db"))) as store:
        put_schedule(
            store, ScheduleRecord(timetable=Timetable(PIPELINE, cron="@daily", span=days_before(1)), since=NOON)
        )
        days = [NOON + timedelta(days=n) for n in range(MISSED)]
        ends = [
            (Tick(name=f"{at:%Y-%m-%d}", at=at, wall=at, span=FIRST + n), TickEnd(outcome=TickOutcome.MISSED))
            for n, at in enumerate(days)
        ]
        claim_ended_ticks(store, PIPELINE, ends, holder=1, now=NOON)
    return root


def _median(command: list[str], root: Path) -> Timed:
    """By wall time; the first turn, which reads files that nobody has read yet, does not count."""
    full = [sys.executable, "-m", "spanwise", *command, "--root", str(root)]
    if command[0] == "backfill":
        full += ["--param", f"data={root / 'data'}"]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "src")}

    def once() -> None:
        done = subprocess.run(full, capture_output=True, text=True, check=False, env=environment, cwd=root)
        assert done.returncode in (0, 1), (
            done.stderr
        )  # 1 from `schedule status` and `missed` where something needs attention
        assert done.stdout, done.stderr

    return sorted((Timed.of(once) for _ in range(TIMES + 1)), key=lambda each: each.wall_s)[TIMES // 2]


if __name__ == "__main__":
    sys.exit(show(measured()))
