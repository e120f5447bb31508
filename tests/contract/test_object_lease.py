"""What holds for a lease on an object: one holder at a time, whoever dies, pauses, or has a wrong clock."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid

import pytest

from spanwise.orchestrator import process
from spanwise.orchestrator.process import Identity
from spanwise.orchestrator.storage import ObjectLease, open_bucket, parse_url, write_once
from spanwise.orchestrator.storage.object_lease import LeaseHolder
from tests.contract.object_storage import SERVERS, serve

PAUSE_S = 0.05  # between two questions, each of which takes the storage some processor time
ELSEWHERE = Identity("elsewhere/1/1", 7, 7)


@pytest.fixture(scope="module", params=["moto", *SERVERS])
def home(request):
    with serve(request.param) as home:
        yield parse_url(home)


@pytest.fixture
def lease(home):
    """One that a holder elsewhere keeps for two seconds without a renewal."""
    return ObjectLease(bucket=open_bucket(home), key=(home / uuid.uuid4().hex).key, ttl_s=2.0)


def held_by(lease, who):
    lease.bucket.write(lease.key, LeaseHolder(who=who).to_json())


def test_one_holds_it_at_a_time(lease):
    """Of several at once, and after it nobody: the next can have it at once."""
    inside, most = [], []

    def hold():
        with lease.hold() as alone:
            if alone:
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.05)
                inside.pop()

    threads = [threading.Thread(target=hold) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert set(most) == {1}
    with lease.hold() as alone:
        assert alone


def test_a_holder_elsewhere_that_does_not_renew_it_is_dead(lease):
    """Not before its time is over by the storage's clock."""
    held_by(lease, ELSEWHERE)
    began = time.monotonic()
    with lease.hold() as alone:
        assert not alone

    alone = False
    while not alone:
        time.sleep(PAUSE_S)
        with lease.hold() as alone:
            pass

    assert time.monotonic() - began >= lease.ttl_s - 1.0  # the storage may date in whole seconds


def test_a_dead_process_of_this_host_holds_nothing(lease):
    """It is seen to be dead at once."""
    held_by(lease, Identity(process.machine(), 2**22 + 1, 1))

    with lease.hold() as alone:
        assert alone


def test_a_living_holder_keeps_it_longer_than_its_time(lease):
    """Its thread renews it; others are refused, however long it takes."""
    with lease.hold() as mine, pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "is_alive", lambda _who: None)  # as on another host
        until = time.monotonic() + 2 * lease.ttl_s
        while time.monotonic() < until:
            with lease.hold() as others:
                assert not others
            time.sleep(PAUSE_S)
        assert mine


def test_who_has_lost_it_does_not_free_it(lease):
    """It was paused for so long that another has it: the end of its context leaves that one alone."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(lease.hold())
        held_by(lease, ELSEWHERE)

    with lease.hold() as alone:
        assert not alone


def test_what_is_no_lease_is_held_by_nobody(lease):
    """Whatever has written it."""
    lease.bucket.write(lease.key, b'{"who": 3')

    with lease.hold() as alone:
        assert alone


def test_a_write_whose_answer_was_lost_is_ours(lease):
    """The same content again is refused, and was written by us; another content was not."""
    assert write_once(lease.bucket, lease.key, b"mine", replacing="")

    assert write_once(lease.bucket, lease.key, b"mine", replacing="")
    assert write_once(lease.bucket, lease.key, b"theirs", replacing="") is None
