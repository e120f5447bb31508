"""A chain of trivial nodes: each copies a number to a file and adds one. The pipeline that `benchmarks.nodes` runs."""

from spanwise.orchestrator import Component, Input, Output, Pipeline, Report


class First(Component):
    def run(self, report: Output[Report]) -> None:
        (report.path / "number").write_text("0")


class Next(Component):
    def run(self, before: Input[Report], report: Output[Report]) -> None:
        number = int((before.path / "number").read_text())
        (report.path / "number").write_text(str(number + 1))


def chain(nodes: int = 20) -> Pipeline:
    made = [First(name="n1")]
    for number in range(2, nodes + 1):
        made.append(Next(before=made[-1]["report"], name=f"n{number}"))
    return Pipeline("chain", made)
