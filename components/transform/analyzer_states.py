"""Analyzer states: what the analyzers accumulated over each split of each span, stored for the windows of later runs.

A state is stored under what it depends on (the span's content, the analyzer, the expressions it analyzed with all that
was resolved in them), so that a window of which one span is new reads one span. The order of all merging is that of
rows and spans, never that of workers, files or row groups, and a stored state is the bytes that a new one would be: so
the result is the same on any runner, and with or without what earlier runs stored.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq

from spanwise.components.read_ahead import count_threads
from spanwise.components.row_blocks import BLOCK_ROWS, list_runs
from spanwise.components.transform import worker
from spanwise.components.transform.analyzers import Analyzer, Plain
from spanwise.components.transform.standalone import extract_source
from spanwise.components.transform.trace import AnalyzerCall
from spanwise.components.transform.window_plan import TransformWindow
from spanwise.components.transform.worker import AnalysisTask, PieceAnalyzer, Place, RunStates
from spanwise.orchestrator import fingerprint
from spanwise.orchestrator.user_code import Owner, owner_of

log = logging.getLogger("spanwise.transform")

STORAGE_VERSION = "2"
"""Of the stored states; a change makes later runs ignore all states stored before."""


class AnalyzerStates:
    """What the analyzers accumulated over each split of each span: stored by earlier runs, or computed now."""

    def __init__(self, window: TransformWindow) -> None:
        self._window = window
        self._stored: dict[Place, dict[str, bytes]] = {}
        self._files: dict[Place, dict[frozenset[str], Path]] = {}  # stored already, by the keys in them
        for place in window.places:
            number, split = place
            self._stored[place], self._files[place] = _read_states(window.plan.earlier, window.contents[number], split)
        self._used: dict[Place, dict[str, tuple[str, bytes]]] = {place: {} for place in window.places}

    def values(self, calls: Sequence[AnalyzerCall]) -> dict[bytes, Plain]:
        """The value of each call over the whole window; reads only what no earlier run has read."""
        window = self._window
        keys = [_state_key(call, window) for call in calls]
        lacking = {
            place: tuple(number for number, key in enumerate(keys) if key not in self._stored[place])
            for place in window.places
        }
        self._accumulate(calls, keys, {place: numbers for place, numbers in lacking.items() if numbers})
        values: dict[bytes, Plain] = {}
        for call, key in zip(calls, keys, strict=True):
            for place in window.places:
                self._used[place][key] = (call.text, self._stored[place][key])
            states = [self._stored[place][key] for place in window.places]
            values[call.key] = cast("Plain", worker.finish(call, states))
        return values

    def _accumulate(
        self, calls: Sequence[AnalyzerCall], keys: Sequence[str], lacking: Mapping[Place, tuple[int, ...]]
    ) -> None:
        window = self._window
        tasks = [
            AnalysisTask(place, run, numbers, window.is_newest(place))
            for place, numbers in lacking.items()
            for run in list_runs(window.files(place))
        ]
        work = PieceAnalyzer.of(window.plan.source, calls, window.types)
        # an analyzer of the user's own may not be made for several threads
        columns = len({root for call in calls for root in call.roots}) + len(calls)
        threads = count_threads(columns) if all(_is_ours(type(call.analyzer)) for call in calls) else 1
        results: dict[Place, list[RunStates]] = {place: [] for place in lacking}
        for task, result in zip(tasks, window.map(work, tasks, threads=threads), strict=True):
            results[task.place].append(result)
        for place, numbers in lacking.items():
            reads = window.reads[place[0]]
            reads.analyzed_files += len({path for task in tasks if task.place == place for path in task.run.paths})
            reads.analyzed_rows += sum(result.rows for result in results[place])
            for number in numbers:
                call = calls[number]
                parts = [result.states[number] for result in results[place]]
                merged = worker.merge_runs(call, parts) if parts else worker.pack_empty(call, window.types)
                self._stored[place][keys[number]] = merged

    def save(self) -> None:
        """Stores the states that this window used, for later runs."""
        for (number, split), states in self._used.items():
            path = _states_path(self._window.plan.cache, self._window.contents[number], split)
            if path.exists():
                continue  # two spans of the same content
            path.parent.mkdir(parents=True, exist_ok=True)
            same = self._files[number, split].get(frozenset(states))
            if same is not None:
                link_file(same, path)
                continue
            ordered = sorted(states)
            columns = {
                "key": pa.array(ordered, pa.string()),
                "call": pa.array([states[key][0] for key in ordered], pa.string()),
                "state": pa.array([states[key][1] for key in ordered], pa.large_binary()),
            }
            pq.write_table(pa.table(columns), path, compression="zstd", write_page_checksum=True)


def _state_key(call: AnalyzerCall, window: TransformWindow) -> str:
    """What a state depends on, besides the rows. The values of nested analyzers are literals in the expressions."""
    roots = [part for root in call.roots for part in (root, str(window.types[root]))]
    expressions = [each.meta.serialize(format="binary") for each in call.inputs]
    return fingerprint.digest(
        "analyzer state",
        STORAGE_VERSION,
        BLOCK_ROWS,
        code_versions(),
        *window.plan.beam.unverified_part.values(),
        _analyzer_code(type(call.analyzer)),
        call.analyzer.state_label,
        len(roots),
        *roots,
        *expressions,
    )


@functools.cache
def code_versions() -> str:
    """The versions of what serializes and computes expressions: Polars, and each of our modules that takes part."""
    here = Path(__file__).parents[1]
    modules = [*(here / name for name in _MODULES), *(p for f in _FOLDERS for p in sorted((here / f).glob("*.py")))]
    ours = fingerprint.digest("modules", *(module.read_bytes() for module in modules))
    return f"{ours}, polars {importlib.metadata.version('polars')}"


_MODULES = (
    "../pipelines/input/bit_mixing.py",
    "../pipelines/input/decimals.py",
    "row_blocks.py",
    "statistics/weighted.py",
    "transform/divisors.py",
    "transform/expression_tree.py",
    "transform/inner_nulls.py",
    "transform/preprocessing.py",
    "transform/trace.py",
    "row_hash.py",
    "transform/graph.py",
    "transform/worker.py",
)
_FOLDERS = ("statistics/accumulators", "transform/analyzers")


def _analyzer_code(analyzer: type[Analyzer[object]]) -> str:
    """A user's analyzer by its source and what that uses; ours are in `code_versions`."""
    return analyzer.__qualname__ if _is_ours(analyzer) else extract_source(analyzer)


