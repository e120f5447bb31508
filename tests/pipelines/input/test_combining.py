"""Datasets beside and behind each other: zip, concatenate, enumerate, scan."""

import random
import time

import pyarrow as pa
import pytest

from spanwise.orchestrator.errors import DatasetError, FunctionFailed
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input import BatchSpec


def test_zip_is_as_long_as_all_of_its_parts():
    """The shortest decides."""
    dataset = inputs.zip(inputs.range(3), inputs.range(10, 20))

    assert list(dataset) == [(0, 10), (1, 11), (2, 12)]
    assert dataset.cardinality == 3


COMBINED = {
    "zip": inputs.zip,
    "concatenate": lambda one, other: one.concatenate(other),
    "sample_from_datasets": lambda one, other: inputs.sample_from_datasets([one, other], seed=0),
    "choose_from_datasets": lambda one, other: inputs.choose_from_datasets([other], one),
}


@pytest.mark.parametrize("name", COMBINED)
def test_datasets_that_are_combined_have_the_seed_of_any_of_them(name):
    """It was dropped when another than the first had it: the same pass had another order each time."""
    dataset = COMBINED[name](inputs.from_elements([0] * 9), inputs.range(9).shuffle().options(seed=1))

    assert list(dataset.iterator(epoch=0)) == list(dataset.iterator(epoch=0))


@pytest.mark.parametrize("name", COMBINED)
def test_datasets_with_two_seeds_are_not_combined(name):
    """One of them would be dropped. The message says what to type."""
    one, other = (inputs.from_elements([0]).options(seed=seed) for seed in (1, 2))

    with pytest.raises(DatasetError, match=rf"{name}: .* of 1 and 2, .* Call options\(seed=…\) on what {name} returns"):
        COMBINED[name](one, other)


def test_datasets_that_are_combined_keep_the_order_that_one_of_them_keeps():
    """Elements in any order were allowed for one of them only."""
    loose = inputs.range(3).options(deterministic=False)

    assert inputs.zip(loose, inputs.range(3)).settings.deterministic
    assert not inputs.zip(loose, loose).settings.deterministic


