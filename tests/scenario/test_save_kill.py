"""Workers and the dispatcher are killed while a snapshot is saved, and every element is counted: none lost, none twice."""

import os
import random
import sys
import time
from collections import Counter

import pytest

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.snapshot.inventory import snapshots, verify
from spanwise.pipelines.input.snapshot.storage import files_at
from tests.scenario.served import Servers, slow

KILLS = int(os.environ.get("SPANWISE_TEST_KILLS", "2"))  # the full form: 100
ELEMENTS = 1_000


@pytest.mark.slow
def test_a_save_lives_through_the_kill_of_any_server(tmp_path):
    """The snapshot is whole, in the dataset's order, and nothing lies beside it."""
    dice = random.Random(os.environ.get("SPANWISE_TEST_SEED", "spanwise"))
    kills, met = Counter(), 0
    with Servers(tmp_path / "service") as servers:
        while kills.total() < KILLS:
            path = tmp_path / f"{kills.total()}"
            inputs.save(inputs.range(ELEMENTS).map(slow), path, servers.target, wait=False)
            time.sleep(dice.uniform(0, 1))
            victim = dice.choice(["dispatcher", "left", "right"])
            met += not written(path)
            servers.restart(victim)
            kills[victim] += 1
            await_(path, victim)
            assert list(inputs.load(path)) == list(range(ELEMENTS)), victim
            (listing,) = snapshots(files_at(path))
            assert not any(verdict.problem for verdict in verify(files_at(path), listing)), victim
            (run,) = listing.runs
            assert run.files == len(listing.final.chunks), f"{victim}: files of nobody lie in the snapshot"
    sys.stdout.write(f"killed: {dict(kills)}, {met} of them before the end of a save\n")
    assert met


def written(path):
    return any(listing.final is not None for listing in snapshots(files_at(path)))


def await_(path, victim, within_s=90.0):
    deadline = time.monotonic() + within_s
    while not written(path):
        assert time.monotonic() < deadline, f"a save hangs after {victim} was killed"
        time.sleep(0.05)