def _is_ours(analyzer: type[Analyzer[object]]) -> bool:
    return owner_of(analyzer.__module__) is Owner.SPANWISE


def _read_states(
    earlier: Iterable[str], content: str, split: str
) -> tuple[dict[str, bytes], dict[frozenset[str], Path]]:
    """The states that earlier runs have of a split, and their files by the keys of the states in them.

    A file that is missing or damaged is ignored: its states are computed again.
    """
    states: dict[str, bytes] = {}
    files: dict[frozenset[str], Path] = {}
    for folder in earlier:
        path = _states_path(folder, content, split)
        if not path.is_file():
            continue
        try:
            file = pq.ParquetFile(path, page_checksum_verification=True)  # read_table would import pyarrow.dataset
            table = file.read(["key", "state"]).to_pydict()
        except (OSError, pa.ArrowException) as error:
            log.warning("states-file-skipped", extra={"file": str(path), "reason": str(error)})
            continue
        states = {**dict(zip(table["key"], table["state"], strict=True)), **states}
        files.setdefault(frozenset(table["key"]), path)
    return states, files


def _states_path(folder: str, content: str, split: str) -> Path:
    return Path(folder, "states", content, f"{split}.parquet")


def link_file(source: Path, target: Path) -> None:
    """Gives a file a second name; artifacts never change, so the two stay equal."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
