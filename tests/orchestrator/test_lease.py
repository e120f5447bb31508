"""Leases: one holder at a time, and nothing lands of one that has lost its turn."""

import shutil
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from spanwise.orchestrator import Fenced, Held, StoreError, process
from spanwise.orchestrator.errors import StoreUnavailable
from spanwise.orchestrator.lease import (
    COLLECTING,
    TTL_S,
    acquire,
    current,
    held_message,
    is_dead,
    mark_closed,
    read,
    unclosed_leases,
)
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.process import Identity
from spanwise.orchestrator.store import AlreadyClaimed, Claim, MemoryStore
from spanwise.orchestrator.testing import FakeClock


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def store(clock):
    return MemoryStore(clock)


def take(store, clock, purpose="a run"):
    return acquire(store, "taxi", purpose, clock=clock.lease())


def from_elsewhere(store, lease):
    """Makes the lease one of a process on another machine, which cannot be looked up."""
    _rewrite(store, lease, who={"machine": "elsewhere/0/0"})


def from_the_dead(store, lease):
    """Makes the lease one of a process of this machine that is gone."""
    _rewrite(store, lease, who={"started": 1})


def _rewrite(store, lease, who=None, **facts):
    claim = store.find_claim("lease", f"taxi#{lease.token}")
    store.amend(Claim("lease", claim.name, {**claim.facts, "who": {**claim.facts["who"], **(who or {})}, **facts}))


def write(store, lease, name):
    """One write under the lease, of a claim that can be looked up."""
    return lease.write(lambda place: store.claim(place, Claim("mark", name)))


def test_the_first_holder_gets_token_one(store, clock):
    """A pipeline that never ran is free."""
    assert take(store, clock).token == 1


def test_a_held_lease_is_refused_with_who_holds_it(store, clock):
    """Whoever finds it held is told what is going on, since when on their own clock, where, and what to type."""
    take(store, clock, "run 7")

    with pytest.raises(Held) as refused:
        take(store, clock)

    me = process.identity()
    began = datetime(2024, 1, 1, tzinfo=UTC).astimezone()
    assert str(refused.value) == (
        f"run 7 of 'taxi' is still going (started {began:%Y-%m-%d %H:%M %Z} on {me.host}, pid {me.pid}), "
        "so nothing was started.\nWait for it, or stop it:  spanwise stop taxi"
    )


def test_a_lease_that_was_given_back_is_free(store, clock):
    """Tokens count up, so that the older is always known."""
    take(store, clock).release()

    assert take(store, clock).token == 2


def test_who_has_it_for_a_moment_is_waited_for(store, clock):
    """A garbage collection gives the lease back within a second or so; no run is refused for that."""
    first = take(store, clock, COLLECTING)
    waited = []

    def wait(seconds):
        waited.append(seconds)
        first.release()

    second = acquire(store, "taxi", "run 8", clock=replace(clock.lease(), sleep=wait))

    assert second.token == 2
    assert len(waited) == 1


def test_who_was_quicker_for_a_moment_is_waited_for(store, clock, monkeypatch):
    """Also where a collection takes the lease between the look and the claim."""
    claim, rivals = store.claim, []

    def slower(*claims):
        if not rivals:
            rivals.append(None)
            rivals[0] = take(store, clock, COLLECTING)
        return claim(*claims)

    monkeypatch.setattr(store, "claim", slower)

    second = acquire(store, "taxi", "run 8", clock=replace(clock.lease(), sleep=lambda _s: rivals[0].release()))

    assert second.token == 2


def test_a_dead_collection_is_not_waited_for(store, clock):
    """Its lease is taken over like any other."""
    from_the_dead(store, take(store, clock, COLLECTING))

    assert take(store, clock).token == 2


def test_pipelines_do_not_disturb_each_other(store, clock):
    """A lease is of one pipeline."""
    take(store, clock)

    assert acquire(store, "other", "a run", clock=clock.lease()).token == 1


def test_a_dead_process_holds_nothing(store, clock):
    """On one machine a holder is dead when its process is gone, however young its heartbeat."""
    from_the_dead(store, take(store, clock))

    assert take(store, clock).token == 2
    assert clock.monotonic() == 0


def test_a_young_heartbeat_from_elsewhere_holds(store, clock):
    """A holder on another machine that has just been heard of is not even watched."""
    from_elsewhere(store, take(store, clock))

    with pytest.raises(Held):
        take(store, clock)

    assert clock.monotonic() == 0


def test_an_old_heartbeat_is_watched_before_the_lease_is_taken(store, clock):
    """A holder that cannot be seen counts as dead once its heartbeat stood still on the watcher's own clock."""
    from_elsewhere(store, take(store, clock))
    clock.forward(timedelta(hours=1))

    assert take(store, clock).token == 2
    assert clock.monotonic() >= 3600 + TTL_S


