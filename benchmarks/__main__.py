"""Runs every benchmark in a process of its own and writes the table of `docs/benchmarks.md`."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pkgutil
import platform
import subprocess
import sys
from pathlib import Path

import benchmarks

TABLE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
NOT_BENCHMARKS = {"__main__", "chain", "days", "figures", "input_peers"}

HEAD = """# Benchmarks

Written by `make bench`. Each figure is from one run of `python -m benchmarks.NAME` on the machine named below. The
goals are ours, set before the code was written. A shared machine makes single figures noisy: ratios hold better
than times.

"""


def main() -> int:
    names = sorted({m.name for m in pkgutil.iter_modules(benchmarks.__path__)} - NOT_BENCHMARKS)
    rows, failed = [], 0
    for name in names:
        print(f"benchmarks.{name}", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}", "--json"], stdout=subprocess.PIPE, text=True, check=False
        )
        failed += done.returncode != 0
        for line in done.stdout.splitlines():
            figure = json.loads(line)
            goal = figure["goal"] or "none"
            met = ("yes" if figure["ok"] else "**no**") if figure["goal"] else ""
            rows.append(f"| {name} | {figure['name']} | {figure['value']:g} {figure['unit']} | {goal} | {met} |")
            print(f"  {figure['name']}: {figure['value']:g} {figure['unit']} (goal {goal}) {met}", flush=True)
    versions = ", ".join(f"{d} {importlib.metadata.version(d)}" for d in ("ml-metadata", "apache-beam", "pyarrow"))
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    table = "\n".join(["| benchmark | figure | measured | goal | met |", "|---|---|---|---|---|", *rows])
    TABLE.write_text(f"{HEAD}{machine}; {versions}.\n\n{table}\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
