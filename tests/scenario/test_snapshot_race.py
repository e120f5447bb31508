"""Snapshot RFC, Concurrency: several writers over one graph end with one copy of the data, and each gives all of it."""

import os
import random

import pytest

from spanwise.pipelines.input.snapshot.storage import files_at
from tests.scenario.snapshots import EXPIRY_S, passed, start

RACES = int(os.environ.get("SPANWISE_TEST_RACES", "3"))  # the full form: 100

pytestmark = pytest.mark.slow


def test_three_writers_race_and_one_copy_is_left(tmp_path):
    """Whether they begin together or take over from each other: complete and right, once."""
    dice = random.Random(os.environ.get("SPANWISE_TEST_SEED", "spanwise"))
    states = set()
    for race in range(RACES):
        path = tmp_path / str(race)
        # With clocks that are apart each takes the others for expired, so that all three write.
        apart_s = dice.choice([0, 2 * EXPIRY_S])
        started = start(path, nows=[apart_s * number for number in range(3)])
        for process, said in started:
            assert said.recv() == "under way"
            right, state, _ = said.recv()
            process.join()
            assert right, f"race {race}"
            states.add(state)

        (fingerprint,) = files_at(path).folders("")
        right, use = passed(path, now=3 * apart_s)
        assert right, f"race {race}"
        assert use.state == "read" or use.committed, f"race {race}"
        assert files_at(path).folders(fingerprint) == [use.run_id], f"race {race}"

    assert states >= {"write", "passthrough"}
