"""The command that lists artifacts: what it says of those whose files are gone."""

import json
from datetime import UTC, datetime

import pytest

from spanwise.scheduler.formatting import format_time
from tests.scheduler.yard import Yard


@pytest.fixture
def yard(folder):
    """Four days, in the metadata that commands typed here read."""
    (folder / ".spanwise").mkdir()
    yard = Yard(folder / ".spanwise")
    for span in range(1, 5):
        yard.day(span)
    yield yard
    yard.store.close()


def test_a_collected_artifact_is_marked(yard, spanwise):
    """In place of where its files were, when they were collected; no other artifact is marked."""
    gone = [a.name for a in yard.collect().artifacts]

    listed = spanwise("artifacts")[1].splitlines()[1:]
    documents = json.loads(spanwise("artifacts", "--json")[1])

    assert gone
    assert len(listed) == len(documents) > len(gone)
    when = f"collected {format_time(yard.now)}"
    assert [line.split()[0] for line in listed if line.endswith(when)] == [
        d["name"] for d in documents if d["collected"]
    ]
    assert {d["name"]: d["collected"] and datetime.fromisoformat(d["collected"]) for d in documents} == {
        d["name"]: yard.now.astimezone(UTC) if d["name"] in gone else None for d in documents
    }
