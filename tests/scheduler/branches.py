"""A pipeline with two branches that meet again; its nodes are never run."""

from spanwise.orchestrator import Component, Input, Output, Pipeline, Report


class Make(Component):
    def run(self, report: Output[Report]) -> None: ...


class Read(Component):
    def run(self, reports: Input[list[Report]], report: Output[Report]) -> None: ...


def pipeline() -> Pipeline:
    """A -> B -> D, A -> C -> D."""
    a = Make(name="A")
    b = Read(name="B", reports=a["report"])
    c = Read(name="C", reports=a["report"])
    d = Read(name="D", reports=[b["report"], c["report"]])
    return Pipeline("p", [a, b, c, d])
