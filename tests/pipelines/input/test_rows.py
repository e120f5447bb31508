"""How much rows and other elements hold."""

import numpy as np
import pyarrow as pa
import pytest

from spanwise.pipelines.input.rows import weigh


def test_an_element_weighs_what_its_arrays_hold():
    """Whatever structure they are in; of a slice of a table, only the slice."""
    block = pa.table({"x": np.arange(1000)}).slice(0, 10).to_batches()[0]

    assert weigh({"a": np.zeros(100), "b": (np.zeros(50), np.zeros(50))}) == 1600
    assert weigh(block) == 80
    assert weigh(pa.record_batch({"x": ["ten bytes.", None, "a"]})) == pytest.approx(11, abs=32)
