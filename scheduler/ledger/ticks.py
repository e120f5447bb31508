"""The ledger: what the metadata knows about the ticks of a pipeline. Nothing but claims, so nothing happens twice.

A tick is *taken* by inserting its name and the next number of its pipeline in one transaction, and it *ends* by
inserting its one outcome. A run of it begins by inserting its attempt together with its own record, and ending a tick
inserts the attempt that would have come next, so that none can begin afterwards, whoever was about to.

| claim                | is                                                                                          |
|----------------------|---------------------------------------------------------------------------------------------|
| `tick p@name`        | the tick was taken, by a scheduler                                                          |
| `ticknumber p#n`     | the n-th tick of the pipeline; later in time than the one before                            |
| `holder p@name%j`    | another scheduler looks after it now, the j-th since it was taken                           |
| `attempt p@name#k`   | its k-th run has begun; or, sealed, never will                                              |
| `overrun p@name`     | a later tick is ending its run                                                              |
| `outcome p@name`     | what became of it                                                                           |
| `abnormal p#m`       | the m-th tick of the pipeline that did not run to a good end                                |
| `recovered p@name`   | a later run has made it good                                                                |
| `schedule p`         | the timetable as it was last loaded, and since when it counts                               |
| `scheduled #n`       | the n-th pipeline that was ever scheduled                                                   |
| `pause p#n`          | the n-th pause of the pipeline's schedule                                                   |

Where the parts of a pipeline have cadences of their own, p is a line, such as `flights:ingest`; a pause is one of all
lines of its pipeline.

Numbers are found by galloping. A walk down from the newest ends at a number that is noted as settled: everything from
there on down is over for good.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum

from spanwise.orchestrator.artifact import Value
from spanwise.orchestrator.errors import StoreError
from spanwise.orchestrator.store import AlreadyClaimed, Claim, Store, last
from spanwise.scheduler.schedule.part import DATA, PARTS, WHOLE, line, part_of, pipeline_of
from spanwise.scheduler.schedule.schedule import Tick


class Outcome(Enum):
    """What became of a tick; all but the first are abnormal."""

    RAN = "ran"
    SKIPPED = "skipped"  #: the run before it had not ended, and was let be
    KILLED = "killed"  #: its run was ended for a later tick
    MISSED = "missed"  #: nothing was there to start it, or it was paused
    FAILED = "failed"

    @property
    def abnormal(self) -> bool:
        return self is not Outcome.RAN


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a tick ended."""

    outcome: Outcome
    why: str = ""  #: for people; empty when it ran
    run: int | None = None  #: number of its last run; None when it never had one
    quiet: bool = False  #: nobody is told


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A tick that was taken."""

    pipeline: str
    tick: Tick
    number: int  #: counts up from 1 within the pipeline
    taken: datetime  #: when, by the taker's clock
    after_run: int  #: the newest run there was when it was taken; those of the tick have higher numbers
    holder: int  #: number of the scheduler that looks after it
    attempts: int  #: runs of it that have begun
    ending: Ending | None = None  #: None while it is open
    ended: datetime | None = None
    alerted: bool = False  #: nothing is left to tell anybody about its end
    recovered: int | None = None  #: the run that made it good

    @property
    def name(self) -> str:
        """`pipeline@tick`, unique."""
        return name_of(self.pipeline, self.tick.name)

    @property
    def settled(self) -> bool:
        """Whether nothing about it will change, except that it may be made good."""
        return self.ending is not None and self.alerted


@dataclass(frozen=True, kw_only=True)
class Pause:
    """A time in which a schedule takes no ticks."""

    number: int
    who: str
    why: str
    since: datetime
    until: datetime | None = None  #: None is until somebody resumes it
    resumed: datetime | None = None
    resumed_by: str = ""

    def holds(self, at: datetime) -> bool:
        """Whether the schedule was paused at that moment."""
        ends = [moment for moment in (self.until, self.resumed) if moment is not None]
        return self.since <= at and all(at < end for end in ends)


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """A schedule as the metadata knows it, so that it can be looked after where the pipeline file is not."""

    pipeline: str
    timetable: Mapping[str, Value]  #: see `spanwise.scheduler.schedule.schedule.Timetable`
    since: datetime  #: ticks after this moment count
    source: str = ""  #: the file it was loaded from, `/path/file.py:name`
    calendar: str = "number"  #: how its spans are shown
    pushes: tuple[str, ...] = ()  #: where its pushed models are found, `node/key`
    given_up: bool = False  #: the pipeline is scheduled otherwise now
    changed: datetime | None = field(default=None, compare=False)


def name_of(pipeline: str, tick: str) -> str:
    return f"{pipeline}@{tick}"


def attempt_claim(pipeline: str, tick: str, attempt: int) -> Claim:
    """What a run inserts in the transaction that begins it, so that this attempt is made once."""
    return Claim("attempt", f"{name_of(pipeline, tick)}#{attempt}")


# --- ticks


def claim_tick(
    store: Store, pipeline: str, tick: Tick, *, holder: int, now: datetime, ending: Ending | None = None, seen: int = 0
) -> Entry | None:
    """Takes a tick, and ends it at once where `ending` is given.

    None when it is not ours: it, or one after it, was taken before. `seen` is a number known to exist, for speed.
    """
    number = _newest(store, "ticknumber", pipeline, seen)
    while True:
        if not _comes_after(store, pipeline, tick, number):
            return None
        entry = Entry(
            pipeline=pipeline,
            tick=tick,
            number=number + 1,
            taken=now,
            after_run=next((run.number for run in store.runs(pipeline_of(pipeline))), 0),
            holder=holder,
            attempts=0,
            ending=ending,
            ended=None if ending is None else now,
            alerted=ending is not None and not _to_tell(ending),
        )
        ends = [] if ending is None else _ending_claims(store, entry, ending, now)
        number_claim = Claim("ticknumber", f"{pipeline}#{entry.number}", {"tick": tick.name, "settled": False})
        try:
            store.claim(number_claim, Claim("tick", entry.name, _tick_facts(entry)), *ends)
        except AlreadyClaimed:
            number = _newest(store, "ticknumber", pipeline, number)
            continue
        if ending is not None:
            settle(store, pipeline)
        return entry


def _comes_after(store: Store, pipeline: str, tick: Tick, number: int) -> bool:
    if not number:
        return True
    newest = _tick_of(store, pipeline, number)
    return newest.at < tick.at and store.claimed("tick", name_of(pipeline, tick.name)) is None


def conclude(store: Store, entry: Entry, ending: Ending, *, now: datetime) -> bool:
    """Ends an open tick that is seen to have had `entry.attempts` runs; from then on no run of it can begin.

    False when that is no longer so: somebody else has ended it, or a further run has begun. Read it again.
    """
    while True:
        try:
            store.claim(*_ending_claims(store, entry, ending, now))
        except AlreadyClaimed:
            next_attempt = attempt_claim(entry.pipeline, entry.tick.name, entry.attempts + 1)
            if store.claimed("outcome", entry.name) or store.claimed(next_attempt.kind, next_attempt.name):
                return False
            continue  # it was the number among the abnormal ones
        settle(store, entry.pipeline)
        return True


def _ending_claims(store: Store, entry: Entry, ending: Ending, now: datetime) -> list[Claim]:
    sealed = replace(attempt_claim(entry.pipeline, entry.tick.name, entry.attempts + 1), facts={"sealed": True})
    claims = [Claim("outcome", entry.name, _ending_facts(ending, now, alerted=not _to_tell(ending))), sealed]
    if ending.outcome.abnormal:
        number = _newest(store, "abnormal", entry.pipeline) + 1
        facts: dict[str, Value] = {"tick": entry.tick.name, "settled": False}
        claims.append(Claim("abnormal", f"{entry.pipeline}#{number}", facts))
    return claims


def _to_tell(ending: Ending) -> bool:
    return ending.outcome.abnormal and not ending.quiet


def alerted(store: Store, entry: Entry) -> None:
    """Notes that whoever is to be told of a tick's end has been: the alert is in the outbox."""
    claim = store.claimed("outcome", entry.name)
    if claim is not None:
        store.amend(replace(claim, facts={**claim.facts, "alerted": True}))
        settle(store, entry.pipeline)


