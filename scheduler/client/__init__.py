"""The client: runs, spans, artifacts, models and schedules as typed records, for notebooks and scripts.

Each record is loaded when it is first used, so that a command which shows runs does not wait for those of models.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spanwise.scheduler.client.artifacts import ArtifactRecord
    from spanwise.scheduler.client.client import Client, connect
    from spanwise.scheduler.client.models import ModelRecord
    from spanwise.scheduler.client.pipelines import PipelineRecord, PlannedBackfill, WindowRecord
    from spanwise.scheduler.client.runs import ExecutionRecord, RunRecord
    from spanwise.scheduler.client.spans import SpanRecord

__all__ = [
    "ArtifactRecord",
    "Client",
    "ExecutionRecord",
    "ModelRecord",
    "PipelineRecord",
    "PlannedBackfill",
    "RunRecord",
    "SpanRecord",
    "WindowRecord",
    "connect",
]

_MODULES = {
    "artifacts": ("ArtifactRecord",),
    "client": ("Client", "connect"),
    "models": ("ModelRecord",),
    "pipelines": ("PipelineRecord", "PlannedBackfill", "WindowRecord"),
    "runs": ("ExecutionRecord", "RunRecord"),
    "spans": ("SpanRecord",),
}
_MODULE = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_MODULE[name]}"), name)
    globals()[name] = value
    return value
