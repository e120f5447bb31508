"""From a wrong day to the backfill that replaces what learned from it, as the program itself says."""

import json
import shlex

import pytest


@pytest.mark.slow
def test_the_command_that_tainted_prints_makes_a_model_without_the_wrong_day(world):
    """Asked, typed, asked again: the newest model learned without it, and lineage servers saw the backfill."""
    world.lived(3)
    world.arrive(2, version=2)
    (world.folder / "spanwise.toml").write_text(
        '[openlineage.transport]\ntype = "file"\nlog_file_path = "events.jsonl"\nappend = true\n'
    )
    _, asked, _ = world("tainted", "--span", "2024-05-02", "--version", "1", "--json")
    before = json.loads(asked)

    code, _, err = world(*shlex.split(before["backfill"])[1:])

    _, asked, _ = world("tainted", "--span", "2024-05-02", "--json")
    after = json.loads(asked)
    events = [json.loads(line) for line in (world.folder / "events.jsonl").read_text().splitlines()]
    assert code == 0, err
    assert [m["run"] for m in before["models"]] == ["days/2", "days/3"]
    assert (before["corrected"], before["outlived"]) == (False, False)
    assert [m["run"] for m in after["models"]] == ["days/2", "days/3"]
    assert (after["corrected"], after["outlived"]) == (True, True)
    assert {e["job"]["name"] for e in events} == {
        f"days{n}" for n in ("", ".Ingest", ".Check", ".RollingWindow", ".Train", ".Push")
    }
    assert {t["value"] for e in events for t in e["run"]["facets"]["tags"]["tags"] if t["key"] == "trigger"} == {
        "backfill"
    }
