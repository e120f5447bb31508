"""The command line: commands, options and help texts. What a command does is elsewhere.

Only typer is imported before a command is chosen, so that `spanwise --help` is fast.
"""

# Each module adds its commands, and `spanwise --help` lists them in this order.
# isort: off
from spanwise.scheduler.cli.app import EXIT_CODES, app, find_command
from spanwise.scheduler.cli import run
from spanwise.scheduler.cli import schedule
from spanwise.scheduler.cli import missed
from spanwise.scheduler.cli import watch
from spanwise.scheduler.cli import inspect
from spanwise.scheduler.cli import lineage
from spanwise.scheduler.cli import models
from spanwise.scheduler.cli import backfill
from spanwise.scheduler.cli import judge
from spanwise.scheduler.cli import gc
from spanwise.scheduler.cli import maintenance
from spanwise.scheduler.cli import snapshot
from spanwise.scheduler.cli import service
from spanwise.scheduler.cli import ui

__all__ = [
    "EXIT_CODES",
    "app",
    "backfill",
    "find_command",
    "gc",
    "inspect",
    "judge",
    "lineage",
    "maintenance",
    "missed",
    "models",
    "run",
    "schedule",
    "service",
    "snapshot",
    "ui",
    "watch",
]