def adopt(store: Store, entry: Entry, *, holder: int) -> Entry | None:
    """Makes another scheduler look after an open tick; None when yet another was quicker."""
    place = _newest(store, "holder", entry.name, sign="%") + 1
    if _holder(store, entry.name, entry.holder) != entry.holder:
        return None
    try:
        store.claim(Claim("holder", f"{entry.name}%{place}", {"scheduler": holder}))
    except AlreadyClaimed:
        return None
    return replace(entry, holder=holder)


def overrun(store: Store, pipeline: str, tick: str, *, by: str) -> None:
    """Notes that the run of a tick is about to be ended for a later one, `by`."""
    try:
        store.claim(Claim("overrun", name_of(pipeline, tick), {"by": by}))
    except AlreadyClaimed:
        return  # one before us meant to, and did not come to an end with it


def overrun_by(store: Store, pipeline: str, tick: str) -> str | None:
    """The tick for which the run of this one is, or was, to be ended."""
    claim = store.claimed("overrun", name_of(pipeline, tick))
    return None if claim is None else str(claim.facts["by"])


def entry(store: Store, pipeline: str, tick: str) -> Entry | None:
    """A tick by its name; None when it was never taken."""
    name = name_of(pipeline, tick)
    claim = store.claimed("tick", name)
    if claim is None:
        return None
    facts = claim.facts
    end = store.claimed("outcome", name)
    recovered = store.claimed("recovered", name) if end is not None else None
    begun = last(lambda k: store.claimed("attempt", f"{name}#{k}") is not None)
    return Entry(
        pipeline=pipeline,
        tick=_tick_read(tick, claim),
        number=claim.whole("number"),
        taken=_moment(facts["taken"]),
        after_run=claim.whole("after_run"),
        holder=_holder(store, name, claim.whole("scheduler")),
        attempts=begun if end is None else begun - 1,  # the last is the seal
        ending=None if end is None else _ending_read(end),
        ended=None if end is None else _moment(end.facts["at"]),
        alerted=end is not None and bool(end.facts["alerted"]),
        recovered=None if recovered is None else recovered.whole("run"),
    )


