"""What the work is: ingest, train, evaluate, push."""

from components.evaluator import Evaluator, Finding, Threshold, judge
from components.example_gen import ExampleGen
from components.example_validator import AnomalyGate, ExampleValidator
from components.importer import Importer
from components.pusher import Pusher
from components.readers.descriptor import Dialect
from components.schema_gen import SchemaGen
from components.statistics_gen import StatisticsGen
from components.trainer import Trainer, TrainerTask

__all__ = [
    "AnomalyGate",
    "Dialect",
    "Evaluator",
    "ExampleGen",
    "ExampleValidator",
    "Finding",
    "Importer",
    "Pusher",
    "SchemaGen",
    "StatisticsGen",
    "Threshold",
    "Trainer",
    "TrainerTask",
    "judge",
]
