"""When and why a run starts, and what happens if the last one has not ended; the command line.

Nothing is imported before it is asked for: `spanwise --help` passes by.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spanwise.scheduler.schedule.schedule import Catchup, OverrunPolicy, Schedule, Tick, days_before, hours_before

__all__ = ["Catchup", "OverrunPolicy", "Schedule", "Tick", "days_before", "hours_before"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from spanwise.scheduler.schedule import schedule

    return getattr(schedule, name)
