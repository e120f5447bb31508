"""What a pass does, decided from two files and a clock."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.orchestrator.errors import SnapshotDamaged
from spanwise.pipelines.input.snapshot.state import (
    CLOCK_SKEW_S,
    MODES,
    ChunkRecord,
    Metadata,
    PassThrough,
    Read,
    Refuse,
    Write,
    decide,
)

NOW = 1_000_000.0
CHUNK = ChunkRecord(file="00000000.snapshot", split=0, first=0, elements=3, size_bytes=9, checksum="c0")


def metadata(age_s=0.0, **more):
    return Metadata(run_id="r1", fingerprint="f", started=NOW - age_s, **more)


FINAL = metadata(complete=True, chunks=(CHUNK,))


@pytest.mark.parametrize(
    ("final", "pending", "mode", "kind"),
    [
        (None, None, "auto", Write),
        (FINAL, None, "auto", Read),
        (FINAL, metadata(), "auto", Read),
        (FINAL, metadata(age_s=500), "auto", Read),
        (None, metadata(complete=True), "auto", Read),
        (None, metadata(), "auto", PassThrough),
        (None, metadata(age_s=100), "auto", PassThrough),
        (None, metadata(age_s=101), "auto", Write),
        (None, metadata(age_s=-CLOCK_SKEW_S), "auto", PassThrough),
        (None, metadata(age_s=-CLOCK_SKEW_S - 1), "auto", Write),
        (FINAL, None, "write", Write),
        (None, metadata(), "write", Write),
        (FINAL, None, "passthrough", PassThrough),
        (None, None, "read", Refuse),
        (None, metadata(), "read", Refuse),
        (FINAL, None, "read", Read),
    ],
)
def test_the_rule_of_the_rfc(final, pending, mode, kind):
    """Standard Kernel Workflow, steps 3 to 8, and what each mode asks for; an attempt expires after 100 s here."""
    assert isinstance(decide(final=final, pending=pending, now=NOW, expiry_s=100, mode=mode), kind)


def test_who_writes_names_the_attempt_that_has_expired():
    """So that the winner can remove what it left."""
    expired = metadata(age_s=101)

    assert decide(final=None, pending=expired, now=NOW, expiry_s=100).replaces == expired


@given(
    st.sampled_from(MODES),
    st.booleans(),
    st.none() | st.floats(-1e6, 1e6),
    st.floats(1, 1e6),
)
def test_there_is_always_one_answer_and_a_reason(mode, is_whole, age_s, expiry_s):
    """Whatever lies there."""
    pending = None if age_s is None else metadata(age_s=age_s)

    decision = decide(final=FINAL if is_whole else None, pending=pending, now=NOW, expiry_s=expiry_s, mode=mode)

    assert decision == Read(FINAL) or decision.reason


def test_metadata_come_back_as_they_were():
    """With their chunks."""
    assert Metadata.from_bytes(FINAL.to_bytes(), "here") == FINAL
    assert (FINAL.elements, FINAL.size_bytes) == (3, 9)


def test_the_file_is_what_it_was():
    """The RFC's three fields under their names here, and the format's number."""
    document = json.loads(FINAL.to_bytes())

    assert {name: document[name] for name in ("run_id", "complete", "started", "format")} == {
        "run_id": "r1",
        "complete": True,
        "started": NOW,
        "format": 1,
    }


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'"text"', b'{"format": 1}', b"\xff\xfe"])
def test_metadata_that_are_none_are_damaged(content):
    """Never a KeyError."""
    with pytest.raises(SnapshotDamaged, match="here"):
        Metadata.from_bytes(content, "here")


def test_metadata_of_a_newer_program_are_not_guessed_at():
    """The message says so."""
    newer = json.dumps(json.loads(FINAL.to_bytes()) | {"format": 2}).encode()

    with pytest.raises(SnapshotDamaged, match="newer program"):
        Metadata.from_bytes(newer, "here")