def test_a_heartbeat_that_moves_keeps_the_lease(store, clock):
    """One beat during the watch, and the holder lives, whatever its clock says."""
    lease = take(store, clock)
    from_elsewhere(store, lease)
    clock.forward(timedelta(hours=1))
    holder = current(store, "taxi")
    watching = clock.lease()

    def sleep(seconds):
        clock.sleep(seconds)
        _rewrite(store, lease, beat=holder.beat + 1)

    assert is_dead(store, holder, replace(watching, sleep=sleep)) is False


def test_a_database_that_stood_still_takes_no_lease_from_anybody(store, clock, monkeypatch):
    """Its holder could not renew it meanwhile, and does so within seconds."""
    lease = take(store, clock)
    from_elsewhere(store, lease)
    clock.forward(timedelta(hours=1))
    holder, find = current(store, "taxi"), store.find_claim
    looks = []

    def stand_still_once(kind, name):
        looks.append(name)
        if len(looks) == 2:
            clock.forward(timedelta(minutes=1))
        elif len(looks) == 4:
            _rewrite(store, lease, beat=holder.beat + 1)
        return find(kind, name)

    monkeypatch.setattr(store, "find_claim", stand_still_once)

    assert is_dead(store, holder, clock.lease()) is False


def test_a_holder_that_gives_back_while_it_is_watched_is_over(store, clock):
    """Its last beat is the one that gives the lease back."""
    lease = take(store, clock)
    from_elsewhere(store, lease)
    clock.forward(timedelta(hours=1))
    holder = current(store, "taxi")

    def sleep(seconds):
        clock.sleep(seconds)
        _rewrite(store, lease, beat=holder.beat + 1, released=True)

    assert is_dead(store, holder, replace(clock.lease(), sleep=sleep)) is True


def test_of_two_that_take_over_one_wins(store, clock, monkeypatch):
    """The claim of the next token goes to exactly one; the other is told who was faster."""
    from_the_dead(store, take(store, clock))
    claim = store.claim

    def overtaken(*claims):
        monkeypatch.setattr(store, "claim", claim)
        take(store, clock, "run 8")
        claim(*claims)

    monkeypatch.setattr(store, "claim", overtaken)

    with pytest.raises(Held, match="run 8"):
        take(store, clock)


def test_every_write_takes_the_next_place(store, clock):
    """The journal counts the writes of one lease."""
    lease = take(store, clock)
    write(store, lease, "a")
    write(store, lease, "b")

    assert store.find_claim("journal", "taxi#1/2") is not None
    assert store.find_claim("journal", "taxi#1/3") is None


def test_a_write_that_is_refused_for_another_reason_leaves_the_place(store, clock):
    """A name of the write itself was taken: that is told, and the next write goes on from the same place."""
    lease = take(store, clock)
    write(store, lease, "a")
    with pytest.raises(AlreadyClaimed):
        write(store, lease, "a")
    write(store, lease, "b")

    assert store.find_claim("journal", "taxi#1/2") is not None
    assert not lease.lost


def test_nothing_lands_after_the_journal_was_sealed(store, clock):
    """Whoever takes over seals the journal: no write of the old holder lands, whatever it believes."""
    old = take(store, clock)
    write(store, old, "before")
    from_the_dead(store, old)
    new = take(store, clock)
    unclosed_leases(store, new)

    with pytest.raises(Fenced, match=r"has lost its lease \(token 1\)"):
        write(store, old, "after")

    assert store.find_claim("mark", "before") is not None
    assert store.find_claim("mark", "after") is None
    assert old.lost


def test_processes_on_an_engine_that_does_not_answer_hold_up_the_next_run(store, clock):
    """The message says for what it waits; another address in the settings, as it advised, would not have helped."""
    old = take(store, clock)
    old.start_heartbeat(4711, lambda: None, "ray:10.0.0.5:6379")
    old.abandon()
    from_the_dead(store, old)
    new = take(store, clock)

    with pytest.raises(
        Held, match=r"No cluster answers\.\nOnce ray:10\.0\.0\.5:6379 says that they are gone, start again"
    ):
        unclosed_leases(store, new, lambda _engine, _mark: ["No cluster answers."])


def test_a_write_between_the_takeover_and_the_seal_lands(store, clock):
    """It was there before the new run looked, so it is one of the old run's; the seal takes the place after it."""
    old = take(store, clock)
    from_the_dead(store, old)
    new = take(store, clock)
    write(store, old, "late")
    unclosed_leases(store, new)

    assert store.find_claim("journal", "taxi#1/2").facts["sealed"]