def test_an_error_in_one_part_of_a_zip_uses_up_its_partner():
    """Elements that belong together stay together after an error."""
    one = inputs.from_elements([1, 0, 2]).map(lambda value: 2 // value)

    assert list(inputs.zip(one, inputs.range(3)).ignore_errors()) == [(2, 0), (1, 2)]


def test_rows_are_not_put_behind_other_elements_or_columns():
    """What does not fit is told when the graph is built."""
    rows = inputs.from_arrow(pa.table({"fare": [1]}))

    with pytest.raises(DatasetError, match="some datasets have rows and others do not"):
        rows.concatenate(inputs.range(3))
    with pytest.raises(DatasetError, match="different columns"):
        rows.concatenate(inputs.from_arrow(pa.table({"tip": [1]})))


def undeclared(**columns):
    return inputs.from_arrow(pa.table(columns)).map_batches(dict)


@pytest.mark.parametrize(
    "join",
    [
        lambda one, other: one.concatenate(other),
        lambda one, other: inputs.sample_from_datasets([one, other], [0.5, 0.5], seed=1),
        lambda one, other: inputs.choose_from_datasets([one, other], inputs.from_elements([0, 1])),
    ],
    ids=["concatenate", "sample", "choose"],
)
@pytest.mark.parametrize("declared", [None, 0, 1])
def test_rows_of_other_types_are_refused_where_a_function_makes_them(join, declared):
    """They were of two types in one column, or an error of Arrow's; those of the same types are joined."""
    values = [[1], [0.5]]
    parts = [
        inputs.from_arrow(pa.table({"x": x})) if at == declared else undeclared(x=x) for at, x in enumerate(values)
    ]

    with pytest.raises(DatasetError, match=r"returned column 'x' as .* for other rows, and as .* Declare the types"):
        list(join(*parts))
    with pytest.raises(DatasetError, match=r"returned the columns \['x'\] for other rows, and \['y'\] for these"):
        list(join(parts[0], undeclared(y=[2])))
    assert sorted(row["x"] for row in join(parts[0], undeclared(x=[2]))) == [1, 2]


BATCHES = inputs.from_arrow(pa.table({"n": range(4)})).batch(2), inputs.from_arrow(pa.table({"n": [4, 5, 6]})).batch(2)
COMBINED_BATCHES = {
    "concatenate": BATCHES[0].concatenate(BATCHES[1]),
    "sample": inputs.sample_from_datasets(BATCHES, [1, 1], seed=0),
    "choose": inputs.choose_from_datasets(BATCHES, inputs.from_elements([0, 0, 1, 1])),
}


@pytest.mark.parametrize("combined", COMBINED_BATCHES.values(), ids=COMBINED_BATCHES)
def test_batches_of_the_same_rows_are_batches_of_rows_also_with_a_last_one_that_is_smaller(combined):
    """They are cut and joined to batches of another size, and are rows again."""
    assert combined.spec == BatchSpec(pa.schema({"n": pa.int64()}), None)
    assert sorted(row["n"] for row in combined.unbatch()) == list(range(7))
    assert [batch.num_rows for batch in combined.rebatch(3)] == [3, 3, 1]
    assert [len(batch["n"]) for batch in combined.as_numpy().rebatch(4)] == [4, 3]


UNDESCRIBED_BATCHES = {
    "flat_map": inputs.range(1).flat_map(lambda _: BATCHES[1]),
    "from_generator": inputs.from_generator(lambda: iter(BATCHES[1])),
    "tables": inputs.from_elements([pa.table({"n": [4, 5, 6]})]),
}


@pytest.mark.parametrize("batches", UNDESCRIBED_BATCHES.values(), ids=UNDESCRIBED_BATCHES)
def test_record_batches_that_no_spec_describes_have_rows(batches):
    """They were split into their columns, as what can be iterated over is."""
    assert list(batches.unbatch()) == [{"n": 4}, {"n": 5}, {"n": 6}]
    assert [batch["n"].tolist() for batch in batches.rebatch(2)] == [[4, 5], [6]]
    with pytest.raises(DatasetError, match="are RecordBatches already; use rebatch"):
        list(batches.batch(2))


def test_batches_that_are_zipped_are_unbatched_by_rows():
    """Each element has a row of both."""
    assert next(iter(inputs.zip(BATCHES[1], BATCHES[1]).unbatch())) == ({"n": 4}, {"n": 4})


def test_rows_are_numbered_in_a_column():
    """The number comes first, under a name that must be free."""
    rows = inputs.from_arrow(pa.table({"fare": [5, 6]}))

    assert rows.enumerate(3).to_arrow().to_pydict() == {"index": [3, 4], "fare": [5, 6]}
    with pytest.raises(DatasetError, match=r"enumerate\(column='fare'\): the rows already have this column"):
        rows.enumerate(column="fare")


def test_scan_carries_something_from_element_to_element():
    """Each pass begins with the initial value, even if the function changes it in place."""

    def gather(seen, number):
        seen.append(number)
        return seen, len(seen)

    dataset = inputs.range(3).scan([], gather)

    assert list(dataset) == [1, 2, 3]
    assert list(dataset) == [1, 2, 3]


def test_scan_tells_what_its_function_should_have_given():
    """A function that gives no pair is an error at that element."""
    with pytest.raises(FunctionFailed, match=r"scan: .* at element 0 .*must return \(what to carry, the result\)"):
        list(inputs.range(3).scan(0, lambda total, number: number))


def test_zip_builds_any_structure():
    """As nested as the datasets were given; the spec says so."""
    rows = inputs.from_arrow(pa.table({"fare": [1, 2]}))

    dataset = inputs.zip({"a": inputs.range(3), "b": (rows, inputs.range(5, 9))})

    assert list(dataset) == [{"a": 0, "b": ({"fare": 1}, 5)}, {"a": 1, "b": ({"fare": 2}, 6)}]
    assert dataset.spec.names == ("a", "b")
    with pytest.raises(DatasetError, match="zip: expected datasets, not 3"):
        inputs.zip({"a": inputs.range(3), "b": 3})


def test_unzip_gives_back_what_zip_was_given():
    """Each part as a dataset of its own, in the same structure."""
    rows = inputs.from_arrow(pa.table({"fare": [1, 2], "zone": ["a", "b"]}))

    found = inputs.zip({"a": inputs.range(3), "b": (rows, inputs.range(5, 9))}).shuffle(seed=1).unzip()

    parts = [list(each.iterator(epoch=0)) for each in (found["a"], found["b"][0]["fare"], found["b"][1])]
    assert sorted(zip(*parts, strict=True)) == [(0, 1, 5), (1, 2, 6)]
    assert {name: list(column) for name, column in rows.unzip().items()} == {"fare": [1, 2], "zone": ["a", "b"]}
    with pytest.raises(DatasetError, match=r"the elements are not known to have parts"):
        inputs.range(3).unzip()
    with pytest.raises(DatasetError, match=r"unzip: Shuffle would have another order in each of the datasets"):
        inputs.zip(rows, rows).shuffle().unzip()


def slow_pair(number):
    time.sleep(random.random() / 200)
    return number, -number


def shuffled_pairs(number):
    return inputs.from_elements([(number, -number), (number + 10, -number - 10)]).shuffle()


PAIR = inputs.Structure(tuple, (), (inputs.ArraySpec("int64"), inputs.ArraySpec("int64")))


def test_pairs_that_are_unzipped_stay_pairs():
    """In whichever order the calls of a parallel map end, and the datasets of a function shuffle."""
    slow = inputs.range(40).map(slow_pair, num_parallel=4, deterministic=False, spec=PAIR)
    nested = inputs.range(10).flat_map(shuffled_pairs, spec=PAIR)

    for dataset in (slow, nested.options(seed=1)):
        one, other = dataset.unzip()
        assert list(one) == [-number for number in other]
    with pytest.raises(DatasetError, match="unzip: FlatMap would have another order"):
        nested.unzip()
    with pytest.raises(DatasetError, match="unzip: each of the datasets would be another job"):
        slow.distribute("grpc://127.0.0.1:1").unzip()


def refuse(*values):
    """A function that fails for 3, as the last of its arguments."""
    if values[-1] == 3:
        raise ValueError("three")
    return True


NAMING_OPS = {
    "map": lambda d: d.map(refuse),
    "filter": lambda d: d.filter(refuse),
    "take_while": lambda d: d.take_while(refuse),
    "scan": lambda d: d.scan(0, lambda carried, x: (carried, refuse(x))),
    "flat_map": lambda d: d.flat_map(lambda x: inputs.range(int(refuse(x)))),
    "interleave": lambda d: d.interleave(lambda x: inputs.range(int(refuse(x))), num_parallel=2),
    "rejection_resample": lambda d: d.rejection_resample(lambda x: 1 - int(refuse(x)), [1.0]),
    "group_by_window": lambda d: d.group_by_window(refuse, lambda key, group: group, 1),
}


@pytest.mark.parametrize("op", NAMING_OPS)
def test_an_error_names_its_element_also_behind_another_one(op):
    """An element that failed before has been one too."""
    elements = iter(NAMING_OPS[op](inputs.range(4).map(lambda x: x // (x != 1))).options(optimize=False))
    errors = []
    while len(errors) < 2:
        try:
            next(elements)
        except FunctionFailed as error:
            errors.append(str(error))

    assert "raised ZeroDivisionError at element 1 " in errors[0]
    assert "raised ValueError at element 3 " in errors[1]
