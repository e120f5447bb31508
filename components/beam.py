"""Beam: running work on the parts of some data, here or with the runner that a user names. It knows no data.

Beam takes seconds to import, so a few parts are worked on here, in the same order and with the same result to the byte.
"""

from __future__ import annotations

import logging
import os
import pickle
import platform
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, TypeVar, cast

from spanwise.components.read_ahead import map_ahead
from spanwise.orchestrator.beam_settings import EMBEDDED_RUNNER, HERE, BeamSettings, bare_runner, check_beam
from spanwise.orchestrator.code_meaning import ship_checked, unpack_checked
from spanwise.orchestrator.errors import NodeFailed, ParameterError, SpanwiseError
from spanwise.orchestrator.user_code import explain_error

log = logging.getLogger("spanwise.beam")

_UNSEEN = "this folder of the node is not seen on "

#: Without a runner or options, so many parts are worked on without Beam, which imports for seconds and would use one
#: processor too: 16 million rows where a part is a row group of ours.
MOST_PARTS_HERE = 256

Element = TypeVar("Element")
Key = TypeVar("Key")
Result = TypeVar("Result")
Value = TypeVar("Value")

Place: TypeAlias = tuple[int, int]
"""A place in the tree of merges: the level, and the number within it. Leaves are at level 0, in the order of parts."""


def map_in_order(
    parts: Sequence[Element],
    work: Callable[[Element], Result],
    *,
    beam: BeamSettings,
    scratch: Path,
    threads: int = 1,
) -> list[Result]:
    """Does the work on every part; the results are in the order of the parts.

    Up to MOST_PARTS_HERE parts are worked on here, by so many threads, unless a runner or an option is given. `scratch`
    is a folder that every worker sees.

    Raises:
        ParameterError: Beam has no such runner here, or its workers do not see `scratch`.
    """
    if _stays_here(parts, beam):
        return list(map_ahead(work, parts, threads))

    def on_part(pair):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 -- Beam would check annotations as its own types
        number, part = pair
        return number, work(part)

    results = _run(parts, lambda lib, elements: elements | "Work" >> lib.Map(on_part), beam, scratch)
    return [result for _, result in sorted(results, key=lambda pair: pair[0])]


def map_with_user_code(
    value: Value,
    work: Callable[[Value, Element], Result],
    parts: Sequence[Element],
    *,
    beam: BeamSettings,
    scratch: Path,
) -> list[Result]:
    """As `map_in_order`, for work that may call code of the user's: `value` holds it, and is shipped to workers.

    Of the parts that fail on workers, the error of the first is raised: one of ours as it was.

    Raises:
        NodeFailed: the work raised another error there; it has its text and the lines of the user's code.
        ParameterError: `value` cannot be sent to workers, or as `map_in_order`.
        LoadError: its code means something else in a worker than here.
    """
    if _stays_here(parts, beam):
        return [work(value, part) for part in parts]
    shipment = ship_checked(value)

    def on_part(part: Element) -> Result | SpanwiseError:
        try:
            return work(cast("Value", unpack_checked(shipment)), part)
        except SpanwiseError as error:  # Beam would wrap it
            return error
        except Exception as error:  # noqa: BLE001  whatever the user's code raises; Beam would add a hundred lines
            return NodeFailed(explain_error(error))

    results: list[Result] = []
    for result in map_in_order(parts, on_part, beam=beam, scratch=scratch):
        if isinstance(result, SpanwiseError):
            raise result
        results.append(result)
    return results


def merge_in_order(
    parts: Sequence[Element],
    work: Callable[[Element], Iterable[tuple[Key, Mapping[Place, Result]]]],
    merge: Callable[[Result, Result], Result],
    *,
    beam: BeamSettings,
    scratch: Path,
    threads: int = 1,
) -> dict[Key, Result]:
    """Does the work on every part and merges the results of each key, each of which has a place, in one order.

    A runner combines in whatever order results arrive. So that sums and sketches are the same to the byte wherever a
    graph runs, only neighbours in a fixed binary tree over the places are merged; the rest waits. Nor does it matter
    which part gives which places. What a part gives for a key is pickled on its way: keep it small. Otherwise as
    `map_in_order`.

    Raises:
        ParameterError: Beam has no such runner here, or its workers do not see `scratch`.
    """
    if _stays_here(parts, beam):
        merged: dict[Key, dict[Place, Result]] = {}
        for results in map_ahead(lambda part: list(work(part)), parts, threads):
            for key, places in results:
                merged[key] = fold((merged.get(key, {}), places), merge)
        return {key: merge_rest(places, merge) for key, places in merged.items()}

    def on_part(pair):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 -- as above
        _, part = pair
        yield from work(part)

    def combine(results):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 -- as above
        return fold(results, merge)

    combined: list[tuple[Key, dict[Place, Result]]] = _run(
        parts,
        lambda lib, elements: elements | "Work" >> lib.FlatMap(on_part) | "Merge" >> lib.CombinePerKey(combine),
        beam,
        scratch,
    )
    return {key: merge_rest(places, merge) for key, places in combined}


