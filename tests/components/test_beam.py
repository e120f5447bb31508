"""Beam: which parts are worked on here, and that it makes no difference to the result."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from spanwise.components.beam import MOST_PARTS_HERE, map_in_order, merge_in_order
from spanwise.orchestrator.errors import ParameterError

PARTS = [random.Random(seed).uniform(-1e9, 1e9) for seed in range(21)]  # their sum depends on the order


def by_parity(numbered):
    number, part = numbered
    return [("sum", {(0, number): part}), ("even" if int(part) % 2 == 0 else "odd", {(0, number): part / 3})]


def add(one, other):
    return one + other


def double(part):
    return part * 2


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 21])
def test_sums_are_the_same_to_the_bit_here_and_on_a_runner(tmp_path, count):
    """Neighbours merge in the same tree, so that adding floats gives the same bits with and without Beam."""
    parts = list(enumerate(PARTS[:count]))
    here = merge_in_order(parts, by_parity, add, runner=None, options={}, scratch=tmp_path)
    there = merge_in_order(parts, by_parity, add, runner="FnApiRunner", options={}, scratch=tmp_path)

    assert here == there


def test_results_keep_the_order_of_the_parts(tmp_path):
    """A runner may finish parts in any order; the results stand in theirs."""
    here = map_in_order(PARTS, double, runner=None, options={}, scratch=tmp_path)

    assert here == [part * 2 for part in PARTS]
    assert map_in_order(PARTS, double, runner="FnApiRunner", options={}, scratch=tmp_path) == here


@pytest.mark.parametrize(
    ("parts", "options", "beam"),
    [
        (MOST_PARTS_HERE, {}, False),
        (MOST_PARTS_HERE + 1, {}, True),
        (2, {"direct_num_workers": 2}, True),
    ],
    ids=["few parts", "many parts", "options"],
)
def test_beam_is_imported_only_for_many_parts_or_when_asked(tmp_path, parts, options, beam):
    """A few parts need no Beam, whose import takes longer than a day's work on them; options are for Beam."""
    program = f"""
import sys
from pathlib import Path
from spanwise.components.beam import map_in_order
print(sum(map_in_order(range({parts}), abs, runner=None, options={options!r}, scratch=Path({str(tmp_path)!r}))))
print("apache_beam" in sys.modules)
"""

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path.cwd())

    assert ran.stdout.split() == [str(sum(range(parts))), str(beam)]


def test_a_runner_that_loses_results_is_refused(tmp_path):
    """Dask's loses windows and tagged outputs without an error; whichever way it is named, it is refused."""
    for name in ("DaskRunner", "apache_beam.runners.dask.dask_runner.DaskRunner"):
        with pytest.raises(ParameterError, match="DaskRunner loses windows"):
            map_in_order(PARTS, double, runner=name, options={}, scratch=tmp_path)
