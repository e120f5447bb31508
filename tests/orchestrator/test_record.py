"""Records: dataclasses as plain data, and back."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Literal

import pytest

from spanwise.orchestrator.record import MisfitError, from_plain, to_plain

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    count: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Other:
    name: str


@dataclass(frozen=True, kw_only=True)
class Outer:
    at: datetime
    colour: Colour = Colour.RED
    share: float = 0.0
    wait: timedelta | None = None
    file: Path | None = None
    mark: Literal["accepted", "blessed"] = "blessed"
    rule: Inner | Other | None = None
    spans: Mapping[datetime, int] | None = None


FULL = Outer(
    at=NOON,
    share=3,
    wait=timedelta(hours=1.5),
    file=Path("/data"),
    rule=Inner(2, ("a", "b")),
    spans={NOON: 7},
)


def test_a_record_survives_as_plain_data():
    """What is read is what was written, and what is written is what JSON holds."""
    plain = to_plain(FULL)

    assert plain == {
        "at": "2026-03-01T12:00:00Z",
        "colour": "red",
        "share": 3.0,
        "wait": 5400.0,
        "file": "/data",
        "mark": "blessed",
        "rule": {"count": 2, "names": ["a", "b"]},
        "spans": {"2026-03-01T12:00:00Z": 7},
    }
    assert isinstance(plain["share"], float)
    assert from_plain(Outer, plain) == FULL


def test_a_field_may_be_of_one_of_several_kinds():
    """The kind that the data fits is the one that is read."""
    assert from_plain(Outer, {"at": "2026-03-01T12:00:00Z", "rule": {"name": "mine"}}).rule == Other("mine")


def test_what_a_newer_program_has_added_is_ignored():
    """Fields that this program does not know are no error; those left out have their default."""
    assert from_plain(Outer, {"at": "2026-03-01T12:00:00+00:00", "newer": 1}) == Outer(at=NOON)
    assert "share" not in to_plain(FULL, without=["share"])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"at": "noon"}, "at: 'noon' is not a time"),
        ({"at": NOON, "colour": "blue"}, "colour: 'blue' is not one of red"),
        ({"at": NOON, "mark": "lost"}, "mark: 'lost' is not one of accepted, blessed"),
        ({"at": NOON, "share": "much"}, "share: 'much' is not of type float"),
        ({"at": NOON, "rule": {"count": "2"}}, "rule.count: '2' is not of type int"),
        ({"at": NOON, "spans": 3}, "spans: 3 is not"),
        ({}, "{} is not Outer (Outer.__init__() missing 1 required keyword-only argument: 'at')"),
    ],
)
def test_data_that_does_not_fit_is_refused(data, message):
    """The error names the field, what was found there and what it takes."""
    with pytest.raises(MisfitError) as refused:
        from_plain(Outer, data)

    assert str(refused.value).startswith(message)
