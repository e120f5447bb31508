"""Goals: which figures matter most, what they were, what they should be, and why one is missed. Pure.

Each is judged against the row that its benchmark wrote last, so that the goals and all figures never disagree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

NOT_JUDGED = "not judged"
NOTHING = "-"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the table of all figures."""

    benchmark: str
    figure: str
    quiet: str = NOTHING  #: what was measured last, with its unit, while the machine did nothing else
    busy: str = NOTHING  #: the same while it did
    goal: str
    met: str  #: on the quiet machine

    @classmethod
    def of(cls, benchmark: str, figure: Mapping[str, object], last: Row | None = None) -> Row:
        """What a benchmark has printed with `--json`; of the other kind of machine, what was measured last."""
        measured = f"{figure['value']:g} {figure['unit']}".strip()
        goal = str(figure["goal"] or "none")
        if figure["quiet"]:
            met = ("yes" if figure["ok"] else "**no**") if figure["goal"] else ""
            met = met if figure["judged"] else NOT_JUDGED
            return cls(
                benchmark=benchmark, figure=str(figure["name"]), goal=goal, met=met,
                quiet=measured, busy=last.busy if last else NOTHING,
            )  # fmt: skip
        return cls(
            benchmark=benchmark, figure=str(figure["name"]), goal=goal, met=last.met if last else "",
            quiet=last.quiet if last else NOTHING, busy=measured,
        )  # fmt: skip

    @property
    def best(self) -> str:
        """The figure of the quiet machine, if there is one."""
        return self.busy if self.quiet == NOTHING else self.quiet

    def __str__(self) -> str:
        return f"| {self.benchmark} | {self.figure} | {self.quiet} | {self.busy} | {self.goal} | {self.met} |"


@dataclass(frozen=True)
class Goal:
    """A goal for one figure."""

    what: str
    benchmark: str
    figure: str
    before: str  #: when the goal was set
    limit: float
    why: str = ""  #: it is missed, or cannot be judged by this figure
    at_least: bool = False

    def judge(self, measured: str) -> str:
        """What was measured, and in a word whether that is enough."""
        if measured == NOTHING:
            return "not measured"
        value = float(measured.split(maxsplit=1)[0])
        is_met = value >= self.limit if self.at_least else value <= self.limit
        return f"{measured}, {'met' if is_met else '**missed**'}"


_IMPORTS = (
    "four fifths of the controller's instructions are imports: typer, ml-metadata and our own classes "
    "(decisions 96 and 98)"
)
_COMMANDS = (
    "as much processor time as after 100 runs, nine tenths of its instructions are imports: typer, ml-metadata and our "
    "own classes (decision 96)"
)
_ASKED = "at most 30 questions by SQL (`status`); ml-metadata still opens the database and checks its tables"
_STATUS = "half of its instructions are imports, most of the rest reads the 60 runs that the forecast is made of"
_PLANNED = "nearly nine tenths of its instructions are imports, also of what runs nodes (decision 96)"
_CACHED = (
    "seven tenths of the controller's instructions are imports, two thirds of them of the pipeline file and of the run "
    "loop (decision 98)"
)
_PIPELINE = "two fifths are the same run with everything cached, above; Beam, pyarrow and Polars are imported by nodes"
_WINDOW = (
    "a new day changes the values in the graph, so the rows of all 30 days are transformed again, by several threads: "
    "10 ms of processor time a day, most of it what Parquet and Polars take for a file, whatever its rows; the ratio "
    "rose as the fixed costs, which hid that, fell: a window of 1 takes 50 ms"
)
_SYNCED = "each tick is one transaction, and what a transaction takes is the disk's time to make it durable"
_IMAGES = (
    "two to four times the processor time of the work by hand, of which three fifths are the system's, for the memory "
    "of blocks of 12 MB that are handed on; `take` of cells is as fast as NumPy's"
)
_TAKES = (
    "1.3 to 1.7 times the processor time of the work by hand; most is pyarrow's `take`, as fast in pieces of 32,768 "
    "rows as of a whole block"
)
_INGEST = (
    "1.4 times the processor time: of 30 MB the first 8 are parsed once more to find the types (9 %), and an eighth "
    "counts lines and looks for hexadecimal numbers, which pyarrow would take"
)
_SPLIT = (
    "twice the processor time: hashes of 19 columns take as long as the parser, more than half of it the encoding of "
    "texts; rows are hashed while others are parsed and written"
)
_EVALUATION = (
    "most are the 40 replicates, whose weights enter five sums overall and five by slice; a tenth less processor time "
    "since counts are drawn once for four replicates"
)
_TRANSFORM = (
    "the graph is traced, written and read back (0.1 s), rows are read twice, and each block of 65,536 is summarized "
    "by itself, so that a window gives the same bytes whatever files it lies in"
)
_CROWD = (
    "both cores are busy all the time: 130 ms of processor time a consumer where they come at once, 66 ms one after "
    "another, half of it in consumers, a hundred to a process; gRPC, the kernel and Python take a third each"
)
_THREADS = "Flight's server takes a thread for each request that it is answering, and PyArrow cannot limit their number"
_GRAIN = (
    "half of the processor time is the shuffle, which mixes rows of different blocks, where Grain's form permutes "
    "those inside of each block"
)

