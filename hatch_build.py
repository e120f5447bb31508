"""Puts the five folders of the checkout inside `spanwise/` in the wheel (docs/decisions/0001-import-names.md)."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDERS = ("orchestrator", "components", "resolvers", "pipelines", "scheduler")


class Folders(BuildHookInterface):
    """An editable install finds the folders through the links in `src/spanwise/`; a wheel holds them themselves."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            build_data["force_include"].update({folder: f"spanwise/{folder}" for folder in FOLDERS})
