"""Row hash: a number for each row that may never drift, since it decides which split a row is in."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spanwise.components.row_hash import buckets, hash_rows, hash_values


def hashes(*columns, **named):
    arrays = dict(enumerate(columns)) | named
    return hash_rows(pa.RecordBatch.from_arrays(list(arrays.values()), names=[str(name) for name in arrays])).tolist()


def test_the_hashes_are_pinned():
    """These numbers may never change: a row that moves from eval to train spoils every comparison with the past."""
    made = hashes(
        n=pa.array([0, 1, -1, None, 2**62]),
        x=pa.array([0.5, -0.0, float("nan"), None, 1e300]),
        s=pa.array(["", "a", "\u00fc\u4e16", None, "a longer text of forty characters, or so"]),
        t=pa.array([0, 1500, -1, None, 253402300799000], pa.timestamp("ms")),
        b=pa.array([True, False, None, True, False]),
    )

    assert made == [
        15306850202920455833,
        1555340042932437019,
        13143629144444983302,
        15989656339125371931,
        7128635351108928569,
    ]


def test_the_buckets_are_pinned():
    """A bucket is the hash modulo the sum of the weights, counted off in the order of the splits."""
    found = buckets(hash_rows(pa.RecordBatch.from_pydict({"n": list(range(12))})), [2, 1])

    assert found.tolist() == [0, 0, 0, 1, 1, 1, 0, 1, 0, 0, 0, 0]


def test_equal_values_of_other_types_hash_alike():
    """A column that becomes wider, or is stored otherwise, leaves each row in its split."""
    whole = hashes(n=pa.array([1, 2**52], pa.int64()))
    day = hashes(d=pa.array([15000], pa.date32()))

    assert hashes(n=pa.array([1.0, 2.0**52])) == whole
    assert hashes(n=pa.array([1], pa.uint8())) == whole[:1]
    assert hashes(d=pa.array([15000 * 86_400_000], pa.timestamp("ms"))) == day
    assert hashes(d=pa.array([15000 * 86_400_000_000_000], pa.timestamp("ns"))) == day
    assert hashes(s=pa.array(["x", "y"]).dictionary_encode()) == hashes(s=pa.array(["x", "y"], pa.large_string()))


def test_different_values_hash_differently():
    """Neither the kind of a value, nor its column, nor where a text ends can be mistaken."""
    made = [
        hashes(a=pa.array([0]))[0],
        hashes(b=pa.array([0]))[0],
        hashes(a=pa.array(["0"]))[0],
        hashes(a=pa.array([""]))[0],
        hashes(a=pa.array(["\0"]))[0],
        hashes(a=pa.array([None], pa.int64()))[0],
        hashes(a=pa.array([0.5]))[0],
        hashes(a=pa.array([0], pa.timestamp("s")))[0],
        hashes(a=pa.array([[0]]))[0],
        hashes(a=pa.array(["x"]), b=pa.array(["y"]))[0],
        hashes(a=pa.array(["y"]), b=pa.array(["x"]))[0],
        hashes(a=pa.array(["xy"]), b=pa.array([""]))[0],
    ]

    assert len(set(made)) == len(made)


def test_the_buckets_of_a_feature_say_nothing_of_the_split():
    """Whatever the key of the split is called, train and eval have the same buckets; large integers are divided too."""
    keys = pa.array([2**63 + n for n in range(3000)], pa.uint64())
    features = hash_values(keys) % 30

    for name in ("value", "", "user"):
        chosen = buckets(hash_rows(pa.RecordBatch.from_arrays([keys], [name]), [name]), [2, 1])
        assert 900 < (chosen == 1).sum() < 1100
        assert set(features[chosen == 0]) == set(features[chosen == 1]) == set(range(30))


def test_nested_values_hash_alike_however_they_are_stored():
    """Lists of any kind, structs whatever the order of their fields, maps whatever the order of their entries."""
    lists = hashes(v=pa.array([[1, 2], [], None, [None]]))
    struct = hashes(v=pa.array([{"a": 1, "b": "x"}, None]))
    maps = hashes(v=pa.array([[("a", 1), ("b", 2)]], pa.map_(pa.string(), pa.int8())))

    assert hashes(v=pa.array([[1, 2], [], None, [None]], pa.large_list(pa.int8()))) == lists
    assert hashes(v=pa.array([[1, 2]], pa.list_(pa.int64(), 2))) == lists[:1]
    assert hashes(v=pa.array([{"b": "x", "a": 1}, None], pa.struct([("b", pa.string()), ("a", pa.int8())]))) == struct
    assert hashes(v=pa.array([[("b", 2), ("a", 1)]], pa.map_(pa.string(), pa.int64()))) == maps
    assert hashes(v=pa.array([[0], [1, 2], [], None, [None]])[1:]) == lists
    assert len({*lists, *struct, *maps, *hashes(v=pa.array([[2, 1]]))}) == 7


def test_the_order_of_columns_does_not_matter():
    """A file whose columns stand in another order gives the same splits."""
    a, b = pa.array([1, 2]), pa.array(["x", "y"])

    assert hashes(a=a, b=b) == hashes(b=b, a=a)


VALUES = st.one_of(
    st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))).map(lambda v: pa.array(v, pa.int64())),
    st.lists(st.one_of(st.none(), st.floats())).map(lambda v: pa.array(v, pa.float64())),
    st.lists(st.one_of(st.none(), st.text())).map(lambda v: pa.array(v, pa.string())),
)


@given(VALUES, st.integers(0, 20))
def test_a_row_hashes_alike_in_any_batch(array, cut):
    """A row's hash is its own: neither its neighbours nor its place in a batch change it."""
    whole = hashes(v=array)

    assert hashes(v=array[:cut]) + hashes(v=array[cut:]) == whole
