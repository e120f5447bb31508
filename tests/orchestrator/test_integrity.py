"""Integrity: what is verified when written is verified when read."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.orchestrator import Component, Input, Output, Pipeline, Report, State, fingerprint
from spanwise.orchestrator.artifact import MOST_FILES, Artifact, Model
from spanwise.orchestrator.errors import DamagedArtifact
from spanwise.orchestrator.integrity import Damage, damage_message, find_damage, find_damages, verify_inputs
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.testing import Trial

FLIPS = 400


def publish(folder: Path, name: str = "taxi/Trainer/model/7") -> Artifact:
    tree = fingerprint.of_tree(folder)
    return Artifact(str(folder), id=7, name=name, content=tree.digest, files=tree.files, size_bytes=tree.size_bytes)


def flip(file: Path, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


@pytest.fixture
def rows(tmp_path):
    """A Parquet file with several row groups, whose pages have checksums."""
    random_ = np.random.default_rng(0)
    table = pa.table({"fare": random_.normal(size=2000), "paid": random_.choice(["cash", "card"], 2000)})
    folder = tmp_path / "rows" / "Split-train"
    folder.mkdir(parents=True)
    pq.write_table(
        table, folder / "part-00000.parquet", row_group_size=500, compression="zstd", write_page_checksum=True
    )
    return folder / "part-00000.parquet"


def test_every_flipped_bit_of_a_parquet_file_is_found(rows):
    """Bits flipped at random positions, in pages, page headers and the footer, are all found."""
    artifact = publish(rows.parents[1])
    bits = random.Random(1).sample(range(8 * rows.stat().st_size), FLIPS)

    missed = []
    for bit in bits:
        flip(rows, bit)
        if find_damage(artifact) is None:
            missed.append(bit)
        flip(rows, bit)

    assert missed == []
    assert find_damage(artifact) is None


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda at: flip(at / "weights.bin", 3), "weights.bin has another content"),
        (lambda at: (at / "weights.bin").unlink(), "weights.bin is missing"),
        (lambda at: (at / "extra").write_text("x"), "extra was not published"),
        (lambda at: (at / "empty").rmdir(), "its folders or links differ"),
    ],
)
def test_the_error_names_artifact_and_file_and_how_to_recreate_them(tmp_path, change, found):
    """The message says who reads what, which file differs and how, and what to type next."""
    model = tmp_path / "model"
    (model / "empty").mkdir(parents=True)
    (model / "weights.bin").write_bytes(b"\1\2\3")
    artifact = publish(model)
    change(model)

    with pytest.raises(DamagedArtifact) as refused:
        verify_inputs("Evaluator", Run(pipeline="taxi", span=5, source="taxi.py"), [artifact])

    assert str(refused.value) == (
        "Evaluator reads taxi/Trainer/model/7, but its files are not those that were published: "
        f"{model}: {found}.\n"
        "Restore these files from a backup, or create them again:\n"
        "  spanwise run taxi.py --span 5 --to Trainer --no-cache"
    )


def test_a_damaged_model_is_restored_or_given_up(tmp_path):
    """Nothing makes it again under its name; what else is damaged is made again all the same."""
    damages = [
        Damage(Model("/m", name="taxi/Trainer/model/7"), "/m: weights.bin is missing"),
        Damage(Artifact("/a", name="taxi/Lake/rows/5/1", properties={"span": 5}), "/a: rows is missing"),
    ]
    run = Run(pipeline="taxi", span=5, source="taxi.py")
    unbless = "spanwise unbless taxi/Trainer/model/7 --because damaged"
    of_the_model = [
        "Restore the model from a backup; to train again makes another one.",
        f"If it is a champion, the one before it is the baseline after:  {unbless}",
    ]

    alone = damage_message("Pusher", run, damages[:1], {}, {}).splitlines()
    both = damage_message("Pusher", run, damages, {}, {}).splitlines()

    assert alone[1:] == of_the_model
    assert both[2:] == [
        "Restore these files from a backup, or create them again:",
        "  spanwise run taxi.py --span 5 --to Lake --no-cache",
        *of_the_model,
    ]


def test_what_a_gate_has_judged_is_judged_again_by_the_printed_command(tmp_path):
    """What is published anew counts only once its gate has accepted it, so the command ends there."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights.bin").write_bytes(b"\1")
    artifact = publish(model)
    flip(model / "weights.bin", 3)

    with pytest.raises(DamagedArtifact, match=r"spanwise run taxi.py --span 5 --to Check --to Drift --no-cache"):
        verify_inputs(
            "Trainer", Run(pipeline="taxi", span=5, source="taxi.py"), [artifact], {artifact.name: ("Check", "Drift")}
        )


