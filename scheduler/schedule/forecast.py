"""Forecasts: how long runs and their nodes take against the time between ticks, and when the first will overrun. Pure.

Growth is the Theil-Sen slope, the median of the slopes between all pairs of runs, which a few odd runs do not move. It
counts only when Kendall's test finds it sure (one chance in a hundred of seeing it in runs that do not grow); else
there is none.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from spanwise.scheduler.formatting import Document, format_count, format_duration, iso_time
from spanwise.scheduler.schedule.schedule_key import DATA, WHOLE, part_of
from spanwise.scheduler.schedule.ticks import ticks
from spanwise.scheduler.schedule.timetable import Timetable

HISTORY = 60
"""How many runs are looked at."""

LEAST = 8
"""With fewer runs, no growth is estimated and no alert is sent."""

HORIZON = timedelta(days=30)
"""An alert is sent for a first overrun within this time."""

_DAY_S = 86400.0
_SECOND = timedelta(seconds=1)
_SURE = 2.576  # standard deviations of Kendall's S: 1 %, both sides together
_HIGH = 0.95
_SAMPLE = 50  # coming ticks that are looked at for the shortest time between two
_FAR_DAYS = 3650.0  # an overrun later than this is none
_SHOWN = 3  # nodes that are named, those that take longest


@dataclass(frozen=True, kw_only=True)
class PastRun:
    """A complete run, with what its nodes took."""

    started: datetime
    took_s: float
    nodes_s: Mapping[str, float]  #: seconds by node, all attempts together; of those that did their work in it


@dataclass(frozen=True, kw_only=True)
class DurationTrend:
    """How long something took over time."""

    count: int
    median_s: float
    p95_s: float  #: 95th percentile
    growth_s: float = 0.0  #: by so many seconds a day it grows, or shrinks; 0 when that is not sure
    now_s: float = 0.0  #: what it takes now, at the median: the growth since is in it
    high_s: float = 0.0  #: what it takes now, at the 95th percentile


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What is to be expected of a schedule's runs."""

    pipeline: str
    now: datetime
    interval: timedelta | None  #: the shortest time between two coming ticks, without jitter; None: fewer than two come
    run: DurationTrend | None  #: None: no complete run is known
    nodes: Mapping[str, DurationTrend]
    overran: int  #: of the runs, how many took longer than the interval

    @property
    def load(self) -> float | None:
        """The part of the interval that a run takes now, at the 95th percentile."""
        if self.run is None or self.interval is None:
            return None
        return self.run.high_s / self.interval.total_seconds()

    @property
    def first_overrun(self) -> datetime | None:
        """When one run in twenty will take longer than the interval; None when that is not to be seen."""
        if self.run is None or self.interval is None:
            return None
        left_s = self.interval.total_seconds() - self.run.high_s
        if left_s <= 0:
            return self.now
        days = left_s / self.run.growth_s if self.run.growth_s > 0 else math.inf
        return self.now + timedelta(days=days) if days <= _FAR_DAYS else None

    def alarm(self, load: float, horizon: timedelta = HORIZON) -> str:
        """Why an alert should be sent; empty when none should.

        That is when a run takes more than `load` of the interval, or the first overrun is nearer than `horizon`.
        """
        first = self.first_overrun
        if self.run is None or self.run.count < LEAST or self.load is None or self.interval is None:
            return ""
        if self.load < load and (first is None or first > self.now + horizon):
            return ""
        interval_s = self.interval.total_seconds()
        most, between = format_duration(self.run.high_s), format_duration(interval_s)
        takes = f"a run takes up to {most} of the {between} between two ticks"
        if first is None:
            return takes
        return f"{takes}; {_when(first, self.now)}"


def make_forecast(timetable: Timetable, runs: Sequence[PastRun], now: datetime) -> Forecast:
    """What is to be expected, from runs in any order."""
    interval = shortest_interval(timetable, now)
    nodes = sorted({node for each in runs for node in each.nodes_s})
    return Forecast(
        pipeline=timetable.pipeline,
        now=now,
        interval=interval,
        run=find_trend([(each.started, each.took_s) for each in runs], now) if runs else None,
        nodes={
            node: find_trend([(each.started, each.nodes_s[node]) for each in runs if node in each.nodes_s], now)
            for node in nodes
        },
        overran=sum(interval is not None and each.took_s > interval.total_seconds() for each in runs),
    )


