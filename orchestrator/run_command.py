"""Run commands: the `spanwise run` that a message prints for what was asked for. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.run import Run, format_source, go_to
from spanwise.orchestrator.run_request import RunRequest


def format_run_command(
    asked: Run | RunRequest,
    pipeline: str,
    *,
    first: Iterable[str] = (),
    last: Iterable[str] = (),
    base: int | None = None,
) -> str:
    """The command that runs a pipeline, or a part of it, with the spans and arguments that were asked for.

    It goes to the folder of a run first, where that is not the current one.
    """
    folder = asked.folder if isinstance(asked, Run) else ""
    go = go_to(folder)
    words = ["spanwise", "run", format_source(asked.source, folder if go else ".") or f"{pipeline}.py"]
    words += [w for span in list_spans(asked) for w in ("--span", span)]
    words += [w for node in first for w in ("--from", node)]
    words += [w for node in last for w in ("--to", node)]
    words += [w for typed in asked.typed for w in ("--param", typed)]
    words += [w for excluded in asked.exclude for w in ("--exclude", excluded)]
    if moment := format_replayed(asked):
        words += ["--as-of", moment]
    if base is not None:
        words += ["--base-run", str(base)]
    return go + shlex.join(words)


def list_spans(asked: Run | RunRequest) -> list[str]:
    """The spans that were asked for, each as `--span` takes it."""
    if asked.spans:
        return [f"{node}={label}" for node, label in asked.spans.items()]
    return [] if asked.span is None else [Calendar.from_name(asked.calendar).label(asked.span)]


def format_replayed(asked: Run | RunRequest) -> str:
    """The moment that a replay repeats, as `--as-of` takes it; empty for other runs.

    Parallel runs of a backfill have a time too, and are no replays.
    """
    return asked.as_of.isoformat() if asked.replay and asked.as_of is not None else ""