def entries(store: Store, pipeline: str, *, since: datetime | None = None, limit: int | None = None) -> Iterator[Entry]:
    """The ticks that were taken, newest first: those scheduled at `since` or later, `limit` of them at most."""
    newest = _newest(store, "ticknumber", pipeline)
    for number in range(newest, max(0, newest - limit) if limit is not None else 0, -1):
        found = _numbered(store, pipeline, number)
        if since is not None and found.tick.at < since:
            return
        yield found


def newest(store: Store, pipeline: str, *, seen: int = 0) -> Entry | None:
    """The last tick that was taken; `seen` is a number known to exist, for speed."""
    number = _newest(store, "ticknumber", pipeline, seen)
    return _numbered(store, pipeline, number) if number else None


def unsettled(store: Store, pipeline: str) -> list[Entry]:
    """Ticks that somebody has to look after, oldest first: open ones, and ended ones of which nobody was told."""
    found = []
    for number in range(_newest(store, "ticknumber", pipeline), 0, -1):
        if _is_settled(store, "ticknumber", pipeline, number):
            break
        seen = _numbered(store, pipeline, number)
        if not seen.settled:
            found.append(seen)
    return found[::-1]


def open_ticks(store: Store, pipeline: str) -> list[Entry]:
    """Ticks without an outcome, oldest first."""
    return [found for found in unsettled(store, pipeline) if found.ending is None]


