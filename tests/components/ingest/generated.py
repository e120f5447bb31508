"""Tables of every Arrow type that a file may have, with nasty values, drawn from a seed."""

import datetime as dt
import math
import string
from decimal import Decimal

import pyarrow as pa

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
_TEXTS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
_VIEWS = [pa.string_view(), pa.binary_view()]
_BYTES = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3), pa.binary(16)]
_TIMES = [
    pa.date32(),
    pa.date64(),
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Asia/Kolkata")),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    pa.time32("s"),
    pa.time32("ms"),
    pa.time64("us"),
    pa.time64("ns"),
]
_ODD_TEXTS = ["", "NA", "null", "NaN", "007", "0x10", "ü\u0000\U0001f600", " a ", "1e5", "\n", '"', "2024-01-01"]


def draw_type(random, depth=2):
    """A type; nested ones hold up to `depth` levels."""
    kind = random.choice(["plain"] * 6 + (["list", "fixed", "large", "view", "struct", "map"] if depth else []))
    if kind == "plain":
        digits = random.choice([1, 5, 9, 18, 19, 38, 39, 76])
        decimal = pa.decimal128 if digits <= 38 else pa.decimal256
        floats = [pa.float16(), pa.float32(), pa.float64()]
        plain = [pa.bool_(), pa.null(), decimal(digits, random.randrange(digits + 1))]
        type_ = random.choice(random.choice([_INTEGERS, floats, _TEXTS, _BYTES, _TIMES, plain]))
        # pyarrow itself writes slices of these wrongly when they are nested
        nested = depth < 2 and (type_ in (*_VIEWS, pa.null()) or pa.types.is_dictionary(type_))
        return draw_type(random, depth) if nested else type_
    if kind == "struct":
        names = random.sample(["a", "b", "c: d", "é"], random.choice([1, 2]))
        return pa.struct([(name, draw_type(random, depth - 1)) for name in names])
    if kind == "map":
        return pa.map_(random.choice([pa.string(), pa.int32()]), draw_type(random, depth - 1))
    inner = draw_type(random, depth - 1)
    if kind == "view" and depth == 2:  # inside other values they are refused
        return pa.list_view(inner)
    if kind == "fixed":
        return pa.list_(inner, random.choice([1, 2]))
    return pa.large_list(inner) if kind == "large" else pa.list_(pa.field(random.choice(["item", "e"]), inner))


def draw_value(random, type_, nulls=0.2):  # noqa: C901, PLR0911  one case a kind of type
    """A value as `store_value` takes it: whole numbers for times, or None."""
    types = pa.types
    if types.is_null(type_) or random.random() < nulls:
        return None
    if types.is_dictionary(type_):
        return draw_value(random, type_.value_type, 0)
    if types.is_boolean(type_):
        return random.random() < 0.5
    if types.is_integer(type_):
        low, high = (0, 2**type_.bit_width) if str(type_)[0] == "u" else (-(2 ** (type_.bit_width - 1)),) * 2
        high = high if low == 0 else -low
        return random.choice([low, high - 1, 0, 1, random.randrange(low, high)])
    if types.is_floating(type_):
        few = [0.0, -0.0, 1.0, 0.5, -2.0, math.inf, -math.inf, math.nan]
        return random.choice(
            [*few, random.randrange(-2000, 2000) / 16, *([1e300, 0.1] if type_ == pa.float64() else [])]
        )
    if types.is_decimal(type_):
        number = random.randrange(-(10**type_.precision) + 1, 10**type_.precision)
        return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -type_.scale))
    if types.is_map(type_):
        keys = {draw_value(random, type_.key_type, 0) for _ in range(random.randrange(3))}
        return [(key, draw_value(random, type_.item_type, nulls)) for key in sorted(keys)]
    if types.is_struct(type_):
        return {field.name: draw_value(random, field.type, nulls) for field in type_}
    if types.is_nested(type_):
        length = type_.list_size if types.is_fixed_size_list(type_) else random.randrange(3)
        return [draw_value(random, type_.value_type, nulls) for _ in range(length)]
    if type_ in _TEXTS:
        return random.choice([*_ODD_TEXTS, "".join(random.choices(string.printable, k=5))])
    if types.is_fixed_size_binary(type_):
        return random.randbytes(type_.byte_width)
    if type_ in _BYTES:
        return random.choice([b"", b"\xff\x00", random.randbytes(5)])
    return _draw_time(random, type_)


