"""Splits: the named parts, such as train and eval, that the examples of a span are divided into."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from spanwise.orchestrator.errors import ParameterError

_NAME = re.compile(r"[\w.-]{1,64}")  # as a path: no separator, no control character
_EXAMPLE = "HashSplit('train', 2), HashSplit('eval', 1)"


@dataclass(frozen=True)
class HashSplit:
    """A share of the rows of the one input split, picked by a hash of the row."""

    name: str
    weight: int  #: of the sum of all weights, so many parts

    def __post_init__(self) -> None:
        if self.weight < 1:
            raise ParameterError(f"split {self.name!r} has weight {self.weight}; a weight is 1 or more: {_EXAMPLE}")


def output_splits(inputs: Sequence[str], ratios: Sequence[HashSplit] | None = None) -> tuple[HashSplit, ...]:
    """How the rows are divided: by `ratios`, or by default 2:1 into train and eval when there is one input split.

    Returns nothing when the input is divided already: each input split then becomes the output split of its name.

    Raises:
        ParameterError: the ratios and the inputs do not go together.
    """
    if ratios is None:
        ratios = (HashSplit("train", 2), HashSplit("eval", 1)) if len(inputs) == 1 else ()
    split_names(inputs, ratios)
    return tuple(ratios)


def split_names(inputs: Sequence[str], ratios: Sequence[HashSplit] = ()) -> tuple[str, ...]:
    """The names of the output splits: those of `ratios`, or those of the inputs when there are none.

    Raises:
        ParameterError: no split, a name that is empty or there twice, or ratios for an input that is divided already.
    """
    if not inputs:
        raise ParameterError("there is no input split; give ExampleGen a pattern.")
    if ratios and len(inputs) > 1:
        raise ParameterError(
            f"the input is divided already, into {', '.join(inputs)}, so it cannot be divided again into "
            f"{', '.join(split.name for split in ratios)}; give one pattern, or no output splits."
        )
    _check_names(inputs)
    names = tuple(split.name for split in ratios) or tuple(inputs)
    _check_names(names)
    return names


def _check_names(names: Sequence[str]) -> None:
    for place, name in enumerate(names):
        if not name.strip():
            raise ParameterError(f"split {place + 1} of {len(names)} has no name; for example {_EXAMPLE}")
        if not _NAME.fullmatch(name):
            raise ParameterError(
                f"{name!r} cannot name a split, because its files lie in a folder of that name: use letters, digits, "
                "'_', '.' or '-'; at most 64."
            )
        if name in names[:place]:
            raise ParameterError(f"two splits are named {name!r}; give each a name of its own.")
