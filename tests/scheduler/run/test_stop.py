"""Stopping where no real process is needed; tests of real ones are with the commands (test_cli)."""

import functools
import time
from dataclasses import replace
from pathlib import Path

import pytest

from spanwise.orchestrator import Held, Run, RunError, State, lease, process
from spanwise.orchestrator.agents import slurm_engine
from spanwise.orchestrator.process import Identity
from spanwise.orchestrator.publisher import GoneEngine
from spanwise.orchestrator.stop_request import request_stop
from spanwise.orchestrator.store import Claim, MemoryStore
from spanwise.scheduler.run import stop as stopping
from tests.scheduler.records import Clock, begun, ended


def held(store: MemoryStore, monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    """The pipeline's lease, in the hands of a process of that machine."""
    with monkeypatch.context() as patch:
        patch.setattr(process, "identity", lambda: Identity(machine, 1 << 22, 1))
        lease.acquire(store, "flights", "run 1")


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


def dead_on_slurm(store: MemoryStore, folder: Path, monkeypatch: pytest.MonkeyPatch, *, squeue: str) -> Run:
    """A run that died with a node on Slurm, whose `squeue` is this program."""
    held(store, monkeypatch, process.machine())
    claim = store.find_claim("lease", "flights#1")
    assert claim is not None
    store.amend(Claim("lease", claim.name, {**claim.facts, "engine": "slurm:gpu", "mark": 4711}))
    for name in ("srun", "squeue", "scancel"):
        (folder / name).write_text(f"#!/bin/sh\n{squeue}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return begun(store, token=1)


def test_an_engine_that_is_gone_for_good_is_given_up_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can prove any more that its nodes have ended; the message says what to type, and the record who has said so."""
    store = MemoryStore()
    run = dead_on_slurm(store, tmp_path, monkeypatch, squeue="echo 'Unable to contact the controller' >&2; exit 1")

    with pytest.raises(RunError, match=r"Unable to contact the controller.*\n.*spanwise stop flights --gone slurm:gpu"):
        stopping.stop(store, run, tmp_path, grace_s=0, by="a test")
    with pytest.raises(RunError, match="Unable to contact the controller"):
        stopping.give_up_engine(store, run, tmp_path, GoneEngine(name="slurm:cpu", who="ann@host"))
    stopped = stopping.give_up_engine(store, run, tmp_path, GoneEngine(name="slurm:gpu", who="ann@host"))

    assert (stopped.how, stopped.run.state) == ("closed", State.FAILED)
    assert stopped.run.error == "abandoned: its controller died, and ann@host says that slurm:gpu is gone"
    assert stopping.stop(store, stopped.run, tmp_path, grace_s=0, by="a test").how == "already ended"
    lease.acquire(store, "flights", "the next run")


def test_an_engine_is_given_up_of_which_a_run_has_recorded_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its controller lived, and could not prove that its nodes had ended; it is not said to have died."""
    store = MemoryStore()
    run = dead_on_slurm(store, tmp_path, monkeypatch, squeue="echo 'Unable to contact the controller' >&2; exit 1")
    store.update_run(replace(run, state=State.FAILED))
    run = store.run("flights", run.number)
    with pytest.raises(RunError, match="Unable to contact the controller"):
        stopping.give_up_engine(store, run, tmp_path, GoneEngine(name="slurm:cpu", who="ann@host"))

    stopped = stopping.give_up_engine(store, run, tmp_path, GoneEngine(name="slurm:gpu", who="ann@host"))

    assert str(stopped) == f"Run {run.name} has ended: failed. No engine is waited for any more."
    assert not stopped.closed
    following = lease.acquire(store, "flights", "the next run")
    assert not any(holder.engine for holder in lease.unclosed_leases(store, following))


def test_an_engine_that_answers_is_not_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node is still there, whatever a person says; so the run stays open."""
    monkeypatch.setattr(slurm_engine, "_PROOF_S", 0.0)
    store = MemoryStore()
    run = dead_on_slurm(store, tmp_path, monkeypatch, squeue="echo '7 RUNNING spanwise-4711-1'")

    with pytest.raises(RunError, match=r"would not die.*job 7 of Slurm"):
        stopping.give_up_engine(store, run, tmp_path, GoneEngine(name="slurm:gpu", who="ann@host"))

    assert store.run("flights", run.number).state is State.RUNNING


def test_no_engine_is_given_up_while_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not even asked to stop."""
    store = MemoryStore()
    lease.acquire(store, "flights", "run 1")
    run = begun(store, token=1)

    with pytest.raises(Held, match="is still going"):
        stopping.give_up_engine(store, run, tmp_path, GoneEngine(name="slurm:gpu", who="ann@host"))

    assert store.find_claim("stop", run.name) is None


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
