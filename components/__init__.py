"""What the work is: ingest, count, check, transform, train, evaluate, push. Names are imported when they are used."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spanwise.components.command import Command
    from spanwise.components.evaluation.evaluator import Evaluator
    from spanwise.components.evaluation.metric import Metric
    from spanwise.components.evaluation.threshold import Finding, Threshold, judge
    from spanwise.components.importer import Importer
    from spanwise.components.ingest.example_gen import ExampleGen
    from spanwise.components.ingest.query_example_gen import QueryExampleGen
    from spanwise.components.serving.bulk_inferrer import BulkInferrer
    from spanwise.components.serving.infra_validator import InfraValidator
    from spanwise.components.serving.pusher import Pusher
    from spanwise.components.statistics.example_validator import ExampleValidator
    from spanwise.components.statistics.gate import AnomalyGate
    from spanwise.components.statistics.schema_gen import SchemaGen
    from spanwise.components.statistics.statistics_gen import StatisticsGen
    from spanwise.components.training.elastic.job import ElasticJob, ElasticOutcome
    from spanwise.components.training.trainer import Trainer
    from spanwise.components.training.trainer_task import TrainerTask
    from spanwise.components.transform.analyzers import Analyzer
    from spanwise.components.transform.graph import Preprocessor
    from spanwise.components.transform.preprocessing import (
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
    from spanwise.components.transform.transform import Transform
    from spanwise.pipelines.input.readers.descriptor import Dialect

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
    "Preprocessor",
    "Pusher",
    "QueryExampleGen",
    "SchemaGen",
    "StatisticsGen",
    "Threshold",
    "Trainer",
    "TrainerTask",
    "Transform",
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

# Where a model is served, `spanwise.components.transform.graph` is all there is: importing it must not import the rest.
_HOMES = {
    "spanwise.components.transform.analyzers": ("Analyzer",),
    "spanwise.components.serving.bulk_inferrer": ("BulkInferrer",),
    "spanwise.components.command": ("Command",),
    "spanwise.components.training.elastic.job": ("ElasticJob", "ElasticOutcome"),
    "spanwise.components.evaluation.evaluator": ("Evaluator",),
    "spanwise.components.evaluation.threshold": ("Finding", "Threshold", "judge"),
    "spanwise.components.ingest.example_gen": ("ExampleGen",),
    "spanwise.components.statistics.example_validator": ("ExampleValidator",),
    "spanwise.components.statistics.gate": ("AnomalyGate",),
    "spanwise.components.importer": ("Importer",),
    "spanwise.components.serving.infra_validator": ("InfraValidator",),
    "spanwise.components.evaluation.metric": ("Metric",),
    "spanwise.components.transform.preprocessing": (
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
    "spanwise.components.serving.pusher": ("Pusher",),
    "spanwise.components.ingest.query_example_gen": ("QueryExampleGen",),
    "spanwise.pipelines.input.readers.descriptor": ("Dialect",),
    "spanwise.components.statistics.schema_gen": ("SchemaGen",),
    "spanwise.components.statistics.statistics_gen": ("StatisticsGen",),
    "spanwise.components.training.trainer": ("Trainer",),
    "spanwise.components.training.trainer_task": ("TrainerTask",),
    "spanwise.components.transform.transform": ("Transform",),
    "spanwise.components.transform.graph": ("Preprocessor",),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"components has no {name!r}; it has: {', '.join(__all__)}")
