"""Avro schemas drawn from a seed, with values as fastavro takes them and as they stand in a schema as a default."""

import datetime as dt
import uuid
from decimal import Decimal

DAY = dt.date(1970, 1, 1)
INSTANT = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def draw_avro(random, names, depth=2):
    """A schema, a function that draws values, and one that writes a value as a default; `names` are those in use."""
    makers = [_primitive, _primitive, _primitive, _time, _time, _named]
    return random.choice(makers + [_nested] * 3 * bool(depth))(random, names, depth)


def _primitive(random, names, depth):
    kinds = {
        "boolean": ([True, False], bool),
        "int": ([0, -1, 2**31 - 1, -(2**31)], int),
        "long": ([0, 2**53 + 1, 2**63 - 1, -(2**63)], int),
        "float": ([0.0, 0.5, -1.25], float),
        "double": ([0.1, 1e300, -0.0], float),
        "string": (["", "NA", "ü", "007"], str),
        "bytes": ([b"", b"\xff\x00", b"a"], lambda value: value.decode("latin-1")),
    }
    kind = random.choice(list(kinds))
    values, default = kinds[kind]
    return kind, lambda: random.choice(values), default


def _time(random, names, depth):
    def days():
        return DAY + dt.timedelta(days=random.randrange(-700_000, 2_900_000))

    def clock():
        return dt.time(random.randrange(24), 59, 59, random.randrange(10**6))

    def instant():
        return INSTANT + dt.timedelta(seconds=random.randrange(-(10**9), 10**10), microseconds=random.randrange(10**6))

    micro = dt.timedelta(microseconds=1)
    return random.choice(
        [
            ({"type": "int", "logicalType": "date"}, days, lambda v: (v - DAY).days),
            (
                {"type": "long", "logicalType": "time-micros"},
                clock,
                lambda v: ((v.hour * 60 + v.minute) * 60 + v.second) * 10**6 + v.microsecond,
            ),
            ({"type": "long", "logicalType": "timestamp-micros"}, instant, lambda v: (v - INSTANT) // micro),
        ]
    )


def _named(random, names, depth):
    names.append(f"N{len(names)}")
    scale = random.randrange(4)
    decimal = {"logicalType": "decimal", "precision": 9, "scale": scale}
    numbers = [Decimal(number).scaleb(-scale) for number in (0, -1, 255, 10**9 - 1, -(10**9) + 1)]

    def as_bytes(value):
        return int(value.scaleb(scale)).to_bytes(5, "big", signed=True).decode("latin-1")

    return random.choice(
        [
            (decimal | {"type": "bytes"}, lambda: random.choice(numbers), as_bytes),
            (decimal | {"type": "fixed", "name": names[-1], "size": 5}, lambda: random.choice(numbers), as_bytes),
            (
                {"type": "fixed", "name": names[-1], "size": 3},
                lambda: random.randbytes(3),
                lambda v: v.decode("latin-1"),
            ),
            ({"type": "string", "logicalType": "uuid"}, lambda: uuid.UUID(int=random.getrandbits(128)), str),
            ({"type": "enum", "name": names[-1], "symbols": ["A", "B"]}, lambda: random.choice("AB"), str),
        ]
    )


def _nested(random, names, depth):
    names.append(name := f"N{len(names)}")
    schema, draw, default = draw_avro(random, names, depth - 1)
    return random.choice(
        [
            (
                {"type": "array", "items": schema},
                lambda: [draw() for _ in range(random.randrange(3))],
                lambda v: [default(each) for each in v],
            ),
            (
                {"type": "map", "values": schema},
                lambda: {key: draw() for key in random.sample("abc", random.randrange(3))},
                lambda v: {k: default(each) for k, each in v.items()},
            ),
            (
                {"type": "record", "name": name, "fields": [{"name": "x", "type": schema}]},
                lambda: {"x": draw()},
                lambda v: {"x": default(v["x"])},
            ),
        ]
    )
