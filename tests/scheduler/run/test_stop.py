"""Stopping where no real process is needed; tests of real ones are with the commands (test_cli)."""

import functools
import time
from dataclasses import replace
from pathlib import Path

import pytest

from spanwise.orchestrator import RunError, State, lease, process
from spanwise.orchestrator.process import Identity
from spanwise.orchestrator.stop_request import request_stop
from spanwise.orchestrator.store import Claim, MemoryStore
from spanwise.scheduler.run import stop as stopping
from tests.scheduler.records import Clock, begun, ended


def held(store: MemoryStore, monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    """The pipeline's lease, in the hands of a process of that machine."""
    monkeypatch.setattr(process, "identity", lambda: Identity(machine, 1 << 22, 1))
    lease.acquire(store, "flights", "run 1")
    monkeypatch.undo()


def test_a_run_that_is_over_is_left_alone(tmp_path: Path) -> None:
    """Its state is told."""
    store = MemoryStore()
    run = ended(store, begun(store))

    stopped = stopping.stop(store, run, tmp_path, grace_s=0, by="a test")

    assert (stopped.how, stopped.run) == ("already ended", run)
    assert store.find_claim("stop", run.name) is None
    assert "has already ended: complete" in str(stopped)


def test_a_run_that_has_died_is_put_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record is closed, and the pipeline is free."""
    store = MemoryStore()
    held(store, monkeypatch, process.machine())
    run = begun(store, token=1)

    stopped = stopping.stop(store, run, tmp_path, grace_s=0, by="a test")

    assert (stopped.how, stopped.run.state) == ("closed", State.FAILED)
    holder = lease.current(store, "flights")
    assert holder is not None
    assert holder.released


def test_a_run_whose_host_has_died_is_put_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can kill anything there; that its heartbeat has stopped proves enough, as for the next run."""
    store = MemoryStore()
    held(store, monkeypatch, "elsewhere/boot/namespace")
    run = begun(store, token=1)
    monkeypatch.setattr(stopping, "SLACK_S", 0.01)
    monkeypatch.setattr(lease, "Clock", functools.partial(lease.Clock, ttl_s=0.02))
    time.sleep(0.03)  # longer than a lease is valid without a heartbeat

    stopped = stopping.stop(store, run, tmp_path, grace_s=0, by="a test")

    assert (stopped.how, stopped.run.state) == ("closed", State.FAILED)


def test_a_run_that_was_killed_since_it_did_not_stop_says_who_stopped_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was canceled, so that it is not retried, as one that stopped in time is not."""
    store = MemoryStore()
    held(store, monkeypatch, process.machine())
    run = begun(store, token=1)
    request_stop(store, run, "`spanwise stop` of ann@host")

    stopped = stopping.stop(store, run, tmp_path, grace_s=0, by="a test")

    assert stopped.run.state is State.CANCELED
    assert stopped.run.error == "stopped by `spanwise stop` of ann@host; killed, since it had not recorded its end"


def test_a_run_elsewhere_is_asked_and_then_given_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be killed on another machine; the message says what to type there."""
    store = MemoryStore()
    held(store, monkeypatch, "elsewhere/boot/namespace")
    run = begun(store, token=1)
    monkeypatch.setattr(stopping, "SLACK_S", 0.01)

    with pytest.raises(RunError, match="Kill it there:  kill -KILL 4194304"):
        stopping.stop(store, run, tmp_path, grace_s=0, by="a test")

    assert store.find_claim("stop", run.name) is not None


def test_a_run_whose_host_comes_back_while_it_is_stopped_is_asked_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was watched without a heartbeat, and its lease cannot be taken any more: it has not died."""
    store = MemoryStore()
    held(store, monkeypatch, "elsewhere/boot/namespace")
    run = begun(store, token=1)
    monkeypatch.setattr(stopping, "SLACK_S", 0.01)
    looks = []

    def comes_back(*_: object) -> bool:
        looks.append(True)
        return len(looks) == 1

    monkeypatch.setattr(lease, "is_dead", comes_back)

    with pytest.raises(RunError, match="was asked to stop, but did not end"):
        stopping.stop(store, run, tmp_path, grace_s=0, by="a test")

    assert store.find_claim("stop", run.name) is not None


def test_a_run_that_was_taken_for_dead_and_goes_on_is_not_asked_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host was cut off for a while, and is back before its records were closed."""
    store = MemoryStore()
    held(store, monkeypatch, "elsewhere/boot/namespace")
    run = begun(store, token=1)

    assert stopping.close_if_gone(store, run, tmp_path) is None
    assert store.find_claim("stop", run.name) is None
    assert not store.run("flights", 1).state.ended


def test_a_run_elsewhere_that_ends_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hears the request from the store, ends, and gives its lease back."""
    store = MemoryStore(Clock())
    held(store, monkeypatch, "elsewhere/boot/namespace")
    run = begun(store, token=1)
    claim = store.claim

    def heard(*claims: Claim) -> None:
        monkeypatch.setattr(store, "claim", claim)
        claim(*claims)
        ended(store, run, State.CANCELED)
        holder = lease.read(store, "flights", 1)
        assert holder is not None
        given = store.find_claim("lease", holder.name)
        assert given is not None
        store.amend(replace(given, facts={**given.facts, "released": True}))

    monkeypatch.setattr(store, "claim", heard)

    stopped = stopping.stop(store, run, tmp_path, grace_s=0, by="a test")

    assert (stopped.how, stopped.run.state, stopped.pid) == ("ended", State.CANCELED, None)
