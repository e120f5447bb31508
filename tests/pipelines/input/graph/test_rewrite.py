"""Rewrites, each by itself: that it fires, and what it leaves alone. That results stay is the law's business."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.graph.rewrite import RULES, draw
from spanwise.pipelines.input.op import list_ops
from spanwise.pipelines.input.ops.parquet import Parquet
from tests.pipelines.input.elements import DATASETS, all_of


def rows():
    return inputs.from_arrow(pa.table({"fare": np.arange(20.0), "tip": np.arange(20.0) / 10, "zone": ["a", "b"] * 10}))


def written(columns):
    return {"double": columns["fare"] * 2}


def after(dataset):
    return draw(dataset.explain().op)


@pytest.mark.parametrize("rule", [rule.name for rule in RULES])
@pytest.mark.parametrize(
    "name", ["a chain", "from_parquet, some columns and rows", "repeat, of a whole shuffle", "take, all"]
)
def test_each_rewrite_can_be_left_out(rule, name):
    """Without any one of them the elements are the same, and it does not fire."""
    dataset = DATASETS[name]()
    without = dataset.options(without=[rule])

    assert rule not in {step.rule for step in without.explain().steps}
    assert all_of(without) == all_of(dataset)


def test_explain_tells_what_fired_and_why():
    """Printed, a plan shows the graph before and after and a line for each rewrite."""
    double = {"reads": ["fare"], "writes": ["double"], "stateless": True}
    dataset = rows().take(-1).map(written, vectorized=True, **double)

    assert str(dataset.explain()).splitlines() == [
        "before: Arrow > Take > Map",
        "after:  Arrow > ParallelMap > Prefetch",
        "  noop_elimination at Take: takes everything",
        "  map_parallelization at Map: its calls are declared to be independent",
        "  prefetch_insertion at ParallelMap: it works while the consumer does",
    ]
    assert "no rewrite applies" in str(inputs.range(3).explain())


def test_filters_go_down_to_where_their_columns_are(tmp_path):
    """Below a selection, a repeat and a declared map, into the file; not below a shuffle, which would shuffle others."""
    pq.write_table(rows().to_arrow(), tmp_path / "a.parquet")
    files = inputs.from_parquet(tmp_path / "a.parquet").options(without=["prefetch_insertion", "map_parallelization"])
    fare = inputs.col("fare") > 3
    schema = rows().spec.schema.append(pa.field("double", pa.float64()))
    map_ = {"vectorized": True, "reads": ["fare"], "writes": ["double"], "spec": schema}

    assert (
        after(files.map(written, **map_).select("fare", "double").repeat(2).filter(fare))
        == "Parquet > Map > Select > Repeat"
    )
    assert after(files.shuffle(5, seed=1).filter(fare)) == "Parquet > Shuffle > Filter"
    assert after(files.take(5).filter(fare)) == "Parquet > Take > Filter"
    assert after(files.cache().filter(fare)) == "Parquet > Cache > Filter"


def test_a_filter_stays_above_a_map_whose_columns_are_unknown_where_its_own_are_not_below():
    """A dataset that gives no rows gives none as rewritten, too, and `explain` shows it."""
    map_ = {"vectorized": True, "reads": ["fare"], "writes": ["double"]}
    dataset = rows().select("fare").take(0).map(written, **map_).filter(inputs.col("other") > 3)

    assert "Map > Filter" in after(dataset)
    assert all_of(dataset) == []


def test_columns_go_down_as_far_as_they_are_known(tmp_path):
    """A function that says what it reads and writes lets the rest stay in the file; one that does not needs it all."""
    pq.write_table(rows().to_arrow(), tmp_path / "a.parquet")
    files = inputs.from_parquet(tmp_path / "a.parquet")

    def read(dataset):
        (source,) = [op for op in list_ops(dataset.explain().op) if isinstance(op, Parquet)]
        return source.columns

    said = files.map(written, vectorized=True, reads=["fare"], writes=["double"]).shuffle(5).select("double", "zone")
    unsaid = files.map(lambda columns: columns, vectorized=True).select("zone")

    assert read(said) == ("fare", "zone")
    assert read(unsaid) is None
    assert read(files.take(9).filter(inputs.col("tip") > 1).select("zone")) == ("tip", "zone")


def test_maps_that_run_differently_do_not_fuse():
    """Four calls at once and one at a time stay two ops; an error names the function that raised."""
    dataset = inputs.range(5).map(abs, num_parallel=2).map(lambda number: 1 // number)
    fused = inputs.range(5).map(abs).map(lambda number: 1 // number)

    assert after(dataset) == "Range > ParallelMap > Map"
    with pytest.raises(Exception, match=r"<lambda> raised ZeroDivisionError at element 0"):
        next(iter(fused))


def test_a_whole_shuffle_that_is_repeated_reads_once():
    """What never changes is kept from round to round; what a function makes is made again."""
    calls = []

    def source():
        calls.append(1)
        return iter(range(5))

    steady = inputs.range(5).shuffle(seed=1).repeat(3)
    moving = inputs.from_generator(source).shuffle(seed=1).repeat(3)

    assert "is kept" in str(steady.explain())
    assert sorted(moving) == sorted(steady)
    assert len(calls) == 3


def test_small_functions_of_single_elements_stay_in_the_consumers_thread():
    """To hand an element to a thread costs more than most functions of one element do."""
    assert after(inputs.range(5).map(abs)) == "Range > Map"
    batches = rows().batch(4).map(lambda batch: batch["fare"] * 2, stateless=True)
    assert after(batches) == "Arrow > Batch > ParallelMap > Prefetch"


def test_only_what_cuts_blocks_stays_behind_the_prefetch():
    """A batch is cut by the consumer, so that threads hand over blocks and not batches."""
    assert after(rows().shuffle(5, seed=1).batch(2)) == "Arrow > Shuffle > Prefetch > Batch"
    assert after(rows().batch(2)) == "Arrow > Batch"


def test_a_condition_may_guard_the_next():
    """Fused or pushed into a file, the second is asked of the rows for which the first holds, as it was written."""
    table = pa.table({"a": [1, 6, 8], "b": [0, 2, 0]})
    guarded = inputs.from_arrow(table).filter(inputs.col("b") != 0).filter(inputs.col("a") / inputs.col("b") > 1)

    assert after(guarded) == "Arrow > Filter > Prefetch"
    assert list(guarded) == [{"a": 6, "b": 2}]


def test_a_condition_stays_above_a_map_that_converts_its_columns():
    """`spec` makes floats of whole numbers: below the map, 1 / 2 would be 0."""
    schema = pa.schema([("a", pa.float64()), ("c", pa.int64())])
    halves = inputs.from_arrow(pa.table({"a": [1, 3]})).map(
        lambda columns: {"c": columns["a"]}, vectorized=True, reads=["a"], writes=["c"], spec=schema
    )

    assert [row["c"] for row in halves.filter(inputs.col("a") / 2 < 1)] == [1]


def test_a_condition_stays_above_a_repeat_without_end():
    """A round of which it leaves nothing would be the last one."""
    firsts = rows().shuffle(seed=0).take(1).repeat()
    small = firsts.filter(inputs.col("fare") < 10)

    assert "Repeat > Filter" in after(small)
    assert len(list(small.take(5))) == 5


def test_parts_that_follow_each_other_are_narrowed_alike(tmp_path):
    """One part needs a column for a filter of its own, another comes from memory: both give the selected one."""
    pq.write_table(rows().to_arrow(), tmp_path / "a.parquet")
    files = inputs.from_parquet(tmp_path / "a.parquet")
    some = files.filter(lambda row: row["tip"] > 1.7)

    assert [row["fare"] for row in some.concatenate(rows().take(1)).select("fare")] == [18.0, 19.0, 0.0]
    assert draw(some.concatenate(files).select("fare").explain().op).count("Select") == 2


def test_a_map_that_describes_its_result_can_be_narrowed(tmp_path):
    """Its `spec` names all columns, of which those that are not read are left out."""
    pq.write_table(rows().to_arrow(), tmp_path / "a.parquet")
    files = inputs.from_parquet(tmp_path / "a.parquet")
    schema = files.spec.schema.append(pa.field("double", pa.float64()))
    doubles = files.map(written, vectorized=True, reads=["fare"], writes=["double"], spec=schema).select("double")

    assert [row["double"] for row in doubles.take(2)] == [0.0, 2.0]
    (source,) = [op for op in list_ops(doubles.explain().op) if isinstance(op, Parquet)]
    assert source.columns == ("fare",)


def test_predicates_that_take_batches_differently_do_not_fuse():
    """One is annotated to take a RecordBatch, whose length is its rows; a dict's would be its columns."""

    def is_long(batch: pa.RecordBatch) -> bool:
        return len(batch) >= 3

    def is_there(columns) -> bool:
        return len(columns["fare"]) > 0

    batches = rows().batch(8)

    for dataset in (batches.filter(is_long).filter(is_long), batches.filter(is_there).filter(is_long)):
        assert [batch.num_rows for batch in dataset] == [8, 8, 4]
