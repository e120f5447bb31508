"""tf.Example and tf.SequenceExample, one record at a time: whatever form of a message the wire format allows.

A SequenceExample is an Example, whose features are its context, with feature lists [2] beside them: a map of a key [1]
and a list [2] of features [1], one a step.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

BYTES, FLOATS, INTS = 1, 2, 3  # the fields of Feature
KINDS = (BYTES, FLOATS, INTS)
MORE = 0x80  # the bit of a byte that says that the number goes on
VARINT_BYTES = 10

Value: TypeAlias = "tuple[int, list[bytes] | list[float] | list[int]]"


class NotAnExample(Exception):
    """The bytes are no tf.Example."""


def parse_example(data: bytes) -> dict[str, Value]:
    """Kind and values of each feature of one serialized record.

    Raises:
        NotAnExample: the bytes are no tf.Example.
    """
    example: dict[str, Value] = {}
    for number, features_ in _fields(data):
        for inner, entry in _fields(features_) if number == 1 and isinstance(features_, bytes) else ():
            if inner == 1 and isinstance(entry, bytes):
                name, value = b"", b""
                for field, content in _fields(entry):
                    if isinstance(content, bytes) and field in (1, 2):
                        # the pieces of a message are merged, which is the same as reading them after one another
                        name, value = (content, value) if field == 1 else (name, value + content)
                example[name.decode()] = _parse_feature(value)
    return example


def parse_sequences(data: bytes) -> dict[str, list[Value]]:
    """The features of each step of each feature list of one serialized record.

    Raises:
        NotAnExample: the bytes are no tf.SequenceExample.
    """
    sequences: dict[str, list[Value]] = {}
    for number, lists in _fields(data):
        for inner, entry in _fields(lists) if number == 2 and isinstance(lists, bytes) else ():  # noqa: PLR2004
            if inner == 1 and isinstance(entry, bytes):
                name, value = b"", b""
                for field, content in _fields(entry):
                    if isinstance(content, bytes) and field in (1, 2):
                        name, value = (content, value) if field == 1 else (name, value + content)
                steps = [step for field, step in _fields(value) if field == 1 and isinstance(step, bytes)]
                sequences[name.decode()] = [_parse_feature(step) for step in steps]
    return sequences


def _parse_feature(data: bytes) -> Value:
    kind = 0
    content = b""
    for number, value in _fields(data):
        if number in KINDS and isinstance(value, bytes):
            content = content + value if number == kind else value
            kind = number
    values: list[Any] = []
    for number, value in _fields(content, floats=kind == FLOATS):
        if number == 1:
            values += _parse_values(kind, value)
    return kind, values


def _parse_values(kind: int, value: bytes | float) -> list[Any]:
    """The values; none if they are encoded as those of another kind, which counts as unknown."""
    if kind == BYTES:
        return [value] if isinstance(value, bytes) else []
    if kind == FLOATS and isinstance(value, bytes):
        if len(value) % 4:
            raise NotAnExample
        return list(np.frombuffer(value, "<f4").tolist())
    if kind == FLOATS:
        return [value] if isinstance(value, float) else []
    if isinstance(value, bytes):
        numbers, at = [], 0
        while at < len(value):
            number, at = _varint(value, at)
            numbers.append(_signed(number))
        return numbers
    return [_signed(value)] if isinstance(value, int) else []


def _fields(data: bytes, *, floats: bool = False) -> list[tuple[int, bytes | int | float]]:
    """Number and content of each field of a message; of a fixed-size number only if it is a float."""
    fields: list[tuple[int, bytes | int | float]] = []
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise NotAnExample
        if wire == 0:
            value, at = _varint(data, at)
            fields.append((number, value))
        elif wire == 2:  # noqa: PLR2004 -- a length follows
            size, at = _varint(data, at)
            fields.append((number, data[at : at + size]))
            at += size
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            if floats and wire == 5:  # noqa: PLR2004 -- four bytes
                fields.append((number, float(np.frombuffer(data[at : at + size].ljust(4, b"\0"), "<f4")[0])))
            at += size
        else:
            raise NotAnExample
        if at > len(data):
            raise NotAnExample
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(VARINT_BYTES):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << (7 * place)
        if byte < MORE:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise NotAnExample


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
