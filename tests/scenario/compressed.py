"""A scheduler on a clock that a test sets: `python -m tests.scenario.compressed FILE ROOT JUMP_S [--let-finish]`.

The clock may pass a day in a moment, stand still, and be put forward or back. All schedulers of a folder have the same,
so that one which is started again finds how much has gone by without it. Only the scheduler lives by it: what it starts
are real runs.
"""

import json
import os
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

from spanwise.orchestrator.lease import Clock
from spanwise.scheduler.daemon import decision_log, loop
from spanwise.scheduler.daemon.loop import SchedulerLoop
from spanwise.scheduler.project import settings


class Compressed:
    """The clock of a folder."""

    def __init__(self, folder):
        self.path = folder / "clock.json"

    def set(self, moment, pace):
        """It shows `moment`, and passes `pace` seconds in each from then on."""
        draft = self.path.with_suffix(".draft")
        draft.write_text(json.dumps([boottime(), moment.isoformat(), pace]))
        draft.replace(self.path)

    def now(self):
        since, moment, pace = json.loads(self.path.read_text())
        return datetime.fromisoformat(moment) + timedelta(seconds=(boottime() - since) * pace)


def boottime():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def main():
    file, root, jump_s, *options = sys.argv[1:]
    decision_log.configure()
    loop.TURN_S = 0.05  # in a whole second many a tick would come
    loop.JUMP_S = float(jump_s)  # how quickly the clock passes is no news, and that it is set may be
    clock = Compressed(Path(os.environ["SPANWISE_COMPRESSED"]))
    known = settings.read(root=Path(root))
    SchedulerLoop([file], known, let_finish="--let-finish" in options, clock=Clock(now=clock.now)).run()


if __name__ == "__main__":
    main()