def test_a_seal_that_meets_a_write_takes_the_place_after(store, clock, monkeypatch):
    """The old holder may write at the very moment of the seal."""
    old = take(store, clock)
    from_the_dead(store, old)
    new = take(store, clock)
    claim = store.claim

    def overtaken(*claims):
        monkeypatch.setattr(store, "claim", claim)
        write(store, old, "last")
        claim(*claims)

    monkeypatch.setattr(store, "claim", overtaken)
    unclosed_leases(store, new)

    with pytest.raises(Fenced):
        write(store, old, "after")


def test_checking_finds_a_lost_lease(store, clock):
    """The fence is asked of the store; a lease with a successor is lost."""
    old = take(store, clock)
    old.check()
    from_the_dead(store, old)
    take(store, clock)

    with pytest.raises(Fenced):
        old.check()


def test_a_lost_lease_is_not_given_back(store, clock):
    """Giving back what another holds changes nothing."""
    old = take(store, clock)
    from_the_dead(store, old)
    new = take(store, clock)
    with pytest.raises(Fenced):
        old.check()
    old.release()

    assert not read(store, "taxi", 1).released
    assert not read(store, "taxi", new.token).released


def test_a_write_that_landed_though_it_failed_ends_the_run(store, clock):
    """When the store reports a failure of a write that it did, the holder stops; it does not think itself fenced."""
    lease = take(store, clock)

    def lands_and_fails(place):
        store.claim(place)
        raise StoreUnavailable("the connection broke")

    with pytest.raises(StoreUnavailable):
        lease.write(lands_and_fails)
    with pytest.raises(StoreError, match="cannot tell which of its writes have landed") as found:
        write(store, lease, "next")

    assert not isinstance(found.value, Fenced)
    assert not lease.lost


def test_a_write_after_which_the_store_was_away_ends_the_run(store, clock, monkeypatch):
    """It has landed, but its caller does not know that: the next holder closes what it has left open."""
    lease = take(store, clock)
    write(store, lease, "first")

    def away(*_):
        raise StoreUnavailable("the connection broke")

    def lands(place):
        store.claim(place)
        monkeypatch.setattr(store, "find_claim", away)

    with pytest.raises(StoreUnavailable):
        lease.write(lands)
    monkeypatch.undo()
    with pytest.raises(StoreError, match="cannot tell which of its writes have landed"):
        write(store, lease, "next")


def abandoned(store, clock, count):
    """So many holders that died, one after the other, and the lease of who comes after them."""
    for _ in range(count):
        from_the_dead(store, take(store, clock))
    return take(store, clock)


def test_dead_holders_are_found_oldest_first(store, clock):
    """All that were never closed, so that what one left cannot hide behind another."""
    lease = abandoned(store, clock, 3)

    assert [holder.token for holder in unclosed_leases(store, lease)] == [1, 2, 3]


def test_a_closed_holder_ends_the_search(store, clock):
    """Closing in order means that nothing before a closed one is open."""
    lease = abandoned(store, clock, 3)
    first, second, _ = unclosed_leases(store, lease)
    mark_closed(store, first)
    mark_closed(store, second)

    assert [holder.token for holder in unclosed_leases(store, lease)] == [3]


def test_closing_that_was_cut_short_is_taken_up(store, clock):
    """Who dies after closing one of two leaves the other to be found."""
    second = abandoned(store, clock, 2)
    oldest, _ = unclosed_leases(store, second)
    mark_closed(store, oldest)
    from_the_dead(store, second)
    third = take(store, clock)

    assert [holder.token for holder in unclosed_leases(store, third)] == [2, 3]


def test_a_lease_given_back_with_records_open_is_looked_at(store, clock):
    """A run that could not record its end gives the lease back all the same; the next one closes what it left."""
    lease = abandoned(store, clock, 1)
    lease.release()
    after = take(store, clock)

    assert [holder.token for holder in unclosed_leases(store, after)] == [1, 2]


def test_a_lease_given_back_closed_is_not_looked_at(store, clock):
    """The usual way: one look-up, and nothing to put right."""
    take(store, clock).release(closed=True)

    assert unclosed_leases(store, take(store, clock)) == []


def test_our_own_processes_are_not_ended(store, clock, monkeypatch):
    """A holder of this process that never gave its lease back shares its workers with who comes after."""
    ended = []
    monkeypatch.setattr(process, "kill", ended.append)
    for mark in (4711, 4712):
        old = take(store, clock)
        _rewrite(store, old, mark=mark, who={"started": 1})
    new = take(store, clock)
    new.start_heartbeat(4712, lambda: None)
    unclosed_leases(store, new)
    new.release()

    assert ended == [4711]


