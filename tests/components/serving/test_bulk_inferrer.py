"""BulkInferrer: one file of predictions for each file of a span, row by row."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.components import BulkInferrer, Importer
from spanwise.orchestrator import Blessing, Component, Examples, Input, Model, Output, ParameterError, State
from spanwise.orchestrator.verdict import Verdict, append
from spanwise.resolvers import LatestBlessed
from tests.components import served_model as serving
from tests.components.flow import Bench, only

FILES = {
    "train/part-00000": {"id": ["ä1", "b2", None], "x": [1.0, 2.0, 3.0]},
    "train/part-00001": {"id": ["c3"], "x": [4.0]},
    "eval/part-00000": {"id": [], "x": []},
}
TYPES = pa.schema([("id", pa.string()), ("x", pa.float64())])


class Span(Component):
    """Publishes one span of some files."""

    def run(self, *, examples: Output[Examples], files: dict) -> None:
        for name, columns in files.items():
            split, file = name.split("/")
            (examples.path / f"Split-{split}").mkdir(exist_ok=True)
            pq.write_table(pa.table(columns, schema=TYPES), examples.path / f"Split-{split}" / f"{file}.parquet")
        examples.split_names = sorted({name.split("/")[0] for name in files})
        examples.span, examples.version, examples.calendar = 15706, 2, "day"


class Judge(Component):
    """Blesses a model, or does not."""

    def run(self, *, model: Input[Model], blessing: Output[Blessing | None], says: int | None) -> None:
        if says is not None:
            blessing.blessed, blessing.current_model, blessing.current_model_id = says, model.name, model.id
            blessing.reasons = ["auc is 0.5; at_least=0.6 is required"]


def inferred(tmp_path, predict_fn=serving.times, *, says="unconnected", files=FILES, bench=None, **arguments):
    (tmp_path / "model").mkdir(exist_ok=True)
    (tmp_path / "model" / "factor").write_text("2.5")
    span, model = Span(files=files), Importer(uri=str(tmp_path / "model"), kind=Model, name="Trainer")
    verdict = [] if says == "unconnected" else [Judge(model=model["artifact"], says=says)]
    blessing = {"blessing": verdict[0]["blessing"]} if verdict else {}
    inferrer = BulkInferrer(
        examples=span["examples"], model=model["artifact"], predict_fn=predict_fn, **blessing, **arguments
    )
    bench = bench or Bench(tmp_path / "root")
    return bench.run(span, model, *verdict, inferrer).executions["BulkInferrer"]


def tables(execution):
    result = only(execution, "inference_result")
    return {str(p.relative_to(result.path)): pq.read_table(p) for p in sorted(result.path.rglob("*.parquet"))}


def test_every_row_has_its_prediction_in_the_file_of_its_name(tmp_path):
    """One file for one file, the same order, the columns that were asked for; batches make no difference."""
    execution = inferred(tmp_path, columns=("id",), batch_size=2)

    found = tables(execution)
    assert {name: table.to_pydict() for name, table in found.items()} == {
        "Split-train/part-00000.parquet": {"id": ["ä1", "b2", None], "prediction": [2.5, 5.0, 7.5]},
        "Split-train/part-00001.parquet": {"id": ["c3"], "prediction": [10.0]},
        "Split-eval/part-00000.parquet": {"id": [], "prediction": []},
    }
    assert len({table.schema for table in found.values()}) == 1


def test_the_result_carries_its_span_and_its_model(tmp_path):
    """Whatever comes after can tell which rows these are of, and who says so."""
    properties = only(inferred(tmp_path, columns=("id",)), "inference_result").properties

    assert properties == {
        "span": 15706,
        "version": 2,
        "calendar": "day",
        "split_names": ["eval", "train"],
        "model": "p/Trainer/artifact/1",
        "rows": {"eval": 0, "train": 4},
        "columns": {"id": "string", "prediction": "double"},
    }


def test_a_table_brings_its_own_columns(tmp_path):
    """As a mapping does; only the splits that were asked for are predicted."""
    found = tables(inferred(tmp_path, serving.named, splits=("train",)))

    assert list(found) == ["Split-train/part-00000.parquet", "Split-train/part-00001.parquet"]
    assert found["Split-train/part-00001.parquet"].to_pylist() == [{"late": True, "why": "x is 4.0"}]


def test_several_numbers_a_row_are_a_list(tmp_path):
    """The chances of classes stay together."""

    def chances(model, table):
        return [[1 - x, x] for x in table["x"].to_pylist()]

    found = tables(inferred(tmp_path, chances, output="chances"))

    assert found["Split-train/part-00001.parquet"].to_pydict() == {"chances": [[-3.0, 4.0]]}


@pytest.mark.parametrize(
    ("says", "told"),
    [
        (0, "p/Trainer/artifact/1 is not blessed: auc is 0.5; at_least=0.6 is required"),
        (None, "p/Trainer/artifact/1 has no verdict"),
    ],
)
def test_a_model_that_is_not_blessed_predicts_nothing(tmp_path, says, told):
    """Nothing is published, the run goes on, and the log says why."""
    execution = inferred(tmp_path, says=says)

    assert execution.error is None
    assert "inference_result" not in execution.outputs
    assert told in (tmp_path / "root" / "p" / ".runs" / "1" / "logs" / "BulkInferrer.1.log").read_text()


def test_a_blessed_model_predicts(tmp_path):
    """A yes is a yes."""
    assert "inference_result" in inferred(tmp_path, says=1).outputs


def test_before_there_is_a_champion_nothing_is_predicted(tmp_path):
    """The first runs of a pipeline have no blessed model."""
    (tmp_path / "model").mkdir()
    span, trainer = Span(files=FILES), Importer(uri=str(tmp_path / "model"), kind=Model, name="Trainer")
    champion = LatestBlessed(trainer["artifact"])
    inferrer = BulkInferrer(examples=span["examples"], model=champion["artifact"], predict_fn=serving.times)

    made = Bench(tmp_path / "root").run(span, trainer, champion, inferrer).executions["BulkInferrer"]

    assert made.error is None
    assert "inference_result" not in made.outputs


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"columns": ("flight",)}, "no column 'flight'; they have: id, x"),
        ({"splits": ("test",)}, "no split 'test'"),
        ({"predict_fn": serving.too_few}, "predict_fn returned 2 values of 'prediction' for 3 rows"),
        ({"predict_fn": lambda _model, _table: {}}, "predict_fn returned no columns for 3 rows"),
        ({"predict_fn": lambda _, table: table.select([])}, "predict_fn returned no columns for 3 rows"),
        ({"predict_fn": lambda _, table: {"id": table["x"]}, "columns": ("id",)}, "returns a column 'id'"),
        ({"predict_fn": lambda _, table: table["x" if len(table) > 1 else "id"]}, "as double for some rows"),
    ],
)
def test_what_cannot_be_predicted_is_told(tmp_path, arguments, said):
    """A column or split that is not there, and predictions that do not fit."""
    assert said in inferred(tmp_path, **arguments).error


def test_a_name_for_two_columns_is_refused_when_the_pipeline_is_made():
    """The prediction needs a name of its own."""
    span, model = Span(files=FILES), Importer(uri="x", kind=Model)

    with pytest.raises(ParameterError, match="'x' is both a column and the name"):
        BulkInferrer(examples=span["examples"], model=model["artifact"], predict_fn=print, columns=("x",), output="x")


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_without_rows_is_refused_when_the_pipeline_is_made(size):
    """Nothing could be predicted with it."""
    span, model = Span(files=FILES), Importer(uri="x", kind=Model)

    with pytest.raises(ParameterError, match=f"BulkInferrer.batch_size is {size}; it is 1 or more"):
        BulkInferrer(examples=span["examples"], model=model["artifact"], predict_fn=serving.times, batch_size=size)


@pytest.mark.parametrize("key", ["columns", "splits"])
def test_a_name_that_is_given_twice_is_refused_when_the_pipeline_is_made(key):
    """A file with two columns of one name can hardly be read; the folder of a split is made once."""
    span, model = Span(files=FILES), Importer(uri="x", kind=Model)
    given = {key: ("eval", "eval")}

    with pytest.raises(ParameterError, match=f"BulkInferrer.{key} has 'eval' twice"):
        BulkInferrer(examples=span["examples"], model=model["artifact"], predict_fn=serving.times, **given)


def fails_without_rows(model, table):
    """As many models do."""
    return 1 / len(table)


@pytest.mark.parametrize(
    ("predict_fn", "columns"),
    [
        (serving.times, [("prediction", pa.float64())]),
        (serving.named, [("late", pa.bool_()), ("why", pa.null())]),
        (fails_without_rows, []),
    ],
)
def test_a_span_without_a_row_gives_files_without_a_row(tmp_path, predict_fn, columns):
    """The columns are there, for whoever reads many spans at once: those that predict_fn gives, if it takes no rows."""
    files = {"eval/part-00000": {"id": [], "x": []}}

    execution = inferred(tmp_path, predict_fn, columns=("id",), files=files)

    (found,) = tables(execution).values()
    assert found.schema == pa.schema([("id", pa.string()), *columns])
    told = (tmp_path / "root" / "p" / ".runs" / "1" / "logs" / "BulkInferrer.1.log").read_text()
    assert ("predict_fn fails without any (ZeroDivisionError: division by zero)" in told) == (not columns)


@pytest.mark.parametrize("batch_size", [2, 100])
def test_columns_that_only_some_rows_have_are_refused(tmp_path, batch_size):
    """Whether they lie in one file or in two: the artifact says of all files which columns they have."""

    def named(model, table):
        x = table["x"].to_numpy()
        return {"a": x} if x[-1] >= 3 + (batch_size > 2) else {"a": x, "b": x}

    error = inferred(tmp_path, named, batch_size=batch_size).error

    assert "the columns a, b for some rows and a for others" in error


@pytest.mark.parametrize("error", [FileNotFoundError("no weights"), pa.ArrowInvalid("no number")])
def test_an_error_of_the_function_is_no_damage_of_the_examples(tmp_path, error):
    """To ingest the span again would change nothing."""

    def fails(model, table):
        raise error

    said = inferred(tmp_path, fails).error

    assert str(error) in said
    assert "damaged" not in said
    assert "Ingest" not in said


@pytest.mark.parametrize("says", [1, 0, "unconnected"])
def test_what_a_person_said_of_the_model_replaces_its_blessing(tmp_path, says):
    """As for a Pusher, in every later run, whatever is in the cache."""
    bench = Bench(tmp_path / "root")

    def rows():
        done = inferred(tmp_path, bench=bench, says=says)
        found = done.outputs.get("inference_result", ())
        return [artifact.properties["rows"]["train"] for artifact in found], done.state

    assert rows()[0] == ([] if says == 0 else [4])
    for given in (False, True):
        verdict = Verdict(mark="blessed", artifact="p/Trainer/artifact/1", given=given, by="ann@host", because="seen")
        append(bench.store, [verdict])
        assert rows() == ([4] if given else [], State.COMPLETE)
        assert rows() == ([4] if given else [], State.CACHED)
