"""What the work is: ingest, train, evaluate, push."""

from components.evaluator import Evaluator, Finding, Threshold, judge
from components.example_gen import ExampleGen
from components.importer import Importer
from components.pusher import Pusher
from components.readers.descriptor import Dialect
from components.trainer import Trainer, TrainerTask

__all__ = [
    "Dialect",
    "Evaluator",
    "ExampleGen",
    "Finding",
    "Importer",
    "Pusher",
    "Threshold",
    "Trainer",
    "TrainerTask",
    "judge",
]