def shortest_interval(timetable: Timetable, now: datetime) -> timedelta | None:
    """The shortest time that a run has before the next one's tick, among those that come; a second at least.

    Jitter may take all of it, where it is as long or the clock is put forward between the two.
    """
    coming = list(itertools.islice(ticks(timetable, now), _SAMPLE))
    apart = [later.at - tick.at for tick, later in itertools.pairwise(coming)]
    return max(min(apart) - timedelta(seconds=timetable.jitter_s), _SECOND) if apart else None


def find_trend(points: Sequence[tuple[datetime, float]], now: datetime) -> DurationTrend:
    """How lengths in seconds, each with when it began, have come to be what they are."""
    lengths = [length for _, length in points]
    growth = _growth(points)
    # What each would take if it began now: the growth since is added, and what is left is chance.
    today = [length + growth * _days(began, now) for began, length in points]
    return DurationTrend(
        count=len(points),
        median_s=statistics.median(lengths),
        p95_s=_percentile(lengths),
        growth_s=growth,
        now_s=max(statistics.median(today), 0.0),
        high_s=max(_percentile(today), 0.0),
    )


def _growth(points: Sequence[tuple[datetime, float]]) -> float:
    """Seconds a day, by Theil and Sen; 0 where Kendall's test is not sure that there is any."""
    slopes = list(_slopes(points))
    count = len(points)
    if count < LEAST or not slopes:
        return 0.0
    ups = sum(slope > 0 for slope in slopes) - sum(slope < 0 for slope in slopes)
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return statistics.median(slopes) if abs(ups) > _SURE * deviation else 0.0


def _slopes(points: Sequence[tuple[datetime, float]]) -> Iterator[float]:
    for (began, length), (later, other) in itertools.combinations(sorted(points), 2):
        if later > began:
            yield (other - length) / _days(began, later)


def _days(since: datetime, until: datetime) -> float:
    return (until - since).total_seconds() / _DAY_S


def _percentile(values: Sequence[float]) -> float:
    """The 95th percentile, between the two values around it."""
    ordered = sorted(values)
    place = _HIGH * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


# Formatting


def format_forecast(found: Forecast) -> Mapping[str, str]:
    """A forecast for people, by what each fact is called."""
    if found.run is None:
        whole = part_of(found.pipeline) in (WHOLE, DATA)
        runs = "run of the whole pipeline" if whole else "scheduled run of this part"
        return {"a run takes": f"unknown, since no {runs} is complete"}
    facts = {"a run takes": f"{_takes(found.run)}; based on {format_count(found.run.count, 'run')}"}
    if found.interval is not None and found.load is not None:
        overran = f"; {found.overran} of those runs took longer" if found.overran else ""
        facts["of the interval"] = f"{found.load:.0%} of {format_duration(found.interval.total_seconds())}{overran}"
        first = found.first_overrun
        facts["first overrun"] = "none in sight" if first is None else _when(first, found.now)
    slowest = sorted(found.nodes.items(), key=lambda item: -item[1].now_s)[:_SHOWN]
    if slowest:
        facts["slowest nodes"] = "; ".join(f"{node} {_takes(trend)}" for node, trend in slowest)
    return facts


def forecast_document(found: Forecast, load: float) -> Document:
    """A forecast for programs."""
    return {
        "interval_s": None if found.interval is None else found.interval.total_seconds(),
        "load": found.load,
        "overran": found.overran,
        "first_overrun": iso_time(found.first_overrun),
        "alarm": found.alarm(load),
        "run": None if found.run is None else _trend_document(found.run),
        "nodes": {name: _trend_document(c) for name, c in found.nodes.items()},
    }


def _trend_document(found: DurationTrend) -> Document:
    return {
        "count": found.count,
        "median_s": found.median_s,
        "p95_s": found.p95_s,
        "growth_s_per_day": found.growth_s,
        "now_s": found.now_s,
        "high_s": found.high_s,
    }


def _takes(trend: DurationTrend) -> str:
    growth = f", {'grows' if trend.growth_s > 0 else 'shrinks'} by {format_duration(abs(trend.growth_s))} a day"
    return f"{format_duration(trend.now_s)} (95 %: {format_duration(trend.high_s)}){growth if trend.growth_s else ''}"


def _when(first: datetime, now: datetime) -> str:
    if first <= now:
        return "any tick may overrun"
    return f"at this rate, overruns begin about {first:%Y-%m-%d}"
