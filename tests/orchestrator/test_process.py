"""Processes: which one this is, whether it lives, and ending all of what is below it."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orchestrator import process


@pytest.fixture
def sleeper():
    """Starts programs that sleep, in sessions of their own; ends them afterwards."""
    started = []

    def sleeper(command="exec sleep 1000"):
        started.append(subprocess.Popen(["sh", "-c", command], start_new_session=True, stdout=subprocess.PIPE))
        return started[-1]

    yield sleeper
    for program in started:
        process.end_session(program.pid)
        program.wait()
        program.stdout.close()


def identity_of(pid):
    return process.Identity(
        process.machine(), pid, int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    )


def test_this_process_is_alive():
    """The identity of this process says that it lives."""
    assert process.alive(process.identity()) is True


def test_an_id_used_again_is_another_process():
    """The same number with another start time is not the same process."""
    me = process.identity()

    assert process.alive(replace(me, started=me.started - 1)) is False


def test_a_process_of_another_machine_cannot_be_seen():
    """Of another host, boot or namespace nothing is known."""
    assert process.alive(replace(process.identity(), machine="elsewhere/0/0")) is None


def test_a_zombie_is_dead(sleeper):
    """A process that has ended and was not collected yet does not live."""
    program = sleeper()
    who = identity_of(program.pid)
    os.kill(program.pid, signal.SIGKILL)
    os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)

    assert process.alive(who) is False


def test_a_frozen_process_is_alive(sleeper):
    """A stopped process has not ended; whether it has lost its turn is for its heartbeat to say."""
    program = sleeper()
    os.kill(program.pid, signal.SIGSTOP)

    assert process.alive(identity_of(program.pid)) is True


def test_the_host_is_shown_without_its_boot():
    """People are told the host's name alone."""
    assert process.Identity("host/boot/pid:[1]", 1, 1).host == "host"


def test_children_and_descendants(sleeper):
    """Descendants are found in whatever session they are; children are the direct ones."""
    program = sleeper("setsid sleep 1000 & echo $!; wait")
    grandchild = int(program.stdout.readline())

    assert program.pid in process.children()
    assert grandchild not in process.children()
    assert {program.pid, grandchild} <= set(process.descendants(os.getpid()))


def test_a_session_is_ended_without_its_leader(sleeper):
    """What is left of a session whose leader is dead is ended, with what has moved below it to another session."""
    program = sleeper("(setsid sleep 1000 & echo $!; sleep 1000) & read forever")
    moved = int(program.stdout.readline())
    os.kill(program.pid, signal.SIGKILL)
    program.wait()

    assert process.end_session(program.pid) == []
    assert process.session_members(program.pid) == []
    assert (
        not Path(f"/proc/{moved}").exists()
        or Path(f"/proc/{moved}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    )


def test_a_session_that_began_later_is_spared(sleeper):
    """A number used again, by a session that began after the one that was meant, is not ended."""
    program = sleeper()
    before = datetime.now(UTC) - timedelta(seconds=5)

    process.end_session(program.pid, began_by=before)
    spared = program.poll() is None
    process.end_session(program.pid, began_by=datetime.now(UTC) + timedelta(seconds=5))

    assert spared
    assert program.wait() == -signal.SIGKILL


def test_what_cannot_be_ended_is_named(sleeper, monkeypatch):
    """After the limit, those that would not die are returned."""
    program = sleeper()
    with monkeypatch.context() as patched:
        patched.setattr(process, "send", lambda pids, number: None)
        left = process.end_session(program.pid, limit_s=0.0)

    assert left == [program.pid]


def test_a_watch_is_readable_when_the_process_has_ended(sleeper):
    """The descriptor says when a process ends, whoever holds its pipes."""
    import select

    program = sleeper()
    watch = process.watch(program.pid)
    before, _, _ = select.select([watch], [], [], 0)
    os.kill(program.pid, signal.SIGKILL)
    after, _, _ = select.select([watch], [], [], 5)
    os.close(watch)

    assert (before, after) == ([], [watch])


def test_a_watch_of_nobody_is_none():
    """A process that is gone cannot be watched."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()

    assert process.watch(gone.pid) is None


def test_signals_held_back_arrive_afterwards():
    """A signal that comes while it is held back is delivered once it is not."""
    heard = []
    before = signal.signal(signal.SIGHUP, lambda *_: heard.append("after"))
    with process.holding_back(signal.SIGHUP):
        signal.pthread_kill(threading.get_ident(), signal.SIGHUP)  # this thread: libraries may have started others
        heard.append("inside")
    signal.signal(signal.SIGHUP, before)

    assert heard == ["inside", "after"]


def test_everything_below_is_ended():
    """A subreaper ends and collects its daemons too."""
    script = (
        "import os, subprocess, time\n"
        "from orchestrator import process\n"
        "process.adopt_orphans()\n"
        "subprocess.Popen(['sh', '-c', '(setsid sleep 1000 &) ; sleep 1000'])\n"
        "while len(process.descendants(os.getpid())) < 3: time.sleep(0.01)\n"
        "process.end_below(limit_s=5.0)\n"
        "print(process.descendants(os.getpid()), process.children())\n"
    )
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True, timeout=30
    )

    assert said.stdout == "[] []\n"


def test_a_child_dies_with_its_parent():
    """A child that asked for it is killed when its parent ends, however that ends."""
    script = (
        "import os, time\n"
        "from orchestrator import process\n"
        "me = os.getpid()\n"
        "ready, write = os.pipe()\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    process.die_with_parent(me)\n"
        "    os.write(write, b'.')\n"
        "    time.sleep(1000)\n"
        "os.read(ready, 1)\n"
        "print(pid, flush=True)\n"
        "os.kill(me, 9)\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=30)
    child = int(said.stdout)
    deadline = time.monotonic() + 5
    while (left := Path(f"/proc/{child}/cmdline")).exists() and left.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.01)

    assert not left.exists() or not left.read_bytes()
