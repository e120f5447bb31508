"""Pools: at most so many slots at a time, and a slot comes back when its holder is gone, not before."""

import os
import subprocess
import sys
import threading

import pytest

from spanwise.orchestrator import process
from spanwise.orchestrator.lease import acquire, mark_closed, unclosed_leases
from spanwise.orchestrator.pool import Pools
from spanwise.orchestrator.store import Claim, MemoryStore


@pytest.fixture
def store():
    return MemoryStore()


class Time:
    now = 0.0

    def __call__(self):
        return self.now


def pools_of(store, pipeline, monotonic=None):
    lease = acquire(store, pipeline, "a run")
    return Pools(store, lease, monotonic or Time()), lease


def rewrite_holder(store, lease, **facts):
    claim = store.find_claim("lease", f"{lease.pipeline}#{lease.token}")
    who = {**claim.facts["who"], **facts.pop("who", {})}
    store.amend(Claim("lease", claim.name, {**claim.facts, "who": who, **facts}))


def test_a_pool_has_so_many_slots_over_all_pipelines(store):
    """Two slots go to two pipelines, and a third has to wait until one is released."""
    (a, _), (b, _), (c, _) = (pools_of(store, name) for name in "abc")
    first = a.take("gpu", 2, "a/1/Train")

    assert b.take("gpu", 2, "b/1/Train") is not None
    assert c.take("gpu", 2, "c/1/Train") is None
    assert [slot.work for slot in c.holders("gpu", 2)] == ["a/1/Train", "b/1/Train"]
    a.release(first)
    assert c.take("gpu", 2, "c/1/Train") is not None


def test_pools_are_apart(store):
    """A full pool holds up nobody who takes slots of another."""
    a, _ = pools_of(store, "a")
    a.take("gpu", 1, "a/1/Train")

    assert a.take("gpu", 1, "a/1/Tune") is None
    assert a.take("licence", 1, "a/1/Solve") is not None


def test_a_slot_comes_back_when_its_holders_lease_is_released(store):
    """A run that died by an error, and could release its lease alone, holds no slot for ever."""
    (a, lease), (b, _) = pools_of(store, "a"), pools_of(store, "b")
    a.take("gpu", 1, "a/1/Train")

    lease.release()

    assert b.take("gpu", 1, "b/1/Train") is not None


