"""A pipeline that leaves stamps of when it ran, and its schedules, for tests that run real schedulers.

What a test changes between two runs stands in the files of the folder `WHERE`: how long a run takes (`sleep`), whether
it ignores SIGTERM (`stubborn`), leaves a daemon (`daemon`) or fails (`fail`). Whoever loads this file waits while there
is a file `hold`, and says so in `held`.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from spanwise.orchestrator import Attempt, Component, Output, Pipeline, Report
from spanwise.scheduler import OverrunPolicy, Schedule, days_before

WHERE = Path(os.environ.get("SPANWISE_TICKING", "."))

while (WHERE / "hold").exists():
    (WHERE / "held").touch()
    time.sleep(0.02)


class Work(Component):
    cacheable = False

    def run(self, report: Output[Report], attempt: Attempt) -> None:
        began = time.monotonic()
        if (WHERE / "stubborn").exists():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if (WHERE / "daemon").exists():
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        if (WHERE / "fail").exists():
            raise ValueError("as asked for")
        until = time.monotonic() + float((WHERE / "sleep").read_text())
        while time.monotonic() < until:
            stamp(attempt, began)
            time.sleep(0.02)
        stamp(attempt, began)
        (report.path / "a").write_text("x")


def stamp(attempt: Attempt, began: float) -> None:
    """Says that this run is at work now."""
    run = attempt.run
    draft = WHERE / "stamps" / f".{run.number}"
    draft.write_text(json.dumps({"tick": run.cause, "run": run.number, "began": began, "seen": time.monotonic()}))
    draft.replace(WHERE / "stamps" / f"{run.number}.json")


def ticking() -> Pipeline:
    return Pipeline("ticking", [Work()])


CRON = os.environ.get("SPANWISE_TICKING_CRON", "@yearly")
POLICY = OverrunPolicy(os.environ.get("SPANWISE_TICKING_POLICY", "allowtocomplete"))

often = Schedule(ticking, cron=CRON, span=days_before(1), overrun=POLICY)