def settle(store: Store, pipeline: str) -> None:
    """Notes up to where every tick is over, so that nobody looks there again."""
    top = _newest(store, "ticknumber", pipeline)
    number = top
    while number and not _is_settled(store, "ticknumber", pipeline, number):
        if not _numbered(store, pipeline, number).settled:
            top = number - 1
        number -= 1
    if top > number:
        _settle(store, "ticknumber", pipeline, top)


# --- what has to be made good


def missed(store: Store, pipeline: str) -> list[Entry]:
    """Abnormal ticks that no later run has made good, in the order in which they ended."""
    found = []
    for number in range(_newest(store, "abnormal", pipeline), 0, -1):
        claim = _existing(store, "abnormal", f"{pipeline}#{number}")
        if claim.facts["settled"]:
            break
        seen = entry(store, pipeline, str(claim.facts["tick"]))
        if seen is not None and seen.recovered is None:
            found.append(seen)
    return found[::-1]


def recover(
    store: Store, pipeline: str, span: int | None, run: int, parts: Collection[str] = (WHOLE, *PARTS)
) -> list[Entry]:
    """Notes that a run has made good every abnormal tick of a span; gives those that had not been before."""
    found = []
    for seen in missed(store, pipeline):
        if seen.tick.span != span or seen.tick.part not in parts:
            continue
        try:
            store.claim(Claim("recovered", seen.name, {"run": run}))
        except AlreadyClaimed:
            continue
        found.append(replace(seen, recovered=run))
    if found:
        _settle_abnormal(store, pipeline)
    return found


def _settle_abnormal(store: Store, pipeline: str) -> None:
    waiting = {seen.tick.name for seen in missed(store, pipeline)}
    top = _newest(store, "abnormal", pipeline)
    number = top
    while number:
        claim = _existing(store, "abnormal", f"{pipeline}#{number}")
        if claim.facts["settled"]:
            break
        if str(claim.facts["tick"]) in waiting:
            top = number - 1
        number -= 1
    if top > number:
        _settle(store, "abnormal", pipeline, top)


# --- schedules and pauses


def put_schedule(store: Store, scheduled: Scheduled) -> Scheduled:
    """Notes a schedule as it was loaded; what is returned counts since it was first known."""
    while True:
        known = schedule(store, scheduled.pipeline)
        if known is not None:
            kept = scheduled if known.given_up else replace(scheduled, since=known.since)
            if kept != known:
                _give_up_others(store, scheduled.pipeline)
                store.amend(Claim("schedule", scheduled.pipeline, _schedule_facts(kept)))
            return kept
        number = _newest(store, "scheduled", "") + 1
        listed = Claim("scheduled", f"#{number}", {"pipeline": scheduled.pipeline})
        try:
            store.claim(Claim("schedule", scheduled.pipeline, _schedule_facts(scheduled)), listed)
        except AlreadyClaimed:
            continue
        _give_up_others(store, scheduled.pipeline)
        return scheduled


def _give_up_others(store: Store, line_: str) -> None:
    """A pipeline is scheduled as a whole or by parts: what it was before is over."""
    pipeline, part = pipeline_of(line_), part_of(line_)
    for other in () if part == DATA else PARTS if part == WHOLE else (WHOLE,):
        known = schedule(store, line(pipeline, other))
        if known is not None and not known.given_up:
            store.amend(Claim("schedule", known.pipeline, _schedule_facts(replace(known, given_up=True))))


def lines(store: Store, pipeline: str) -> list[str]:
    """The lines of a pipeline: what of it is scheduled, and what runs because data has come."""
    named = [line(pipeline, part) for part in (WHOLE, *PARTS, DATA)]
    return [each for each in named if (known := schedule(store, each)) is not None and not known.given_up]