GOALS = (
    Goal("5 trivial nodes from the shell", "nodes", "5 nodes from the shell", "0.47 s", 0.30, _IMPORTS),
    Goal("20 trivial nodes from the shell", "nodes", "20 nodes from the shell", "0.68 s", 0.45, _IMPORTS),
    Goal(
        "nine nodes, everything cached, from the shell",
        "pipeline",
        "nine nodes, everything cached",
        "1.33 s",
        0.5,
        _CACHED,
    ),
    Goal(
        "nine nodes on 20,000 rows, trivial training", "pipeline", "nine nodes on 20,000 rows", "3.4 s", 1.7, _PIPELINE
    ),
    Goal("transform, to Polars", "transform", "transform of 336,776 flights, to Polars", "6.4x", 2.5, _TRANSFORM),
    Goal(
        "statistics and transform, to Polars",
        "transform",
        "statistics and transform of 336,776 flights, to Polars",
        "2.3x",
        1.6,
        _TRANSFORM,
    ),
    Goal(
        "ingest, to pyarrow's own conversion", "ingest", "ingest, to a direct pyarrow conversion", "1.9x", 1.3, _INGEST
    ),
    Goal(
        "ingest with a hash split, to the same",
        "ingest",
        "ingest with a hash split, to the same",
        "2.2x",
        1.6,
        _SPLIT,
    ),
    Goal(
        "evaluation with 50 slices and bootstrap, to scikit-learn",
        "evaluation",
        "evaluation of 10,000,000 predictions, to scikit-learn without slices",
        "not measured",
        1.5,
        _EVALUATION,
    ),
    Goal(
        "all before the Trainer, a window of 30 days to one of 1",
        "transform",
        "all before the trainer, 30 days to 1",
        "1.33x",
        1.15,
        _WINDOW,
    ),
    Goal(
        "nine nodes on 20 M rows",
        "pipeline",
        "nine nodes on 20 M rows",
        "51 s",
        25,
        "68 to 103 s of processor time, by how fast the host is, on 1.5 of two cores: threads parse, count, transform, "
        "weigh and encode; of 2 M rows ingest takes 1.6 s, statistics 1.3, transform and evaluation 2 each, most of "
        "ingest and transform for Parquet",
    ),
    Goal(
        "100 M rows to 20 M: processor a row",
        "pipeline",
        "processor a row, 100 M rows to 20 M",
        "not measured",
        1.1,
        "the host slowed down between the two: both take 15,260 instructions a row (perf stat: 305 G and 1,527 G)",
    ),
    Goal("nine nodes: growth by rows", "pipeline", "growth: nine nodes, by rows", "0.6", 1.1),
    Goal(
        "autotune, to the best by hand",
        "input",
        "autotune on the table, to the best by hand",
        "0.75x",
        0.95,
        at_least=True,
    ),
    Goal(
        "read, map, shuffle, batch, prefetch, to Grain",
        "input",
        "the pipeline, to Grain on Arrow blocks",
        "0.85x",
        1.1,
        _GRAIN,
        at_least=True,
    ),
    Goal(
        "1,000 consumers of a data service have an element",
        "service",
        "until all of them have one",
        "44 s",
        10,
        _CROWD,
    ),
    Goal("threads of the worker that serves them", "service", "threads of the worker", "1,013", 128, _THREADS),
    *(
        Goal(
            f"{name}, to pyarrow and NumPy by hand",
            "input_forms",
            f"{name}, to pyarrow and NumPy by hand",
            "not measured",
            0.8,
            why,
            at_least=True,
        )
        for name, why in (
            ("images of 64x64x3 bytes", _IMAGES),
            ("strings", _TAKES),
            ("ragged lists", _TAKES),
        )
    ),
    *(
        Goal(name, "service", f"{name}, to bare Flight", "batch by batch", 0.7, at_least=True)
        for name in ("coordinated reads, batches of 1,024", "coordinated reads, batches of 16,384")
    ),
    Goal(
        "`make test`, minutes",
        "-",
        "-",
        "12 to 15",
        8,
        "8.7 minutes on a quiet machine for 10,429 tests, with three processes and one part after the other; "
        "since then two parts run beside each other and components fork their nodes themselves: on a slower "
        "machine, which took 13.8 minutes for those before, 10,700 tests take 10.8; it is timed where it runs",
    ),
    Goal(
        "`gc` plans 100,000 artifacts",
        "gc",
        "gc --dry-run of 100,000 artifacts",
        "63 s",
        5,
        "a quarter is the process that reads by SQL, beside the first (decision 135); of the first, two fifths parse "
        "and make records of it, a sixth lists 100,000 folders, a sixth looks up marks, and the rest decides",
    ),
    *(
        Goal(
            f"`{command}`, 1,000,000 artifacts on PostgreSQL, {where}",
            "store_size",
            f"{command}, 1,000,000 artifacts on PostgreSQL, {where}",
            NOTHING,
            300,
            _COMMANDS if where == "from the shell" else _ASKED,
        )
        for command in ("runs", "show", "status", "window")
        for where in ("inside the command", "from the shell")
    ),
    Goal(
        "a tick's decision, 1,000,000 artifacts on PostgreSQL",
        "store_size",
        "a tick's decision, 1,000,000 artifacts on PostgreSQL",
        NOTHING,
        50,
        _ASKED,
    ),
    Goal(
        "`gc` plans 100,000 of 1,000,000 artifacts on PostgreSQL",
        "store_size",
        "gc --dry-run of 100,000 of 1,000,000 artifacts on PostgreSQL",
        NOTHING,
        5,
        "100 pipelines, each planned by 22 questions of its own, two of them at a time and each on a session of "
        "its own: 0.03 ms of processor time for each artifact, and the server takes nearly as long to put their "
        "properties together",
    ),
    Goal(
        "1,000 ticks due in the same second, SQLite",
        "ledger",
        "1,000 ticks due in the same second, taken, on SQLite",
        "9 s",
        2,
        _SYNCED,
    ),
    Goal("recovery of missed ticks: growth", "ledger", "growth: missed ticks recovered, 125 to 500", "2", 1.1),
    *(
        Goal(
            f"`{name}` after 10,000 runs of 12 nodes",
            "history",
            f"{name}, 10,000 runs of 12 nodes",
            "not measured",
            0.3,
            why,
        )
        for name, why in (
            ("runs", _COMMANDS),
            ("show", _COMMANDS),
            ("schedule status", _STATUS),
            ("schedule missed", _COMMANDS),
            ("backfill --dry-run", _PLANNED),
        )
    ),
)


