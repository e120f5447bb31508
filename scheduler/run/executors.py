"""Executors of commands: where the nodes of a pipeline are executed, as the settings of the project say."""

from __future__ import annotations

from spanwise.orchestrator.executor import Executor
from spanwise.orchestrator.local_executor import LocalExecutor
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.scheduler.project.settings import ExecutorSettings, Settings


def open_executor(pipeline: Pipeline, settings: Settings) -> Executor:
    """The executor of a pipeline's nodes. To be called before the metadata are opened: it forks.

    Raises:
        PipelineError: a node asks for what its executor does not have.
    """
    machine = None if settings.executor == ExecutorSettings() else settings.executor.machine
    return LocalExecutor(pipeline, machine)
