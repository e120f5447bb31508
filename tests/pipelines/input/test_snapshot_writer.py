"""A writer that was killed on this machine is known to be dead; of all others nobody says so."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.snapshot.owner import is_dead, this_writer

WRITES = """
import sys, time
from spanwise.pipelines import input as inputs
for number, _ in enumerate(inputs.range(1000).snapshot(sys.argv[1])):
    if number == 500:
        print(flush=True)
        time.sleep(600)
"""


def passed(dataset):
    """The elements of a pass, and what it had of the snapshot."""
    iterator = dataset.iterator()
    elements = list(iterator)
    return elements, iterator.reports[-1]


@pytest.fixture
def writing(tmp_path):
    """Another process in the middle of writing a snapshot."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WRITES, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        process.stdout.readline()
        yield process
        process.kill()


def test_a_killed_writer_is_followed_at_once(writing, tmp_path):
    """Nobody waits for its attempt to expire; while it lives, others pass through."""
    dataset = inputs.range(1000).snapshot(tmp_path)
    beside = passed(dataset)
    writing.send_signal(signal.SIGKILL)
    writing.wait()
    behind = passed(dataset)

    assert [use.state for _, use in (beside, behind)] == ["passthrough", "write"]
    assert behind[1].committed
    assert passed(dataset)[1].state == "read"
    assert beside[0] == behind[0] == list(range(1000))


def test_a_killed_writer_of_another_machine_is_waited_for(writing, tmp_path):
    """It may live: the attempt counts until it expires."""
    writing.send_signal(signal.SIGKILL)
    writing.wait()
    (metadata,) = tmp_path.glob("*/snapshot.metadata")
    document = json.loads(metadata.read_text())
    metadata.write_text(json.dumps({**document, "writer": document["writer"].replace("pid:", "other:")}))

    assert passed(inputs.range(1000).snapshot(tmp_path))[1].state == "passthrough"


def test_only_a_process_that_was_here_and_is_gone_is_dead():
    """Ids are used again, and mean something else on other machines and in other containers."""
    me = this_writer()
    stem, _, _ = me.rpartition("/")
    with subprocess.Popen(["true"]) as process:
        start = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
    gone = f"{stem.rpartition('/')[0]}/{process.pid}/{start}"

    assert not is_dead(me)
    assert is_dead(gone)
    assert is_dead(f"{stem}/1")
    assert not is_dead(f"elsewhere{gone}")
    assert not is_dead("")
