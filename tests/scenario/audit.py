"""Judges what schedulers left: `python -m tests.scenario.audit DATABASE_URL BUCKET_FOLDER PIPELINE PERIOD_S`.

It reads the tables of ML Metadata with psql and the objects as files, by what `docs/reference/metadata.md` says of
them, and shares no code with spanwise. It ends with 1 and a line for each thing that is wrong.
"""

import hashlib
import itertools
import json
import subprocess
import sys
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

ROWS = """
SELECT json_build_object('name', x.name, 'type', t.name, {columns} 'facts', (
    SELECT coalesce(json_object_agg(p.name, coalesce(
        to_json(p.string_value), to_json(p.int_value), to_json(p.double_value), to_json(p.bool_value))), '{{}}')
    FROM {table}property p WHERE p.{table}_id = x.id))
FROM {table} x JOIN type t ON t.id = x.type_id ORDER BY x.id
"""


def read(url, table, columns=""):
    """The rows of a table, each with its facts as they were before they were encoded."""
    query = ROWS.format(table=table, columns=columns)
    found = subprocess.run(["psql", "-At", url, "-c", query], capture_output=True, text=True, check=True).stdout
    rows = [json.loads(line) for line in found.splitlines()]
    for row in rows:
        row["facts"] = {name: decode(value) for name, value in row["facts"].items()}
    return rows


def decode(value):
    if not isinstance(value, str) or not value.startswith("json:"):
        return value
    return json.loads(value.removeprefix("json:").replace("%5C", "\\").replace("%25", "%"))


def digest(path):
    return hashlib.blake2b(path.read_bytes(), digest_size=16, person=b"spanwise-1").hexdigest()


def files_below(folder):
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}


class Audit:
    """What is in the metadata and in the bucket, and what is wrong with it."""

    def __init__(self, url, bucket, pipeline, period_s):
        self.bucket, self.pipeline, self.period = Path(bucket), pipeline, timedelta(seconds=int(period_s))
        contexts = read(url, "context")
        self.claims = {row["name"]: row["facts"] for row in contexts if row["type"] == "spanwise.claim"}
        self.runs = {row["name"]: row["facts"] for row in contexts if row["type"] == "pipeline_run"}
        self.executions = {row["name"]: row for row in read(url, "execution", "'state', x.last_known_state,")}
        artifacts = read(url, "artifact", "'state', x.state, 'uri', x.uri,")
        self.artifacts = {row["name"]: row for row in artifacts if row["state"] == 2}  # LIVE
        self.wrong = []

    def expect(self, holds, what):
        if not holds:
            self.wrong.append(what)

    def judge(self):
        self.judge_ticks()
        self.judge_runs()
        self.judge_artifacts()
        self.judge_pushes()

    def judge_ticks(self):
        """All that have come, in the order of their times, each with one number and one outcome; none ran twice."""
        numbered = {}
        for name, facts in self.claims.items():
            if name.startswith(f"ticknumber:{self.pipeline}#"):
                numbered[int(name.rpartition("#")[2])] = facts["tick"]
        self.expect(sorted(numbered) == list(range(1, len(numbered) + 1)), f"numbers of ticks: {sorted(numbered)}")
        names = [numbered[number] for number in sorted(numbered)]
        times = [self.claims[f"tick:{self.pipeline}@{name}"]["tick"]["at"] for name in names]
        self.expect(times == sorted(set(times)), "ticks are out of order, or there twice")
        for earlier, later in itertools.pairwise(map(datetime.fromisoformat, times)):
            self.expect(later - earlier == self.period, f"no tick is recorded between {earlier} and {later}")
        ran = {}
        for name in names:
            outcome = self.claims.get(f"outcome:{self.pipeline}@{name}")
            if outcome is None:
                self.wrong.append(f"tick {name} has no outcome")
            elif outcome["end"]["outcome"] == "ran":
                ran[name] = outcome["end"]["run"]
        complete = Counter(facts["cause"] for facts in self.runs.values() if facts["state"] == "complete")
        self.expect(all(count == 1 for count in complete.values()), f"ticks that ran twice: {complete}")
        self.expect(set(complete) == set(ran), f"ran, or complete, but not both: {set(complete) ^ set(ran)}")
        for name, run in ran.items():
            self.expect(self.runs.get(f"{self.pipeline}/{run}", {}).get("cause") == name, f"tick {name}: its run {run}")
        self.ticks = len(names)

    def judge_runs(self):
        """Each has ended, and its nodes with it; a complete one has complete nodes."""
        for name, facts in self.runs.items():
            self.expect(facts["state"] not in {"running", "open"} and "ended" in facts, f"run {name} has not ended")
            mine = [row for row in self.executions.values() if row["facts"]["run_id"] == name]
            self.expect(all(row["state"] in {3, 4, 5, 6} for row in mine), f"run {name} has nodes that have not ended")
            if facts["state"] == "complete":
                done = {row["facts"]["component_id"] for row in mine if row["state"] in {3, 5}}
                self.expect(done == set(facts["nodes"]), f"run {name} is complete with {done}")
        tokens = [facts["token"] for facts in self.runs.values()]
        self.expect(len(tokens) == len(set(tokens)), "runs share a token")

    def judge_artifacts(self):
        """What is published is there, whole and as it was."""
        for name, row in self.artifacts.items():
            folder = self.bucket / "root" / row["uri"]
            manifest = folder.with_name(f"{folder.name}.json")
            if not manifest.exists():
                self.wrong.append(f"{name} has no manifest")
                continue
            there = {file: digest(path) for file, path in files_below(folder).items()}
            self.expect(there == row["facts"]["files"], f"{name} is not what was published: {there}")
            self.expect(set(json.loads(manifest.read_text())["files"]) == set(there), f"{name}: its manifest")

    def judge_pushes(self):
        """What serves is the newest push, each version is the model that it names, and tokens only rise."""
        pointer = json.loads((self.bucket / "serving" / "serving.json").read_text())
        versions = {int(number): record for number, record in pointer["versions"].items()}
        self.expect(pointer["version"] == max(versions), "the newest version does not serve")
        tokens = [self.runs[versions[number]["run"]]["token"] for number in sorted(versions)]
        self.expect(tokens == sorted(set(tokens)), f"a run that was overtaken has pushed: tokens {tokens}")
        self.expect(list(pointer["fences"].values()) == tokens[-1:], f"fences {pointer['fences']}, tokens {tokens}")
        for number, record in versions.items():
            there = {file: digest(path) for file, path in files_below(self.bucket / "serving" / str(number)).items()}
            there.pop(".spanwise.json", None)
            model = self.artifacts.get(record["model"])
            self.expect(model is not None and there == model["facts"]["files"], f"version {number} is not its model")
        recorded = {
            int(row["facts"]["pushed_version"]) for row in self.artifacts.values() if row["facts"].get("pushed")
        }
        self.expect(recorded <= set(versions), f"pushes that are gone: {recorded - set(versions)}")
        self.pushes = len(versions)


def main():
    audit = Audit(*sys.argv[1:])
    audit.judge()
    counted = {"ticks": audit.ticks, "runs": len(audit.runs), "artifacts": len(audit.artifacts), "pushes": audit.pushes}
    sys.stdout.write(f"{counted}\n" + "".join(f"WRONG {what}\n" for what in audit.wrong))
    return 1 if audit.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
