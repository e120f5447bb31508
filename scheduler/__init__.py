"""When and why a run starts, and what happens if the last one has not ended; the command line.

Names are imported when they are first used, so that `spanwise --help` does not wait for them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spanwise.scheduler.client.client import Client, connect
    from spanwise.scheduler.schedule.division import Part
    from spanwise.scheduler.schedule.schedule import Schedule
    from spanwise.scheduler.schedule.span_rule import (
        days_before,
        hours_before,
        months_before,
        quarters_before,
        weeks_before,
    )
    from spanwise.scheduler.schedule.ticks import Tick
    from spanwise.scheduler.schedule.timetable import Catchup, OverrunPolicy

__all__ = [
    "Catchup",
    "Client",
    "OverrunPolicy",
    "Part",
    "Schedule",
    "Tick",
    "connect",
    "days_before",
    "hours_before",
    "months_before",
    "quarters_before",
    "weeks_before",
]

_MODULES = {
    "Catchup": "schedule.timetable",
    "Client": "client.client",
    "OverrunPolicy": "schedule.timetable",
    "Part": "schedule.division",
    "Schedule": "schedule.schedule",
    "Tick": "schedule.ticks",
    "connect": "client.client",
    "days_before": "schedule.span_rule",
    "hours_before": "schedule.span_rule",
    "months_before": "schedule.span_rule",
    "quarters_before": "schedule.span_rule",
    "weeks_before": "schedule.span_rule",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"spanwise.scheduler.{_MODULES[name]}"), name)
