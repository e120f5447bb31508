"""Local paths: refuses a URL where only a path of this machine works, instead of making a folder called `s3:`."""

from __future__ import annotations

import re
from pathlib import Path

from spanwise.orchestrator.errors import ParameterError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/+(?P<rest>.*)", re.DOTALL)  # `Path` leaves one slash of two


def refuse_url(who: str, place: str | Path) -> None:
    """Refuses a place that is a URL.

    Raises:
        ParameterError: it is one; the message begins with `who` and says what to give instead.
    """
    found = _URL.fullmatch(str(place))
    if found is None:
        return
    scheme = str(place).partition(":")[0].lower()
    instead = f"Give /{found['rest'].lstrip('/')}" if scheme == "file" else "Mount that storage, and give the path"
    raise ParameterError(f"{who} is {str(place)!r}, a URL, but only paths of this machine work here. {instead}.")
