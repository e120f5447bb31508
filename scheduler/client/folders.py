"""Folders of commands: a client starts what continues a run, or repeats one, in the folder where that began.

A client may be anywhere: a notebook in the home folder, the server of a page where a service manager has put it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.errors import NotRecorded, UsageError
from spanwise.orchestrator.run import Run, State, go_to
from spanwise.orchestrator.serving import channel_of
from spanwise.orchestrator.store import Store
from spanwise.scheduler.inspect import find
from spanwise.scheduler.project.load import split

_OF_FILES = ("run", "backfill", "accept", "refuse", "schedule")


def locate(store: Store, words: Sequence[str], root: Path) -> tuple[Path | None, list[str]]:
    """The folder in which a command is typed, and its words there; None is the current one, also where nothing began.

    Its last word is what it is about: a run, a model, a pipeline, or its file.
    """
    subject = words[-1]
    path, name = split(subject)
    run: Run | None = None
    try:
        if words[0] == "resume":
            run = find.run(store, subject)
        elif words[0] == "push":
            pipeline, model, subject = _find_pushed(store, subject, root)
            run = _find_pushing(store, pipeline, model, words)
        elif words[0] in _OF_FILES and path.is_file():
            run = _find_complete(store, path)
            subject = _anywhere(path, name)
    except (NotRecorded, UsageError):  # the command says so itself
        run = None
    if run is None or not go_to(run.folder):
        return None, list(words)
    return Path(run.folder), [*words[:-1], subject]


def _find_pushed(store: Store, subject: str, root: Path) -> tuple[str, Artifact | None, str]:
    """The pipeline, the model that is pushed, None for the champion, and the subject as it is typed in any folder."""
    if subject in store.pipelines():
        return subject, None, subject
    path, name = split(subject)
    if path.is_file() and (run := _find_complete(store, path)) is not None:
        return run.pipeline, None, _anywhere(path, name)
    model = find.artifact(store, subject, root)
    return channel_of(model.name).split("/")[0], model, model.name


def _find_pushing(store: Store, pipeline: str, model: Artifact | None, words: Sequence[str]) -> Run:
    from spanwise.scheduler.run.models import find_pushing_run

    node = next((word.removeprefix("--node=") for word in words if word.startswith("--node=")), None)
    return find_pushing_run(store, pipeline, model=model, node=node)


def _anywhere(path: Path, name: str) -> str:
    """A pipeline file, and the name in it, as it is typed in any folder."""
    return f"{path.absolute()}:{name}" if name else str(path.absolute())


def _find_complete(store: Store, file: Path) -> Run | None:
    """The newest complete run of a file, of whichever pipeline in it; one that began in a wrong folder has failed."""
    found: list[Run] = []
    for pipeline in store.pipelines():
        recent = (run for run in itertools.islice(store.runs(pipeline), find.LOOK_BACK) if run.source)
        own = itertools.takewhile(lambda run: _is_same(split(run.source)[0], file), recent)
        found += itertools.islice((run for run in own if run.state is State.COMPLETE), 1)
    return max(found, key=lambda run: run.started or datetime.min.replace(tzinfo=UTC), default=None)


def _is_same(source: Path, file: Path) -> bool:
    try:
        return source.samefile(file)
    except OSError:
        return False
