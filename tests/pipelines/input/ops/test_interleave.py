"""Datasets made of elements, in turns."""

import time

import pyarrow as pa
import pytest

from spanwise.orchestrator.errors import DatasetError, FunctionFailed, StateMismatch
from spanwise.pipelines import input as inputs


def test_a_function_that_makes_no_dataset_is_told():
    """Its error names the element and says what came instead."""
    with pytest.raises(FunctionFailed, match=r"flat_map: .* at element 0 .*must return a dataset, not list"):
        list(inputs.range(3).flat_map(lambda number: [number]))


def test_a_dataset_that_a_function_makes_keeps_its_seed():
    """It has the order that it has by itself."""
    shuffled = inputs.range(9).shuffle().options(seed=1)

    assert list(inputs.range(2).flat_map(lambda _: shuffled)) == [*shuffled] * 2


def test_datasets_of_one_unzip_keep_their_order_where_a_function_makes_them():
    """The pass around them allows any order: the two would have one each."""

    def delay(number):
        time.sleep(0.005 if number == 0 else 0)
        return number, number

    pair = inputs.zip(inputs.range(1), inputs.range(1)).spec
    features, labels = inputs.range(4).map(delay, num_parallel=4, spec=pair).unzip()
    dataset = inputs.range(1).flat_map(lambda _: inputs.zip(features, labels)).options(deterministic=False)

    assert list(dataset) == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_rows_that_were_promised_must_be_rows():
    """`spec=` is a promise about each dataset."""
    schema = pa.schema([("fare", pa.float64())])

    with pytest.raises(FunctionFailed, match="must return a dataset of rows"):
        list(inputs.range(3).flat_map(inputs.range, spec=schema))


def test_files_can_be_read_in_turns(tmp_path):
    """A dataset of paths becomes one of rows that travel in blocks."""
    for number in range(3):
        (tmp_path / f"{number}.csv").write_text("number\n" + f"{number}\n" * 4)
    schema = pa.schema([("number", pa.int64())])
    paths = inputs.from_elements(sorted(tmp_path.glob("*.csv")))

    dataset = paths.interleave(inputs.from_csv, cycle_length=2, block_length=2, spec=schema)

    assert dataset.to_arrow()["number"].to_pylist() == [0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 2, 2]


def test_an_error_of_one_dataset_does_not_end_the_others():
    """The element that fails is used up, and the rest comes."""
    dataset = inputs.range(3).flat_map(
        lambda number: inputs.range(2).map(lambda at: 10 * number + 1 // (1 if number != 1 else at))
    )

    assert list(dataset.ignore_errors()) == [1, 1, 11, 21, 21]


def test_a_cycle_of_none_is_refused():
    """Bad arguments are told when the graph is built."""
    with pytest.raises(DatasetError, match=r"interleave\(cycle_length=0\)|flat_map\(cycle_length=0\)"):
        inputs.range(3).interleave(inputs.range, cycle_length=0)


@pytest.mark.parametrize("cycle", [1, 2, 3, 16])
def test_an_error_of_the_input_loses_no_dataset(cycle):
    """Side by side, datasets come in the order that they have one after another, or all of them in any order."""

    def checked(number):
        return number // (number not in {1, 2, 5})

    def datasets(**options):
        source = inputs.range(8).map(checked)
        return source.interleave(lambda number: inputs.from_elements([number] * 2), cycle_length=cycle, **options)

    expected = list(datasets().ignore_errors())

    assert list(datasets(num_parallel=2).ignore_errors()) == expected
    assert sorted(datasets(num_parallel=2, deterministic=False).ignore_errors()) == sorted(expected)
    assert sorted(expected) == [0, 0, 3, 3, 4, 4, 6, 6, 7, 7]


def outcomes(iterator, count=None):
    """What comes: elements, and errors."""
    found = []
    while len(found) != count:
        try:
            found.append(next(iterator))
        except StopIteration:
            break
        except FunctionFailed as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("options", [{}, {"num_parallel": 2}])
def test_a_restored_pass_raises_no_error_of_the_input_again(options):
    """Its input is read again from the oldest dataset that is open, across errors that were raised before."""

    def checked(number):
        return number // (number not in {1, 3, 6})

    def dataset():
        source = inputs.range(8).map(checked)
        several = lambda number: inputs.from_elements([number] * (9 if number == 0 else 1))  # noqa: E731
        return source.interleave(several, cycle_length=2, **options)

    expected = outcomes(dataset().iterator(epoch=0))
    for count in range(len(expected)):
        with dataset().iterator(epoch=0) as first:
            outcomes(first, count)
            state = first.state()

        assert outcomes(dataset().iterator().restore(state)) == expected[count:]


def test_a_state_whose_input_has_become_shorter_is_refused(tmp_path):
    """The datasets that were open cannot be opened again."""
    numbers = tmp_path / "numbers"
    numbers.write_text("0 1 2 3")
    read = inputs.from_generator(lambda: map(int, numbers.read_text().split()))
    dataset = read.interleave(lambda number: inputs.from_elements([number] * 3), cycle_length=3)
    with dataset.iterator() as first:
        outcomes(first, 3)
        state = first.state()
    numbers.write_text("0 1")

    with pytest.raises(StateMismatch, match="ended after 2 elements, but 3 had been read"):
        dataset.iterator().restore(state)


def drawn(number, numbers):
    return numbers.random()


def pair(_):
    return inputs.range(2).random_map(drawn)


@pytest.mark.parametrize(
    "make",
    [
        lambda: inputs.range(3).flat_map(pair),
        lambda: inputs.range(3).flat_map(lambda number: pair(number).cache()),
        lambda: inputs.range(3).flat_map(lambda _: inputs.range(2).flat_map(pair)),
        lambda: inputs.range(3).flat_map(pair).concatenate(inputs.range(3).flat_map(pair)),
        lambda: inputs.range(3).flat_map(pair).cache().concatenate(inputs.range(3).flat_map(pair)),
    ],
)
def test_no_two_datasets_draw_the_same_numbers(make):
    """Neither of one function, on any level, nor of two."""
    numbers = list(make().options(seed=1))

    assert len(set(numbers)) == len(numbers)
