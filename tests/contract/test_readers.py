"""What programs that know TFX's metadata ask of ours, with ML Metadata's own client on a database of its own."""

import json
from dataclasses import replace

import pytest
from ml_metadata import errors
from ml_metadata.metadata_store import ListOptions, MetadataStore, OrderByField
from ml_metadata.proto import metadata_store_pb2 as pb

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.run import Execution, Run, State
from spanwise.orchestrator.store import Address, Claim

OUTPUTS = {
    "ExampleGen": {"examples": ("Examples", {"span": 7, "version": 2, "split_names": ["train", "eval"]})},
    "StatisticsGen": {"statistics": ("ExampleStatistics", {"span": 7})},
    "Trainer": {"model": ("Model", {})},
    "Evaluator": {"evaluation": ("ModelEvaluation", {}), "blessing": ("ModelBlessing", {"blessed": 1})},
    "Pusher": {"pushed": ("PushedModel", {"pushed": 1})},
}
INPUTS = {
    "ExampleGen": {},
    "StatisticsGen": {"examples": ("ExampleGen", "examples")},
    "Trainer": {"examples": ("ExampleGen", "examples")},
    "Evaluator": {"examples": ("ExampleGen", "examples"), "model": ("Trainer", "model")},
    "Pusher": {"model": ("Trainer", "model")},
}


def connect(url):
    config = pb.ConnectionConfig()
    config.sqlite.filename_uri = url
    config.sqlite.connection_mode = pb.SqliteMetadataSourceConfig.READWRITE_OPENCREATE
    return MetadataStore(config)


def execute(store, run, node):
    """One node of a run, from its beginning to its publication."""
    begun = store.begin(Execution(pipeline=run.pipeline, run=run.number, node=node, component=node))
    inputs = {
        key: (next(store.newest(Address(run.pipeline, producer, output))),)
        if producer != "ExampleGen"
        else tuple(store.of_span(Address(run.pipeline, producer, output), 7)[-1:])
        for key, (producer, output) in INPUTS[node].items()
    }
    outputs = {
        key: (Artifact(f"/{run.name}/{node}/{key}", kind=kind, properties=properties),)
        for key, (kind, properties) in OUTPUTS[node].items()
    }
    return store.publish(replace(begun, state=State.COMPLETE, inputs=inputs, outputs=outputs))


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "metadata.db")


@pytest.fixture
def store(url):
    store = open_store(url)
    yield store
    store.close()


@pytest.fixture
def reader(store, url):
    """Two runs of `rides`, one of `flights` and a claim, as another program sees them."""
    for pipeline in ("rides", "flights", "rides"):
        run = store.begin_run(Run(pipeline=pipeline), Claim("lease", f"{pipeline}#{len(list(store.runs(pipeline)))}"))
        for node in OUTPUTS:
            execute(store, run, node)
    return connect(url)


# --- types


def test_kinds_have_the_base_types_of_ml_metadata(reader):
    """Data, statistics, models and metrics are of ML Metadata's system types; what is none of them has none."""
    bases = {t.name: pb.ArtifactType.SystemDefinedBaseType.Name(t.base_type) for t in reader.get_artifact_types()}

    assert bases == {
        "Examples": "DATASET",
        "ExampleStatistics": "STATISTICS",
        "Model": "MODEL",
        "PushedModel": "MODEL",
        "ModelEvaluation": "METRICS",
        "ModelBlessing": "UNSET",
    }


def test_components_have_the_base_types_of_ml_metadata(reader):
    """Nodes that process, train, evaluate and deploy are of ML Metadata's system types."""
    bases = {t.name: pb.ExecutionType.SystemDefinedBaseType.Name(t.base_type) for t in reader.get_execution_types()}

    assert bases == {
        "ExampleGen": "PROCESS",
        "StatisticsGen": "PROCESS",
        "Trainer": "TRAIN",
        "Evaluator": "EVALUATE",
        "Pusher": "DEPLOY",
    }


@pytest.mark.parametrize("base", [None, pb.ArtifactType.DATASET], ids=["none", "another"])
def test_a_type_that_another_program_has_declared_is_used(url, base):
    """Where another program has declared Model without a base type it gets ours; one of another base type keeps it."""
    other = connect(url)
    other.put_artifact_type(pb.ArtifactType(name="Model", base_type=base, properties={"theirs": pb.STRING}))

    store = open_store(url)
    execute(store, store.begin_run(Run(pipeline="rides")), "ExampleGen")
    execute(store, store.begin_run(Run(pipeline="rides")), "Trainer")
    store.close()

    declared = other.get_artifact_type("Model")
    assert declared.base_type == (base or pb.ArtifactType.MODEL)
    assert "theirs" in declared.properties
    assert [a.name for a in other.get_artifacts_by_type("Model")] == ["rides/Trainer/model/1"]


