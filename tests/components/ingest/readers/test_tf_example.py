"""tf.Example: many records are parsed at once to what the protobuf library reads in each."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from spanwise.pipelines.input.readers.tf_example import MixedNumbers, Records, read_features
from tests.components.tf_example import Example, parsed, serialized, sets_aside

NAMES = st.sampled_from(["", "a", "b", "longer_name", "longer_nome", "a name of more than sixteen bytes", "ü"])
INTS = st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 300)
FLOATS = st.floats(width=32, allow_nan=False)
VALUES = (
    st.none()
    | st.lists(INTS, max_size=4)
    | st.lists(FLOATS, min_size=1, max_size=4)
    | st.lists(st.binary(max_size=200), min_size=1, max_size=4)
)
EXAMPLES = st.dictionaries(NAMES, VALUES, max_size=5).map(serialized)
_KINDS = {"bytes_list": pa.binary(), "float_list": pa.float32(), "int64_list": pa.int64(), None: pa.null()}


def by_row(records):
    """What is found, as the values of each feature in each record; None for a record that cannot be parsed."""
    found, bad = read_features(Records.of(records))
    rows = [None if row in bad else {} for row in range(len(records))]
    for feature in found:
        whole = feature.values
        if isinstance(whole, MixedNumbers):
            whole = whole.join(lambda part: part.cast(pa.float64()))
        values = iter(whole.to_pylist())
        for row, count in zip(feature.rows.tolist(), feature.counts.tolist(), strict=True):
            rows[row][feature.name] = [next(values) for _ in range(count)]
        assert next(values, None) is None
        assert feature.rows.tolist() == sorted(set(feature.rows.tolist()))
    return rows, {feature.name: feature.values.type for feature in found}


def expected(records):
    """The same by protobuf, where no feature is of two kinds."""
    rows = [parsed(record) for record in records]
    return [None if row is None else {name: values for name, (_, values) in row.items()} for row in rows]


def shown(rows):
    """As text, in which one NaN equals another."""
    return [None if row is None else repr(sorted(row.items())) for row in rows]


def one_kind(records):
    kinds = {}
    for row in map(parsed, records):
        for name, (kind, values) in (row or {}).items():
            if kinds.setdefault(name, kind if values else None) != kind and values:
                if kinds[name] is not None:
                    return False
                kinds[name] = kind
    return True


@settings(max_examples=200)
@given(st.lists(EXAMPLES, max_size=12))
def test_records_are_read_as_protobuf_reads_them(records):
    """Every feature of every record has the values that were written, whatever the other records have."""
    if one_kind(records):
        assert by_row(records)[0] == expected(records)


def test_a_record_that_is_cut_short_is_read_as_protobuf_reads_it():
    """Wherever the last record ends, it is refused when protobuf refuses it: what follows is no part of it."""
    whole = serialized({"a": [1, 300], "b": [b"x", b""], "c": [0.5], "d": []})
    for size in range(len(whole)):
        records = [whole, whole[:size]]
        assert shown(by_row(records)[0]) == shown(expected(records)), size


@settings(max_examples=200)
@given(st.lists(EXAMPLES, min_size=1, max_size=4), st.data())
def test_damaged_records_are_read_as_protobuf_reads_them(records, data):
    """Whatever byte is changed, a record is parsed to the same, or refused when protobuf refuses it."""
    number = data.draw(st.integers(0, len(records) - 1))
    record = bytearray(records[number] + data.draw(st.binary(max_size=3)))
    if record:
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    records[number] = bytes(record)

    if one_kind(records) and not sets_aside(records[number]):
        assert shown(by_row(records)[0]) == shown(expected(records))


@settings(max_examples=200)
@given(st.lists(st.tuples(EXAMPLES, EXAMPLES), min_size=1, max_size=4))
def test_records_in_several_pieces_are_merged(pairs):
    """Two messages after one another are one message, as the wire format has it."""
    records = [one + other for one, other in pairs]

    if one_kind(records):
        assert by_row(records)[0] == expected(records)


def test_unpacked_numbers_are_read():
    """Numbers that are written one by one, as old programs do, are the same numbers."""
    ints = b"\x1a\x04" + b"\x08\x05\x08\x06"
    floats = b"\x12\x05" + b"\x0d\x00\x00\xc0\x3f"
    entries = b"".join(
        b"\x0a" + bytes([len(entry)]) + entry
        for entry in (
            b"\x0a\x01i\x12" + bytes([len(ints)]) + ints,
            b"\x0a\x01f\x12" + bytes([len(floats)]) + floats,
        )
    )
    record = b"\x0a" + bytes([len(entries)]) + entries

    assert by_row([record, serialized({"i": [7]})])[0] == [{"i": [5, 6], "f": [1.5]}, {"i": [7]}]


def test_an_empty_record_has_no_features():
    """An Example without features is a row of missing values, not an error."""
    assert by_row([b"", serialized({"a": [1]}), Example().SerializeToString()])[0] == [{}, {"a": [1]}, {}]


def test_kinds_become_types():
    """Whole numbers are int64, floats float, bytes binary, a feature that never has a kind null."""
    _, types = by_row([serialized({"i": [1], "f": [0.5], "b": [b"x"], "n": None})])

    assert types == {"i": pa.int64(), "f": pa.float32(), "b": pa.binary(), "n": pa.null()}


def test_a_feature_of_two_kinds_is_double_or_text():
    """Whole numbers and floats meet in double; numbers and bytes in text, which the reader refuses."""
    _, types = by_row([serialized({"x": [1], "y": [b"z"]}), serialized({"x": [0.5], "y": [2]})])

    assert types == {"x": pa.float64(), "y": pa.string()}
