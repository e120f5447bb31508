"""Facts about snapshots and fingerprints: a test for each case of `tests/conformance/cases/data.json`, named by its id.

The cases say what the tf.data Snapshot RFC and TensorFlow's own tests say; `differences.toml` lists where we differ.
"""

import json
import os
import re
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.orchestrator.errors import (
    DatasetError,
    FunctionFailed,
    SnapshotNotFound,
    StateMismatch,
    Unfingerprintable,
)
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.graph.fingerprint import of_graph
from spanwise.pipelines.input.snapshot import inventory, split_writer
from spanwise.pipelines.input.snapshot.attempt import WriteAttempt
from spanwise.pipelines.input.snapshot.folder import SnapshotFolder
from spanwise.pipelines.input.snapshot.state import Metadata, PassThrough, Read, Write, decide
from spanwise.pipelines.input.snapshot.storage import LocalFiles, files_at

HERE = Path(__file__).parent
CASES = json.loads((HERE.parents[1] / "conformance" / "cases" / "data.json").read_text())
DIFFERENCES = tomllib.loads((HERE / "differences.toml").read_text())
AREAS = ("snapshot.", "fingerprint")

NOW = 1_000_000.0
DAY_S = 86_400


def test_every_case_is_a_test_or_a_difference():
    """No case of these areas is left out, and none is both."""
    ids = {case["id"] for case in CASES if case["area"].startswith(AREAS)}
    tested = {
        "-".join(found)
        for found in re.findall(r"^def test_([A-Z]{2})_(\d+)_", Path(__file__).read_text(), re.MULTILINE)
    }
    differ = DIFFERENCES.keys() & ids

    assert ids - tested == differ
    assert tested <= ids


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Chunks of a few hundred elements, so that a snapshot has several."""
    monkeypatch.setattr(split_writer, "CHUNK_BYTES", 4_096)


def metadata(run_id="r1", age_s=0.0, **more):
    return Metadata(run_id=run_id, fingerprint="f", started=NOW - age_s, **more)


def state(final=None, pending=None, expiry_s=DAY_S, mode="auto"):
    return decide(final=final, pending=pending, now=NOW, expiry_s=expiry_s, mode=mode)


def passed(dataset):
    """All elements of one pass, and what it had of its (last) snapshot."""
    iterator = dataset.iterator()
    elements = list(iterator)
    return elements, iterator.reports[-1]


def folder_of(path):
    """The only snapshot below a path."""
    (fingerprint,) = files_at(path).folders("")
    return SnapshotFolder(files_at(path), fingerprint)


def runs(path):
    folder = folder_of(path)
    return folder.files.folders(folder.fingerprint)


def age(path, seconds):
    """Makes the unfinished snapshot older."""
    folder = folder_of(path)
    pending = folder.look().pending
    older = json.loads(pending.to_bytes()) | {"started": pending.started - seconds}
    (Path(path) / folder.fingerprint / "snapshot.metadata").write_text(json.dumps(older))


def test_SS_01_no_directory():
    """Nothing is there: write."""
    assert isinstance(state(), Write)


def test_SS_02_fingerprint_directory_exists_and_is_empty(tmp_path):
    """A folder without metadata is as good as none."""
    dataset = inputs.range(10).snapshot(tmp_path)
    (tmp_path / dataset.op.fingerprint).mkdir()

    assert passed(dataset)[1].state == "write"


def test_SS_04_final_metadata_present():
    """What is whole is read, by the run that it names."""
    decision = state(final=metadata(complete=True), pending=metadata())

    assert decision == Read(metadata(complete=True))


def test_SS_05_pending_and_young():
    """Somebody writes: pass through."""
    assert isinstance(state(pending=metadata(age_s=10)), PassThrough)


def test_SS_05_pending_and_young_writes_nothing(tmp_path):
    """The second of two passes gives the whole input, and leaves the folder as it is."""
    dataset = inputs.range(1000).snapshot(tmp_path)
    first = dataset.iterator()
    next(first)
    before = folder_of(tmp_path).look()

    elements, use = passed(dataset)

    assert elements == list(range(1000))
    assert use.state == "passthrough"
    assert folder_of(tmp_path).look() == before
    assert len(runs(tmp_path)) == 1


def test_SS_06_pending_and_expired(tmp_path):
    """An attempt that is too old is replaced by one with another run id."""
    first = inputs.range(1000).snapshot(tmp_path).iterator()
    next(first)
    age(tmp_path, 2)

    _, use = passed(inputs.range(1000).snapshot(tmp_path, pending_snapshot_expiry_seconds=1))

    assert use.state == "write"
    assert use.run_id != first.reports[0].run_id


def test_SS_08_default_expiry_is_86400_s():
    """One day."""
    expiry_s = inputs.range(1).snapshot("unused").op.expiry_s

    assert isinstance(state(pending=metadata(age_s=86_390), expiry_s=expiry_s), PassThrough)
    assert isinstance(state(pending=metadata(age_s=86_500), expiry_s=expiry_s), Write)


def test_SS_09_expiry_below_one_second():
    """Refused when the graph is built."""
    with pytest.raises(DatasetError, match="pending_snapshot_expiry_seconds=0"):
        inputs.range(10).snapshot("unused", pending_snapshot_expiry_seconds=0)


def test_SS_12_forced_read_without_a_snapshot(tmp_path):
    """An error that says where it looked."""
    with pytest.raises(SnapshotNotFound, match="there is none"):
        next(iter(inputs.range(10).snapshot(tmp_path, mode="read")))


def test_SS_13_forced_write(tmp_path):
    """Each pass writes a run of its own."""
    elements, _ = passed(inputs.range(10).snapshot(tmp_path, mode="write").repeat(10))

    assert elements == list(range(10)) * 10
    assert len(runs(tmp_path)) == 10


def test_SS_14_forced_passthrough(tmp_path):
    """Nothing is written, not even a folder."""
    elements, _ = passed(inputs.range(10).snapshot(tmp_path, mode="passthrough").repeat(10))

    assert elements == list(range(10)) * 10
    assert list(tmp_path.iterdir()) == []


def test_SS_15_unknown_mode():
    """Refused when the graph is built."""
    with pytest.raises(DatasetError, match="mode='bogus'"):
        inputs.range(10).snapshot("unused", mode="bogus")


def test_SW_01_layout_after_a_complete_write(tmp_path):
    """`<fingerprint>/snapshot.metadata`, `metadata.final`, `<run id>/00000000.snapshot`, …"""
    _, use = passed(inputs.range(1000).snapshot(tmp_path))

    found = sorted(str(path.relative_to(tmp_path / use.fingerprint)) for path in tmp_path.rglob("*") if path.is_file())
    chunks = [f"{use.run_id}/{number:08}.snapshot" for number in range(len(found) - 2)]
    assert found == sorted([*chunks, "metadata.final", "snapshot.metadata"])
    assert len(chunks) > 1


def test_SW_04_nothing_is_written_before_the_first_next(tmp_path):
    """An iterator that was asked for nothing has done nothing."""
    iterator = inputs.range(1000).snapshot(tmp_path).iterator()
    iterator.state()

    assert list(tmp_path.iterdir()) == []


def test_SW_05_pending_metadata_exists_once_the_first_element_is_out(tmp_path):
    """So that others pass through."""
    iterator = inputs.range(1000).snapshot(tmp_path).iterator()
    next(iterator)

    found = folder_of(tmp_path).look()
    assert found.final is None
    assert found.pending is not None
    assert not found.pending.complete


def test_SW_06_the_write_run_is_transparent(tmp_path):
    """Every element, in order."""
    elements, use = passed(inputs.range(1000).snapshot(tmp_path))

    assert elements == list(range(1000))
    assert use.state == "write"


def test_SW_07_a_half_read_snapshot_is_not_final(tmp_path):
    """Only a completed pass is final."""
    with inputs.range(1000).snapshot(tmp_path).iterator() as iterator:
        for _ in range(500):
            next(iterator)

    assert folder_of(tmp_path).look().final is None


def test_SW_08_exactly_N_elements_taken_end_not_observed(tmp_path):
    """Who counts elements and never asks for the end has written a snapshot too."""
    iterator = inputs.range(10).snapshot(tmp_path).iterator()
    for _ in range(10):
        next(iterator)

    assert folder_of(tmp_path).look().final is not None


def test_SW_09_metadata_fields(tmp_path):
    """When, of which graph, by which run, of what, whether whole; and of each chunk its elements and checksum."""
    _, use = passed(inputs.range(10).snapshot(tmp_path))

    final = folder_of(tmp_path).look().final
    assert (final.run_id, final.fingerprint, final.complete) == (use.run_id, use.fingerprint, True)
    assert final.started > NOW
    assert "int64" in final.spec
    assert final.format >= 1
    assert final.elements == 10
    assert final.versions.keys() >= {"pyarrow"}
    assert all(chunk.checksum and chunk.size_bytes for chunk in final.chunks)


def test_SW_10_metadata_is_replaced_atomically(tmp_path):
    """Nothing but finished files is left."""
    passed(inputs.range(10).snapshot(tmp_path))

    assert list(tmp_path.rglob(".*")) == []


def test_SW_11_empty_input(tmp_path):
    """An empty snapshot is one, and is read."""
    dataset = inputs.range(0).snapshot(tmp_path)

    first, second = passed(dataset), passed(dataset)

    assert (first[0], second[0]) == ([], [])
    assert (first[1].committed, second[1].state) == (True, "read")
    assert folder_of(tmp_path).look().final.chunks == ()


def test_SW_12_repeat_after_snapshot(tmp_path):
    """The first round writes, the others read."""
    iterator = inputs.range(10).snapshot(tmp_path).repeat(10).iterator()

    assert list(iterator) == list(range(10)) * 10
    assert [use.state for use in iterator.reports] == ["write", *["read"] * 9]
    assert len(runs(tmp_path)) == 1


def test_SW_13_repeat_before_snapshot_stores_the_repeats(tmp_path):
    """What comes before the op is what is stored."""
    passed(inputs.range(10).repeat(2).snapshot(tmp_path))

    assert folder_of(tmp_path).look().final.elements == 20


def test_infinite_input_is_refused():
    """When the graph is built, with what to do; see `differences.toml`."""
    with pytest.raises(DatasetError, match=r"Put repeat\(\) behind snapshot\(\)"):
        inputs.range(10).repeat().snapshot("unused")


def test_SW_15_custom_shard_function(tmp_path):
    """`writer_fn` makes the splits, and each has files of its own."""
    dataset = inputs.range(1000).snapshot(
        tmp_path, writer_fn=lambda ds: [ds.filter(lambda i: i % 2 == 0), ds.filter(lambda i: i % 2 == 1)]
    )

    assert passed(dataset)[0] == list(range(1000))
    assert passed(dataset)[0] == [*range(0, 1000, 2), *range(1, 1000, 2)]
    assert folder_of(tmp_path).look().final.splits == 2


def test_SW_16_shard_function_of_a_wrong_type():
    """Refused when the graph is built, with an example."""
    with pytest.raises(DatasetError, match=r"writer_fn=\): must return a list of datasets"):
        inputs.range(10).snapshot("unused", writer_fn=lambda ds: "two")


def test_SW_17_reader_function_that_does_not_return_a_dataset():
    """Refused when the graph is built, not when there is something to read."""
    with pytest.raises(DatasetError, match=r"reader_fn=\): must return a dataset"):
        inputs.range(10).snapshot("unused", reader_fn=lambda splits: 1)


def test_SW_19_AUTO_compression_means_what_the_data_is_like(tmp_path):
    """What was written with the codec that was chosen is read whatever codec is asked for."""
    passed(inputs.range(1000).snapshot(tmp_path, compression="auto"))

    elements, use = passed(inputs.range(1000).snapshot(tmp_path, compression="lz4"))

    assert elements == list(range(1000))
    assert use.state == "read"


def structured():
    for number in range(20):
        yield number, f"{number}".encode(), {"a": number / 2}


def test_SW_20_structured_and_mixed_types_round_trip(tmp_path):
    """Numbers, bytes and dicts come back as they were."""
    dataset = inputs.from_generator(structured).snapshot(tmp_path)

    written, read = passed(dataset), passed(dataset)

    assert read[1].hit
    assert read[0] == written[0] == list(structured())


def test_SW_22_snapshot_shuffle_batch_repeat_prefetch(tmp_path):
    """The usual chain behind it works, and writes once."""
    dataset = inputs.range(16).snapshot(tmp_path).shuffle(16).batch(4).repeat().prefetch(2)

    with dataset.iterator() as iterator:
        batches = [next(iterator) for _ in range(30)]

    assert all(sorted(np.concatenate(batches[at : at + 4])) == list(range(16)) for at in range(0, 28, 4))
    assert len(runs(tmp_path)) == 1


def inverse(number):
    return 1 / number


def test_SW_24_an_input_element_raises(tmp_path):
    """The snapshot is not made of the rest, and the next pass writes."""
    dataset = inputs.from_tensor_slices(np.asarray([1, 2, 0, 4])).map(inverse).snapshot(tmp_path)
    iterator = dataset.iterator()

    assert [next(iterator), next(iterator)] == [1.0, 0.5]
    with pytest.raises(FunctionFailed):
        next(iterator)
    assert list(iterator) == [0.25]
    assert folder_of(tmp_path).look().final is None
    with pytest.raises(FunctionFailed):
        passed(dataset)
    second = dataset.iterator()
    next(second)
    assert second.reports[0].state == "write"


def test_SW_25_writer_fails_disk_full(tmp_path, monkeypatch):
    """The pass goes on and gives all elements; the attempt is given up, told, and leaves nothing."""
    put = LocalFiles.replace

    def full(files, name, parts):
        if name.endswith("00000001.snapshot"):
            raise OSError(28, "No space left on device")
        put(files, name, parts)

    monkeypatch.setattr(LocalFiles, "replace", full)

    elements, use = passed(inputs.range(1000).snapshot(tmp_path))

    assert elements == list(range(1000))
    assert "No space left" in use.failed
    assert not use.committed
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_SW_26_compression_is_not_part_of_the_fingerprint(tmp_path):
    """Files say how they are packed."""
    for codec in (None, "lz4", "zstd", "GZIP", "SNAPPY", "gzip", "AUTO"):
        assert passed(inputs.range(1000).snapshot(tmp_path, codec))[0] == list(range(1000))

    assert len(runs(tmp_path)) == 1


def large():
    for number in range(4):
        yield np.full(75 * 1024, number, np.float32)


def test_SW_28_elements_larger_than_256_KiB_under_the_default_codec(tmp_path):
    """They come back."""
    dataset = inputs.from_generator(large).snapshot(tmp_path)
    passed(dataset)

    elements, use = passed(dataset)

    assert use.hit
    assert all(np.array_equal(found, wanted) for found, wanted in zip(elements, large(), strict=True))


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("fault", [flip, truncate, empty, Path.unlink])
def test_SW_29_a_damaged_shard(tmp_path, fault):
    """It is found, told, never served, and written anew by the pass that has met it."""
    dataset = inputs.range(1000).snapshot(tmp_path)
    _, use = passed(dataset)
    fault(tmp_path / use.fingerprint / use.run_id / "00000002.snapshot")

    elements, met = passed(dataset)
    after = passed(dataset)

    assert elements == after[0] == list(range(1000))
    assert met.damaged == ["00000002.snapshot"]
    assert (met.state, met.committed) == ("write", True)
    assert after[1].state == "read"


def test_SR_01_two_interleaved_iterators(tmp_path):
    """One writes, the other passes through, and both give everything."""
    dataset = inputs.range(1000).snapshot(tmp_path)
    first, second = dataset.iterator(), dataset.iterator()

    pairs = list(zip(first, second, strict=True))

    assert pairs == [(number, number) for number in range(1000)]
    assert len(runs(tmp_path)) == 1
    assert [first.reports[0].state, second.reports[0].state] == ["write", "passthrough"]


def test_SR_03_lost_race_deletes_its_data(tmp_path):
    """A writer that was overtaken while it stalled finds that out at its end, and takes its files away."""
    dataset = inputs.range(1000).snapshot(tmp_path)
    stalled, other = dataset.iterator(), dataset.iterator()
    next(stalled)
    age(tmp_path, DAY_S + 1)
    next(other)

    assert len(list(stalled)) == 999
    after_stalled = (folder_of(tmp_path).look().final, runs(tmp_path))
    assert len(list(other)) == 999

    assert after_stalled == (None, [other.reports[0].run_id])
    assert folder_of(tmp_path).look().final.run_id == other.reports[0].run_id
    assert runs(tmp_path) == [other.reports[0].run_id]


def test_SR_04_the_loser_does_not_touch_the_winners_final_file(tmp_path):
    """The winner's files stay as they are, to the byte."""
    dataset = inputs.range(1000).snapshot(tmp_path)
    stalled = dataset.iterator()
    next(stalled)
    age(tmp_path, DAY_S + 1)
    winner = passed(dataset)[1].run_id
    before = {
        path: path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file() and stalled_run(stalled) not in path.parts
    }

    list(stalled)

    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert folder_of(tmp_path).look().final.run_id == winner