def test_tfx_can_declare_its_types_after_us(reader):
    """A TFX pipeline that shares the database declares types of the same names, with its own fields, without a conflict."""
    examples = {"span": pb.INT, "version": pb.INT, "split_names": pb.STRING}
    declared = [
        pb.ArtifactType(name="Examples", base_type=pb.ArtifactType.DATASET, properties=examples),
        pb.ArtifactType(name="Model", base_type=pb.ArtifactType.MODEL),
        pb.ArtifactType(name="ModelEvaluation"),
    ]

    ids = [reader.put_artifact_type(t, can_add_fields=True, can_omit_fields=True) for t in declared]
    contexts = [
        reader.put_context_type(pb.ContextType(name=name), can_add_fields=True, can_omit_fields=True)
        for name in ("pipeline", "pipeline_run", "node")
    ]

    assert ids == [reader.get_artifact_type(t.name).id for t in declared]
    assert contexts == [reader.get_context_type(name).id for name in ("pipeline", "pipeline_run", "node")]


# --- what records say of themselves


def test_an_artifact_says_which_pipeline_and_component_produced_it(reader):
    """As in TFX, custom properties name the pipeline, the node and the output of each artifact."""
    told = {
        tuple(a.custom_properties[key].string_value for key in ("pipeline_name", "producer_component", "name"))
        for a in reader.get_artifacts()
    }

    assert told == {(p, node, key) for p in ("rides", "flights") for node in OUTPUTS for key in OUTPUTS[node]}


def test_an_execution_says_which_pipeline_run_and_node_it_is_of(reader):
    """As in TFX, typed properties name the pipeline, the run, the component and the state."""
    (trainer,) = [e for e in reader.get_executions_by_type("Trainer") if e.name == "rides/2/Trainer/1"]

    assert {key: value.string_value for key, value in trainer.properties.items()} == {
        "pipeline_name": "rides",
        "run_id": "rides/2",
        "component_id": "Trainer",
        "state": "complete",
    }


def test_contexts_say_what_they_are_of(reader):
    """As in TFX, typed properties of contexts name the pipeline, the run and the component."""
    told = {
        c.name: {key: value.string_value for key, value in c.properties.items()}
        for kind in ("pipeline", "pipeline_run", "node")
        for c in reader.get_contexts_by_type(kind)
        if c.name in {"rides", "rides/2", "rides.Trainer"}
    }

    assert told == {
        "rides": {"pipeline_name": "rides"},
        "rides/2": {"pipeline_name": "rides", "run_id": "rides/2"},
        "rides.Trainer": {"pipeline_name": "rides", "component_id": "Trainer"},
    }


def test_a_run_that_ends_keeps_its_properties(store, reader):
    """Recording the end of a run takes none of its typed properties away."""
    store.update_run(replace(store.run("rides", 2), state=State.COMPLETE))

    context = reader.get_context_by_type_and_name("pipeline_run", "rides/2")
    assert {key: value.string_value for key, value in context.properties.items()} == {
        "pipeline_name": "rides",
        "run_id": "rides/2",
    }


@pytest.mark.parametrize("name", ["name", "pipeline_name", "producer_component", "own:name", "own:own:"])
def test_a_kind_may_have_properties_of_the_same_names(store, name):
    """An artifact's own property of a name that others read is read back as it was set, beside what others read."""
    begun = store.begin(Execution(pipeline="p", run=store.begin_run(Run(pipeline="p")).number, node="N", component="N"))
    draft = Artifact("/u", kind="Thing", properties={name: "mine", "plain": "too"})

    made = store.publish(replace(begun, state=State.COMPLETE, outputs={"thing": (draft,)})).outputs["thing"][0]

    assert store.artifact(made.name).properties == {name: "mine", "plain": "too"}


# --- ML Metadata's queries


ALL = [f"{node}/{key}" for node in OUTPUTS for key in OUTPUTS[node]]


@pytest.mark.parametrize(
    ("kind", "name", "runs", "nodes", "artifacts"),
    [
        ("pipeline", "rides", ["rides/1", "rides/2"], list(OUTPUTS), ALL),
        ("pipeline_run", "rides/2", ["rides/2"], list(OUTPUTS), ALL),
        ("node", "rides.Trainer", ["rides/1", "rides/2"], ["Trainer"], ["ExampleGen/examples", "Trainer/model"]),
    ],
)
def test_a_context_has_its_executions_and_artifacts(reader, kind, name, runs, nodes, artifacts):
    """Contexts lead to their executions and, as in TFX, to the artifacts that those read or made, and to no others."""
    context = reader.get_context_by_type_and_name(kind, name)

    assert {e.name for e in reader.get_executions_by_context(context.id)} == {f"{r}/{n}/1" for r in runs for n in nodes}
    assert {a.uri for a in reader.get_artifacts_by_context(context.id)} == {
        f"/{r}/{a}" for r in runs for a in artifacts
    }


