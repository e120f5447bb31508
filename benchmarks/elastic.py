"""The loop of an elastic worker with the shares of time of ElasticDL's design: the speed-up from each change to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from benchmarks.figures import Figure, at_least, at_most, show

RUN_S: Final = 2.0
SPEEDUP: Final = 51.0 / 23.8  #: in the document, with all changes
TOLERANCE: Final = 0.03  #: of the whole, by which a share may differ from the document's
FULL_OVERLAP: Final = 0.9  #: of what full overlap could give
IDLE: Final = 0.95  #: of a core that a computing thread has when no other program needs the cores


def figures(run_s: float = RUN_S) -> Iterator[Figure]:
    # BLAS reads these when NumPy is imported: the loop is to compute on one core
    os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1"))
    from benchmarks.elastic_loop import distance, measure
    from spanwise.components.training.elastic.phases import Phase

    found = measure(run_s)
    core_share, (first, *changed) = found.core_share, found.forms
    yield Figure(name="share of a core that a computing thread got", value=core_share * 100, unit="%")
    yield Figure(name="a step of the loop as it was", value=first.step_s * 1e3, unit="ms")
    overlap = first.full_overlap_s / min(form.step_s for form in changed if form.change == "overlap")
    shares_name, overlap_name = "its shares of time, to the document's", "overlap, to what full overlap could give"
    is_judged = core_share >= IDLE and (os.cpu_count() or 1) > 1  # what waits for a core takes any time
    yield replace(at_most(shares_name, distance(first.seconds) * 100, "points", TOLERANCE * 100), judged=is_judged)
    yield replace(at_least(overlap_name, overlap, "x", FULL_OVERLAP), judged=is_judged)
    for form in changed:
        yield Figure(name=f"{form.change}: {form.name}", value=first.step_s / form.step_s, unit="x")
        if form.change == "compiled step":
            alone = first.seconds[Phase.COMPUTE] / form.seconds[Phase.COMPUTE]
            yield Figure(name="the compiled step by itself", value=alone, unit="x")
    *jobs, last = found.jobs
    for name in jobs:
        yield Figure(name=name, value=first.step_s / found.jobs[name].step_s, unit="x")
    yield at_least(f"all together: {last}", first.step_s / found.jobs[last].step_s, "x", SPEEDUP)


if __name__ == "__main__":
    sys.exit(show(figures()))
