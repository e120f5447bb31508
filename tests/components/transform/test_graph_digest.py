"""Graph digests: equal where a model can take features for those that it was trained on, by name and by place."""

import polars as pl
import pytest

from spanwise.components.transform.graph_digest import digest_of
from tests.components.transform.test_graph import learned

ROWS = pl.DataFrame({"a": [1, 2], "b": [10, 20]})


def each_column(columns):
    return {name: columns[name] for name in columns}


def one_vector(columns):
    return {"vector": pl.concat_list(*(columns[name] for name in columns))}


def digest(function, rows, folder):
    learned(function, rows).save(folder)
    return digest_of(folder)


@pytest.mark.parametrize("function", [each_column, one_vector])
def test_features_in_another_order_are_of_another_graph(function, tmp_path):
    """A model that takes its features by place would take one for another."""
    first = digest(function, ROWS, tmp_path / "first")
    other = digest(function, ROWS.select("b", "a"), tmp_path / "other")

    assert other != first


def test_a_graph_that_learns_the_same_again_has_the_same_digest(tmp_path):
    """It is made anew for each window."""
    assert digest(each_column, ROWS, tmp_path / "first") == digest(each_column, ROWS[:1], tmp_path / "other")