def stalled_run(iterator):
    return iterator.reports[0].run_id


def test_SR_05_crash_between_data_and_metadata_final(tmp_path, monkeypatch):
    """Data without the commit is an attempt like any other: others pass through until it expires."""
    dataset = inputs.range(1000).snapshot(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(SnapshotFolder, "commit", crash)
        patch.setattr(WriteAttempt, "close", die)
        with pytest.raises(KeyboardInterrupt):
            list(dataset)

    before = passed(dataset)
    age(tmp_path, DAY_S + 1)
    after = passed(dataset)

    assert before[1].state == "passthrough"
    assert after[1].state == "write"
    assert before[0] == after[0] == list(range(1000))


def crash(*_args, **_kwargs):
    raise KeyboardInterrupt  # which nothing catches, as nothing catches SIGKILL


def die(attempt, **_kwargs):
    attempt.mark.close()  # as the kernel does; nobody withdraws the attempt


def test_SR_06_crash_during_metadata_final(tmp_path, monkeypatch):
    """A file that was not finished has no name that anybody looks for, and is collected."""
    monkeypatch.setattr(WriteAttempt, "close", die)
    dataset = inputs.range(1000).snapshot(tmp_path)
    next(dataset.iterator())
    draft = tmp_path / folder_of(tmp_path).fingerprint / ".draft-1234-metadata.final"
    draft.write_text('{"run_id": ')

    assert passed(dataset)[1].state == "passthrough"
    inventory.collect(files_at(tmp_path), now=NOW * 10_000)
    assert not draft.exists()


def test_SR_07_an_expired_run_is_collected_by_the_writer_that_replaces_it(tmp_path, monkeypatch):
    """Both are there while it writes; one is left when it has finished."""
    monkeypatch.setattr(WriteAttempt, "close", die)
    dataset = inputs.range(1000).snapshot(tmp_path)
    with dataset.iterator() as first:
        next(first)
    age(tmp_path, DAY_S + 1)
    second = dataset.iterator()
    next(second)
    during = runs(tmp_path)

    list(second)

    assert len(during) == 2
    assert runs(tmp_path) == [second.reports[0].run_id]


def test_SR_08_garbage_collection_never_removes_a_run_being_read(tmp_path):
    """A run that was replaced stays until its last reader has closed."""
    dataset = inputs.range(1000).snapshot(tmp_path)
    old = passed(dataset)[1].run_id
    reader = dataset.iterator()
    next(reader)
    passed(inputs.range(1000).snapshot(tmp_path, mode="write"))

    inventory.collect(files_at(tmp_path), now=NOW * 10_000)
    assert old in runs(tmp_path)
    assert list(reader) == list(range(1, 1000))
    inventory.collect(files_at(tmp_path), now=NOW * 10_000)
    assert old not in runs(tmp_path)


def test_SR_09_N_writers_race_all_finish(tmp_path):
    """Eight at once: each gives everything, and one snapshot is left."""
    dataset = inputs.range(1000).snapshot(tmp_path)
    found = []
    threads = [threading.Thread(target=lambda: found.append(passed(dataset)[0])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [list(range(1000))] * 8
    assert runs(tmp_path) == [folder_of(tmp_path).look().final.run_id]


def print_of(dataset):
    return of_graph(dataset.op)


def double(number):
    return number * 2


def is_even(number):
    return number % 2 == 0


def is_odd(number):
    return number % 2 == 1


def test_FP_01_same_graph_second_process(tmp_path):
    """Another process finds it."""
    program = (
        "import sys; from pipelines import input as i; it = i.range(20).snapshot(sys.argv[1]).iterator();"
        "print(list(it) == list(range(20)), it.reports[0].state)"
    )

    said = [
        subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]

    assert said == ["True write\n", "True read\n"]
    assert len(runs(tmp_path)) == 1


def test_FP_03_construction_order_does_not_matter():
    """Only how the parts hang together."""
    a, b, c = (inputs.range(100) for _ in range(3))
    z, y, x = (inputs.range(100) for _ in range(3))

    assert print_of(a.concatenate(b).concatenate(c)) == print_of(x.concatenate(y).concatenate(z))


def test_FP_04_downstream_operators_do_not_matter(tmp_path):
    """What is behind a snapshot finds the same one."""
    passed(inputs.range(10).snapshot(tmp_path))

    elements, use = passed(inputs.range(10).snapshot(tmp_path).map(double).batch(5))

    assert use.hit
    assert [batch.tolist() for batch in elements] == [[0, 2, 4, 6, 8], [10, 12, 14, 16, 18]]


def test_FP_05_unseeded_shuffle(tmp_path):
    """The order of the pass that wrote is the order of all that read."""
    dataset = inputs.range(1000).shuffle(1000).snapshot(tmp_path)

    first, second = passed(dataset), passed(dataset)

    assert first[0] == second[0] != list(range(1000))
    assert second[1].hit


def test_FP_06_shard_arguments_change_it():
    """Each shard is a snapshot of its own."""
    prints = {print_of(inputs.range(12).shard(count, index)) for count in (2, 3) for index in range(count)}

    assert len(prints) == 5


SETS = """
import json, sys
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.graph.fingerprint import of_graph

features = {"f1", "f2", "f3", "f4", "f5", "f6"}

def multiply(value):
    for name in features:
        value *= len(name)
    for name in {"g1", "g2", "g3"}:
        value *= len(name)
    return value

def member(value):
    return value in {"a", "b", "c", "d"}

print(of_graph(inputs.range(10).map(multiply).op), of_graph(inputs.range(10).map(member).op))
"""


def in_process(source, *, seed="0", cwd=None):
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(HERE.parents[2] / "src")}
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False, env=environment, cwd=cwd
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def of_sets():
    return {in_process(SETS, seed=seed) for seed in ("1", "2", "77")}


def test_FP_08_iteration_order_of_a_set_inside_the_function(of_sets):
    """The RFC's example has one fingerprint, whatever the order in which a process keeps its sets."""
    assert len({line.split()[0] for line in of_sets}) == 1


def test_FP_38_x_in_a_set_compiled_to_a_frozenset_constant_other_hash_seeds(of_sets):
    """The same, for a set that the compiler has made a constant of."""
    assert len({line.split()[1] for line in of_sets}) == 1


def test_FP_09_fixed_fingerprint_survives_a_change_of_the_function(tmp_path):
    """The name stands for the step."""
    passed(inputs.range(10).map(double).with_snapshot_fingerprint("my_fixed_fp").snapshot(tmp_path))

    elements, use = passed(inputs.range(10).map(is_even).with_snapshot_fingerprint("my_fixed_fp").snapshot(tmp_path))

    assert use.hit
    assert elements == [number * 2 for number in range(10)]


def test_FP_10_fixed_fingerprint_covers_the_step_not_what_is_before_or_after_it():
    """The source still counts, and so does what follows."""

    def of(size, step, behind):
        return print_of(inputs.range(size).map(step).with_snapshot_fingerprint("x").filter(behind))

    base = of(10, double, is_even)

    assert of(11, double, is_even) != base
    assert of(10, double, is_odd) != base
    assert of(10, is_odd, is_even) == base


def test_arguments_of_the_snapshot_do_not_count(tmp_path):
    """See `differences.toml`."""
    passed(inputs.range(10).snapshot(tmp_path, "lz4", pending_snapshot_expiry_seconds=5))

    assert passed(inputs.range(10).snapshot(tmp_path, "zstd"))[1].hit


def test_FP_13_execution_knobs():
    """How many calls run side by side changes no element."""
    graphs = [inputs.range(10).map(double, num_parallel=count) for count in (2, 4, inputs.AUTOTUNE, None)]

    assert len({print_of(graph) for graph in graphs}) == 1


def test_FP_14_options_and_prefetch_before_the_snapshot():
    """Nor do options, nor how much is made ready."""
    base = inputs.range(10).map(double)

    assert print_of(base) == print_of(base.prefetch(2)) == print_of(base.options(autotune=False))


def test_FP_15_source_contents_changed_same_names(tmp_path):
    """A file that was written anew makes another snapshot, by its time of change or by its content."""
    file = tmp_path / "rows.parquet"

    def of(files_by):
        return of_graph(inputs.from_parquet(file).op, files_by=files_by)

    pq.write_table(pa.table({"fare": [1, 2, 3]}), file)
    first = of("mtime"), of("content")
    os.utime(file, (1, 1))
    touched = of("mtime"), of("content")
    pq.write_table(pa.table({"fare": [1, 2, 4]}), file)
    os.utime(file, (1, 1))
    rewritten = of("mtime"), of("content")

    assert touched[0] != first[0]
    assert touched[1] == first[1]
    assert rewritten[1] != first[1]


def test_FP_16_prefetch_cache_and_options_nodes_are_transparent():
    """They may stand anywhere."""
    base = inputs.range(10)

    assert print_of(base.prefetch(4).map(double)) == print_of(base.map(double)) == print_of(base.cache().map(double))


def test_FP_18_names_docstrings_comments_line_numbers_do_not():
    """What does not change a function's result does not count."""

    def plain(number):
        return number + 1

    def told(value):
        """Adds one."""
        # to the value

        return value + 1

    assert print_of(inputs.range(10).map(plain)) == print_of(inputs.range(10).map(told))


#: scenario: a project's two modules, and an edit that has to be seen.
SCENARIOS = {
    "imported_fn_body": ("from lib import f", "def f(x): return x + 1", ("lib", "x + 1", "x + 2")),
    "imported_transitive": (
        "from lib import f",
        "K = 1\ndef g(x): return x + K\ndef f(x): return g(x)",
        ("lib", "K = 1", "K = 2"),
    ),
    "global_const": ("K = 1\ndef f(x): return x + K", "", ("main", "K = 1", "K = 2")),
    "global_array": (
        "import numpy as np\nK = np.zeros(9)\nK[4] = 1\ndef f(x): return x + K",
        "",
        ("main", "K[4] = 1", "K[4] = 2"),
    ),
    "helper_same_module": ("def g(x): return x + 1\ndef f(x): return g(x)", "", ("main", "x + 1", "x + 2")),
    "closure": ("def make(k):\n    return lambda x: x + k\nf = make(1)", "", ("main", "make(1)", "make(2)")),
    "default_arg": ("def f(x, k=1): return x + k", "", ("main", "k=1", "k=2")),
    "bound_method_attr": (
        "class C:\n    def __init__(self, k): self.k = k\n    def call(self, x): return x + self.k\nf = C(1).call",
        "",
        ("main", "C(1)", "C(2)"),
    ),
}

ASK = """
import importlib, json, sys
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.graph.fingerprint import of_graph
found = {}
for name in json.loads(%r):
    sys.modules.pop("lib", None)
    sys.path.insert(0, name)
    found[name] = of_graph(inputs.range(3).map(importlib.import_module(f"main_{name}").f).op)
    sys.path.pop(0)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def before_and_after(tmp_path_factory):
    """The fingerprints of all scenarios before and after their edits, each time in a fresh process."""
    prints = []
    for edited in (False, True):
        root = tmp_path_factory.mktemp("edited" if edited else "plain")
        for name, (main, lib, (where, old, new)) in SCENARIOS.items():
            texts = {"main": main, "lib": lib}
            if edited:
                assert old in texts[where]
                texts[where] = texts[where].replace(old, new)
            (root / name).mkdir()
            (root / name / f"main_{name}.py").write_text(texts["main"])
            (root / name / "lib.py").write_text(texts["lib"])
        prints.append(json.loads(in_process(ASK % json.dumps(list(SCENARIOS)), cwd=root)))
    return prints


def changes(scenario, before_and_after):
    before, after = before_and_after
    return before[scenario] != after[scenario]


def test_FP_30_body_of_an_imported_project_function_edited(before_and_after):
    """Is seen."""
    assert changes("imported_fn_body", before_and_after)


def test_FP_31_module_constant_used_by_a_helper_of_an_imported_function_edited(before_and_after):
    """Is seen."""
    assert changes("imported_transitive", before_and_after)


def test_FP_32_global_constant_read_by_the_function_edited(before_and_after):
    """Is seen."""
    assert changes("global_const", before_and_after)


def test_FP_33_one_cell_of_a_global_numpy_array_edited(before_and_after):
    """Is seen."""
    assert changes("global_array", before_and_after)


def test_FP_34_helper_in_the_same_module_edited(before_and_after):
    """Is seen."""
    assert changes("helper_same_module", before_and_after)


def test_FP_35_closure_value_edited(before_and_after):
    """Is seen."""
    assert changes("closure", before_and_after)


def test_FP_36_default_argument_edited(before_and_after):
    """Is seen."""
    assert changes("default_arg", before_and_after)


def test_FP_37_attribute_of_the_bound_object_edited(before_and_after):
    """Is seen."""
    assert changes("bound_method_attr", before_and_after)


def test_FP_39_function_captures_a_lock():
    """Refused, with the way to it and the way out."""
    lock = threading.Lock()

    def guarded(number):
        with lock:
            return number

    with pytest.raises(Unfingerprintable, match=r"lock.*with_snapshot_fingerprint"):
        inputs.range(10).map(guarded).snapshot("unused")


def test_CK_02_save_in_the_second_epoch(tmp_path):
    """A pass that reads goes on where it was."""
    dataset = inputs.range(100).snapshot(tmp_path).repeat(2)
    with dataset.iterator() as iterator:
        taken = [next(iterator) for _ in range(110)]
        saved = iterator.state()

    rest = list(dataset.iterator().restore(saved))

    assert taken + rest == [*range(100), *range(100)]


def test_CK_03_elements_after_the_save_are_replayed(tmp_path):
    """A pass that writes goes on where it was saved, and completes the snapshot."""
    dataset = inputs.range(100).snapshot(tmp_path)
    iterator = dataset.iterator()
    for _ in range(50):
        next(iterator)
    saved = iterator.state()
    for _ in range(10):
        next(iterator)

    restored = dataset.iterator().restore(saved)

    assert list(restored) == list(range(50, 100))
    assert restored.reports[0].committed
    assert passed(dataset)[0] == list(range(100))


def test_CK_04_graph_changed_between_save_and_restore(tmp_path):
    """The state is refused."""
    with inputs.range(100).snapshot(tmp_path).iterator() as iterator:
        next(iterator)
        saved = iterator.state()

    with pytest.raises(StateMismatch, match="Range, Snapshot had other arguments"):
        inputs.range(101).snapshot(tmp_path).iterator().restore(saved)


def test_CK_05_metadata_gone_at_restore(tmp_path):
    """A pass cannot go on reading what is not there."""
    dataset = inputs.range(100).snapshot(tmp_path)
    passed(dataset)
    with dataset.iterator() as iterator:
        next(iterator)
        saved = iterator.state()
    for name in ("snapshot.metadata", "metadata.final"):
        (tmp_path / folder_of(tmp_path).fingerprint / name).unlink()

    with pytest.raises(SnapshotNotFound, match="no longer exists"):
        dataset.iterator().restore(saved)


@pytest.mark.parametrize("compression", ["GZIP", "SNAPPY", "gzip", "snappy", "AUTO"])
@pytest.mark.parametrize("kind", ["elements", "rows"])
def test_the_compressions_of_the_rfc_are_written_and_read(tmp_path, kind, compression):
    """From the middle, too, and smaller than without any."""
    numbers = inputs.range(5000).map(lambda number: number % 3)
    dataset = numbers if kind == "elements" else inputs.from_arrow(pa.table({"number": list(numbers)}))

    written, _ = passed(dataset.snapshot(tmp_path / "packed", compression))
    read, use = passed(dataset.snapshot(tmp_path / "packed", compression))
    passed(dataset.snapshot(tmp_path / "plain", None))

    assert read == written == list(dataset)
    assert use.hit
    assert list(dataset.snapshot(tmp_path / "packed").skip(4321)) == written[4321:]
    if compression != "AUTO":
        sizes = [
            sum(path.stat().st_size for path in (tmp_path / name).rglob("*.snapshot")) for name in ("packed", "plain")
        ]
        assert sizes[0] < sizes[1] / 2
