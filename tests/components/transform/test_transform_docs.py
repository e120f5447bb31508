"""The reference page of Transform: its functions, run as they stand there."""

import importlib.util
import re
from pathlib import Path

import polars as pl

from spanwise.components.transform.graph import Preprocessor
from spanwise.components.transform.window_transform import transform_window
from tests.components.flow import written
from tests.components.transform.test_window_transform import Windows

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "transform.md"

FLIGHTS = pl.DataFrame(
    {
        "distance": [100, 200, 300, 400],
        "sched_dep_time": [500, 600, 700, None],
        "carrier": ["AA", "AA", "B6", "Delta"],
        "origin": ["JFK", "EWR", "JFK", "LGA"],
        "dest": ["BOS", "BOS", "SFO", "ORD"],
        "arr_delay": [20, -5, None, 16],
    }
)


def test_the_examples_of_the_page_work(tmp_path):
    """The preprocessing function and the analyzer of one's own on the page make the features that it says."""
    file = tmp_path / "features.py"
    file.write_text("\n\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)))
    spec = importlib.util.spec_from_file_location("features_of_the_page", file)
    features = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(features)
    windows = Windows(tmp_path)
    examples = [written(tmp_path / "day", 1, {"train": FLIGHTS.to_arrow(compat_level=pl.CompatLevel.oldest())})]
    plans = [windows.plan(examples, f, transform=["train"]) for f in (features.preprocess, features.share_of_longest)]

    for plan in plans:
        transform_window(plan)

    found, share = (Preprocessor.load(plan.graph).apply(FLIGHTS) for plan in plans)
    assert found["late"].to_list() == [1, 0, None, 1]
    assert found["carrier"].to_list() == [0, 0, 1, 1]
    assert share["share"].to_list() == [0.4, 0.4, 0.4, 1.0]
