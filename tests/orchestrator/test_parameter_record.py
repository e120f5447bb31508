"""Records of parameters: what the metadata says of one, and whether two records say the same."""

from dataclasses import dataclass
from enum import Enum
from functools import partial

import pytest

from spanwise.orchestrator.parameter_record import encode_parameter, is_same_parameter


def decide():
    """A function among parameters."""


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int


class Cost:
    def __init__(self, alarm, costs=()):
        self.alarm = alarm
        self.costs = costs


@pytest.mark.parametrize(
    ("value", "text"),
    [(3, "3"), ("ä", '"ä"'), ((1, 2), "[1,2]"), ({2, 1}, "[1,2]"), (Colour.RED, '"red"'), (Point(1), '{"x":1}'),
     (decide, f'"{__name__}:decide"'), ({"b": 1, "a": 2}, '{"b":1,"a":2}'), (None, "null"),
     ({("b", 1): Point(1), "a": 2}, '[[["b",1],{"x":1}],["a",2]]'), ({1: 1, "1": 2}, '[[1,1],["1",2]]'),
     ({"by": {None: {3, 1}, 0: (Colour.RED,)}}, '{"by":[[null,[1,3]],[0,["red"]]]}')],
)  # fmt: skip
def test_parameters_are_recorded_as_json(value, text):
    """Functions by name, records by their fields, sets sorted, dicts in their order, those whose keys JSON does not take as pairs."""
    assert encode_parameter(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(["auc", Cost(alarm=3.0, costs=[1])], f'["auc","{__name__}:Cost(alarm=3.0)"]'),
     (object(), '"builtins:object()"'),
     (partial(decide, 3), '"functools.partial(<function decide>, 3)"'),
     ({(1, 2): Cost(alarm="a password")}, f'[[[1,2],"{__name__}:Cost()"]]')],
)  # fmt: skip
def test_a_parameter_is_recorded_without_its_place_in_memory(value, text):
    """Two runs with the same objects have the same parameters on record, and other values in an object are seen."""
    assert encode_parameter(value) == text


@pytest.mark.parametrize(
    ("former", "value"),
    [('{"a": 2, "b": [1, 2]}', {"b": [1, 2], "a": 2}), ("3", 3), ('"a, b"', "a, b"), ('{"1": 2, "10": 3}', {10: 3, 1: 2}),
     ('[["1", 2], [1, {"x": 1}]]', {1: Point(1), "1": 2}), ('[[[1, 2], "a"], [[1, 3], "b"]]', {(1, 3): "b", (1, 2): "a"})],
)  # fmt: skip
def test_a_record_of_an_earlier_version_is_of_the_same_value(former, value):
    """It had sorted keys, and does not say in which order they were."""
    assert is_same_parameter(former, encode_parameter(value))


@pytest.mark.parametrize(
    ("one", "other"),
    [('{"a": 2, "b": 1}', {"b": 2, "a": 1}), ("[1, 2]", [2, 1]), ("[1, 2]", [1.0, 2]), ("1", True),
     (encode_parameter({"a": 1, "b": 2}), {"b": 2, "a": 1}), (None, None)],
)  # fmt: skip
def test_records_of_different_values_differ(one, other):
    """The order of lists counts in all records, that of dicts in new ones; a value differs from none."""
    assert not is_same_parameter(one, encode_parameter(other))