def schedule(store: Store, pipeline: str) -> Scheduled | None:
    """The schedule of a pipeline as it was last loaded; None when it never was."""
    claim = store.claimed("schedule", pipeline)
    if claim is None:
        return None
    facts = claim.facts
    timetable, pushes = facts["timetable"], facts["pushes"]
    if not isinstance(timetable, dict) or not isinstance(pushes, list):
        raise StoreError(f"The schedule of {pipeline!r} in the metadata cannot be read: {timetable!r}")
    return Scheduled(
        pipeline=pipeline,
        timetable=timetable,
        since=_moment(facts["since"]),
        source=str(facts["source"]),
        calendar=str(facts["calendar"]),
        pushes=tuple(str(address) for address in pushes),
        given_up=bool(facts.get("given_up", False)),
        changed=_moment(facts["created"]),
    )


def scheduled(store: Store) -> list[str]:
    """The lines of pipelines that were ever scheduled, in that order; not those that others have taken the place of."""
    newest = _newest(store, "scheduled", "")
    named = [str(_existing(store, "scheduled", f"#{n}").facts["pipeline"]) for n in range(1, newest + 1)]
    return [each for each in named if (known := schedule(store, each)) is not None and not known.given_up]


def pause(store: Store, pipeline: str, *, who: str, why: str, now: datetime, until: datetime | None = None) -> Pause:
    """Keeps every scheduler from taking ticks of a pipeline; takes the place of the pause before it."""
    pipeline = pipeline_of(pipeline)
    while True:
        number = _newest(store, "pause", pipeline) + 1
        made = Pause(number=number, who=who, why=why, since=now, until=until)
        try:
            store.claim(Claim("pause", f"{pipeline}#{number}", _pause_facts(made)))
        except AlreadyClaimed:
            continue
        return made


def resume(store: Store, pipeline: str, *, who: str, now: datetime) -> Pause | None:
    """Ends the pause that holds; None when there is none."""
    pipeline = pipeline_of(pipeline)
    held = paused(store, pipeline, now)
    if held is None:
        return None
    ended = replace(held, resumed=now, resumed_by=who)
    store.amend(Claim("pause", f"{pipeline}#{held.number}", _pause_facts(ended)))
    return ended


def prolong(store: Store, pipeline: str, pause: Pause, *, until: datetime) -> None:
    """Has a pause last until then, unless it was ended meanwhile."""
    pipeline = pipeline_of(pipeline)
    held = _pause(store, pipeline, pause.number)
    if held.resumed is None:
        store.amend(Claim("pause", f"{pipeline}#{pause.number}", _pause_facts(replace(held, until=until))))


def paused(store: Store, pipeline: str, now: datetime) -> Pause | None:
    """The pause that holds now."""
    pipeline = pipeline_of(pipeline)
    number = _newest(store, "pause", pipeline)
    newest_pause = _pause(store, pipeline, number) if number else None
    return newest_pause if newest_pause is not None and newest_pause.holds(now) else None


def pauses(store: Store, pipeline: str, *, since: datetime) -> list[Pause]:
    """The pauses that held at `since` or later, oldest first, each ended at the latest where the next begins."""
    pipeline = pipeline_of(pipeline)
    found: list[Pause] = []
    for number in range(_newest(store, "pause", pipeline), 0, -1):
        one = _pause(store, pipeline, number)
        if found and (one.until is None or one.until > found[-1].since):
            one = replace(one, until=found[-1].since)
        if any(end is not None and end <= since for end in (one.until, one.resumed)):
            break
        found.append(one)
    return found[::-1]


def _pause(store: Store, pipeline: str, number: int) -> Pause:
    facts = _existing(store, "pause", f"{pipeline}#{number}").facts
    return Pause(
        number=number,
        who=str(facts["who"]),
        why=str(facts["why"]),
        since=_moment(facts["since"]),
        until=_moment_or_none(facts["until"]),
        resumed=_moment_or_none(facts["resumed"]),
        resumed_by=str(facts["resumed_by"]),
    )


# --- how it is written down


