"""Beam: running work on the parts of some data, here or with the runner that a user names. It knows no data.

Beam takes seconds to import, so a few parts are worked on here, in the same order and with the same result to the byte.
"""

from __future__ import annotations

import logging
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, TypeVar, cast

from spanwise.orchestrator.errors import ParameterError

#: The runner inside this process. `DirectRunner` would first try to download and start a program.
EMBEDDED_RUNNER = "FnApiRunner"

#: Without a runner or options, so many parts are worked on without Beam, which imports for seconds and would use one
#: processor too: 16 million rows where a part is a row group of ours.
MOST_PARTS_HERE = 256

BeamOptions: TypeAlias = Mapping[str, str | int | float | bool]

Element = TypeVar("Element")
Key = TypeVar("Key")
Result = TypeVar("Result")

Place: TypeAlias = tuple[int, int]
"""A place in the tree of merges: the level, and the number within it. Leaves are at level 0, in the order of parts."""


def map_in_order(
    parts: Sequence[Element],
    work: Callable[[Element], Result],
    *,
    runner: str | None,
    options: BeamOptions,
    scratch: Path,
) -> list[Result]:
    """Does the work on every part; the results are in the order of the parts.

    Up to MOST_PARTS_HERE parts are worked on here, unless a runner or an option is given. `scratch` is a folder that
    every worker sees.

    Raises:
        ParameterError: Beam has no such runner here, or it is DaskRunner.
    """
    if _stays_here(parts, runner, options):
        return [work(part) for part in parts]

    def on_part(pair):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 -- Beam would check annotations as its own types
        number, part = pair
        return number, work(part)

    results = _run(parts, lambda beam, elements: elements | "Work" >> beam.Map(on_part), runner, options, scratch)
    return [result for _, result in sorted(results, key=lambda pair: pair[0])]


def merge_in_order(
    parts: Sequence[Element],
    work: Callable[[Element], Iterable[tuple[Key, Mapping[Place, Result]]]],
    merge: Callable[[Result, Result], Result],
    *,
    runner: str | None,
    options: BeamOptions,
    scratch: Path,
) -> dict[Key, Result]:
    """Does the work on every part and merges the results of each key, each of which has a place, in one order.

    A runner combines in whatever order results arrive. So that sums and sketches are the same to the byte wherever a
    graph runs, only neighbours in a fixed binary tree over the places are merged; the rest waits. Nor does it matter
    which part gives which places. What a part gives for a key is pickled on its way: keep it small. Otherwise as
    `map_in_order`.

    Raises:
        ParameterError: Beam has no such runner here, or it is DaskRunner.
    """
    if _stays_here(parts, runner, options):
        merged: dict[Key, dict[Place, Result]] = {}
        for part in parts:
            for key, places in work(part):
                merged[key] = fold((merged.get(key, {}), places), merge)
        return {key: merge_rest(places, merge) for key, places in merged.items()}

    def on_part(pair):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 -- as above
        _, part = pair
        yield from work(part)

    def combine(results):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 -- as above
        return fold(results, merge)

    results: list[tuple[Key, dict[Place, Result]]] = _run(
        parts,
        lambda beam, elements: elements | "Work" >> beam.FlatMap(on_part) | "Merge" >> beam.CombinePerKey(combine),
        runner,
        options,
        scratch,
    )
    return {key: merge_rest(places, merge) for key, places in results}


def _stays_here(parts: Sequence[object], runner: str | None, options: BeamOptions) -> bool:
    return not parts or (runner is None and not options and len(parts) <= MOST_PARTS_HERE)


@contextmanager
def _keep_root_logger() -> Iterator[None]:
    """Beam logs through the root logger, which would give a root without handlers one for good."""
    root, quiet = logging.getLogger(), logging.NullHandler()
    root.addHandler(quiet)
    try:
        yield
    finally:
        root.removeHandler(quiet)


def _run(
    parts: Sequence[object],
    work: Callable[[ModuleType, Any], Any],  # Beam has no types
    runner: str | None,
    options: BeamOptions,
    scratch: Path,
) -> list[Any]:
    """Runs a graph over the numbered parts; returns its elements in any order."""

    def save(results, path):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 -- as above
        Path(path).write_bytes(pickle.dumps(results))

    if runner is not None and runner.rpartition(".")[2].lower() == "daskrunner":
        raise ParameterError(
            "runner: Beam's DaskRunner loses windows and tagged outputs without an error, so no result of it can be "
            "trusted. Leave out runner=, or name FlinkRunner, SparkRunner or DataflowRunner."
        )
    with _keep_root_logger(), tempfile.TemporaryDirectory(dir=scratch) as folder:
        beam = import_module("apache_beam")
        options_module = import_module("apache_beam.options.pipeline_options")
        logging.getLogger("apache_beam").setLevel(logging.WARNING)  # it logs each cache and worker that it creates
        # flags=[]: by default Beam reads the command line of this process
        settings = options_module.PipelineOptions(flags=[], **dict(options))
        try:
            pipeline = beam.Pipeline(runner=runner or EMBEDDED_RUNNER, options=settings)
        except (ValueError, ImportError) as error:
            raise ParameterError(f"runner: Beam has no runner called '{runner}' here ({error}).") from error
        file = Path(folder, "results")
        elements = pipeline | "Parts" >> beam.Create(list(enumerate(parts)))
        if len(parts) > 1:
            elements |= "Spread" >> beam.Reshuffle()  # otherwise a runner may do all parts on one worker
        together = work(beam, elements) | "Collect" >> beam.CombineGlobally(beam.combiners.ToListCombineFn())
        _ = together | "Save" >> beam.Map(save, str(file))
        pipeline.run().wait_until_finish()
        # our own workers wrote it just now
        return cast("list[Any]", pickle.loads(file.read_bytes()))  # noqa: S301 -- see above


def fold(results: Iterable[Mapping[Place, Result]], merge: Callable[[Result, Result], Result]) -> dict[Place, Result]:
    """Puts results in their places and merges neighbours, as far up the tree as they are complete."""
    places: dict[Place, Result] = {}
    for more in results:
        for place, result in more.items():
            (level, number), value = place, result
            while (sibling := places.pop((level, number ^ 1), None)) is not None:
                value = merge(sibling, value) if number & 1 else merge(value, sibling)
                level, number = level + 1, number >> 1
            places[level, number] = value
    return places


def merge_rest(places: Mapping[Place, Result], merge: Callable[[Result, Result], Result]) -> Result:
    """Merges what has no neighbour, in the order of the parts."""
    ordered: list[Any] = [places[place] for place in sorted(places, key=lambda place: place[1] << place[0])]
    result: Result = ordered[0]
    for value in ordered[1:]:
        result = merge(result, value)
    return result
