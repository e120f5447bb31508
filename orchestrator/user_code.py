"""User code: which modules are ours and which are the user's."""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).parents[1]  #: as it was found: in a checkout its folders are links
_EXAMPLES = "spanwise.pipelines"
_INPUT = "spanwise.pipelines.input"


def is_ours(module: str) -> bool:
    """Whether a module is part of spanwise. The worked examples in `pipelines/` count as a user's."""
    if _within(module, _EXAMPLES):
        return module == _EXAMPLES or _within(module, _INPUT)
    return _within(module, "spanwise")


def our_module(file: Path) -> str | None:
    """The name under which a file of ours is imported, whichever way its path leads there; None if it is not ours."""
    file = Path(os.path.realpath(file))
    for folder in (PACKAGE, *(each for each in PACKAGE.iterdir() if each.is_dir())):
        real = Path(os.path.realpath(folder))
        if file.is_relative_to(real) and file.suffix == ".py":
            parts = ["spanwise", *folder.relative_to(PACKAGE).parts, *file.relative_to(real).with_suffix("").parts]
            return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return None


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")
