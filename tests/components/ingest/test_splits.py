"""Splits: which names the parts of a span have."""

import pytest

from spanwise.components.ingest.splits import HashSplit, output_splits, split_names
from spanwise.orchestrator.errors import ParameterError


def test_one_input_is_divided_two_to_one_by_default():
    """Without a word from the user, two thirds are for training and one third for evaluation."""
    assert output_splits(["all"]) == (HashSplit("train", 2), HashSplit("eval", 1))


def test_several_inputs_stay_as_they_are():
    """What comes divided is not divided again."""
    assert output_splits(["train", "eval"]) == ()
    assert split_names(["train", "eval"]) == ("train", "eval")


def test_given_ratios_name_the_outputs():
    """The output splits are those asked for, in that order."""
    ratios = (HashSplit("a", 1), HashSplit("b", 3))

    assert output_splits(["all"], ratios) == ratios
    assert split_names(["all"], ratios) == ("a", "b")


def test_a_divided_input_takes_no_ratios():
    """Hashing rows of several input splits into new ones is refused, naming both."""
    with pytest.raises(ParameterError, match="divided already, into a, b"):
        output_splits(["a", "b"], [HashSplit("train", 1)])


@pytest.mark.parametrize("inputs", [[], [""], ["a", "a"], ["a", " "]])
def test_names_are_there_and_unique(inputs):
    """No split, an empty name and a name given twice are refused."""
    with pytest.raises(ParameterError):
        split_names(inputs)


def test_output_names_are_unique():
    """Two outputs of one name would overwrite each other."""
    with pytest.raises(ParameterError, match="two splits are named 'a'"):
        split_names(["all"], [HashSplit("a", 1), HashSplit("a", 1)])


@pytest.mark.parametrize("weight", [0, -1])
def test_a_weight_is_positive(weight):
    """A split of no rows is a mistake."""
    with pytest.raises(ParameterError, match="1 or more"):
        HashSplit("train", weight)


@pytest.mark.parametrize("name", ["x/../../../shared", "a/b", "a\\b", "a\nb", "a\0", "a b", "x" * 65])
def test_a_split_is_named_like_a_folder(name):
    """Its files lie in a folder of its name, which is never outside of the artifact's."""
    with pytest.raises(ParameterError, match="cannot name a split"):
        output_splits(["all"], (HashSplit(name, 1), HashSplit("eval", 1)))
    with pytest.raises(ParameterError, match="cannot name a split"):
        output_splits([name, "eval"])
