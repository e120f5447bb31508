"""Processes: which one this is, whether it lives, and ending all of what is below it."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from spanwise.orchestrator import process
from tests.scenario.processes import frozen, needs_freezer


@pytest.fixture
def sleeper():
    """Starts programs that sleep, in sessions of their own; ends them afterwards."""
    started = []

    def sleeper(command="exec sleep 1000"):
        started.append(subprocess.Popen(["sh", "-c", command], start_new_session=True, stdout=subprocess.PIPE))
        return started[-1]

    yield sleeper
    for program in started:
        process.kill(0, *map(process.identity, [*process.descendants(program.pid), program.pid]))
        program.wait()
        program.stdout.close()


def identity_of(pid):
    return process.Identity(
        process.machine(), pid, int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    )


def test_this_process_is_alive():
    """The identity of this process says that it lives."""
    assert process.is_alive(process.identity()) is True


def test_an_id_used_again_is_another_process():
    """The same number with another start time is not the same process."""
    me = process.identity()

    assert process.is_alive(replace(me, started=me.started - 1)) is False


def test_a_process_of_another_machine_cannot_be_seen():
    """Of another host, boot or namespace nothing is known."""
    assert process.is_alive(replace(process.identity(), machine="elsewhere/0/0")) is None


def test_a_zombie_is_dead(sleeper):
    """A process that has ended and was not collected yet does not live."""
    program = sleeper()
    who = identity_of(program.pid)
    os.kill(program.pid, signal.SIGKILL)
    os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)

    assert process.is_alive(who) is False


def test_a_frozen_process_is_alive(sleeper):
    """A stopped process has not ended; whether it has lost its turn is for its heartbeat to say."""
    program = sleeper()
    os.kill(program.pid, signal.SIGSTOP)

    assert process.is_alive(identity_of(program.pid)) is True


def test_the_host_is_shown_without_its_boot():
    """People are told the host's name alone."""
    assert process.Identity("host/boot/pid:[1]", 1, 1).host == "host"


@pytest.mark.parametrize("lists", [True, False], ids=["listed by the kernel", "not listed"])
def test_children_and_descendants(lists, sleeper, monkeypatch):
    """Descendants are found in whatever session they are; children are the direct ones."""
    if not lists:
        monkeypatch.setattr(process, "_has_child_lists", lambda: False)
    program = sleeper("setsid sleep 1000 & echo $!; wait")
    grandchild = int(program.stdout.readline())

    assert program.pid in process.children()
    assert grandchild not in process.children()
    assert {program.pid, grandchild} <= set(process.descendants(os.getpid()))


#: How a process may leave its starter behind. Each leaves one behind, which calls `here()` when it is what it wants to be.
KINDS = {
    "a child": """
        if not os.fork():
            here()
        os.wait()
    """,
    "in a session of its own": """
        if not os.fork():
            os.setsid()
            here()
        os.wait()
    """,
    "a daemon": """
        if not os.fork():
            os.setsid()
            if not os.fork():
                here()
            os._exit(0)
        os.wait()
    """,
    "a daemon that closes every file, moves and renames itself": """
        if not os.fork():
            os.setsid()
            if not os.fork():
                os.closerange(0, 1000)
                os.chdir("/")
                open("/proc/self/comm", "w").write("kworker")
                here()
            os._exit(0)
        os.wait()
    """,
    "a program without environment": """
        if not os.fork():
            os.setsid()
            if not os.fork():
                code = f"import os, time; os.rename({str(note)!r} + '-', {str(note)!r}); time.sleep(1000)"
                note.with_name(note.name + "-").write_text(str(os.getpid()))
                os.closerange(0, 1000)
                os.execve(sys.executable, ["cron", "-S", "-c", code], {})
            os._exit(0)
        os.wait()
    """,
    "deaf to SIGTERM": """
        if not os.fork():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            here()
        os.wait()
    """,
    "stopped": """
        pid = os.fork()
        if not pid:
            time.sleep(1000)
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        here(pid)
    """,
    "threads whose first has ended": """
        if not os.fork():
            def go_on():
                while Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    time.sleep(0.01)
                here()
            threading.Thread(target=go_on).start()
            ctypes.CDLL(None).syscall(60, 0)  # exit, of this thread alone
        os.wait()
    """,
}


