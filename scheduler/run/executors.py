"""Executors of commands: where the nodes of a pipeline are executed, as the settings of the project say."""

from __future__ import annotations

from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import PipelineError
from spanwise.orchestrator.executor import Executor
from spanwise.orchestrator.local_executor import LocalExecutor
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.scheduler.project.settings import LOCAL, ExecutorSettings, Settings


def open_executor(pipeline: Pipeline, settings: Settings) -> Executor:
    """The executor of a pipeline's nodes. To be called before the metadata are opened: it forks.

    Raises:
        PipelineError: a node asks for what its executor does not have, or for an executor that is not set.
        SettingsError: the executor is not installed.
        ParameterError: the pipeline cannot be sent to another machine.
    """
    chosen = settings.executor
    machine = None if chosen == ExecutorSettings() else chosen.machine
    name = chosen.name_of(pipeline.name)
    away = [node.name for node in pipeline if isinstance(node, Component) and _place(node, name, chosen) != LOCAL]
    if not away:
        return LocalExecutor(pipeline, machine)
    from spanwise.orchestrator.agents.engines import open_engine
    from spanwise.orchestrator.agents.placed_executor import PlacedExecutor

    engine = open_engine(f"{chosen.name}:{chosen.address or ''}", chosen.pods)
    return PlacedExecutor(
        pipeline, engine, root=settings.root, away=away, machine=machine, page_url=chosen.page_url or ""
    )


def _place(node: Component, default: str, settings: ExecutorSettings) -> str:
    asked = node.resources.executor or default
    if asked not in (LOCAL, settings.name):
        raise PipelineError(
            f"{node.name} asks for the executor {asked!r}, and the settings have {settings.name!r}. "
            f"Name it in spanwise.toml: [executor] name = {asked!r}"
        )
    return asked
