"""The parts of structured elements, each as a dataset of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.element import ElementSpec, Structure, Table, build, element_spec, parts_of
from spanwise.pipelines.input.flow import Flow, extend
from spanwise.pipelines.input.op import list_ops
from spanwise.pipelines.input.ops.interleave import Interleave
from spanwise.pipelines.input.ops.map import Map

AnyFlow = TypeVar("AnyFlow", bound=Flow)


@dataclass(frozen=True)
class TakePart:
    """Takes a part of an element, by its place on each level."""

    places: tuple[int, ...]
    spread: bool  #: whether elements come as several arguments

    def __call__(self, *element: Any) -> Any:
        value: Any = element if self.spread else element[0]
        for place in self.places:
            taken = parts_of(value)
            assert taken is not None, "the spec says so"
            value = taken[1][place]
        return value


def unzip(flow: AnyFlow) -> Any:
    """The datasets of the leaves, in a structure like that of the elements.

    Raises:
        DatasetError: the elements have no parts that are known, or each pass over them has another order.
    """
    spec = flow.spec
    if isinstance(spec, Table) and spec.schema is not None:
        names = tuple(spec.schema.names)
        whole: ElementSpec = Structure(dict, names, tuple(element_spec(spec) for _ in names))
    else:
        whole = spec
    if not isinstance(whole, Structure):
        raise DatasetError(f"unzip: the elements are not known to have parts: {spec}. Describe them: map(…, spec=…).")
    ops = list_ops(flow.op)
    if any(op.name == "Distribute" for op in ops):
        raise DatasetError(
            "unzip: each of the datasets would be another job of the data service, in another order. Take the elements "
            "apart where they are used."
        )
    loose = [op.name for op in ops if getattr(op, "seed", 0) is None or isinstance(op, Interleave)]
    if loose and flow.settings.seed is None:
        raise DatasetError(
            f"unzip: {', '.join(dict.fromkeys(loose))} would have another order in each of the datasets. Give it a "
            f"seed=, or all of them: options(seed=…)."
        )
    flow = type(flow)(flow.op, replace(flow.settings, in_order=True))
    rows = isinstance(spec, Table)
    spread = whole.kind is tuple

    def take(part: ElementSpec, places: tuple[int, ...]) -> Any:
        if isinstance(part, Structure) and not (rows and places):
            parts = [take(each, (*places, at)) for at, each in enumerate(part.parts)]
            return build(part.kind, part.names, parts)
        op = Map(input=flow.op, function=TakePart(places, spread))
        return extend(flow, op)

    return take(whole, ())
