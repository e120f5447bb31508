"""Beam: starting a graph on the runner a user names, and getting its small result back. It knows nothing of data.

Importing this module imports Beam, which takes seconds: import it where a graph is run.
"""

from __future__ import annotations

import logging
import pickle
import tempfile
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from spanwise.orchestrator.errors import ParameterError

_root = logging.getLogger()
_quiet = logging.NullHandler()
_root.addHandler(_quiet)  # importing Beam logs a warning, which would give a root without handlers one for good
try:
    beam = import_module("apache_beam")
    _options = import_module("apache_beam.options.pipeline_options")
finally:
    _root.removeHandler(_quiet)
logging.getLogger("apache_beam").setLevel(logging.WARNING)  # it tells of each cache and worker that it makes

#: The runner inside this process. `DirectRunner` would first try to download and start a program.
EMBEDDED_RUNNER = "FnApiRunner"

BeamOptions: TypeAlias = Mapping[str, str | int | float | bool]

Element = TypeVar("Element")
Key = TypeVar("Key")
Result = TypeVar("Result")

Place: TypeAlias = tuple[int, int]
"""A place in the tree of merges: the level, and the number within it. Leaves are at level 0, in the order of parts."""


def merged_in_order(
    parts: Iterable[Element],
    work: Callable[[Element], Iterable[tuple[Key, Result]]],
    merge: Callable[[Result, Result], Result],
    *,
    runner: str | None,
    options: BeamOptions,
    scratch: Path,
) -> dict[Key, Result]:
    """Does the work on every part and merges the results of each key, always in the same order.

    A runner combines in whatever order results come. So that sums and sketches are the same to the byte wherever a
    graph runs, only neighbours in a fixed binary tree over the numbers of the parts are ever merged; the rest waits.
    What a part gives for a key is pickled on its way: keep it small. `scratch` is a folder that every worker sees.

    Raises:
        ParameterError: Beam has no such runner here.
    """
    numbered = list(enumerate(parts))

    def on_part(pair):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 -- Beam would check annotations as its own types
        number, part = pair
        for key, result in work(part):
            yield key, {(0, number): result}

    def combine(found):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 -- as above
        return folded(found, merge)

    def save(found, path):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 -- as above
        Path(path).write_bytes(pickle.dumps(found))

    # flags=[]: by default Beam reads the command line of this process
    settings = _options.PipelineOptions(flags=[], **dict(options))
    try:
        pipeline = beam.Pipeline(runner=runner or EMBEDDED_RUNNER, options=settings)
    except (ValueError, ImportError) as error:
        raise ParameterError(f"runner: Beam has none called '{runner}' here ({error}).") from error
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        results = Path(folder, "results")
        _ = (
            pipeline
            | "Parts" >> beam.Create(numbered)
            | "Spread" >> beam.Reshuffle()  # otherwise a runner may do all parts on one worker
            | "Work" >> beam.FlatMap(on_part)
            | "Merge" >> beam.CombinePerKey(combine)
            | "Collect" >> beam.CombineGlobally(beam.combiners.ToListCombineFn())
            | "Save" >> beam.Map(save, str(results))
        )
        pipeline.run().wait_until_finish()
        # our own workers wrote it just now
        found: list[tuple[Key, dict[Place, Result]]] = pickle.loads(results.read_bytes())  # noqa: S301 -- see above
    return {key: _finished(places, merge) for key, places in found}


def folded(found: Iterable[Mapping[Place, Result]], merge: Callable[[Result, Result], Result]) -> dict[Place, Result]:
    """Puts results in their places and merges neighbours, as far up the tree as they are complete."""
    places: dict[Place, Result] = {}
    for more in found:
        for place, result in more.items():
            (level, number), value = place, result
            while (sibling := places.pop((level, number ^ 1), None)) is not None:
                value = merge(sibling, value) if number & 1 else merge(value, sibling)
                level, number = level + 1, number >> 1
            places[level, number] = value
    return places


def _finished(places: Mapping[Place, Result], merge: Callable[[Result, Result], Result]) -> Result:
    """Merges what has no neighbour, in the order of the parts."""
    ordered: list[Any] = [places[place] for place in sorted(places, key=lambda place: place[1] << place[0])]
    result: Result = ordered[0]
    for value in ordered[1:]:
        result = merge(result, value)
    return result
