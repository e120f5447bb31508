"""The demo: ten mornings of the flights pipeline on real data, one run a day, in a folder that can be played with.

With `--service` a dispatcher and two workers of a data service are started for it, which prepare the trainers' rows.

python -m spanwise.pipelines.flights_demo [--folder demo] [--days 10] [--service]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from spanwise import Artifact, Calendar, Examples, SpanwiseError
from spanwise.orchestrator import Trigger
from spanwise.orchestrator.errors import ServiceError
from spanwise.orchestrator.local_executor import LocalExecutor
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.run_request import RunOutcome, RunRequest
from spanwise.orchestrator.runner import run
from spanwise.pipelines import flights, nycflights

WINDOW = 3
WORKERS = 2

SETTINGS = """# Read by every spanwise command in this folder.
root = ".spanwise"

[params.flights]
data = "data"
serving = "serving"
window = {window}
"""

HEAD = f"{'span':<12}{'window':<24}{'rows':>6}{'AUC':>8}{'champion':>10}  {'blessed':<9}{'pushed':<12}{'seconds':>8}"


@dataclass(frozen=True)
class Morning:
    """The run of one day, as a line of the demo."""

    day: date
    outcome: RunOutcome
    seconds: float

    def __str__(self) -> str:
        if not self.outcome.succeeded:
            return f"{self.day}  {self.outcome.run.error}"
        window = [a.as_kind(Examples).span for a in self._made("RollingWindow", "examples")]
        first, last = Calendar.DAY.label(window[0]), Calendar.DAY.label(window[-1])
        (ingested,) = self._made("ExampleGen", "examples")
        (evaluation,), (blessing,) = self._made("Evaluator", "evaluation"), self._made("Evaluator", "blessing")
        (pushed,) = self._made("Pusher", "pushed_model")
        rows = sum((ingested.as_kind(Examples).rows or {}).values())
        verdict = "yes" if blessing.properties["blessed"] else "no"
        version = pushed.properties.get("pushed_version") or "-"
        span = f"{first} … {last[5:]}" if first != last else first
        return (
            f"{self.day!s:<12}{span:<24}{rows:>6}{_auc(evaluation, 'metrics'):>8}"
            f"{_auc(evaluation, 'baseline_metrics'):>10}  {verdict:<9}{version:<12}{self.seconds:>8.1f}"
        )

    def _made(self, node: str, key: str) -> Sequence[Artifact]:
        return self.outcome.executions[node].outputs[key]


def _auc(evaluation: Artifact, which: str) -> str:
    metrics = evaluation.properties.get(which)
    return f"{metrics['auc']:.3f}" if isinstance(metrics, dict) else "-"


def prepare(folder: Path, days: int) -> None:
    """Lays out the data, the pipeline file and the settings; removes an earlier demo."""
    for old in ("data", "serving", ".spanwise"):
        shutil.rmtree(folder / old, ignore_errors=True)
    nycflights.lay_out(folder / "data", days=days)
    shutil.copy(flights.__file__, folder / "flights.py")
    (folder / "spanwise.toml").write_text(SETTINGS.format(window=WINDOW), encoding="utf-8")


def mornings(folder: Path, days: int) -> Iterator[Morning]:
    """Runs the pipeline once for each day, as a schedule would: with the span of that day."""
    os.chdir(folder)  # paths are part of the cache key: these are the ones of commands run in that folder
    root, source = Path(".spanwise").absolute(), str(Path("flights.py").absolute())
    pipeline = flights.flights("data", "serving", window=WINDOW)
    with LocalExecutor(pipeline) as executor:
        store = open_store(str(root / "metadata.db"), root=root)
        for number in range(days):
            start = time.perf_counter()
            day = nycflights.FIRST + timedelta(days=number)
            span = Calendar.DAY.parse(str(day))
            request = RunRequest(span=span, calendar="day", trigger=Trigger.SCHEDULE, source=source)
            outcome = run(pipeline, executor=executor, store=store, root=root, request=request)
            yield Morning(day, outcome, time.perf_counter() - start)
            if not outcome.succeeded:
                return
        store.close()


@contextlib.contextmanager
def service(work_dir: Path) -> Iterator[list[str]]:
    """Runs a dispatcher and its workers as processes; yields their addresses, the dispatcher's first.

    Trainers find the service by an environment variable.
    """
    with contextlib.ExitStack() as started:
        dispatcher = started.enter_context(_server("dispatcher", "--port", "0", "--work-dir", str(work_dir)))
        workers = [started.enter_context(_server("worker", dispatcher)) for _ in range(WORKERS)]
        os.environ["SPANWISE_SERVICE"] = dispatcher
        try:
            yield [dispatcher, *workers]
        finally:
            del os.environ["SPANWISE_SERVICE"]


@contextlib.contextmanager
def _server(*arguments: str) -> Iterator[str]:
    command = [sys.executable, "-m", "spanwise", "service", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if " at " not in line:
                raise ServiceError(f"`spanwise service {' '.join(arguments)}` did not start; see its output above.")
            yield line.partition(" at ")[2].strip()
        finally:
            process.terminate()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Ten mornings of the flights pipeline on real data.")
    parser.add_argument("--folder", type=Path, default=Path("demo"), help="where to play (default: demo)")
    parser.add_argument("--days", type=int, default=10, help="how many mornings (default: 10)")
    parser.add_argument("--service", action="store_true", help="train through a data service of two workers")
    options = parser.parse_args(arguments)
    folder: Path = options.folder
    activation = _activation()  # from where the user is: `mornings` goes elsewhere
    folder.mkdir(parents=True, exist_ok=True)
    try:
        prepare(folder, options.days)
        print(
            f"Each morning: ingest yesterday's flights, learn from {WINDOW} days which will be late, push if better.\n"
        )
        failed = 0
        with contextlib.ExitStack() as stack:
            if options.service:
                dispatcher, *workers = stack.enter_context(service(folder / ".spanwise" / "service"))
                print(f"Trainers are fed by the data service at {dispatcher}; its workers: {', '.join(workers)}.\n")
            print(HEAD)
            for morning in mornings(folder, options.days):
                print(morning, flush=True)
                failed += not morning.outcome.succeeded
    except SpanwiseError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"\nEverything is in {folder}/. Go on there:  {activation}cd {folder}")
    print("  spanwise runs flights                                what ran")
    print("  spanwise show flights                                the newest run, node by node")
    if options.service:
        print("  spanwise logs flights Trainer                        what came by way of the service")
    print("  spanwise window flights.py                           which spans a window holds now")
    print("  spanwise run flights.py --span 2013-01-05            ingest that day again and retrain")
    print("  spanwise ui --open                                   all of it as a page: every span, run and model")
    print("                                                       (first: pip install 'spanwise[ui]')")
    return 1 if failed else 0


def _activation() -> str:
    """What makes `spanwise` a command of this shell, where it is not one yet."""
    script = Path(sys.prefix, "bin", "activate")
    if shutil.which("spanwise") is not None or not script.is_file():
        return ""
    return f". {shlex.quote(os.path.relpath(script))} && "


if __name__ == "__main__":
    sys.exit(main())