def _stays_here(parts: Sequence[object], beam: BeamSettings) -> bool:
    return not parts or (beam == HERE and len(parts) <= MOST_PARTS_HERE)


@contextmanager
def _keep_root_logger() -> Iterator[None]:
    """Beam logs through the root logger, which would give a root without handlers one for good."""
    root, quiet = logging.getLogger(), logging.NullHandler()
    root.addHandler(quiet)
    try:
        yield
    finally:
        root.removeHandler(quiet)


def _renew_threads() -> None:
    """Beam hands work to threads that wait since earlier work; in a fork these are gone, and it would wait for ever."""
    pool = import_module("apache_beam.utils.thread_pool_executor").shared_unbounded_instance()
    threads = list(pool._workers)  # noqa: SLF001  there is no other way to them
    if threads and not any(thread.is_alive() for thread in threads):
        pool.__init__()


def _run(
    parts: Sequence[object],
    work: Callable[[ModuleType, Any], Any],  # Beam has no types
    beam: BeamSettings,
    scratch: Path,
) -> list[Any]:
    """Runs a graph over the numbered parts; returns its elements in any order."""
    check_beam(beam)
    with _keep_root_logger(), tempfile.TemporaryDirectory(dir=scratch) as folder:
        lib = import_module("apache_beam")
        options_module = import_module("apache_beam.options.pipeline_options")
        _renew_threads()
        logging.getLogger("apache_beam").setLevel(logging.WARNING)  # it logs each cache and worker that it creates
        # flags=[]: by default Beam reads the command line of this process
        options = options_module.PipelineOptions(flags=[], **beam.fill())
        runner = bare_runner(beam.runner or EMBEDDED_RUNNER)
        try:
            pipeline = lib.Pipeline(runner=runner, options=options)
        except (ValueError, ImportError) as error:
            raise ParameterError(f"Beam has no runner called {runner!r} here ({error}).") from error
        file = lay_out(lib, pipeline, parts, work, Path(folder))
        log.info("beam-job-started", extra={"runner": runner, "parts": len(parts)})
        try:
            pipeline.run().wait_until_finish()
        except Exception as error:
            if (unseen := re.search(rf"{_UNSEEN}(\S*)", str(error))) is None:
                raise
            raise ParameterError(
                f"A worker of {runner} on {unseen[1] or 'another machine'} does not see {scratch}. Workers on other "
                "machines need a root on storage that is mounted there at the same place. On this machine, "
                "environment_type = 'LOOPBACK' has the workers in the process of the node."
            ) from error
        # our own workers wrote it just now
        return cast("list[Any]", pickle.loads(file.read_bytes()))  # noqa: S301 -- see above


def lay_out(
    lib: ModuleType,
    pipeline: Any,  # Beam has no types
    parts: Sequence[object],
    work: Callable[[ModuleType, Any], Any],
    folder: Path,
) -> Path:
    """Puts the graph over the numbered parts into a pipeline of Beam; returns the file that will have its elements.

    A worker that does not see the folder fails, and says where it is.
    """
    file, project = folder / "results", Path.cwd()

    def look(part):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 -- Beam would check annotations as its own types
        if not folder.is_dir():
            raise FileNotFoundError(f"{_UNSEEN}{platform.node()}")
        if project.is_dir() and Path.cwd() != project:  # which relative paths are of
            os.chdir(project)
        return part

    def save(results):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 -- as above
        file.write_bytes(pickle.dumps(results))

    elements = pipeline | "Parts" >> lib.Create(list(enumerate(parts)))
    if len(parts) > 1:
        elements |= "Spread" >> lib.Reshuffle()  # otherwise a runner may do all parts on one worker
    elements |= "Look" >> lib.Map(look)
    together = work(lib, elements) | "Collect" >> lib.CombineGlobally(lib.combiners.ToListCombineFn())
    _ = together | "Save" >> lib.Map(save)
    return file


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
