"""Divisions: the parts of a schedule, in order, and the nodes at which each begins. Pure; knows no pipeline."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spanwise.orchestrator.errors import ScheduleError
from spanwise.scheduler.schedule.schedule_key import DATA, INGEST, TRAIN, WHOLE

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
_EXAMPLE = 'parts={"ingest": "0 * * * *", "train": "0 3 * * *", "push": Part("0 9 * * 1", at="Evaluator")}'


class Part:
    """A part of a schedule: its cron expression, the node or nodes at which it begins, and terms of its own.

        Part("0 9 * * 1", at="Evaluator", zone="Europe/Berlin")

    `terms` are fields of a Schedule, such as zone, overrun, catchup or retry; for the others those of the schedule.
    """

    def __init__(self, cron: str, *, at: str | Sequence[str] = (), **terms: object) -> None:
        self.cron = cron
        self.at = (at,) if isinstance(at, str) else tuple(at)
        self.terms: Mapping[str, object] = terms

    def __repr__(self) -> str:
        terms = "".join(f", {name}={value!r}" for name, value in self.terms.items())
        return f"Part({self.cron!r}, at={self.at!r}{terms})"


@dataclass(frozen=True)
class PartStart:
    """Where a part of a schedule begins."""

    name: str
    at: tuple[str, ...] = ()  #: its first nodes; empty: those of the pipeline or, of `train`, what chooses by span


HALVES = (PartStart(INGEST), PartStart(TRAIN))
"""The parts of a pipeline whose schedule names none: what ingests, and what chooses among spans and learns."""


def division_of(parts: Mapping[str, str | Part]) -> tuple[PartStart, ...]:
    """Where the parts of a schedule begin, in order."""
    return tuple(PartStart(name, part.at if isinstance(part, Part) else ()) for name, part in parts.items())


def check_division(parts: object, terms: Sequence[str]) -> None:
    """Refuses parts that cannot mean anything in any pipeline; `terms` are those that a part may have of its own.

    Raises:
        ScheduleError: what is wrong, with an example.
    """
    if not isinstance(parts, Mapping) or len(parts) < 2:  # noqa: PLR2004  else there is nothing to divide
        raise ScheduleError(f"parts={parts!r} needs two parts or more, each with a cron. For example: {_EXAMPLE}.")
    for number, (name, part) in enumerate(parts.items()):
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in (DATA, WHOLE):
            raise ScheduleError(
                f"{name!r} cannot name a part: use a letter, then letters, digits, '_' or '-'; not {DATA!r}."
            )
        if not isinstance(part, str | Part):
            raise ScheduleError(f"parts[{name!r}] is {part!r}; write a cron expression, or a Part: {_EXAMPLE}.")
        at = part.at if isinstance(part, Part) else ()
        if not number and at:
            raise ScheduleError(f"{name!r} is the first part and begins where the pipeline does; leave out at={at!r}.")
        if number and not at and name != TRAIN:
            raise ScheduleError(f"parts= does not say at which node {name!r} begins. For example: {_EXAMPLE}.")
        unknown = [term for term in (part.terms if isinstance(part, Part) else ()) if term not in terms]
        if unknown:
            raise ScheduleError(f"Part({name!r}) takes {', '.join(terms)}; not {unknown[0]!r}.")