def _draw_time(random, type_):
    """A whole number in the unit of the type, of the years 1 to 9999 or as far as nanoseconds go."""
    if type_ == pa.date32():
        return random.choice([0, -719162, 2932896, random.randrange(-719162, 2932897)])
    day = 86_400
    if type_ == pa.date64():
        return random.randrange(-1000, 20_000) * day * 1000
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[type_.unit]
    if pa.types.is_time(type_):
        return random.choice([0, day * per_second - 1, random.randrange(day * per_second)])
    longest = 9 * 10**9 if type_.unit == "ns" else 50 * 10**9
    return random.choice([0, -1, 1, random.randrange(-longest, longest) * per_second + random.randrange(per_second)])


def draw_table(random, rows=None, columns=None, draw=draw_type):
    """A table of one to three columns, and the values that it was made of."""
    rows = random.choice([1, 2, 5, 9]) if rows is None else rows
    made, values = {}, {}
    for number in range(random.choice([1, 2, 3]) if columns is None else columns):
        type_ = draw(random)
        values[f"c{number}"] = [draw_value(random, type_) for _ in range(rows)]
        made[f"c{number}"] = build(values[f"c{number}"], type_)
    return pa.table(made), values


def build(values, type_):
    """An array of these values; what `pa.array` has no converter for is cast, where that is right."""
    if pa.types.is_dictionary(type_):
        return pa.array(values, type_.value_type).dictionary_encode()
    return pa.array(values, type_)


def canonical_value(value, type_):  # noqa: PLR0911  one case a kind of type
    """A value as it compares: NaN equal to itself, -0.0 not to 0.0, times as whole nanoseconds, whatever their unit."""
    types = pa.types
    if value is None:
        return None
    if types.is_dictionary(type_):
        return canonical_value(value, type_.value_type)
    if types.is_floating(type_):
        return repr(float(value))
    if types.is_map(type_):
        return [(canonical_value(k, type_.key_type), canonical_value(v, type_.item_type)) for k, v in value]
    if types.is_struct(type_):
        return {field.name: canonical_value(value[field.name], field.type) for field in type_}
    if types.is_nested(type_):
        return [canonical_value(each, type_.value_type) for each in value]
    if types.is_temporal(type_):
        days = {pa.date32(): 86_400 * 10**9, pa.date64(): 10**6}
        return value * (days.get(type_) or {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[type_.unit])
    return value


def raw_values(array):
    """The values of an array as `draw_value` gives them."""
    if isinstance(array, pa.ChunkedArray):
        return [value for chunk in array.chunks for value in raw_values(chunk)]
    return [raw_value(scalar) for scalar in array]


def raw_value(scalar):
    types, kind = pa.types, scalar.type
    if not scalar.is_valid:
        return None
    if types.is_map(kind):
        return [(raw_value(e["key"]), raw_value(e["value"])) for e in scalar.values]
    if types.is_struct(kind):
        return {field.name: raw_value(scalar[field.name]) for field in kind}
    if types.is_nested(kind):
        return [raw_value(each) for each in scalar.values]
    if types.is_date(kind) or types.is_timestamp(kind) or types.is_time(kind) or types.is_duration(kind):
        return scalar.value
    return scalar.as_py()


def has_missing_fixed_list(value, type_):
    """Whether a list is missing where all lists have one length."""
    types = pa.types
    if types.is_fixed_size_list(type_):
        return value is None or any(has_missing_fixed_list(each, type_.value_type) for each in value)
    if types.is_struct(type_):
        return any(has_missing_fixed_list(None if value is None else value[f.name], f.type) for f in type_)
    if value is None or not types.is_nested(type_):
        return False
    if types.is_map(type_):
        return any(has_missing_fixed_list(item, type_.item_type) for _, item in value)
    return any(has_missing_fixed_list(each, type_.value_type) for each in value)
