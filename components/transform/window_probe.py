"""Probing a window: what calls functions of Python, which cannot be read, is tried on rows that differ."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

import polars as pl

from spanwise.components.transform.graph import feature_label
from spanwise.components.transform.row_wise import calls_python, probe
from spanwise.components.transform.window_plan import TransformWindow, count_row_groups
from spanwise.components.transform.worker import FilePiece, Place, read_groups

log = logging.getLogger("spanwise.transform")

PROBED_ALONE = 16
"""So many different rows are computed both together and each by itself."""

_LOOKED_AT = 1_000
"""Among so many rows of a file there are mostly different ones; if not, its whole first row group is searched."""


def probe_functions(
    window: TransformWindow, named: Mapping[str, pl.Expr], label: Callable[[str], str] = feature_label
) -> None:
    """Tries each expression with a function of Python on the newest span that has different rows for it.

    Where there are none, as in a window of one row, it warns.

    Raises:
        PreprocessingError: a row has another value among others than by itself; or an expression fails.
        UnreadableInput: a file is missing or damaged.
    """
    left = _group_by_columns({name: each for name, each in named.items() if calls_python(each)})
    for piece in _list_pieces(window) if left else ():
        columns = sorted({column for columns in left for column in columns})
        for frame in read_groups(piece, columns, window.types):
            for columns_read, expressions in list(left.items()):
                rows = _choose_different(frame.select(columns_read))
                if len(rows) > 1:
                    # a row by itself is computed as two rows: among as many, it would not show what counts them
                    probe(expressions, pl.concat([rows, rows]), [*rows.iter_slices(1)], label)
                    del left[columns_read]
        if not left:
            return
    if left:
        names = [label(name) for expressions in left.values() for name in expressions]
        reason = "no span of the window has two different rows for it in the first row group of a file"
        log.warning("functions-not-probed", extra={"of": names, "reason": reason})


def _group_by_columns(named: Mapping[str, pl.Expr]) -> dict[tuple[str, ...], dict[str, pl.Expr]]:
    """The expressions by the columns that they are made of; one of none is the same in every row."""
    found: dict[tuple[str, ...], dict[str, pl.Expr]] = {}
    for name, each in named.items():
        if roots := tuple(sorted(set(each.meta.root_names()))):
            found.setdefault(roots, {})[name] = each
    return found


def _list_pieces(window: TransformWindow) -> Iterator[FilePiece]:
    """The first row group of each file, those of the newest span first."""
    plan = window.plan
    for number in reversed(range(len(plan.examples))):
        for split in dict.fromkeys((*plan.analyze, *plan.transform)):
            place: Place = (number, split)
            for path in window.files(place):
                if count_row_groups(path):
                    yield FilePiece(place, str(path), (0,))


def _choose_different(frame: pl.DataFrame) -> pl.DataFrame:
    """Up to `PROBED_ALONE` rows of which no two are the same."""
    found = frame.head(_LOOKED_AT).unique(maintain_order=True)
    if len(found) == 1 and len(frame) > _LOOKED_AT:
        found = frame.unique(maintain_order=True)
    return found.head(PROBED_ALONE)
