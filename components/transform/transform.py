"""Transform: applies a user's preprocessing to every span of a window, with what it learned from all of them."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from spanwise.orchestrator.artifact import Examples, TransformCache, TransformGraph
from spanwise.orchestrator.beam_settings import BEAM_PARAMETERS, BeamOptions, check_given, choose_beam
from spanwise.orchestrator.collection import COLLECTED
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import NodeFailed, ParameterError, SpanwiseError
from spanwise.orchestrator.history import History
from spanwise.orchestrator.integrity import find_damage
from spanwise.orchestrator.logs import log_to_stderr
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.signature import Attempt, Input, Output, Outputs

if TYPE_CHECKING:
    from spanwise.components.transform.window_plan import TransformPlan, TransformReport

log = logging.getLogger("spanwise.transform")

LOOKED_AT = 5
"""So many earlier caches are looked at: the newest one, and those before it for windows that others came between."""


class Transform(Component):
    """Makes features of the examples of a window: one graph for all spans, and transformed examples for each span.

        def preprocess(columns: Columns) -> dict[str, pl.Expr]:
            return {
                "distance": scale_to_z_score(columns["distance"]),
                "carrier": vocabulary(columns["carrier"], top_k=100),
                "late": (columns["arr_delay"] > 15).cast(pl.Int8),
            }

        transform = Transform(examples=recent["examples"], preprocessing_fn=preprocess)

    The analyzers see the splits `analyze` of every span, and the splits `transform` (all, unless named) are
    transformed. `Preprocessor.load(graph.uri)` applies the graph anywhere, without any of our other packages.

    The examples carry the digest of the graph, so that no model is judged on the features of another one's graph.

    What was accumulated over a span is kept in the output `cache` and found again by later runs of this node, so that
    a window with one new span reads one span in its analysis. The keeping changes how fast a run is, not its result.

    `beam_runner` and `beam_options` send the work to a Beam cluster that sees the same storage.
    """

    preload: ClassVar = (
        "polars",  # importing it starts no thread of its pool, which a fork would lose
        "spanwise.components.beam",
        "spanwise.components.polars_pool",
        "spanwise.components.transform.graph_digest",
        "spanwise.components.transform.window_transform",
    )
    prepared: ClassVar = ("earlier",)
    hints: ClassVar = ("earlier", *BEAM_PARAMETERS)
    libraries: ClassVar = ("numpy", "polars", "pyarrow")

    def check(self) -> None:
        given: dict[str, object] = dict(self.parameters)
        chosen_splits([], _names(given["analyze"]), _names(given["transform"]))
        _source(self.name, given["preprocessing_fn"])
        check_given(self.name, given)

    def prepare(self, run: Run, history: Callable[[str], History]) -> Mapping[str, object]:  # noqa: ARG002
        published = history("cache")
        caches = list(islice(published.newest(), LOOKED_AT))
        collected = published.store.find_claims(COLLECTED, [each.name for each in caches])
        there = [each for each in caches if each.name not in collected]
        return {"earlier": [{"name": each.name, "uri": each.uri, "content": each.content} for each in there]}

    def run(
        self,
        *,
        attempt: Attempt,
        examples: Input[list[Examples]],
        examples_: Outputs[Examples],
        graph: Output[TransformGraph],
        cache: Output[TransformCache],
        earlier: Sequence[Mapping[str, str]],
        preprocessing_fn: Callable[..., object],
        analyze: Sequence[str] = ("train",),
        transform: Sequence[str] | None = None,
        beam_runner: str | None = None,
        beam_options: BeamOptions | None = None,
    ) -> None:
        from spanwise.components.transform.graph_digest import digest_of
        from spanwise.components.transform.window_plan import TransformPlan

        _refuse_features(self.name, examples)
        window = tuple(sorted(examples, key=lambda each: each.span))  # stable: one span keeps the order it came in
        chosen = chosen_splits([each.split_names for each in window], _names(analyze), _names(transform))
        made = [examples_.new() for _ in window] if chosen.transform else []
        function, source = _source(self.name, preprocessing_fn)
        plan = TransformPlan(
            examples=window,
            source=source,
            function=function,
            analyze=chosen.analyze,
            transform=chosen.transform,
            graph=str(graph.path),
            cache=str(cache.path),
            destinations=tuple(str(draft.path) for draft in made),
            earlier=tuple(each["uri"] for each in earlier if _is_whole(each)),
            scratch=str(attempt.scratch),
            beam=choose_beam(attempt.run, beam_runner, beam_options),
        )
        report = _report(plan)
        digest = digest_of(graph.path)
        for draft, given, counted in zip(made, window, report.rows, strict=False):
            draft.span = given.span
            draft.version = given.version
            draft.split_names = list(chosen.transform)
            draft.rows = counted
            draft.columns = dict(report.columns)
            draft.calendar = given.calendar
            draft.graph_digest = digest


@dataclass(frozen=True, kw_only=True)
class ChosenSplits:
    """Which splits are for what."""

    analyze: tuple[str, ...]  #: the analyzers see their rows
    transform: tuple[str, ...]  #: they are transformed


def chosen_splits(
    given: Sequence[Sequence[str]], analyze: Sequence[str] | None, transform: Sequence[str] | None
) -> ChosenSplits:
    """What to analyze and to transform, of inputs with these splits: `train` and all of them, unless chosen.

    Raises:
        ParameterError: nothing is to be analyzed, the inputs have different splits, or lack one that was chosen.
    """
    if analyze is not None and not analyze:
        raise ParameterError("analyze names no split; the analyzers must see some rows: analyze=('train',).")
    analyzed = tuple(dict.fromkeys(("train",) if analyze is None else analyze))
    there = tuple(given[0]) if given else ()
    for splits in given[1:]:
        if set(splits) != set(there):
            raise ParameterError(
                f"all spans of a window must have the same splits; one has {', '.join(there)} and another "
                f"{', '.join(splits)}. Ingest them again with the same ratios or patterns."
            )
    transformed = there if transform is None else tuple(dict.fromkeys(transform))
    for name in (*analyzed, *transformed):
        if given and name not in there:
            raise ParameterError(
                f"the examples have no split {name!r}; they have: {', '.join(there)}. "
                "Choose with analyze=(…,) and transform=(…,)."
            )
    return ChosenSplits(analyze=analyzed, transform=transformed)


def _refuse_features(node: str, window: Sequence[Examples]) -> None:
    for each in window:
        if each.graph_digest is not None:
            raise ParameterError(
                f"{node} reads {each.name}, which a transform graph has made already, and a model is served with one "
                "graph. Put both into one preprocessing_fn, and connect the examples that the first Transform reads."
            )


def _is_whole(cache: Mapping[str, str]) -> bool:
    """Whether a cache of an earlier run is as it was published; a damaged one is left out, which costs time only."""
    damage = find_damage(TransformCache(cache["uri"], name=cache["name"], content=cache["content"]))
    if damage is not None:
        log.warning("cache-skipped", extra={"cache": cache["name"], "reason": damage.found})
    return damage is None


def _names(given: object) -> tuple[str, ...] | None:
    return None if given is None else tuple(cast("Sequence[str]", given))


def _source(node: str, function: object) -> tuple[str, str]:
    """The name of the preprocessing function, and the source of a module that defines it."""
    from spanwise.components.transform.analyzers import PreprocessingError
    from spanwise.components.transform.standalone import extract_source

    try:
        source = extract_source(cast("Callable[..., object]", function))
    except PreprocessingError as error:
        raise ParameterError(f"{node}: the graph is to keep preprocessing_fn as source. {error}") from error
    return cast("Callable[..., object]", function).__name__, source


def _report(plan: TransformPlan) -> TransformReport:
    """Transforms the window: here, or in a fresh process if Polars did not survive the forks on the way here."""
    from spanwise.components import polars_pool

    if polars_pool.is_usable():
        from spanwise.components.transform.window_transform import transform_window

        return transform_window(plan)
    folder = Path(plan.scratch)
    folder.mkdir(parents=True, exist_ok=True)
    asked, answered = folder / "plan", folder / "report"
    asked.write_bytes(pickle.dumps(plan))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run(
        [sys.executable, "-m", "spanwise.components.transform.transform", str(asked), str(answered)],
        env=environment,
        check=False,
    )
    with contextlib.suppress(FileNotFoundError):
        found = pickle.loads(answered.read_bytes())  # noqa: S301  our own child wrote it just now
        if isinstance(found, SpanwiseError):
            raise found
        return cast("TransformReport", found)
    raise NodeFailed("the process that transforms the window died (out of memory?); its last output is in the log.")


def main(asked: str, answered: str) -> None:
    """What the fresh process does."""
    log_to_stderr()
    from spanwise.components.transform.window_transform import transform_window

    found: object
    try:
        found = transform_window(pickle.loads(Path(asked).read_bytes()))  # noqa: S301  our parent wrote it just now
    except SpanwiseError as error:
        found = error
    Path(answered).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
