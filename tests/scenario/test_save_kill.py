"""Workers and the dispatcher are killed while a snapshot is saved, and every element is counted: none lost, none twice."""

import os
import random
import sys
from collections import Counter

import pytest

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.service.wire.connection import ServiceConnection, Unreachable
from spanwise.pipelines.input.service.wire.requests import PollSave
from spanwise.pipelines.input.service.wire.security import Security
from spanwise.pipelines.input.snapshot.inventory import snapshots, verify
from spanwise.pipelines.input.snapshot.storage import files_at
from tests.scenario.served import Servers, slow
from tests.servers import eventually

KILLS = int(os.environ.get("SPANWISE_TEST_KILLS", "2"))  # the full form: 100
ELEMENTS = 1_000
SHARDS = 32
SOON_S = 300.0


@pytest.mark.slow
def test_a_save_lives_through_the_kill_of_any_server(tmp_path):
    """The snapshot is whole, in the dataset's order, and nothing lies beside it."""
    dice = random.Random(os.environ.get("SPANWISE_TEST_SEED", "spanwise"))
    kills, met = Counter(), 0
    with Servers(tmp_path / "service") as servers:
        while kills.total() < KILLS:
            path = tmp_path / f"{kills.total()}"
            inputs.save(inputs.range(ELEMENTS).map(slow), path, servers.target, wait=False)
            shards = dice.randrange(SHARDS)
            eventually(lambda: written_shards(servers, path) >= shards, SOON_S)  # noqa: B023  called at once
            victim = dice.choice(["dispatcher", "left", "right"])
            met += not written(path)
            servers.restart(victim)
            kills[victim] += 1
            eventually(lambda: written(path), SOON_S)  # noqa: B023  called at once
            assert list(inputs.load(path)) == list(range(ELEMENTS)), victim
            (listing,) = snapshots(files_at(path))
            assert not any(verdict.problem for verdict in verify(files_at(path), listing)), victim
            (run,) = listing.runs
            assert run.files == len(listing.final.chunks), f"{victim}: files of nobody lie in the snapshot"
    sys.stdout.write(f"killed: {dict(kills)}, {met} of them before the end of a save\n")
    assert met


def written(path):
    return any(listing.final is not None for listing in snapshots(files_at(path)))


def written_shards(servers, path):
    """How many shards of a save are written; all of them once it has ended."""
    if written(path):
        return SHARDS
    (listing,) = snapshots(files_at(path))
    connection = ServiceConnection(servers.target, Security())
    try:
        progress, _ = connection.ask(PollSave(save=listing.pending.run_id))
    except Unreachable:
        return 0
    finally:
        connection.close()
    return progress.written if progress.going else SHARDS
