"""InfraValidator: a model is tried as it will be served, in a process that has nothing of this one."""

import importlib.util
import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.components import Importer, InfraValidator, Pusher
from spanwise.components.serving import infra_validator
from spanwise.components.serving.probe import arrays
from spanwise.orchestrator import Examples, Model, ParameterError
from tests.components import served_model as serving
from tests.components.flow import Bench, Lake, only

ROWS = {1: {"x": [9.0, 9.0]}, 2: {"x": [1.0, 2.0, 3.0]}}


def tried(tmp_path, predict_fn=serving.times, *, rows=ROWS, push=False, **arguments):
    (tmp_path / "model").mkdir(parents=True, exist_ok=True)
    (tmp_path / "model" / "factor").write_text("2.5")
    model = Importer(uri=str(tmp_path / "model"), kind=Model, name="Trainer")
    lake = Lake(rows=rows, splits=["train", "eval"])
    infra = InfraValidator(model=model["artifact"], examples=lake["examples"], predict_fn=predict_fn, **arguments)
    nodes = [lake, model, infra]
    if push:
        nodes.append(
            Pusher(model=model["artifact"], infra_blessing=infra["blessing"], destination=str(tmp_path / "serving"))
        )
    return Bench(tmp_path / "root").run(*nodes).executions


def test_a_model_that_serves_is_blessed_and_pushed(tmp_path):
    """The fresh process gives the numbers of this one for the rows of the newest span."""
    executions = tried(tmp_path, push=True)

    blessing = only(executions["InfraValidator"], "blessing")
    assert blessing.properties == {"blessed": 1, "model": "p/Trainer/artifact/1", "reasons": []}
    assert (blessing.path / "INFRA_BLESSED").exists()
    assert json.loads((blessing.path / "infra.json").read_text())["rows"] == 3
    assert only(executions["Pusher"], "pushed_model").properties["pushed"] == 1


def test_a_pipeline_file_is_loaded_by_its_path(tmp_path, monkeypatch):
    """With its neighbours, under whatever name the command line has given it."""
    (tmp_path / "scales_of_a_pipeline.py").write_text("SCALE = 2\n")
    file = tmp_path / "my pipeline.py"
    file.write_text(
        "from scales_of_a_pipeline import SCALE\n\ndef predict(model, table):\n    return table['x'].to_numpy() * SCALE\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = importlib.util.spec_from_file_location("pipeline_file_tried", file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "pipeline_file_tried", module)
    spec.loader.exec_module(module)

    found = only(tried(tmp_path / "run", module.predict)["InfraValidator"], "blessing").properties

    assert found["reasons"] == []


def test_the_fresh_process_has_not_imported_what_only_reading_the_rows_would_need(tmp_path):
    """A server gets rows by the network: it has neither pyarrow.dataset nor the pandas that this imports."""
    assert only(tried(tmp_path, serving.imported)["InfraValidator"], "blessing").properties["reasons"] == []


def test_a_table_of_predictions_may_be_anything(tmp_path):
    """Texts and yes or no are compared as they are."""
    assert only(tried(tmp_path, serving.named)["InfraValidator"], "blessing").properties["blessed"] == 1


def test_lists_of_numbers_are_compared_number_by_number(tmp_path):
    """Within the tolerance, and whatever the columns are called."""
    assert only(tried(tmp_path, serving.lists)["InfraValidator"], "blessing").properties["reasons"] == []


@pytest.mark.parametrize(
    ("predictions", "said"),
    [
        (pa.table({"p": [[0.25, 1.0], [0.25, np.nan]]}), "p has 1 values that are not finite numbers"),
        (pa.table({"p": [{"x": 1.0}, {"x": None}]}), "p has 1 missing values"),
        (pa.table({"p": ["late", None]}), "p has 1 missing values"),
        (pa.table({"p": pa.array(["late", None]).dictionary_encode()}), "p has 1 missing values"),
        (pa.table({"p": pa.array([1, None], pa.timestamp("us"))}), "p has 1 missing values"),
        ([0.5, None], "prediction has 1 missing values"),
        (np.ma.masked_array([0.5, 0.5], [False, True]), "prediction has 1 missing values"),
        (pa.table({}), "predict_fn returned no columns"),
    ],
)
def test_a_row_without_a_prediction_is_found_in_every_type(predictions, said):
    """Also within lists and structs, and where NumPy would read what is below a mask."""
    assert infra_validator._find_invalid(arrays(predictions), 2) == [said]


@pytest.mark.parametrize("form", [lambda series: series, lambda series: {"prediction": series.tolist()}])
@pytest.mark.parametrize(("values", "dtype"), [(["late", None], "string"), ([True, None], "boolean")])
def test_a_prediction_that_pandas_calls_missing_is_missing(values, dtype, form):
    """Its NA is neither equal to anything nor unequal."""
    pandas = pytest.importorskip("pandas")
    found = {name: np.asarray(each) for name, each in arrays(form(pandas.Series(values, dtype=dtype))).items()}

    assert infra_validator._find_invalid(found, 2) == ["prediction has 1 missing values"]
    assert infra_validator._find_differences(found, found, 1e-6) == []


@pytest.mark.parametrize("other", [[["a", "c"], ["b"]], [["a", "b"], ["b", "b"]], [{"x": 1}, {"x": 1}]])
def test_other_lists_are_another_prediction(other):
    """Of other values, or of another length."""
    ours, theirs = ({"p": arrays(pa.table({"p": each}))["p"]} for each in ([["a", "b"], ["b"]], other))

    assert infra_validator._find_differences(ours, theirs, 1e-6)


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (np.array([5_000_000]), np.array([5_000_003])),
        (np.array([2**62]), np.array([2**62 + 1])),
        (np.array([10**6], "m8[us]"), np.array([10**6 + 1], "m8[us]")),
    ],
    ids=["ids", "large", "durations"],
)
def test_whole_numbers_and_times_are_equal_or_not(there, here):
    """The tolerance is for what rounding explains: an id beside another is another prediction."""
    assert infra_validator._find_differences({"p": there}, {"p": here}, 1e-6) == [
        "p is not the same in a fresh process as here"
    ]
    assert not infra_validator._find_differences({"p": there}, {"p": there.copy()}, 1e-6)