def _newest(store: Store, kind: str, prefix: str, seen: int = 0, sign: str = "#") -> int:
    return seen + last(lambda further: store.claimed(kind, f"{prefix}{sign}{seen + further}") is not None)


def _existing(store: Store, kind: str, name: str) -> Claim:
    claim = store.claimed(kind, name)
    if claim is None:
        raise StoreError(f"The metadata has lost {kind} {name!r}, which it had. Put back a copy of it.")
    return claim


def _is_settled(store: Store, kind: str, prefix: str, number: int) -> bool:
    return bool(_existing(store, kind, f"{prefix}#{number}").facts["settled"])


def _settle(store: Store, kind: str, prefix: str, number: int) -> None:
    # Whoever writes this writes the same, and it stays true: what is over is never opened again.
    claim = _existing(store, kind, f"{prefix}#{number}")
    store.amend(replace(claim, facts={**claim.facts, "settled": True}))


def _numbered(store: Store, pipeline: str, number: int) -> Entry:
    name = str(_existing(store, "ticknumber", f"{pipeline}#{number}").facts["tick"])
    found = entry(store, pipeline, name)
    assert found is not None, "a tick and its number are inserted together"
    return found


def _tick_of(store: Store, pipeline: str, number: int) -> Tick:
    name = str(_existing(store, "ticknumber", f"{pipeline}#{number}").facts["tick"])
    return _tick_read(name, _existing(store, "tick", name_of(pipeline, name)))


def _holder(store: Store, name: str, first: int) -> int:
    place = _newest(store, "holder", name, sign="%")
    return _existing(store, "holder", f"{name}%{place}").whole("scheduler") if place else first


def _tick_facts(entry: Entry) -> dict[str, Value]:
    tick = entry.tick
    return {
        "number": entry.number,
        "at": tick.at.isoformat(),
        "wall": tick.wall.isoformat(),
        "span": tick.span,
        "note": tick.note,
        "part": tick.part,
        "from_scratch": tick.from_scratch,
        "taken": entry.taken.isoformat(),
        "after_run": entry.after_run,
        "scheduler": entry.holder,
    }


def _tick_read(name: str, claim: Claim) -> Tick:
    facts = claim.facts
    return Tick(
        at=_moment(facts["at"]),
        name=name,
        wall=_moment(facts["wall"]),
        span=None if facts["span"] is None else claim.whole("span"),
        note=str(facts["note"]),
        part=str(facts.get("part", WHOLE)),
        from_scratch=bool(facts.get("from_scratch", False)),
    )


def _ending_facts(ending: Ending, now: datetime, *, alerted: bool) -> dict[str, Value]:
    return {
        "outcome": ending.outcome.value,
        "why": ending.why,
        "run": ending.run,
        "at": now.isoformat(),
        "alerted": alerted,
    }


def _ending_read(claim: Claim) -> Ending:
    run = None if claim.facts["run"] is None else claim.whole("run")
    return Ending(outcome=Outcome(claim.facts["outcome"]), why=str(claim.facts["why"]), run=run)


def _schedule_facts(scheduled: Scheduled) -> dict[str, Value]:
    return {
        "timetable": dict(scheduled.timetable),
        "since": scheduled.since.isoformat(),
        "source": scheduled.source,
        "calendar": scheduled.calendar,
        "pushes": list(scheduled.pushes),
        "given_up": scheduled.given_up,
    }


def _pause_facts(pause: Pause) -> dict[str, Value]:
    return {
        "who": pause.who,
        "why": pause.why,
        "since": pause.since.isoformat(),
        "until": _iso(pause.until),
        "resumed": _iso(pause.resumed),
        "resumed_by": pause.resumed_by,
    }


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _moment(value: object) -> datetime:
    if not isinstance(value, str):
        raise StoreError(f"The ledger in the metadata holds {value!r} where a moment was written.")
    return datetime.fromisoformat(value)


def _moment_or_none(value: object) -> datetime | None:
    return None if value is None else _moment(value)
