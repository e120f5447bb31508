"""Beam: which parts are worked on here, and that it makes no difference to the result."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spanwise.components import ExampleGen, StatisticsGen, beam
from spanwise.components.beam import MOST_PARTS_HERE, map_in_order, map_with_user_code, merge_in_order
from spanwise.orchestrator.beam_settings import HERE, BeamSettings
from spanwise.orchestrator.errors import LoadError, NodeFailed, ParameterError
from spanwise.orchestrator.run import State
from spanwise.orchestrator.testing import Lake
from tests.components.flow import Bench, only
from tests.components.warm_beam import use_warm_workers

PARTS = [random.Random(seed).uniform(-1e9, 1e9) for seed in range(21)]  # their sum depends on the order
EMBEDDED = BeamSettings(runner="FnApiRunner")


def by_parity(numbered):
    number, part = numbered
    return [("sum", {(0, number): part}), ("even" if int(part) % 2 == 0 else "odd", {(0, number): part / 3})]


def add(one, other):
    return one + other


class FolderRemover:
    """A part that removes what is in a folder when a worker gets it, as if the worker had another disk."""

    def __init__(self, folder):
        self.folder = folder

    def __setstate__(self, state):
        self.folder = state["folder"]
        for each in Path(self.folder).iterdir():
            shutil.rmtree(each)


def double(part):
    return part * 2


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 21])
def test_sums_are_the_same_to_the_bit_here_and_on_a_runner(tmp_path, count):
    """Neighbours merge in the same tree, so that adding floats gives the same bits with and without Beam."""
    parts = list(enumerate(PARTS[:count]))
    here = merge_in_order(parts, by_parity, add, beam=HERE, scratch=tmp_path)
    there = merge_in_order(parts, by_parity, add, beam=EMBEDDED, scratch=tmp_path)

    assert here == there


def test_results_keep_the_order_of_the_parts(tmp_path):
    """A runner may finish parts in any order; the results stand in theirs."""
    here = map_in_order(PARTS, double, beam=HERE, scratch=tmp_path)

    assert here == [part * 2 for part in PARTS]
    assert map_in_order(PARTS, double, beam=EMBEDDED, scratch=tmp_path) == here


def test_beam_is_not_imported_for_few_parts(tmp_path):
    """They need no Beam, whose import takes longer than a day's work on them."""
    program = f"""
import sys
from pathlib import Path
from spanwise.components.beam import map_in_order
from spanwise.orchestrator.beam_settings import HERE
print(sum(map_in_order(range({MOST_PARTS_HERE}), abs, beam=HERE, scratch=Path({str(tmp_path)!r}))))
print("apache_beam" in sys.modules)
"""

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path.cwd())

    assert ran.stdout.split() == [str(sum(range(MOST_PARTS_HERE))), "False"]


@pytest.mark.parametrize(
    ("parts", "options"),
    [(MOST_PARTS_HERE + 1, {}), (2, {"direct_num_workers": 2})],
    ids=["many parts", "options"],
)
def test_beam_works_on_many_parts_and_when_asked(tmp_path, caplog, parts, options):
    """Options are for Beam."""
    caplog.set_level("INFO", "spanwise.beam")

    found = map_in_order(range(parts), abs, beam=BeamSettings(options=options), scratch=tmp_path)

    assert found == list(range(parts))
    events = [r for r in caplog.records if r.name == "spanwise.beam"]
    assert [(r.message, r.runner, r.parts) for r in events] == [("beam-job-started", "FnApiRunner", parts)]


def test_a_process_forked_from_one_that_has_used_beam_uses_it_too(tmp_path):
    """As nodes are, of a notebook whose user has run Beam: its idle threads are not in the fork."""
    program = f"""
import os, signal
from pathlib import Path
from spanwise.components.beam import map_in_order
from spanwise.orchestrator.beam_settings import BeamSettings
def work():
    return map_in_order([1, 2], str, beam=BeamSettings(runner="FnApiRunner", options={{"direct_num_workers": 2}}), scratch=Path({str(tmp_path)!r}))
assert work() == ["1", "2"]
if os.fork() == 0:
    signal.alarm(30)
    os._exit(work() != ["1", "2"])
assert os.wait()[1] == 0
"""

    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path.cwd())


def test_a_worker_that_does_not_see_the_folder_says_so(tmp_path):
    """A machine without the files of the node cannot work on them; the error names the folder, and a way out."""
    with pytest.raises(ParameterError, match=rf"does not see {tmp_path}.*environment_type = 'LOOPBACK'"):
        map_in_order([FolderRemover(str(tmp_path))], str, beam=EMBEDDED, scratch=tmp_path)


def apply(function, part):
    return function(part)


def divide(part):
    return 1 / part


def test_an_error_of_the_users_code_on_a_runner_has_its_own_lines_alone(tmp_path, monkeypatch):
    """Beam would raise an error whose text is its own traceback, of a hundred lines and more."""
    monkeypatch.setattr(beam, "map_in_order", lambda parts, work, **settings: [work(part) for part in parts])

    with pytest.raises(NodeFailed) as raised:
        map_with_user_code(divide, apply, [1, 0], beam=EMBEDDED, scratch=tmp_path)

    first, *lines = str(raised.value).splitlines()
    assert first == "ZeroDivisionError: division by zero"
    assert [line.rpartition(" in ")[2] for line in lines if line.startswith("  File")] == ["apply", "divide"]


@pytest.mark.slow
def test_a_function_that_was_edited_since_it_was_loaded_is_refused_by_a_worker_in_another_process(
    edited_module, tmp_path, monkeypatch
):
    """It would load the file anew, and what the new code makes was cached under the key of the old."""
    use_warm_workers(monkeypatch)
    module = edited_module("def work(x): return x * 2\n", "def work(x): return x * 3\n")
    elsewhere = BeamSettings(runner="FnApiRunner", options={"direct_running_mode": "multi_processing"})

    with pytest.raises(LoadError, match=r"edited_module\.work is not what was sent"):
        map_with_user_code(module.work, apply, [1, 2], beam=elsewhere, scratch=tmp_path)


def test_the_runner_of_the_settings_is_recorded_and_not_in_the_key(tmp_path):
    """A run on a runner makes the bytes of a run without; the next one reuses them, with any runner."""
    lake, bench = Lake(tmp_path / "lake"), Bench(tmp_path)
    lake.arrive(span=1)
    ingest = ExampleGen(pattern=lake.pattern)
    node = [ingest, StatisticsGen(examples=ingest["examples"])]

    here = bench.run(*node)
    there = bench.run(*node, beam={"runner": "FnApiRunner", "direct_num_workers": 2}, cache=False)
    again = bench.run(*node, beam={"runner": "FnApiRunner"})

    for name, output in (("ExampleGen", "examples"), ("StatisticsGen", "statistics")):
        first, second = (only(run.executions[name], output) for run in (here, there))
        assert first.content == second.content
        assert first.uri != second.uri
    assert bench.store.run("p", there.run.number).beam == {"runner": "FnApiRunner", "direct_num_workers": 2}
    assert again.executions["StatisticsGen"].state is State.CACHED
