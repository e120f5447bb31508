"""What the work is: ingest, count, check, transform, train, evaluate, push. Names are imported when they are used."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from components.analyzers import Analyzer
    from components.bulk_inferrer import BulkInferrer
    from components.command import Command
    from components.elastic.job import ElasticJob, ElasticOutcome
    from components.evaluator import Evaluator, Finding, Threshold, judge
    from components.example_gen import ExampleGen
    from components.example_validator import AnomalyGate, ExampleValidator
    from components.importer import Importer
    from components.infra_validator import InfraValidator
    from components.metric import Metric
    from components.preprocessing import (
        Columns,
        analyze,
        bucketize,
        cross,
        hash_buckets,
        impute_mean,
        one_hot,
        scale_to_0_1,
        scale_to_z_score,
        vocabulary,
    )
    from components.pusher import Pusher
    from components.query_example_gen import QueryExampleGen
    from components.readers.descriptor import Dialect
    from components.schema_gen import SchemaGen
    from components.statistics_gen import StatisticsGen
    from components.trainer import Trainer, TrainerTask
    from components.transform import Transform
    from components.transform_graph import TransformGraph

__all__ = [
    "Analyzer",
    "AnomalyGate",
    "BulkInferrer",
    "Columns",
    "Command",
    "Dialect",
    "ElasticJob",
    "ElasticOutcome",
    "Evaluator",
    "ExampleGen",
    "ExampleValidator",
    "Finding",
    "Importer",
    "InfraValidator",
    "Metric",
    "Pusher",
    "QueryExampleGen",
    "SchemaGen",
    "StatisticsGen",
    "Threshold",
    "Trainer",
    "TrainerTask",
    "Transform",
    "TransformGraph",
    "analyze",
    "bucketize",
    "cross",
    "hash_buckets",
    "impute_mean",
    "judge",
    "one_hot",
    "scale_to_0_1",
    "scale_to_z_score",
    "vocabulary",
]

# Where a model is served, `components.transform_graph` is all there is: importing it must not import the rest.
_HOMES = {
    "components.analyzers": ("Analyzer",),
    "components.bulk_inferrer": ("BulkInferrer",),
    "components.command": ("Command",),
    "components.elastic.job": ("ElasticJob", "ElasticOutcome"),
    "components.evaluator": ("Evaluator", "Finding", "Threshold", "judge"),
    "components.example_gen": ("ExampleGen",),
    "components.example_validator": ("AnomalyGate", "ExampleValidator"),
    "components.importer": ("Importer",),
    "components.infra_validator": ("InfraValidator",),
    "components.metric": ("Metric",),
    "components.preprocessing": (
        "Columns",
        "analyze",
        "bucketize",
        "cross",
        "hash_buckets",
        "impute_mean",
        "one_hot",
        "scale_to_0_1",
        "scale_to_z_score",
        "vocabulary",
    ),
    "components.pusher": ("Pusher",),
    "components.query_example_gen": ("QueryExampleGen",),
    "components.readers.descriptor": ("Dialect",),
    "components.schema_gen": ("SchemaGen",),
    "components.statistics_gen": ("StatisticsGen",),
    "components.trainer": ("Trainer", "TrainerTask"),
    "components.transform": ("Transform",),
    "components.transform_graph": ("TransformGraph",),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"components has no {name!r}; it has: {', '.join(__all__)}")
