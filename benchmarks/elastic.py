"""The loop of an elastic worker with the shares of time of ElasticDL's design: what each change to it brings."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks.figures import Figure, at_least, at_most, show
from spanwise.components.training.elastic.breakdown import FULL_OVERLAP, TOLERANCE, WANTED, measured
from spanwise.components.training.elastic.phases import Phase

RUN_S = 2.0


def figures() -> Iterator[Figure]:
    found = measured(RUN_S)
    yield Figure(name="share of a core that a computing thread got", value=found.core_share * 100, unit="%")
    yield Figure(name="a step of the loop as it was", value=found.before.step_s * 1e3, unit="ms")
    shares, overlap = "its shares of time, to the document's", "overlap, to what full overlap could give"
    if found.is_idle:
        yield at_most(shares, found.off * 100, "points", TOLERANCE * 100)
        yield at_least(overlap, found.overlap, "x", FULL_OVERLAP)
    else:  # what waits for a core takes any time
        yield Figure(name=shares, value=found.off * 100, unit="points")
        yield Figure(name=overlap, value=found.overlap, unit="x")
    for form in found.forms[1:-1]:
        yield Figure(name=f"{form.change}: {form.name}", value=found.speedup(form), unit="x")
    compiled = next(form for form in found.forms if form.change == "compiled step")
    faster = found.before.seconds[Phase.COMPUTE] / compiled.seconds[Phase.COMPUTE]
    yield Figure(name="the compiled step by itself", value=faster, unit="x")
    yield at_least("all together", found.speedup(found.together), "x", WANTED)


if __name__ == "__main__":
    sys.exit(show(figures()))