def test_a_folder_that_is_gone_is_damage(tmp_path):
    """A missing folder is reported, not raised as an error of the reader."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "a").write_text("a")
    artifact = publish(model)
    (model / "a").unlink()
    model.rmdir()

    damage = find_damage(artifact)

    assert damage is not None
    assert "there is nothing at" in damage.found


def test_artifacts_without_a_digest_are_not_judged(tmp_path):
    """Another program may have recorded an artifact without the digest that ours have."""
    assert find_damage(Artifact(str(tmp_path / "nothing"), id=1, name="p/n/k/1")) is None


def test_an_artifact_of_very_many_files_is_verified_as_a_whole(tmp_path):
    """It records no digest of each file, and its damage is found all the same."""
    for number in range(MOST_FILES + 1):
        (tmp_path / str(number)).write_bytes(b"x")
    tree = fingerprint.of_tree(tmp_path)
    artifact = Artifact(str(tmp_path)).with_content(tree.digest, tree.size_bytes, tree.files)
    flip(tmp_path / "1", 0)

    damage = find_damage(artifact)

    assert artifact.files == {}
    assert damage is not None
    assert damage.found == f"{tmp_path}: its digest differs"


def test_damages_are_found_among_many(tmp_path):
    """The damaged ones are yielded, in the order of the artifacts."""
    artifacts = []
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "a").write_text(str(number))
        artifacts.append(publish(folder, f"p/n/k/{number}"))
    for number in (3, 17):
        flip(tmp_path / str(number) / "a", 0)

    assert [damage.artifact.name for damage in find_damages(artifacts)] == ["p/n/k/3", "p/n/k/17"]


class Make(Component):
    def run(self, report: Output[Report]) -> None:
        (report.path / "word").write_text("one")


class Scribble(Component):
    """Writes to what it reads, as many bytes as were there; `how` says what it does then."""

    def run(self, report: Input[Report], copy: Output[Report], how: str) -> None:
        file = report.path / "word"
        if how == "renames another":
            (report.path / "draft").write_text("two")
            (report.path / "draft").replace(file)
        elif how == "touches":
            file.touch()
        else:
            file.write_text("two")
        if how == "fails":
            raise ValueError("failed")
        (copy.path / "word").write_text(file.read_text())


class Read(Component):
    def run(self, report: Input[Report], copy: Output[Report]) -> None:
        (copy.path / "word").write_text((report.path / "word").read_text())


@pytest.mark.parametrize("how", ["writes", "renames another", "fails"])
def test_what_a_node_has_written_to_its_inputs_nobody_reads(tmp_path, how):
    """It fails, and publishes nothing; nor does a node of the same run read what was verified before that."""
    made = Make()
    scribble = Scribble(report=made["report"], how=how)

    ran = Trial(tmp_path).run(Pipeline("p", [made, scribble, Read(report=made["report"])]), RunRequest(jobs=1))

    assert ran.states == {"Make": State.COMPLETE, "Scribble": State.FAILED, "Read": State.FAILED}
    assert "word has another content" in ran["Read"].error
    if how != "fails":
        assert ran["Scribble"].error.startswith("The files of an input were written to while the node ran")


def test_files_that_are_touched_alone_are_as_they_were(tmp_path):
    """Their times are no content."""
    made = Make()

    ran = Trial(tmp_path).run(Pipeline("p", [made, Scribble(report=made["report"], how="touches")]))

    assert ran.states["Scribble"] is State.COMPLETE
