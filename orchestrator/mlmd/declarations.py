"""Declarations: the typed properties and the base type of each type in ML Metadata. Those of TFX where it has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from ml_metadata.proto import metadata_store_pb2

TypeMessage: TypeAlias = Any
"""A type of ml_metadata, which has no types for Python."""

Of: TypeAlias = Literal["artifact", "execution", "context"]

PIPELINE = "pipeline"
RUN = "pipeline_run"
NODE = "node"

_INT, _STRING = metadata_store_pb2.INT, metadata_store_pb2.STRING

ARTIFACT_PROPERTIES: Mapping[str, int] = {
    "span": _INT,
    "version": _INT,
    "split_names": _STRING,
    # Ours; typed, because a kind may declare a custom property of the same name.
    "content": _STRING,
    "files": _STRING,
    "size_bytes": _STRING,  # an integer column ends at 2 GB
    "created": _STRING,
    "producer": _INT,
    "base_kinds": _STRING,
}
"""The typed properties of every artifact type; the first three as TFX's Examples have them."""

EXECUTION_PROPERTIES: Mapping[str, int] = dict.fromkeys(("pipeline_name", "run_id", "component_id", "state"), _STRING)
"""The typed properties of every execution type."""

CONTEXT_PROPERTIES: Mapping[str, Mapping[str, int]] = {
    PIPELINE: {"pipeline_name": _STRING},
    RUN: {"pipeline_name": _STRING, "run_id": _STRING},
    NODE: {"pipeline_name": _STRING, "component_id": _STRING},
}
"""The typed properties of the context types that TFX has too."""

INDEXED_CLAIMS = "by_external_id"
"""The property of the type of claims where those in `layout.INDEXED` have external ids, from the first one on."""

_KINDS, _COMPONENTS = metadata_store_pb2.ArtifactType, metadata_store_pb2.ExecutionType

_BASES: Mapping[tuple[Of, str], int] = {
    ("artifact", "Examples"): _KINDS.DATASET,
    ("artifact", "InferenceResult"): _KINDS.DATASET,
    ("artifact", "ExampleStatistics"): _KINDS.STATISTICS,
    ("artifact", "Model"): _KINDS.MODEL,
    ("artifact", "PushedModel"): _KINDS.MODEL,
    ("artifact", "ModelEvaluation"): _KINDS.METRICS,
    ("execution", "ExampleGen"): _COMPONENTS.PROCESS,
    ("execution", "QueryExampleGen"): _COMPONENTS.PROCESS,
    ("execution", "StatisticsGen"): _COMPONENTS.PROCESS,
    ("execution", "SchemaGen"): _COMPONENTS.PROCESS,
    ("execution", "Transform"): _COMPONENTS.TRANSFORM,
    ("execution", "Trainer"): _COMPONENTS.TRAIN,
    ("execution", "Evaluator"): _COMPONENTS.EVALUATE,
    ("execution", "Pusher"): _COMPONENTS.DEPLOY,
}


def properties_of_type(of: Of, name: str) -> Mapping[str, int]:
    if of == "artifact":
        return ARTIFACT_PROPERTIES
    return EXECUTION_PROPERTIES if of == "execution" else CONTEXT_PROPERTIES.get(name, {})


def declare_type(of: Of, name: str, known: TypeMessage | None) -> TypeMessage:
    """The type to register. `known` is what a program has registered under that name; a base type never changes."""
    declared = {
        "artifact": metadata_store_pb2.ArtifactType,
        "execution": metadata_store_pb2.ExecutionType,
        "context": metadata_store_pb2.ContextType,
    }[of](name=name, properties=properties_of_type(of, name))
    base = known.base_type if known is not None and of != "context" else 0
    if base or (of, name) in _BASES:
        declared.base_type = base or _BASES[of, name]
    return declared
