"""Snapshot RFC, WRITE state: only a completed pass is final. A writer killed at any moment leaves nothing half read."""

import os
import random

import pytest

from spanwise.pipelines.input.snapshot.folder import SnapshotFolder
from spanwise.pipelines.input.snapshot.storage import files_at
from tests.scenario.snapshots import NEVER, passed, write_until

KILLS = int(os.environ.get("SPANWISE_TEST_KILLS", "4"))  # the full form: 100

pytestmark = pytest.mark.slow


def finals(path):
    """The complete snapshots below a path."""
    files = files_at(path)
    return [found for name in files.folders("") if (found := SnapshotFolder(files, name).look().final) is not None]


def test_a_writer_killed_at_any_moment_leaves_nothing_that_is_read(tmp_path):
    """Writers are killed before a change that they make on disk, whichever it is. After each kill what is read is
    complete; the next writer reuses what was finished, and completes it.
    """
    dice = random.Random(os.environ.get("SPANWISE_TEST_SEED", "spanwise"))
    changes = write_until(tmp_path / "measured", now=0, change=NEVER)
    kills = met = reused = round_ = 0

    while kills < KILLS or not reused:
        round_ += 1
        path, now = tmp_path / str(round_), 0
        for _ in range(dice.choice([1, 1, 2, 3])):  # the second is killed while it reuses what the first has left
            now += 10
            if write_until(path, now=now, change=dice.randrange(changes)) is None:
                kills += 1
                met += not finals(path)
        right, use = passed(path, now=now)  # at once: the writer is known to be dead
        assert right, f"round {round_}, kill {kills}"
        assert use.state == "read" or use.committed, f"round {round_}, kill {kills}"
        reused += use.state == "write" and use.elements_read > 0
        (final,) = finals(path)
        there = files_at(path).folders(final.fingerprint)
        # a writer killed right behind its commit could not remove what others had left: gc does
        assert there == [final.run_id] or (use.state == "read" and final.run_id in there), f"round {round_}"
        right, use = passed(path, now=now)
        assert right, f"round {round_}"
        assert use.state == "read"

    assert met > kills / 2, "most kills came after the commit, so they tested nothing"
    assert reused > 0
