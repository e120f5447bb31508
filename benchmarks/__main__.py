"""Runs every benchmark in a process of its own and writes the table of `docs/benchmarks.md`."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import pkgutil
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import benchmarks
from benchmarks import goals
from benchmarks.goals import Row, read_rows

TABLE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
README = Path(__file__).parent.parent / "README.md"
PARTS = {
    "__main__",
    "chain",
    "days",
    "elastic_job",
    "elastic_loop",
    "elastic_model",
    "elastic_records",
    "figures",
    "flink_rows",  # needs Flink
    "goals",
    "pipeline_copies",
    "input_peers",
    "service_flight",
    "service_relay",
    "service_worker",
    "service_peers",
    "storage",  # needs a server
    "task_managers",  # needs Flink
    "taxi",
    "ui_dagster",
    "ui_history",
}
LONG = {"ingest_sizes", "store_size"}  # half an hour and 10 to 20 GB: by name only
BESIDE_PEERS = {"input", "service"}  # also measure what else there is, with an interpreter that has it

HEAD = """# Benchmarks

Written by `make bench`. Each figure is from one run of `python -m benchmarks.NAME` on the machine named below: the last
run that began while the machine did nothing else (quiet), and the last that began beside other work (busy). The goals
are ours, set before the code was written. A shared machine makes single figures noisy: ratios hold better than times.
On a busy one, compare the processor time, and the growth over three sizes (`growth: …`, the exponent: 1 where twice the
size takes twice as long).

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
    rows, failed = read_rows(TABLE.read_text(encoding="utf-8")), 0
    for name in options.names or [each for each in there if each not in LONG]:
        print(f"benchmarks.{name}", flush=True)
        peers = ["--tf", options.tf] if options.tf and name in BESIDE_PEERS else []
        peers += ["--dagster", options.dagster] if options.dagster and name == "ui" else []
        command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *peers]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        failed += done.returncode != 0
        last, rows[name] = rows.get(name, []), []
        for line in done.stdout.splitlines():
            figure = json.loads(line)
            before = next((row for row in last if row.figure == figure["name"]), None)
            last = [row for row in last if row is not before]
            rows[name].append(row := Row.of(name, figure, before))
            print(f"  {row.figure}: {row.quiet} (quiet), {row.busy} (busy), goal {row.goal} {row.met}", flush=True)
        if name in BESIDE_PEERS and not peers:  # those that it measures only beside them
            rows[name] += last
        write(rows)
    return 1 if failed else 0


def write(rows: Mapping[str, Sequence[Row]]) -> None:
    """Writes the page of benchmarks, and the figures of README.md that come from it."""
    versions = ", ".join(f"{d} {importlib.metadata.version(d)}" for d in ("ml-metadata", "apache-beam", "pyarrow"))
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    every = [row for name in sorted(rows) for row in rows[name]]
    head = f"| {' | '.join(goals.COLUMNS)} |\n{'|---' * len(goals.COLUMNS)}|"
    table = "\n".join([head, *map(str, every)])
    page = f"{HEAD}{machine}; {versions}.\n\n{goals.format_goals(every)}\n\n## All figures\n\n{table}\n"
    TABLE.write_text(page, encoding="utf-8")
    README.write_text(goals.insert_figures(README.read_text(encoding="utf-8"), every), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
