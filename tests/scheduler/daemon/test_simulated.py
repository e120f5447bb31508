"""What a simulation says is what the scheduler does, with the same durations and outages, on a clock of the test."""

import os
import random
from datetime import UTC, datetime, timedelta

from spanwise.orchestrator.run import State
from spanwise.scheduler.ledger.heartbeat import mark_ended
from spanwise.scheduler.ledger.ticks import list_ticks, mark_overrun
from spanwise.scheduler.schedule.duration import Duration
from spanwise.scheduler.schedule.simulate import Simulation, simulate
from spanwise.scheduler.schedule.span_rule import days_before
from spanwise.scheduler.schedule.timetable import Catchup, OverrunPolicy, Timetable
from tests.scheduler.daemon.test_pipeline_scheduler import World, cause_of

PLAYS = int(os.environ.get("SPANWISE_TEST_PLAYS", "8"))  # the full form: 500

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
INTERVALS_S = {"0 * * * *": 3600, "*/15 * * * *": 900, "H * * * *": 3600, "0 */2 * * *": 7200, "30 1,2,13 * * *": 7200}


class Played(World):
    """A scheduler whose runs begin at once and take what a simulation draws for their ticks."""

    def __init__(self, root, played: Simulation, outages, **terms):
        self.played, self.outages = played, outages
        self.ends = {}
        self.begun = {}
        self.up = False
        super().__init__(root, **terms)

    def open(self):
        if not self.up and not self.begun:
            self.now = self.played.start - SECOND
        self.up = True
        super().open()

    def start(self, job):
        child = super().start(job)
        for old in list(self.ends) if job.end_others else ():
            mark_overrun(self.records, "p", old.job.tick, cause_of(job.tick))
            old.finish(State.CANCELED, "stopped by `spanwise stop`")
            del self.ends[old]
        child.begin()
        if child.run is not None:
            self.begun[job.tick] = self.now
            took = self.played.duration.draw(random.Random(f"{self.played.seed} {job.tick}"))
            self.ends[child] = self.now + took
        return child

    def step_through(self):
        """Steps until nothing more happens now."""
        seen = None
        while seen != (seen := (self.watched._seen, len(self.children))):
            self.step()

    def play(self):
        """Goes from one moment at which something happens to the next, until all ticks have ended."""
        end = self.played.end
        while True:
            down = next((back for down, back in self.outages if down <= self.now < back), None)
            if down is not None:
                if self.up:
                    mark_ended(self.records, self.me)
                self.up = False
            else:
                if not self.up:
                    self.open()
                self.step_through()
                if self.now >= end and not self.ends and self.watched.due_at is None:
                    return
            coming = [self.watched.due_at, *(down for down, _ in self.outages)] if down is None else [down]
            moments = [m for m in (*coming, *self.ends.values(), end) if m is not None and m > self.now]
            self.monotonic += (min(moments) - self.now).total_seconds()
            self.now = min(moments)
            for child in [child for child, ends in self.ends.items() if ends <= self.now]:
                del self.ends[child]
                child.finish()


def test_a_simulation_says_what_the_scheduler_does(tmp_path):
    """Each tick has the same outcome and the same begin: every policy, catch-up, jitter and zone, with outages."""
    dice = random.Random(PLAYS)
    outcomes = set()
    for number in range(PLAYS):
        cron, interval_s = dice.choice(list(INTERVALS_S.items()))
        start = datetime(2026, dice.choice([3, 4, 10, 11]), dice.choice([1, 3, 7]), dice.randrange(24), tzinfo=UTC)
        length = interval_s * SECOND * dice.randint(10, 40)
        terms = {
            "cron": cron,
            "zone": dice.choice(["UTC", "America/New_York", "Australia/Lord_Howe"]),
            "overrun": dice.choice(list(OverrunPolicy)),
            "catchup": dice.choice(list(Catchup)),
            "catchup_limit": dice.choice([1, 2, 5, 100]),
            "misfire_grace_s": dice.choice([None, None, 0, 60, 3600]),
            "jitter_s": dice.choice([0, 0, interval_s / 10, interval_s / 4]),
            "end": start + length - SECOND,
        }
        minutes = interval_s // 60
        takes = dice.choice(
            ["10s", f"{minutes}m", f"uniform(1m,{3 * minutes}m)", f"lognormal({minutes}m,{6 * minutes}m)"]
        )
        down = start + (length * dice.uniform(0.1, 0.6)) // SECOND * SECOND
        outages = [(down, down + (length * dice.uniform(0.05, 0.3)) // SECOND * SECOND)] if dice.random() < 0.7 else []
        table = Timetable("p", span=days_before(1), **terms)
        played = simulate(table, start, start + length, Duration.parse(takes), number, outages=outages)

        world = Played(tmp_path / str(number), played, outages, **terms)
        world.play()

        about = f"{number}: {terms}, a run takes {takes}, outages {outages}"
        real = [(e.tick.name, e.end and e.end.outcome, e.tick.span) for e in list_ticks(world.records, "p")][::-1]
        assert real == [(p.tick.name, p.outcome, p.tick.span) for p in played.plays], about
        assert world.begun == {play.tick.name: play.began for play in played.plays if play.began}, about
        outcomes |= {outcome.value for _, outcome, _ in real}
    assert outcomes >= {"ran", "skipped", "killed", "missed"}