def format_goals(rows: Iterable[Row]) -> str:
    """The goals as a table, each with what was seen last and whether that is enough."""
    by_name = {(row.benchmark, row.figure): row for row in rows}
    lines = [
        "## Goals",
        "",
        "Each is judged by what its benchmark wrote last: where the machine did nothing else, and where it did.",
        "",
        "| what | before | goal | quiet machine | busy machine | what is in the way |",
        "|---|---|---|---|---|---|",
    ]
    for goal in GOALS:
        row = by_name.get((goal.benchmark, goal.figure))
        quiet, busy = goal.judge(row.quiet if row else NOTHING), goal.judge(row.busy if row else NOTHING)
        sign = ">=" if goal.at_least else "<="
        why = "" if quiet.endswith(", met") else goal.why
        lines.append(f"| {goal.what} | {goal.before} | {sign} {goal.limit:g} | {quiet} | {busy} | {why} |")
    return "\n".join(lines)


COLUMNS = ("benchmark", "figure", "quiet", "busy", "goal", "met")


def read_rows(page: str) -> dict[str, list[Row]]:
    """The rows of the table of all figures, by benchmark."""
    rows: dict[str, list[Row]] = {}
    _, _, table = page.partition("| benchmark | figure |")
    for line in table.splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows.setdefault(cells[0], []).append(Row(**dict(zip(COLUMNS, cells, strict=True))))
    return rows


def insert_figures(text: str, rows: Sequence[Row]) -> str:
    """The text with what was measured between each `<!-- benchmark: figure -->` and the `<!-- -->` after it."""
    measured = {f"{row.benchmark}: {row.figure}": row.best for row in rows}
    return re.sub(
        r"(<!-- ([a-z]+: [^>]+?) -->).*?(<!-- -->)",
        lambda found: f"{found[1]}{measured[found[2]]}{found[3]}",
        text,
    )
