"""Schedule keys: the names under which the ledger keeps the ticks of a pipeline, or of a part of it.

`ingest` is what runs for each span; `train` is what chooses among spans, and everything after it; further parts have
the names that their schedule gives them. Where each has a cron of its own, their schedule keys are `flights:ingest`
and `flights:train`; a pipeline that is scheduled as a whole has the key `flights`, and what runs because data has
arrived `flights:data`.
"""

WHOLE, INGEST, TRAIN = "", "ingest", "train"
HALF_NAMES = (INGEST, TRAIN)

DATA = "data"
"""Not a part: the ticks of runs that start because data has arrived."""


def schedule_key(pipeline: str, part: str) -> str:
    """The name under which the ticks of a part are recorded; no pipeline's own name has a colon."""
    return f"{pipeline}:{part}" if part else pipeline


def pipeline_of(key: str) -> str:
    """The pipeline of a schedule key."""
    return key.partition(":")[0]


def part_of(key: str) -> str:
    """The part of a schedule key; empty for the whole pipeline."""
    return key.partition(":")[2]


def format_cause(key: str, tick: str) -> str:
    """The cause that a run of the tick records."""
    return f"{part_of(key)} {tick}".strip()


def parse_cause(pipeline: str, cause: str) -> tuple[str, str]:
    """The schedule key and the tick that a run records as its cause."""
    part, _, tick = cause.rpartition(" ")
    return schedule_key(pipeline, part), tick
