"""The demo's pipeline every other minute, three times from $FIRST_TICK on, each for the next day of its data."""

import os
from datetime import date, datetime, timedelta

from flights import flights

from spanwise import Catchup, Retry, Schedule
from spanwise.pipelines.nycflights import FIRST

EPOCH = date(1970, 1, 1)
START = datetime.fromisoformat(os.environ["FIRST_TICK"])


def next_day(tick: datetime) -> int:
    return (FIRST - EPOCH).days + round((tick - START) / timedelta(minutes=2))


often = Schedule(
    flights,
    cron="*/2 * * * *",
    span=next_day,
    start=START,
    end=START + timedelta(minutes=4),
    catchup=Catchup.ALL,
    retry=Retry(times=2, backoff_s=1),
)
