"""Simulations: what a schedule would do, played on a fake clock through the functions that the scheduler asks. Pure.

How long a run takes is drawn for its tick, so that one seed gives a tick the same duration under every policy.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from spanwise.orchestrator.calendar import Calendar, format_versions
from spanwise.orchestrator.errors import UsageError
from spanwise.scheduler.formatting import (
    Document,
    format_count,
    format_duration,
    format_table,
    format_time,
    iso_time,
)
from spanwise.scheduler.schedule import preview
from spanwise.scheduler.schedule.due import DueTicks, find_due, must_wait
from spanwise.scheduler.schedule.duration import Duration
from spanwise.scheduler.schedule.outcome import TickOutcome
from spanwise.scheduler.schedule.overrun import KillThenStart, SkipTick, decide_overrun
from spanwise.scheduler.schedule.schedule_key import part_of
from spanwise.scheduler.schedule.span_rule import SpanRule
from spanwise.scheduler.schedule.ticks import Tick, span_of, starts
from spanwise.scheduler.schedule.timetable import OverrunPolicy, Timetable

_SECOND = timedelta(seconds=1)
_MANY = 60  # more ticks than this, and only the unusual ones are listed


@dataclass(frozen=True, kw_only=True)
class SimulatedTick:
    """What became of a tick."""

    tick: Tick
    outcome: TickOutcome
    why: str = ""  #: empty when it ran
    began: datetime | None = None  #: None: it never did
    ended: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """What a schedule would do."""

    timetable: Timetable
    start: datetime
    end: datetime
    duration: Duration
    seed: int
    plays: tuple[SimulatedTick, ...]  #: by tick
    older: int = 0  #: about so many more were missed, in times out of work that were too long to list them

    @property
    def alone(self) -> bool:
        """Whether it is of a part, whose ticks wait for the runs of the other parts, which are not played."""
        return bool(part_of(self.timetable.pipeline))

    @property
    def caveat(self) -> str:
        """What is not played, and what follows from that; empty where all is."""
        lost = "killed" if self.timetable.overrun is OverrunPolicy.KILL_AND_RUN else "skipped"
        wait = "Played without the runs of the other parts, for which its ticks wait."
        return f"{wait} In truth, ticks may run later, and more of them be {lost}." if self.alone else ""

    @property
    def totals(self) -> Mapping[TickOutcome, int]:
        """How many ticks came to each outcome."""
        counted = Counter(play.outcome for play in self.plays)
        counted[TickOutcome.MISSED] += self.older
        return {outcome: counted[outcome] for outcome in TickOutcome if counted[outcome]}

    @property
    def lost(self) -> Mapping[str, tuple[int, ...]]:
        """The spans for which no run came to its end: of each node where each has its own, else of none, ""."""
        named = {pair for play in self.plays for pair in _spans(play.tick).items()}
        made = {pair for play in self.plays if play.outcome is TickOutcome.RAN for pair in _spans(play.tick).items()}
        nodes = ["", *(source.node for source in self.timetable.sources)]
        spans = {node: tuple(sorted(span for of, span in named - made if of == node)) for node in nodes}
        return {node: found for node, found in spans.items() if found}

    @property
    def busy(self) -> float:
        """The part of the time in which a run was going."""
        runs = [(p.began, min(p.ended, self.end)) for p in self.plays if p.began and p.ended and p.began < self.end]
        going = sum((ended - began for began, ended in runs), timedelta(0))
        return going / (self.end - self.start)


def simulate(
    timetable: Timetable,
    start: datetime,
    end: datetime,
    duration: Duration,
    seed: int = 0,
    *,
    rule: SpanRule | None = None,
    outages: Sequence[tuple[datetime, datetime]] = (),
) -> Simulation:
    """Plays the ticks from `start` up to, without, `end`.

    `rule` is the timetable's custom span rule, if it has one. In an outage no scheduler runs; its runs go on.

    Raises:
        UsageError: it would end before it begins.
    """
    if end <= start:
        raise UsageError(f"There is nothing to simulate from {start.isoformat()} to {end.isoformat()}.")
    plays: list[SimulatedTick] = []
    older = 0
    since, now = start - _SECOND, start
    going: int | None = None  # place of the play whose run has not ended
    while True:
        now = next((min(back, end) for down, back in outages if down <= now < min(back, end)), now)
        if going is not None and _end(plays[going]) <= now:
            going = None
        found = _before(end, find_due(timetable, since, now))
        for gap in found.older:
            older, since = older + gap.about, gap.last
        plays += [SimulatedTick(tick=m.tick, outcome=TickOutcome.MISSED, why=m.why) for m in found.missed]
        waiting = going is not None and must_wait(found, timetable, _began(plays[going]))
        if found.run and not waiting:
            tick = found.run[0]
            going = _play(timetable, plays, going, tick, now, duration, seed)
        since = max([since, *(play.tick.at for play in plays[-1:])])
        if len(found.run) > 1 and not waiting:
            continue  # the others wait, or not: ask again
        moments = [_end(plays[going])] if waiting and going is not None else []
        moments += [starts(timetable, found.next)] if found.next is not None else []
        if not moments:
            break
        now = min(moments)
    if rule is not None:
        plays = [replace(play, tick=replace(play.tick, span=span_of(rule, play.tick))) for play in plays]
    return Simulation(
        timetable=timetable, start=start, end=end, duration=duration, seed=seed, plays=tuple(plays), older=older
    )


def _before(end: datetime, found: DueTicks) -> DueTicks:
    """What is due of the ticks before the end; what of them waits is played, however long that takes."""
    return replace(
        found,
        run=tuple(tick for tick in found.run if tick.at < end),
        missed=tuple(missed for missed in found.missed if missed.tick.at < end),
        next=found.next if found.next is not None and found.next.at < end else None,
    )


def format_simulation(simulation: Simulation, calendar: Calendar, *, whole: bool = False) -> str:
    """What would happen, as text; of many ticks, unless `whole`, only those that are out of the ordinary."""
    table, zone = simulation.timetable, simulation.timetable.clock
    notable = [play for play in simulation.plays if play.outcome.abnormal or play.tick.note]
    shown = simulation.plays if whole or len(simulation.plays) <= _MANY else notable[:_MANY]
    rows = [
        (
            play.tick.name,
            format_time(play.tick.at, zone),
            preview.span_label(table, play.tick, calendar),
            play.outcome.value,
            format_duration(
                None if play.began is None or play.ended is None else (play.ended - play.began).total_seconds()
            ),
            "; ".join(part for part in (play.why, play.tick.note) if part),
        )
        for play in shown
    ]
    terms = f"{table.cron!r} in {table.zone}, {table.overrun.value}, catchup={table.catchup.value}"
    lines = [f"{table.pipeline}: {terms}; a run takes {simulation.duration} (seed {simulation.seed})."]
    lines += [simulation.caveat] if simulation.alone else []
    lines += [format_table(("TICK", "DUE", "SPAN", "OUTCOME", "TOOK", "WHY"), rows)] if rows else []
    if not whole and len(simulation.plays) > _MANY:
        more = f", and {len(notable) - _MANY} more like them" if len(notable) > _MANY else ""
        lines.append(f"(Ordinary ticks are left out{more}.)")
    return "\n".join([*lines, *_summary(simulation, calendar)])


def _summary(simulation: Simulation, calendar: Calendar) -> list[str]:
    totals = simulation.totals
    parts = ", ".join(f"{count} {outcome.value}" for outcome, count in totals.items()) or "none"
    ticks = format_count(sum(totals.values()), "tick")
    lines = [f"{ticks}: {parts}. The pipeline was running {simulation.busy:.0%} of the time."]
    calendars = _calendars(simulation, calendar)
    lost = [
        f"{node} {format_versions(((span, None) for span in spans), calendars[node])}".strip()
        for node, spans in simulation.lost.items()
    ]
    return [*lines, f"Without a run to the end: {'; '.join(lost)}."] if lost else lines


def list_lost(simulation: Simulation, calendar: Calendar) -> list[tuple[str, int, str]]:
    """The spans for which no run came to its end, each with its node, if it is of one, and as people write it."""
    calendars = _calendars(simulation, calendar)
    return [(node, span, calendars[node].label(span)) for node, spans in simulation.lost.items() for span in spans]


def _calendars(simulation: Simulation, calendar: Calendar) -> Mapping[str, Calendar]:
    """How the spans of each node are counted; those of the first, and of none, as the ticks."""
    sources = simulation.timetable.sources
    others = {source.node: source.rule.calendar for source in sources[1:]}
    return {"": calendar, **dict.fromkeys((source.node for source in sources[:1]), calendar), **others}


def simulation_document(simulation: Simulation, calendar: Calendar) -> Document:
    """What would happen, for programs."""
    return {
        "pipeline": simulation.timetable.pipeline,
        "start": iso_time(simulation.start),
        "end": iso_time(simulation.end),
        "duration": str(simulation.duration),
        "seed": simulation.seed,
        "alone": simulation.alone,
        "totals": {outcome.value: count for outcome, count in simulation.totals.items()},
        "older": simulation.older,
        "busy": simulation.busy,
        "lost": [
            {**({"node": node} if node else {}), "span": span, "span_label": label}
            for node, span, label in list_lost(simulation, calendar)
        ],
        "ticks": [
            {
                **preview.tick_document(simulation.timetable, play.tick, calendar),
                "outcome": play.outcome.value,
                "why": play.why,
                "began": iso_time(play.began),
                "ended": iso_time(play.ended),
            }
            for play in simulation.plays
        ],
    }


def _play(
    timetable: Timetable,
    plays: list[SimulatedTick],
    going: int | None,
    tick: Tick,
    now: datetime,
    duration: Duration,
    seed: int,
) -> int | None:
    """Plays what is decided for a tick that is due; the place of the play that goes on from now."""
    decision = decide_overrun(timetable.overrun, going)
    if isinstance(decision, SkipTick):
        running = plays[decision.running]
        plays.append(
            SimulatedTick(tick=tick, outcome=TickOutcome.SKIPPED, why=f"the run of {running.tick.name} had not ended")
        )
        return going
    if isinstance(decision, KillThenStart):
        plays[decision.running] = replace(
            plays[decision.running], outcome=TickOutcome.KILLED, why=f"ended for {tick.name}", ended=now
        )
    took = duration.draw(random.Random(f"{seed} {tick.name}"))  # noqa: S311  no secret
    plays.append(SimulatedTick(tick=tick, outcome=TickOutcome.RAN, began=now, ended=now + took))
    return len(plays) - 1


def _spans(tick: Tick) -> Mapping[str, int]:
    """The span of each node that ingests; where all have that of the tick, it is of none."""
    return tick.by_node or ({} if tick.span is None else {"": tick.span})


def _began(play: SimulatedTick) -> datetime:
    assert play.began is not None, "it runs"
    return play.began


def _end(play: SimulatedTick) -> datetime:
    assert play.ended is not None, "it runs"
    return play.ended
