"""The client: runs, spans, artifacts, models and schedules as typed records, for notebooks and scripts."""

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
