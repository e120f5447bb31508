"""The folder of a run: what its pipeline's relative paths are of, and where it is continued."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from spanwise.orchestrator.errors import UsageError
from spanwise.orchestrator.run import go_to
from spanwise.scheduler.project.load import split
from spanwise.scheduler.project.settings import Settings


def refuse_elsewhere(
    folder: str, settings: Settings, *, who: str, source: str, words: Sequence[str], anew: str = ""
) -> None:
    """Refuses to continue what began in another folder than the current one: it has other data, and other settings.

    `who` is what began there, `words` the command that continues it, and `anew` the one that does it again where its
    folder is gone. Of runs from before folders were recorded, it is unknown.

    Raises:
        UsageError: it began in another folder.
    """
    began = f"{who} began in {folder}"
    if go := go_to(folder):
        where = ["--root", settings.place, *([] if settings.config is None else ["--config", str(settings.config)])]
        raise UsageError(
            f"{began}, and the relative paths of its pipeline are of that folder. Go there:\n"
            f"  {go}{shlex.join([*words, *where])}"
        )
    if not folder or Path(folder).is_dir():
        return
    if split(source)[0].is_file():  # otherwise that it is gone is what has to be said
        raise UsageError(
            f"{began}, which is not on this machine, and the relative paths of its pipeline are of that folder."
            f"{f' Begin anew in the one that they are of now:{chr(10)}  {anew}' if anew else ''}"
        )
