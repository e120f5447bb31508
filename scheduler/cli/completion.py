"""Shell completion: the runs, pipelines, nodes and artifacts that a word on the command line may become.

A shell asks while somebody types, so nothing here fails or prints: what cannot be read is not suggested.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, TypeVar

import typer

if TYPE_CHECKING:
    from spanwise.orchestrator.store import Store
    from spanwise.scheduler.project.settings import Settings

T = TypeVar("T")

_RUNS = 20  # of each pipeline, newest first
_WAIT_S = 1.0  # for metadata that are locked or away


def complete_pipeline(context: typer.Context, incomplete: str) -> list[str]:
    """The pipelines that have run."""
    return _matching(incomplete, _read(context, lambda store: store.pipelines()))


def complete_run(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The pipelines, which mean their newest run, and the last runs, each with its span and state."""
    return [pair for pair in _read(context, _describe_runs) if pair[0].startswith(incomplete)]


def complete_node(context: typer.Context, incomplete: str) -> list[str]:
    """The nodes of the pipeline file, or of the run, that the command line names."""
    return _matching(incomplete, _nodes(context))


def _matching(incomplete: str, names: Sequence[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _describe_runs(store: Store) -> list[tuple[str, str]]:
    from spanwise.scheduler.formatting import format_run_span

    names = store.pipelines()
    runs = (run for name in names for run in itertools.islice(store.runs(name), _RUNS))
    return [
        *((name, "its newest run") for name in names),
        *((run.name, f"{run.state.value}, span {format_run_span(run)}") for run in runs),
    ]


def _nodes(context: typer.Context) -> Sequence[str]:
    from spanwise.scheduler.inspect import find
    from spanwise.scheduler.project import load

    given = context.params
    if given.get("run"):
        return _read(context, lambda store: find.run(store, str(given["run"])).nodes)
    with _quietly():
        file = given.get("file") or context.args[0]  # behind an option without its value, arguments are not parsed
        loaded = load.load(str(file), typed=given.get("param") or (), settings=_settings(context).params)
        return loaded.pipeline.order
    return ()


def _read(context: typer.Context, ask: Callable[[Store], Sequence[T]]) -> Sequence[T]:
    from spanwise.scheduler.project import root

    with _quietly(), root.open_for_reading(_settings(context), deadline_s=_WAIT_S) as store:
        return ask(store)
    return ()


def _settings(context: typer.Context) -> Settings:
    from spanwise.scheduler.project import settings

    return settings.read(root=context.params.get("root"), config=context.params.get("config"))


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Ends the block at any error, and keeps what is printed, as by a user's module, from the shell."""
    with contextlib.suppress(Exception), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield
