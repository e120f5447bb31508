"""Transform graphs: what was learned, kept on disk and applied anywhere with the same result, bit by bit."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from spanwise.components.transform.analyzers import PreprocessingError
from spanwise.components.transform.graph import Preprocessor
from spanwise.components.transform.preprocessing import (
    Columns,
    bucketize,
    count,
    cross,
    hash_buckets,
    impute_mean,
    maximum,
    mean,
    minimum,
    one_hot,
    scale_to_0_1,
    scale_to_z_score,
    standard_deviation,
    total,
    vocabulary,
)
from spanwise.components.transform.standalone import extract_source, load
from spanwise.components.transform.trace import PreprocessingTrace, trace_function

NAN = float("nan")

ROWS = pl.DataFrame(
    {
        "distance": [100, 200, None, 400, 2475],
        "hour": [1.5, 2.0, NAN, 4.25, 9.0],
        "carrier": ["AA", "B6", "AA", None, "DL"],
        "café ✈": ["x", "y", "x", "x", "y"],
        "delay": [1.0, 20.0, None, 16.0, 15.0],
    }
)


def preprocess(columns):
    return {
        "distance": scale_to_z_score(columns["distance"]),
        "hour": bucketize(scale_to_0_1(columns["hour"]), 3),
        "filled": impute_mean(columns["hour"]),
        "third": columns["distance"].exp().log1p() / 3,
        "carrier": vocabulary(columns["carrier"], top_k=2, out_of_vocabulary=3),
        "which": one_hot(columns["café ✈"]),
        "route": hash_buckets(columns["carrier"] + "-" + columns["café ✈"], 1000),
        "pair": cross(columns["carrier"], columns["distance"], buckets=50),
        "top": maximum(columns["hour"]),
        "one": pl.lit(1),
        "late": (columns["delay"] > 15).cast(pl.Int8),
    }


def learned(function, rows):
    """The graph that a function makes of some rows."""
    source = extract_source(function)
    own = getattr(load(source), function.__name__)
    known = {}
    while not (trace := trace_function(own, PreprocessingTrace(columns=Columns(rows.schema), known=known))).complete:
        for key, question in trace.pending.items():
            values = rows.select(each.alias(str(n)) for n, each in enumerate(question.inputs)).get_columns()
            known[key] = question.analyzer.finish(question.analyzer.accumulate(*values))
    values = {name: known[key] for key, name in trace.names.items()}
    return Preprocessor.of(source, function.__name__, rows.schema, values)


@pytest.fixture(scope="module")
def graph():
    return learned(preprocess, ROWS)


@pytest.fixture
def folder(graph, tmp_path):
    graph.save(tmp_path / "graph")
    return tmp_path / "graph"


def test_a_graph_that_was_kept_gives_what_it_gave(graph, folder):
    """Saved, loaded and applied, a graph gives the features of before, bit by bit."""
    kept = Preprocessor.load(folder)

    assert kept.apply(ROWS).equals(graph.apply(ROWS))
    assert kept.outputs == graph.outputs


def test_a_row_alone_has_the_features_it_has_among_others(graph):
    """Each row, by itself or in any piece, gets bit by bit what it gets in the whole."""
    whole = graph.apply(ROWS)

    for first in range(len(ROWS)):
        for length in range(1, len(ROWS) - first + 1):
            assert graph.apply(ROWS.slice(first, length)).equals(whole.slice(first, length))


def test_arithmetic_is_the_same_in_any_number_of_rows():
    """Division, powers and logarithms of a thousand random numbers do not depend on how many come at once."""

    def arithmetic(columns):
        x = columns["x"]
        return {"a": scale_to_z_score(x), "b": x.abs().log() / 7.3, "c": (x / 9).exp() ** 0.3, "d": x % 0.7, "e": 1 / x}

    rows = pl.DataFrame({"x": np.random.default_rng(7).normal(size=1000) * 10})
    graph = learned(arithmetic, rows)
    whole = graph.apply(rows)

    for length in (1, 2, 3, 7):
        assert pl.concat([graph.apply(piece) for piece in rows.iter_slices(length)]).equals(whole)


def test_a_divisor_that_a_condition_chooses_divides_alike_in_any_number_of_rows():
    """Where all rows of a piece are divided by one of two constants, each is divided as among rows of both."""

    def quotients(columns):
        x, big, some = columns["x"], columns["big"], columns["some"]
        return {
            "of_two": x / pl.when(big).then(3.0).otherwise(7.0),
            "below": x / (pl.when(big).then(3.0).otherwise(7.0) * 2 + 1).cast(pl.Float64),
            "given": x / pl.coalesce(some, pl.lit(7.0)),
            "nested": 1 + (x / pl.when(big).then(x).otherwise(7)).log(),
            "hashed": x / (hash_buckets(columns["big"], 3) + pl.when(big).then(3).otherwise(7)),
            "small": x.cast(pl.Float32) / pl.when(big).then(pl.lit(3, pl.Float32)).otherwise(pl.lit(7, pl.Float32)),
            "listed": columns["list"].list.eval(pl.element() / pl.when(pl.element() > 3).then(3.0).otherwise(7.0)),
            "learned": scale_to_z_score(x / pl.when(big).then(3.0).otherwise(7.0)),
            "scaled": x / pl.when(big).then(standard_deviation(x)).otherwise(mean(x)),
        }

    x = np.random.default_rng(7).normal(size=300) * 10
    rows = pl.DataFrame({"x": x, "big": x > 3, "some": [None if each < 0 else each for each in x]})
    rows = rows.with_columns(list=pl.concat_list("x", pl.col("x") * 1.1))
    graph = learned(quotients, rows)
    whole = graph.apply(rows)

    for length in (1, 2, 3, 7):
        assert pl.concat([graph.apply(piece) for piece in rows.iter_slices(length)]).equals(whole)
    assert whole["of_two"].to_list() == (x / np.where(x > 3, 3.0, 7.0)).tolist()
    assert graph.outputs["small"] == pl.Float32


def test_sums_of_lists_do_not_depend_on_the_rows_around():
    """A null inside of one list changes no bit of the sums and means of the others, in any number of rows."""

    def sums(columns):
        x = columns["x"]
        fixed = columns["fixed"]
        return {
            "sum": x.list.sum(),
            "mean": x.list.mean(),
            "squares": (x * x).list.sum() + hash_buckets(columns["n"], 10),
            "fixed": fixed.arr.sum(),
            "fixed_mean": fixed.arr.mean(),
            "scaled": scale_to_z_score(x.list.mean()),
            "small": columns["small"].list.sum(),
            "whole": columns["whole"].list.sum(),
        }

    lists = np.random.default_rng(0).normal(size=(60, 200)).tolist()
    lists[7][3], lists[8], lists[9] = None, None, [None] * 200
    rows = pl.DataFrame({"x": lists, "n": range(60)}).with_columns(
        pl.col("x").cast(pl.List(pl.Float32)).alias("small"),
        pl.col("x").list.to_array(200).alias("fixed"),
        (pl.col("x") * 1000).cast(pl.List(pl.Int64)).alias("whole"),
    )
    graph = learned(sums, rows)
    whole = graph.apply(rows)

    for length in (1, 7, 20):
        pieces = [
            pl.DataFrame(piece.to_dict(as_series=False), schema=rows.schema) for piece in rows.iter_slices(length)
        ]
        assert pl.concat([graph.apply(piece) for piece in pieces]).equals(whole)
    assert whole["sum"][:7].to_list() == pytest.approx([sum(each) for each in lists[:7]], rel=1e-12)
    assert whole.row(8)[:2] == (None, None)
    assert whole.row(9)[:2] == (0, None)


def test_a_column_with_one_value_is_no_constant(graph):
    """Where every row has the same value, each still gets bit by bit what it gets among others."""
    for number, expected in enumerate(graph.apply(ROWS).iter_rows()):
        rows = pl.DataFrame({"n": range(3)}).with_columns(
            pl.lit(value, dtype=ROWS.schema[name]).alias(name) for name, value in ROWS.row(number, named=True).items()
        )

        assert list(graph.apply(rows).iter_rows()) == [expected] * 3


def test_features_are_what_the_words_promise(graph):
    """Null stays null, NaN is no bucket, the unseen goes to its own numbers, constants are as long as the rows."""
    unseen = pl.DataFrame({**ROWS.head(2).to_dict(as_series=False), "carrier": ["ZZ", None], "café ✈": ["z", None]})

    found = graph.apply(unseen)
    known = graph.apply(ROWS)

    assert known["carrier"].to_list()[:3] == [0, 1, 0]
    assert known["carrier"][3] is None
    assert known["carrier"][4] in (2, 3, 4)
    assert known["hour"].to_list() == [0, 0, None, 1, 2]
    assert known["distance"][2] is None
    assert known["filled"][2] == pytest.approx((1.5 + 2 + 4.25 + 9) / 4)
    assert known["late"].to_list() == [0, 1, None, 1, 0]
    assert known["one"].to_list() == [1] * 5
    assert found["carrier"][0] in (2, 3, 4)
    assert found["carrier"][1] is None
    assert found["which"].to_list() == [[0, 0, 1], [0, 0, 0]]


def test_hash_buckets_never_drift(graph):
    """The hash is part of models that are served: these numbers hold for every version and machine."""
    assert graph.apply(ROWS)["route"].to_list() == [39, 284, 39, None, 370]


def test_a_label_may_be_missing_where_a_model_is_served(graph):
    """With serving=True features of missing columns are left out; otherwise it is said what is missing."""
    served = ROWS.drop("delay")

    found = graph.apply(served, serving=True)

    assert found.columns == [name for name in graph.features if name != "late"]
    assert found.equals(graph.apply(ROWS).drop("late"))
    with pytest.raises(PreprocessingError, match="feature 'late' is made of column 'delay', which the data lacks"):
        graph.apply(served)


def test_chosen_features_need_their_columns_alone(graph):
    """Asked for some features, a graph needs no column of the others."""
    found = graph.apply(ROWS.select("distance"), outputs=["distance"])

    assert found.columns == ["distance"]
    assert graph.needs(["distance"]) == ("distance",)
    with pytest.raises(PreprocessingError, match="the graph makes no 'speed'; it makes: distance"):
        graph.apply(ROWS, outputs=["speed"])


def test_arrow_comes_back_as_it_went_in(graph):
    """A table gives a table and a record batch a record batch, with the types that are in the examples."""
    table = ROWS.to_arrow()

    found = graph.apply(table)
    batch = graph.apply(table.to_batches()[0])

    assert isinstance(found, pa.Table)
    assert isinstance(batch, pa.RecordBatch)
    assert pa.Table.from_batches([batch]).equals(found)
    assert pl.from_arrow(found).equals(graph.apply(ROWS))
    assert graph.apply(table.slice(0, 0)).num_rows == 0
    with pytest.raises(PreprocessingError, match="takes a Polars frame, an Arrow table or record batch, not list"):
        graph.apply([{"distance": 1}])


def test_other_types_are_taken_when_every_value_survives(graph):
    """JSON and pandas have types of their own; what would lose a value is refused."""
    rows = ROWS.with_columns(pl.col("distance").cast(pl.Float64), pl.col("carrier").cast(pl.Categorical))

    assert graph.apply(rows).equals(graph.apply(ROWS))
    with pytest.raises(PreprocessingError, match="column 'distance' is Float64 here and was Int64"):
        graph.apply(rows.with_columns(pl.col("distance") + 0.5))
    with pytest.raises(PreprocessingError, match="column 'distance' is String here and was Int64"):
        graph.apply(rows.with_columns(pl.lit("12").alias("distance")))


def test_the_same_graph_is_the_same_bytes(graph, tmp_path):
    """Two graphs of the same function and rows are equal to the byte."""
    graph.save(tmp_path / "one")
    learned(preprocess, ROWS).save(tmp_path / "two")

    one, two = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("one", "two"))
    assert one == two
    assert sorted(one) == ["graph.json", "inputs.parquet", "preprocessing.py"]


def test_a_graph_can_be_read_by_people(folder):
    """What was learned stands in graph.json under the names of analyzers and columns."""
    kept = json.loads((folder / "graph.json").read_text())

    values = {each["name"]: each["value"] for each in kept["values"]}
    assert values["MeanAndDeviation of distance"]["mean"] == 793.75
    assert values["Terms, top_k=2, min_count=1 of carrier"] == ["AA", "B6"]
    assert kept["outputs"]["late"] == "Int8"
    assert "def preprocess(columns):" in (folder / "preprocessing.py").read_text()


def test_a_serving_process_needs_none_of_the_rest(folder, graph):
    """A process that only serves loads the graph without Beam or the orchestrator, and computes the very same."""
    ROWS.write_parquet(folder / "rows.parquet")
    program = f"""
import sys
import polars as pl
from spanwise.components.transform.graph import Preprocessor
graph = Preprocessor.load({str(folder)!r})
rows = pl.read_parquet({str(folder / "rows.parquet")!r})
whole = graph.apply(rows)
alone = pl.concat([graph.apply(row) for row in rows.iter_slices(1)])
served = graph.apply(rows.drop("delay"), serving=True)
assert alone.equals(whole) and served.equals(whole.drop("late"))
whole.write_ipc({str(folder / "found.arrow")!r})
for module in ("orchestrator", "apache_beam", "ml_metadata", "datasketches"):
    assert module not in sys.modules, module
"""

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False
    )

    assert done.stderr == ""
    assert done.returncode == 0
    assert pl.read_ipc(folder / "found.arrow").equals(graph.apply(ROWS))


def test_damage_and_later_formats_are_told(folder):
    """An edited source, a later format and a folder without a graph each say what is wrong."""
    source = folder / "preprocessing.py"
    text = source.read_text()
    source.write_text(text.replace("15", "16"))
    with pytest.raises(PreprocessingError, match=r"not the file that graph\.json was written with"):
        Preprocessor.load(folder)
    source.write_text(text)

    kept = json.loads((folder / "graph.json").read_text())
    (folder / "graph.json").write_text(json.dumps({**kept, "format": 99}))
    with pytest.raises(PreprocessingError, match=r"format 99 .* reads up to 1"):
        Preprocessor.load(folder)

    with pytest.raises(PreprocessingError, match="has no transform graph"):
        Preprocessor.load(folder / "nowhere")


def test_a_value_too_few_is_noticed(folder):
    """A graph whose values do not answer its function is refused, not guessed."""
    kept = json.loads((folder / "graph.json").read_text())
    (folder / "graph.json").write_text(json.dumps({**kept, "values": kept["values"][1:]}))

    with pytest.raises(PreprocessingError, match="has no value for 'MeanAndDeviation of distance'"):
        Preprocessor.load(folder)


def relative(columns):
    age = columns["age"]
    return {
        "above": age - minimum(age),
        "below": maximum(age) - age,
        "times": age * count(age),
        "share": total(age) - age,
        "number": count(age),
    }


@pytest.mark.parametrize("type_", [pl.UInt8, pl.Int8, pl.UInt16, pl.Int32, pl.Int64])
def test_features_do_not_overflow_where_a_served_value_lies_outside_of_the_window(type_):
    """A narrow column would lend its width to whole numbers beside it: 17 - 18 was 255."""
    window = pl.DataFrame({"age": pl.Series([18, 90], dtype=type_)})

    found = learned(relative, window).apply(pl.DataFrame({"age": pl.Series([17, 127], dtype=type_)}))

    assert found.to_dict(as_series=False) == {
        "above": [-1, 109],
        "below": [73, -37],
        "times": [34, 254],
        "share": [91, -19],
        "number": [2, 2],
    }


def test_features_that_no_file_can_hold_are_refused():
    """UInt64 beside a signed number becomes Int128."""
    with pytest.raises(PreprocessingError, match=r"feature 'above' is Int128, .* \.cast\(pl\.Int64\)"):
        learned(relative, pl.DataFrame({"age": pl.Series([18, 90], dtype=pl.UInt64)}))


def test_an_expression_that_fails_is_named(graph):
    """When one of many expressions fails on some rows, the error says which and shows it."""

    def fragile(columns):
        return {"fine": columns["hour"], "fragile": columns["carrier"].cast(pl.Int64)}

    made = learned(fragile, ROWS)

    with pytest.raises(PreprocessingError, match=r"feature 'fragile' cannot be computed: col\(\"carrier\"\).*cast"):
        made.apply(ROWS)
