"""Runs every benchmark in a process of its own and writes the table of `docs/benchmarks.md`."""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import os
import pkgutil
import platform
import subprocess
import sys
from pathlib import Path

import benchmarks

TABLE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
PARTS = {
    "__main__",
    "chain",
    "days",
    "elastic_job",
    "elastic_loop",
    "elastic_model",
    "elastic_records",
    "figures",
    "input_peers",
    "service_flight",
    "service_relay",
    "service_worker",
    "service_peers",
    "storage",  # needs a server
    "taxi",
    "ui_dagster",
    "ui_history",
}
BESIDE_PEERS = {"input", "service"}  # also measure what else there is, with an interpreter that has it

HEAD = """# Benchmarks

Written by `make bench`. Each figure is from one run of `python -m benchmarks.NAME` on the machine named below. The
goals are ours, set before the code was written. A shared machine makes single figures noisy: ratios hold better
than times. On a machine that does other work than the benchmark, goals are not judged, and only ratios and processor
seconds of such rows say something.

"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--tf", metavar="PYTHON", help="an interpreter that has TensorFlow and Grain")
    parser.add_argument("--dagster", metavar="PYTHON", help="an interpreter that has dagster-webserver")
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run; the rows of others stay")
    options = parser.parse_args()
    there = sorted({m.name for m in pkgutil.iter_modules(benchmarks.__path__)} - PARTS)
    if unknown := set(options.names) - set(there):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(there)}.")
    rows, failed = _rows(), 0
    for name in options.names or there:
        print(f"benchmarks.{name}", flush=True)
        peers = ["--tf", options.tf] if options.tf and name in BESIDE_PEERS else []
        peers += ["--dagster", options.dagster] if options.dagster and name == "ui" else []
        command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *peers]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        failed += done.returncode != 0
        rows[name] = []
        for line in done.stdout.splitlines():
            figure = json.loads(line)
            goal = figure["goal"] or "none"
            met = ("yes" if figure["ok"] else "**no**") if figure["goal"] else ""
            if figure["goal"] and not figure["judged"]:
                met = "not judged"
            rows[name].append(f"| {name} | {figure['name']} | {figure['value']:g} {figure['unit']} | {goal} | {met} |")
            print(f"  {figure['name']}: {figure['value']:g} {figure['unit']} (goal {goal}) {met}", flush=True)
    versions = ", ".join(f"{d} {importlib.metadata.version(d)}" for d in ("ml-metadata", "apache-beam", "pyarrow"))
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    lines = itertools.chain.from_iterable(rows[name] for name in there if name in rows)
    table = "\n".join(["| benchmark | figure | measured | goal | met |", "|---|---|---|---|---|", *lines])
    TABLE.write_text(f"{HEAD}{machine}; {versions}.\n\n{table}\n", encoding="utf-8")
    return 1 if failed else 0


def _rows() -> dict[str, list[str]]:
    """The rows of the table as it is, by benchmark."""
    rows: dict[str, list[str]] = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and not line.startswith("| benchmark |"):
            rows.setdefault(line.split(" | ")[0].removeprefix("| "), []).append(line)
    return rows


if __name__ == "__main__":
    sys.exit(main())
