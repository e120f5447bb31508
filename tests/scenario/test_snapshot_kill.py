"""Snapshot RFC, WRITE state: only a completed pass is final. A writer killed at any moment leaves nothing half read."""

import os
import random
import time

import pytest

from spanwise.pipelines.input.snapshot.folder import SnapshotFolder
from spanwise.pipelines.input.snapshot.storage import files_at
from tests.scenario.snapshots import passed, start

KILLS = int(os.environ.get("SPANWISE_TEST_KILLS", "8"))  # the full form: 100
UNDER_WAY = 0.8  # most of them when the first rows are there

pytestmark = pytest.mark.slow


def finals(path):
    """The snapshots below a path that are whole."""
    files = files_at(path)
    return [found for name in files.folders("") if (found := SnapshotFolder(files, name).look().final) is not None]


def busy_s(path):
    """How long a pass that writes takes from its first rows on, in a process like those that are killed."""
    ((process, said),) = start(path, nows=[0])
    assert said.recv() == "under way"
    began = time.monotonic()
    assert said.recv() == (True, "write", True)
    took_s = time.monotonic() - began
    process.join()
    return took_s


def test_a_writer_killed_at_any_moment_leaves_nothing_that_is_read(tmp_path):
    """After each kill what is read is whole; the next writer takes up what was finished, and completes it."""
    dice = random.Random(os.environ.get("SPANWISE_TEST_SEED", "spanwise"))
    length_s = busy_s(tmp_path / "measured")
    kills = met = taken_up = round_ = 0

    while kills < KILLS:
        round_ += 1
        path, now = tmp_path / str(round_), 0
        for _ in range(dice.choice([1, 1, 2, 3])):  # the second is killed while it takes up what the first has left
            now += 10
            ((process, said),) = start(path, nows=[now])
            if dice.random() < UNDER_WAY:
                assert said.recv() == "under way"
            time.sleep(dice.uniform(0, length_s))
            process.kill()
            process.join()
            kills += 1
            met += not finals(path)
        right, use = passed(path, now=now)  # at once: whoever wrote it is known to be dead
        assert right, f"round {round_}, kill {kills}"
        assert use.state == "read" or use.committed, f"round {round_}, kill {kills}"
        taken_up += use.state == "write" and use.elements_read > 0
        (final,) = finals(path)
        there = SnapshotFolder(files_at(path), final.fingerprint).files.folders(final.fingerprint)
        # who was killed right behind its commit had no time to take away what others had left: gc does
        assert there == [final.run_id] or (use.state == "read" and final.run_id in there), f"round {round_}"
        right, use = passed(path, now=now)
        assert right, f"round {round_}"
        assert use.state == "read"

    assert met > kills / 2, "most kills came after the commit, so they tried nothing"
    assert taken_up > 0