@pytest.mark.parametrize(
    ("predict_fn", "said"),
    [
        (serving.missing, "a fresh process failed: FileNotFoundError"),
        (serving.unknown_module, "a fresh process failed: ModuleNotFoundError: No module named 'luggage'"),
        (serving.nan_somewhere, "prediction has 1 values that are not finite numbers"),
        (serving.too_few, "prediction has 2 values for 3 rows"),
        (serving.different, "prediction of row 0 is 1.5 in a fresh process and 1.0 here"),
        (serving.dies, "a fresh process was killed by signal 9"),
    ],
)
def test_a_model_that_does_not_serve_is_refused_with_the_reason(tmp_path, predict_fn, said):
    """It is not pushed, and the run goes on."""
    executions = tried(tmp_path, predict_fn, push=True)

    properties = only(executions["InfraValidator"], "blessing").properties
    assert properties["blessed"] == 0
    assert said in properties["reasons"][0]
    assert only(executions["Pusher"], "pushed_model").properties["pushed"] == 0
    assert said in only(executions["Pusher"], "pushed_model").properties["reason"]


def test_one_that_does_not_answer_in_time_is_refused(tmp_path):
    """It is ended, and the reason names the limit."""
    found = only(tried(tmp_path, serving.slow, wait_s=3.0)["InfraValidator"], "blessing").properties

    assert found["reasons"] == ["it did not answer within 3 s (wait_s)"]


def test_another_interpreter_may_be_named(tmp_path):
    """The one that serves; one that is not there is a reason."""
    (tmp_path / "a").mkdir()
    mine = only(tried(tmp_path / "a", python=sys.executable)["InfraValidator"], "blessing").properties
    (tmp_path / "b").mkdir()
    none = only(tried(tmp_path / "b", python="/no/python")["InfraValidator"], "blessing").properties

    assert mine["blessed"] == 1
    assert none["reasons"] == ["/no/python could not be started (No such file or directory)"]


def test_it_is_tried_again_in_every_run(tmp_path):
    """The libraries of the machine may have changed, so it is never served from the cache."""
    first, second = tried(tmp_path), tried(tmp_path)

    assert first["InfraValidator"].reused is None
    assert second["InfraValidator"].reused is None


def test_the_rows_that_are_tried_may_be_in_several_files(tmp_path):
    """As many as are asked for, however few the first file or row group has; all of the newest span if it has fewer."""
    span = Examples(str(tmp_path), name="s")
    span.span, span.split_names = 1, ["eval"]
    span.split("eval").mkdir()
    for number in range(3):
        table = pa.table({"x": [10 * number, 10 * number + 1, 10 * number + 2]})
        pq.write_table(table, span.split("eval") / f"part-{number}.parquet", row_group_size=2)

    tried = [infra_validator._read_sample([span], "eval", count)["x"].to_pylist() for count in (2, 4, 64)]

    assert tried == [[0, 1], [0, 1, 2, 10], [0, 1, 2, 10, 11, 12, 20, 21, 22]]


def test_without_rows_there_is_nothing_to_try(tmp_path):
    """An empty split is an error, not a blessing."""
    rows = {1: {"x": []}}

    assert "has no rows, so there is nothing to try" in tried(tmp_path, rows=rows)["InfraValidator"].error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"predict_fn": lambda _, table: table["x"]}, "cannot import predict_fn, '.*<lambda>'; write it with def"),
        ({"predict_fn": print}, "cannot import predict_fn"),
        ({"rows": 0}, "rows is 0; it is more than 0"),
        ({"wait_s": -1.0}, "wait_s is -1; it is more than 0"),
        ({"tolerance": -1e-6}, "tolerance is -1e-06; it is 0 or more"),
        ({"tolerance": float("nan")}, "tolerance is nan; it is 0 or more"),
    ],
)
def test_what_cannot_work_is_refused_when_the_pipeline_is_made(arguments, said):
    """A function that no other process could import, or no rows."""
    lake, model = Lake(rows=ROWS, splits=["eval"]), Importer(uri="x", kind=Model)

    with pytest.raises(ParameterError, match=said):
        InfraValidator(
            **{"model": model["artifact"], "examples": lake["examples"], "predict_fn": serving.times, **arguments}
        )