def test_the_heart_beats_and_stops(store, clock):
    """While it is kept the beat goes up; a lease that was given back beats no more."""
    lease = acquire(store, "taxi", "a run", clock=clock.lease(ttl_s=0.05))
    lease.start_heartbeat(1, lambda: None)
    before = current(store, "taxi").beat
    moved = threading.Event()
    amend = store.amend
    store.amend = lambda claim: (amend(claim), moved.set() if claim.facts["beat"] > before + 2 else None)
    assert moved.wait(300)
    lease.release()

    assert current(store, "taxi").released
    assert not any(thread.name == "heartbeat" for thread in threading.enumerate())


def test_the_heart_notices_a_lost_lease(store, clock):
    """Whoever keeps a lease is told, once, that another has it."""
    lease = acquire(store, "taxi", "a run", clock=clock.lease(ttl_s=0.05))
    lost = threading.Event()
    from_the_dead(store, lease)
    take(store, clock)
    lease.start_heartbeat(1, lost.set)

    assert lost.wait(300)
    assert lease.lost
    lease.release()


def test_the_heart_outlives_a_store_that_is_away(store, clock, monkeypatch):
    """An error of the store, or any other, costs a beat and not the lease."""
    lease = acquire(store, "taxi", "a run", clock=clock.lease(ttl_s=0.05))
    lease.start_heartbeat(1, lambda: None)
    failed, back = threading.Event(), threading.Event()
    amend = store.amend

    def away(claim):
        if not failed.is_set():
            failed.set()
            raise OSError("out of descriptors")
        amend(claim)
        back.set()

    monkeypatch.setattr(store, "amend", away)

    assert failed.wait(300)
    assert back.wait(300)
    lease.release()


def test_a_lease_says_what_it_is_held_for(store, clock):
    """Once the run has its number, whoever is refused is told it."""
    lease = take(store, clock)
    lease.describe("run 42")

    assert held_message(current(store, "taxi")).startswith("run 42 of 'taxi' is still going")


def test_an_identity_survives_the_store(store, clock):
    """Who holds a lease is read back as it was written."""
    lease = take(store, clock)

    assert current(store, "taxi").who == lease.who == process.identity()
    assert isinstance(lease.who, Identity)


@pytest.fixture
def worker():
    """The mark of a process that works for a holder, and the process."""
    mark = process.new_mark()
    code = f"from spanwise.orchestrator import process\nassert process.take_mark({mark})\nprint('ready', flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "ready\n"
        yield mark, child
        child.kill()


def test_a_copy_of_a_root_ends_nothing_of_the_run_that_goes_on_in_the_first(tmp_path, clock, worker):
    """A backup that was made meanwhile and restored elsewhere on the host: no beat comes, so the lease is taken over."""
    mark, child = worker
    first, copied = tmp_path / "first", tmp_path / "copied"
    first.mkdir()
    with closing(open_store(str(first / "metadata.db"), root=first, clock=clock)) as store:
        running = take(store, clock)
        running.start_heartbeat(mark, lambda: None, "slurm:one")
        running.abandon()
        shutil.copytree(first, copied)
        with closing(open_store(str(copied / "metadata.db"), root=copied, clock=clock)) as copy:
            clock.forward(timedelta(seconds=TTL_S))
            held = current(copy, "taxi")
            mine = take(copy, clock, "another run")
            (abandoned,) = unclosed_leases(copy, mine, pytest.fail)

        assert process.is_alive(current(store, "taxi").who)
    assert process.is_alive(held.who) is None
    assert abandoned.mark == mark
    assert child.poll() is None


def test_a_run_whose_records_were_lost_stops(store, clock):
    """A standby that was behind took over, or a backup was restored: numbers are given again, perhaps to other things."""
    lease = take(store, clock)
    write(store, lease, "first")
    write(store, lease, "second")
    lease.check()
    del store._claims["journal", "taxi#1/2"], store._claims["mark", "second"]

    with pytest.raises(Fenced, match="no longer have what a run of 'taxi' recorded"):
        lease.check()

    assert lease.lost
    with pytest.raises(Fenced, match="no longer have what a run of 'taxi' recorded"):
        write(store, lease, "third")
    assert store.find_claim("mark", "third") is None


def test_a_run_whose_records_are_lost_in_the_middle_of_a_write_stops(store, clock):
    """That write lands in the database that has taken over; no other follows."""
    lease = take(store, clock)
    write(store, lease, "first")

    def lose_and_write(place):
        del store._claims["journal", "taxi#1/1"]
        store.claim(place)

    with pytest.raises(Fenced, match="no longer have what a run of 'taxi' recorded"):
        lease.write(lose_and_write)
    with pytest.raises(Fenced, match="no longer have what a run of 'taxi' recorded"):
        write(store, lease, "third")
