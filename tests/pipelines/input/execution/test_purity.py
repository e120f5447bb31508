"""Which functions may be called side by side."""

import functools
import json
import math
import operator
import random
import re
import time
import zlib
from json import loads

import numpy as np
import pyarrow.compute as pc
import pytest

from spanwise.pipelines.input.execution.purity import stateless

SCALE = 3
DIGITS = re.compile("[0-9]")
SEEN = []
WEIGHTS = np.arange(3)
DRAW = np.random.default_rng(1)


def helper(value):
    return value * SCALE


def counter():
    count = 0

    def function(value):
        nonlocal count
        count += 1
        return value

    return function


def writes_global(value):
    global SCALE  # noqa: PLW0603
    SCALE = value


def writes_attribute(value):
    value.name = 3
    return value


def sorts(value):
    WEIGHTS.sort()
    return value


def adds(value):
    weights = WEIGHTS
    weights += value
    return weights


def into(value):
    return np.add(value, 1, out=WEIGHTS)


def imports(value):
    from math import log1p

    return log1p(value)


def imports_clock(value):
    from time import monotonic

    return value + monotonic()


def local_names(value):
    found = {}
    found["a"] = [each + 1 for each in value]
    return found


@pytest.mark.parametrize(
    "function",
    [
        lambda value: value + 1,
        lambda value: helper(value) + math.sin(value),
        lambda value: json.loads(zlib.decompress(value)),
        lambda value: loads(value)["fare"],
        lambda value: DIGITS.sub("", value) + re.escape(value),
        lambda columns: {"a": np.log1p(columns["a"]) * WEIGHTS},
        lambda batch: pc.add(batch["a"], 1),
        functools.partial(operator.add, 3),
        np.log1p,
        local_names,
        imports,
        len,
    ],
)
def test_these_depend_on_their_arguments_alone(function):
    """Arithmetic, NumPy, Arrow, and functions of these."""
    assert stateless(function)


@pytest.mark.parametrize(
    "function",
    [
        lambda value: SEEN.append(value) or value,
        lambda value: random.random(),
        lambda value: np.random.default_rng().random(),
        lambda value: DRAW.random(),
        lambda value: time.sleep(value) or value,
        lambda value: input(value) or value,
        lambda value: setattr(value, "name", 3),
        counter(),
        writes_global,
        writes_attribute,
        sorts,
        adds,
        into,
        imports_clock,
        functools.partial(map, SEEN.append),
        random.random,
        SEEN.append,
    ],
)
def test_these_keep_change_or_draw_something(function):
    """Lists, randomness, clocks, files, names around the function; and what nobody can tell."""
    assert not stateless(function)