def test_a_slot_of_a_dead_holder_comes_back_once_its_work_has_ended(store):
    """As long as a process of the dead controller's nodes lives, the slot is taken."""
    (a, lease), (b, _) = pools_of(store, "a"), pools_of(store, "b")
    a.take("gpu", 1, "a/1/Train")
    mark = process.new_mark()
    script = (
        f"import sys; from spanwise.orchestrator import process; process.take_mark({mark}); print(); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as work:
        work.stdout.readline()
        rewrite_holder(store, lease, who={"started": 1}, mark=mark)

        assert b.take("gpu", 1, "b/1/Train") is None
        work.stdin.close()
        work.wait()
    assert b.take("gpu", 1, "b/1/Train") is not None


def test_a_frozen_holder_keeps_its_slot(store):
    """Its work is still there, however old its heartbeat."""
    time = Time()
    (a, _), (b, _) = pools_of(store, "a"), pools_of(store, "b", time)
    a.take("gpu", 1, "a/1/Train")
    for time.now in (0.0, 1e6):
        assert b.take("gpu", 1, "b/1/Train") is None


def test_a_slot_of_another_machine_comes_back_after_its_silence(store):
    """A holder that cannot be looked up has lost its slot when its heartbeat has not moved for long."""
    time = Time()
    (a, lease), (b, _) = pools_of(store, "a"), pools_of(store, "b", time)
    slot = a.take("gpu", 1, "a/1/Train")
    rewrite_holder(store, lease, who={"machine": "elsewhere/0/0"})
    assert b.take("gpu", 1, "b/1/Train") is None
    time.now = 14.0
    rewrite_holder(store, lease, who={"machine": "elsewhere/0/0"}, beat=7)
    assert b.take("gpu", 1, "b/1/Train") is None
    time.now = 28.0
    assert b.take("gpu", 1, "b/1/Train") is None
    time.now = 30.0

    assert b.take("gpu", 1, "b/1/Train") is not None
    assert a.is_lost(slot)


def test_a_database_that_stood_still_takes_no_slot_from_anybody(store, monkeypatch):
    """A look that took long saw no heartbeat because none could arrive."""
    time = Time()
    monkeypatch.setattr("spanwise.orchestrator.lease.time.monotonic", time)
    a, lease = pools_of(store, "a")
    b = Pools(store, acquire(store, "b", "a run"))
    a.take("gpu", 1, "a/1/Train")
    rewrite_holder(store, lease, who={"machine": "elsewhere/0/0"})
    assert b.take("gpu", 1, "b/1/Train") is None
    for time.now in (0.5, 30.5, 31.0):
        assert b.take("gpu", 1, "b/1/Train") is None
    rewrite_holder(store, lease, who={"machine": "elsewhere/0/0"}, beat=7)
    for time.now in (31.5 + look / 2 for look in range(31)):
        assert b.take("gpu", 1, "b/1/Train") is None
    time.now = 47.0

    assert b.take("gpu", 1, "b/1/Train") is not None


def test_a_slot_comes_back_when_a_successor_has_closed_its_run(store):
    """The next run of the same pipeline ends what the dead one left; then the slot is free for all."""
    (a, lease), (b, _) = pools_of(store, "a"), pools_of(store, "b")
    a.take("gpu", 1, "a/1/Train")
    rewrite_holder(store, lease, who={"machine": "elsewhere/0/0"}, released=True)
    successor = acquire(store, "a", "a run")
    for holder in unclosed_leases(store, successor):
        mark_closed(store, holder)

    assert b.take("gpu", 1, "b/1/Train") is not None


def test_a_slot_is_taken_once(store):
    """Many that look at the same moment: one gets it."""
    pools = [pools_of(store, f"p{number}")[0] for number in range(8)]
    start, won = threading.Barrier(8), []

    def race(each):
        start.wait()
        won.append(each.take("gpu", 1, "work"))

    threads = [threading.Thread(target=race, args=(each,)) for each in pools]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(slot is not None for slot in won) == 1


def test_releasing_a_lost_slot_takes_it_from_nobody(store):
    """A holder that comes back late does not free the slot of the one after it."""
    time = Time()
    (a, lease), (b, _), (c, _) = pools_of(store, "a"), pools_of(store, "b", time), pools_of(store, "c")
    slot = a.take("gpu", 1, "a/1/Train")
    rewrite_holder(store, lease, who={"machine": "elsewhere/0/0"})
    b.take("gpu", 1, "b/1/Train")
    time.now = 100.0
    assert b.take("gpu", 1, "b/1/Train") is not None

    a.release(slot)

    assert c.take("gpu", 1, "c/1/Train") is None


def test_a_pool_that_was_made_smaller_counts_the_slots_that_are_taken(store):
    """Those above its size too: nobody gets one as long as so many are at work."""
    (a, _), (b, _), (c, _) = (pools_of(store, name) for name in "abc")
    first, second, third = (a.take("gpu", 3, f"a/1/Train{number}") for number in range(3))
    a.release(first)

    assert b.take("gpu", 2, "b/1/Train") is None
    assert [slot.work for slot in b.holders("gpu", 1)] == ["a/1/Train1", "a/1/Train2"]
    a.release(second)
    assert b.take("gpu", 1, "b/1/Train") is None
    assert b.take("gpu", 2, "b/1/Train") is not None
    assert c.take("gpu", 2, "c/1/Train") is None
    a.release(third)
    assert c.take("gpu", 2, "c/1/Train") is not None


def test_a_slot_of_a_node_on_an_engine_does_not_come_back_with_its_dead_controller(store):
    """Its agent goes on until it has heard nothing for a minute, where no process of this machine tells of it."""
    time = Time()
    (a, lease), (b, _) = pools_of(store, "a"), pools_of(store, "b", time)
    slot = a.take("gpu", 1, "a/1/Train", silence_s=75.0)
    rewrite_holder(store, lease, who={"started": 1}, engine="ray:auto")
    for time.now in (0.0, 1.0, 74.0):
        assert b.take("gpu", 1, "b/1/Train") is None
    time.now = 76.0

    assert b.take("gpu", 1, "b/1/Train") is not None
    assert a.is_lost(slot)


def test_this_process_is_alive():
    """What the other tests stand on: a holder of this machine is looked up by its process."""
    assert process.is_alive(process.identity(os.getpid()))