def test_artifacts_are_found_by_type_newest_first(reader):
    """`get_artifacts_by_type` and `list_options` give a kind's artifacts in the order asked for, and no more."""
    newest = ListOptions(limit=2, order_by=OrderByField.ID, is_asc=False)

    assert len(reader.get_artifacts_by_type("Examples")) == 3
    assert [a.uri for a in reader.get_artifacts(newest)] == ["/rides/2/Pusher/pushed", "/rides/2/Evaluator/blessing"]


def test_artifacts_are_filtered_by_what_they_say(reader):
    """Where ml-metadata has filter queries, they find artifacts by producer, by span and by context."""
    query = (
        "type = 'Examples' AND properties.span.int_value = 7 "
        "AND custom_properties.producer_component.string_value = 'ExampleGen' "
        "AND contexts_a.type = 'pipeline_run' AND contexts_a.name = 'rides/2'"
    )
    try:
        found = reader.get_artifacts(ListOptions(filter_query=query))
    except (errors.UnimplementedError, DeprecationWarning):  # 1.21 warns before it refuses
        pytest.skip("this ml-metadata has no filter queries")

    assert [a.uri for a in found] == ["/rides/2/ExampleGen/examples"]


def test_executions_are_filtered_by_what_they_say(reader):
    """Where ml-metadata has filter queries, they find executions by component, run and state."""
    query = (
        "properties.component_id.string_value = 'Trainer' AND properties.run_id.string_value = 'flights/1' "
        "AND properties.state.string_value = 'complete' AND last_known_state = COMPLETE"
    )
    try:
        found = reader.get_executions(ListOptions(filter_query=query))
    except (errors.UnimplementedError, DeprecationWarning):  # 1.21 warns before it refuses
        pytest.skip("this ml-metadata has no filter queries")

    assert [e.name for e in found] == ["flights/1/Trainer/1"]


# --- a notebook's questions


def test_a_notebook_finds_the_latest_outputs_of_a_component(reader):
    """The node's context, its newest execution, and the OUTPUT events by key, as TFX's tutorials look them up."""
    context = reader.get_context_by_type_and_name("node", "rides.Evaluator")
    latest = max(reader.get_executions_by_context(context.id), key=lambda e: (e.last_update_time_since_epoch, e.id))
    events = [e for e in reader.get_events_by_execution_ids([latest.id]) if e.type == pb.Event.OUTPUT]
    uris = {e.path.steps[0].key: reader.get_artifacts_by_id([e.artifact_id])[0].uri for e in events}

    assert uris == {"evaluation": "/rides/2/Evaluator/evaluation", "blessing": "/rides/2/Evaluator/blessing"}


def test_a_notebook_walks_from_a_pushed_model_to_its_examples(reader):
    """Events lead from a pushed model to the model, its trainer and the examples, with their span and splits."""

    def producers(artifact, key):
        """The artifacts that the producer of this one read under a key."""
        (made,) = [e for e in reader.get_events_by_artifact_ids([artifact.id]) if e.type == pb.Event.OUTPUT]
        events = reader.get_events_by_execution_ids([made.execution_id])
        read = [e for e in events if e.type == pb.Event.INPUT and e.path.steps[0].key == key]
        return reader.get_artifacts_by_id([e.artifact_id for e in read])

    pushed = max(reader.get_artifacts_by_type("PushedModel"), key=lambda a: a.id)
    (model,) = producers(pushed, "model")
    (examples,) = producers(model, "examples")

    assert (model.type, model.uri) == ("Model", "/rides/2/Trainer/model")
    assert (examples.properties["span"].int_value, examples.properties["version"].int_value) == (7, 2)
    assert json.loads(examples.properties["split_names"].string_value) == ["train", "eval"]


def test_a_notebook_lists_the_outputs_of_each_run(reader):
    """Executions are grouped by `run_id`, and their outputs by `producer_component` and `name`."""
    runs = {}
    for execution in reader.get_executions():
        runs.setdefault(execution.properties["run_id"].string_value, []).append(execution.id)
    events = [e for e in reader.get_events_by_execution_ids(runs["rides/1"]) if e.type == pb.Event.OUTPUT]
    made = reader.get_artifacts_by_id(sorted({e.artifact_id for e in events}))

    assert set(runs) == {"rides/1", "rides/2", "flights/1"}
    assert [
        f"{a.custom_properties['producer_component'].string_value}/{a.custom_properties['name'].string_value}"
        for a in made
    ] == ALL