@pytest.fixture
def leave(tmp_path):
    """Starts a marked process that leaves another behind, kills the first, and says who is left."""
    mark = process.new_mark()

    def leave(code):
        note = tmp_path / "pid"
        script = (
            "import ctypes, os, signal, sys, threading, time\n"
            "from pathlib import Path\n"
            "from spanwise.orchestrator import process\n"
            f"note = Path({str(note)!r})\n"
            "def here(pid=None):\n"
            "    note.with_name('draft').write_text(str(pid or os.getpid()))\n"
            "    os.replace(note.with_name('draft'), note)\n"
            "    time.sleep(1000)\n"
            f"assert process.take_mark({mark})\n" + dedent(code)
        )
        starter = subprocess.Popen([sys.executable, "-W", "ignore", "-c", script], start_new_session=True)
        deadline = time.monotonic() + 300
        while not note.exists():
            assert time.monotonic() < deadline, "it never came up"
            time.sleep(0.01)
        starter.kill()
        starter.wait()
        return mark, int(note.read_text())

    yield leave
    process.kill(mark)


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_marked_process_leaves_is_found_and_ended(leave, kind):
    """No way of leaving its starter takes a process out of reach, and afterwards none is left."""
    mark, pid = leave(KINDS[kind])
    found = process.find_survivors(mark)
    left = process.kill(mark)

    assert [each.pid for each in found] == [pid]
    assert left == []
    assert process.find_survivors(mark) == []
    assert not living(pid)


def test_a_process_that_forks_and_ends_without_end_is_caught(leave):
    """One that is always somebody else by the time it is looked at is ended all the same."""
    mark, _ = leave("""
        if not os.fork():
            os.setsid()
            note.write_text(str(os.getpid()))
            while True:
                if os.fork():
                    os._exit(0)
        os.wait()
    """)

    assert process.kill(mark, limit_s=60.0) == []
    time.sleep(0.1)
    assert process.find_survivors(mark) == []


def test_a_process_with_another_mark_is_spared(sleeper):
    """Neither what has no mark nor what has another is found."""
    sleeper()

    assert process.find_survivors(process.new_mark()) == []
    assert process.kill(process.new_mark()) == []
    assert process.find_survivors(0) == []


def test_a_marked_process_can_mark_its_child():
    """A run inside a node of another belongs to both: ending either ends it."""
    outer = process.new_mark()
    script = (
        "import os\n"
        "from spanwise.orchestrator import process\n"
        f"assert process.take_mark({outer})\n"
        "inner = process.new_mark()\n"
        "ready, told = os.pipe()\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    assert process.take_mark(inner)\n"
        "    os.write(told, b'.')\n"
        "    os.read(ready, 0) or __import__('time').sleep(1000)\n"
        "os.read(ready, 1)\n"
        f"outside, inside = process.find_survivors({outer}), process.find_survivors(inner)\n"
        "process.kill(inner)\n"
        f"print([p.pid == pid for p in outside], [p.pid == pid for p in inside], process.find_survivors({outer}))\n"
    )
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=False, timeout=120
    )

    assert said.stdout == "[True] [True] []\n"


