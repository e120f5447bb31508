"""The command line: its commands, their options and their words. What a command does is elsewhere.

Nothing but typer is imported before a command is chosen, so that `spanwise --help` answers at once.
"""

# Each module adds its commands, and `spanwise --help` lists them in this order.
# isort: off
from scheduler.cli.app import EXIT_CODES, app
from scheduler.cli import launching
from scheduler.cli import schedule
from scheduler.cli import watching
from scheduler.cli import looking
from scheduler.cli import tracing
from scheduler.cli import mending
from scheduler.cli import collecting
from scheduler.cli import keeping
from scheduler.cli import snapshot
from scheduler.cli import service
from scheduler.cli import bench

__all__ = [
    "EXIT_CODES",
    "app",
    "bench",
    "collecting",
    "keeping",
    "launching",
    "looking",
    "mending",
    "schedule",
    "service",
    "snapshot",
    "tracing",
    "watching",
]
