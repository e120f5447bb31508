"""The demo's pipeline at $FIRST_TICK and four minutes later, for the first two days of its data."""

import os
from datetime import date, datetime, timedelta

from flights import flights

from spanwise import Catchup, Retry, Schedule
from spanwise.pipelines.nycflights import FIRST

EPOCH = date(1970, 1, 1)
START = datetime.fromisoformat(os.environ["FIRST_TICK"])
SECOND = START + timedelta(minutes=4)


def next_day(tick: datetime) -> int:
    return (FIRST - EPOCH).days + (tick == SECOND)


often = Schedule(
    flights,
    cron=f"{START.minute},{SECOND.minute} * * * *",
    span=next_day,
    start=START,
    end=SECOND,
    catchup=Catchup.ALL,
    retry=Retry(times=2, backoff_s=1),
)
