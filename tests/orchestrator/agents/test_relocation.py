"""Relocations: where an agent that does not see its controller's root finds what a job names."""

from pathlib import Path

import pytest

from spanwise.orchestrator import Model, Run
from spanwise.orchestrator.agents.relocation import Relocation
from spanwise.orchestrator.errors import NodeFailed
from spanwise.orchestrator.job import JobEnded, NodeJob
from spanwise.orchestrator.storage.archive import BucketArchive
from spanwise.orchestrator.storage.url import parse_url

THEIRS = Path("/theirs")


class Wanted:
    """As much of what a controller sends first as counts here."""

    def __init__(self, root, token_file, *, archived=False):
        self.root, self.token_file, self.token, self.archived = str(root), str(token_file), "secret", archived


def job_of(archive=None):
    given = Model("/theirs/p/Train/model/3", id=3, archive=archive)
    return NodeJob(
        id=4, node="Push", inputs={"model": (given,)}, verify=(given,), prepared={},
        outputs={"pushed": "/theirs/p/Push/pushed/4"}, run=Run(pipeline="p", number=1), attempt=1,
        log="/theirs/p/.runs/1/logs/Push.1.log", scratch="/theirs/p/.runs/1/Push.scratch",
        checkpoints="/theirs/p/.runs/1/Push.checkpoints", snapshots="/theirs/snapshots", archive=archive,
    )  # fmt: skip


def test_a_root_that_both_see_is_used_as_it_is(tmp_path):
    """The agent finds what the controller has written for it; only log and scratch are its own."""
    (tmp_path / "token").write_text("secret")
    place = Relocation.choose(Wanted(THEIRS, tmp_path / "token"), tmp_path / "agent")

    job = place.arriving(job_of(), tmp_path / "agent" / "logs" / "4.log")

    assert job.outputs == job_of().outputs
    assert job.inputs["model"][0].uri == "/theirs/p/Train/model/3"
    assert job.scratch.startswith(str(tmp_path / "agent"))


@pytest.mark.parametrize("content", [None, "another"])
def test_a_root_that_is_not_seen_needs_an_archive(tmp_path, content):
    """A folder of the same name that is not the same folder is not taken for it."""
    if content:
        (tmp_path / "token").write_text(content)

    with pytest.raises(NodeFailed, match="it does not see the root /theirs, which is not in object storage"):
        Relocation.choose(Wanted(THEIRS, tmp_path / "token"), tmp_path)


def test_with_an_archive_the_agent_has_a_root_of_its_own(tmp_path):
    """Inputs and outputs move there and back; the archive fetches to there."""
    place = Relocation.choose(Wanted(THEIRS, tmp_path / "none", archived=True), tmp_path)
    archive = BucketArchive(THEIRS, parse_url("s3://models/archive"))

    job = place.arriving(job_of(archive), tmp_path / "4.log")

    ours = tmp_path / "root"
    assert job.inputs["model"][0].uri == str(ours / "p/Train/model/3")
    assert job.inputs["model"][0].archive.root == job.archive.root == ours
    assert job.verify[0].uri == job.inputs["model"][0].uri
    assert job.outputs == {"pushed": str(ours / "p/Push/pushed/4")}
    draft = Model(job.outputs["pushed"])
    back = place.leaving(JobEnded(id=4, outputs={"pushed": (draft,)}))
    assert back.outputs["pushed"][0].uri == "/theirs/p/Push/pushed/4"