def test_where_too_few_marks_are_left_there_is_none():
    """A low limit of file locks, set by whoever, leaves runs unmarked: two of one mark would end each other."""
    script = (
        "import resource\n"
        "from spanwise.orchestrator import process\n"
        "resource.setrlimit(process.RLIMIT_LOCKS, (1000, 1000))\n"
        "mark = process.new_mark()\n"
        "print(mark, process.take_mark(mark), process.find_survivors(mark), process.kill(mark))\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)

    assert said.stdout == "0 False [] []\n"


def test_others_are_ended_with_the_marked(sleeper):
    """A process that has no mark is ended when it is named; one that has its number by now is not."""
    program, other = sleeper(), sleeper()

    left = process.kill(process.new_mark(), identity_of(program.pid), replace(identity_of(other.pid), started=1))

    assert left == []
    assert program.wait() == -signal.SIGKILL
    assert other.poll() is None


def test_the_spared_are_not_ended(leave):
    """Who waits for more work keeps living."""
    mark, pid = leave(KINDS["a daemon"])

    assert process.kill(mark, sparing=[pid]) == []
    assert living(pid)


def test_what_cannot_be_ended_is_named(sleeper, monkeypatch):
    """After the limit, those that would not die are returned, and told with what shows why."""
    program = sleeper("echo; exec sleep 1000")
    program.stdout.readline()
    while Path(f"/proc/{program.pid}/comm").read_text() != "sleep\n":
        time.sleep(0.001)
    with monkeypatch.context() as patched:
        patched.setattr(process, "send", lambda pids, number: None)
        left = process.kill(0, identity_of(program.pid), limit_s=0.0)

    assert [(each.pid, each.command) for each in left] == [(program.pid, "sleep 1000")]
    assert process.format_survivors(left) == (
        f"{program.pid} (state {left[0].state}: sleep 1000)\n"
        f"See what blocks them:  ps -o pid,user,stat,wchan:30,args -p {program.pid}"
    )


@needs_freezer
def test_uninterruptible_sleep_is_not_waited_for(leave):
    """A process that not even SIGKILL reaches is named with its state after the limit."""
    mark, pid = leave(KINDS["a daemon"])
    with frozen(pid):
        left = process.kill(mark, limit_s=0.2)  # without the limit it would wait for ever: it thaws only afterwards

    assert [(each.pid, each.state) for each in left] == [(pid, "D")]
    assert process.kill(mark) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
def test_a_process_of_another_user_is_named(leave):
    """What we may not signal is never told to be gone."""
    mark, pid = leave(KINDS["a daemon"])
    told, tell = os.pipe()
    if not os.fork():
        with contextlib.suppress(BaseException):
            os.setuid(65534)
            os.write(tell, repr([each.pid for each in process.kill(mark, limit_s=0.1)]).encode())
        os._exit(0)
    os.wait()

    assert os.read(told, 100).decode() == f"[{pid}]"
    os.close(told)
    os.close(tell)


def living(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX"


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
    with process.block_signals(signal.SIGHUP):
        signal.pthread_kill(threading.get_ident(), signal.SIGHUP)  # this thread: libraries may have started others
        heard.append("inside")
    signal.signal(signal.SIGHUP, before)

    assert heard == ["inside", "after"]


def test_everything_below_is_ended():
    """A subreaper ends and collects its daemons too."""
    script = (
        "import os, subprocess, time\n"
        "from spanwise.orchestrator import process\n"
        "process.adopt_orphans()\n"
        "subprocess.Popen(['sh', '-c', '(setsid sleep 1000 &) ; sleep 1000'])\n"
        "while len(process.descendants(os.getpid())) < 3: time.sleep(0.01)\n"
        "process.kill_descendants(limit_s=100.0)\n"
        "print(process.descendants(os.getpid()), process.children())\n"
    )
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True, timeout=120
    )

    assert said.stdout == "[] []\n"


def test_a_child_dies_with_its_parent():
    """A child that asked for it is killed when its parent ends, however that ends."""
    script = (
        "import os, time\n"
        "from spanwise.orchestrator import process\n"
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
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    child = int(said.stdout)
    deadline = time.monotonic() + 300
    while (left := Path(f"/proc/{child}/cmdline")).exists() and left.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.01)

    assert not left.exists() or not left.read_bytes()


@pytest.mark.skipif(not process.LINUX, reason="reads /proc")
def test_a_process_that_the_system_hides_has_no_children(monkeypatch):
    """With `hidepid` the lists of other users' processes cannot be read; what can be is ended all the same."""

    def refuse(file):
        raise PermissionError(13, "Permission denied", file)

    monkeypatch.setattr(process, "_read", refuse)

    assert process._read_children(os.getpid()) == []


def test_what_works_in_another_root_is_seen_as_on_another_machine():
    """A living process of this machine is; a dead one is dead. Of hosts with folders it is not known, of URLs it is."""
    me = replace(process.identity(), root="1:1")
    dead, elsewhere = replace(me, started=1), replace(me, machine="elsewhere/0/0")

    assert process.seen_from(me, "1:1") == process.seen_from(me, "") == me
    assert process.is_alive(process.seen_from(me, "1:2")) is None
    assert process.is_of_another_root(process.seen_from(me, "1:2"))
    assert process.is_alive(process.seen_from(dead, "1:2")) is False
    assert not process.is_of_another_root(process.seen_from(elsewhere, "1:2"))
    assert process.is_of_another_root(process.seen_from(replace(elsewhere, root="s3://a/root"), "s3://b/root"))
