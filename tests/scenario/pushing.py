"""A pipeline that learns and pushes to object storage, for tests that run it on several hosts."""

import os
import random
import time

from spanwise import Component, Model, Output, OverrunPolicy, Pipeline, Pusher, Schedule
from spanwise.orchestrator import Attempt
from spanwise.scheduler import days_before


class Learn(Component):
    cacheable = False

    def run(self, model: Output[Model], attempt: Attempt) -> None:
        drawn = random.Random(attempt.run.name)
        (model.path / "variables").mkdir()
        for number in range(3):
            (model.path / "variables" / f"{number}.bin").write_bytes(drawn.randbytes(drawn.randrange(200_000)))
            time.sleep(drawn.uniform(0, 0.5))


def pushing() -> Pipeline:
    learn = Learn()
    return Pipeline("pushing", [learn, Pusher(model=learn["model"], destination=os.environ["SPANWISE_TEST_SERVING"])])


CRON = os.environ.get("SPANWISE_TICKING_CRON", "@yearly")
POLICY = OverrunPolicy(os.environ.get("SPANWISE_TICKING_POLICY", "allowtocomplete"))

often = Schedule(pushing, cron=CRON, span=days_before(1), overrun=POLICY)
