"""Rewrites: graphs that give the same elements with less work. Pure; each has a name and can be left out.

A rule looks at one op, whose inputs have been rewritten already, and says what replaces it and why. What a
rule does not know (a cache, whose contents others share; an op of somebody else's) it leaves alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.call import name_function, resolve_format
from spanwise.pipelines.input.element import BatchSpec, Table
from spanwise.pipelines.input.op import AUTOTUNE, Op, Options, list_ops, rebuild
from spanwise.pipelines.input.ops.as_numpy import AsNumpy
from spanwise.pipelines.input.ops.batch import Batch
from spanwise.pipelines.input.ops.concatenate import Concatenate
from spanwise.pipelines.input.ops.csv import Csv
from spanwise.pipelines.input.ops.filter import Filter, columns_of
from spanwise.pipelines.input.ops.interleave import Interleave
from spanwise.pipelines.input.ops.map import Chain, Map
from spanwise.pipelines.input.ops.parquet import Parquet
from spanwise.pipelines.input.ops.prefetch import Prefetch
from spanwise.pipelines.input.ops.random_access import RandomAccess
from spanwise.pipelines.input.ops.repeat import Repeat
from spanwise.pipelines.input.ops.row_files import RowFiles
from spanwise.pipelines.input.ops.sample import Sample
from spanwise.pipelines.input.ops.select import Select
from spanwise.pipelines.input.ops.shard import Shard
from spanwise.pipelines.input.ops.shuffle import Shuffle
from spanwise.pipelines.input.ops.shuffle_and_repeat import ShuffleAndRepeat
from spanwise.pipelines.input.ops.skip import Skip
from spanwise.pipelines.input.ops.take import Take
from spanwise.pipelines.input.selection import both_conditions

Change: TypeAlias = tuple[Op, str]
"""What replaces an op, and why."""


@dataclass(frozen=True)
class Rule:
    name: str
    change: Callable[[Op], Change | None]  #: None leaves the op as it is
    at_root: bool = False  #: whether it looks at the whole graph rather than at each op


@dataclass(frozen=True)
class RewriteStep:
    """One use of a rule."""

    rule: str
    op: str  #: the op that it changed
    why: str


@dataclass(frozen=True)
class RewritePlan:
    """The result of the rewrites; prints what each of them did."""

    before: Op
    op: Op  #: the graph after them
    steps: tuple[RewriteStep, ...]

    def __str__(self) -> str:
        lines = [f"before: {draw(self.before)}", f"after:  {draw(self.op)}"]
        lines += [f"  {each.rule} at {each.op}: {each.why}" for each in self.steps] or ["  no rewrite applies"]
        return "\n".join(lines)


def draw(op: Op) -> str:
    """A graph as a line of text, from its sources to its end."""
    if len(op.inputs) > 1:
        return f"{op.name}({', '.join(map(draw, op.inputs))})"
    return f"{draw(op.inputs[0])} > {op.name}" if op.inputs else op.name


def optimize(op: Op, options: Options) -> RewritePlan:
    """The graph after all rewrites that the options do not leave out."""
    steps: list[RewriteStep] = []
    after = op
    if options.optimize:
        for rule in RULES:
            if rule.name not in options.without:
                after = _apply(rule, after, steps)
    return RewritePlan(before=op, op=after, steps=tuple(steps))


def _apply(rule: Rule, op: Op, steps: list[RewriteStep]) -> Op:
    def change(each: Op) -> Op:
        made = rule.change(each)
        if made is None:
            return each
        steps.append(RewriteStep(rule.name, each.name, made[1]))
        # the result may match the same rule again, one op further down
        return _apply(rule, made[0], steps) if not rule.at_root else made[0]

    return change(op) if rule.at_root else rebuild(op, change)


def _noop(op: Op) -> Change | None:
    match op:
        case Take(input=below, count=-1):
            why = "takes everything"
        case Take(input=below, count=count) if _is_at_most(below, count):
            why = "takes more than there is"
        case Skip(input=below, count=0):
            why = "skips nothing"
        case Repeat(input=below, count=1):
            why = "goes round once"
        case Shard(input=below, shards=1):
            why = "is the only shard"
        case Prefetch(input=below, buffer=0):
            why = "keeps nothing ready"
        case Concatenate(parts=(below,)):
            why = "has nothing to put behind it"
        case Select(input=below, columns=columns) if _names(below) == columns:
            why = "selects what there is"
        case _:
            return None
    return below, why


def _is_at_most(op: Op, count: int) -> bool:
    return isinstance(op.cardinality, int) and op.cardinality <= count


def _names(op: Op) -> tuple[str, ...] | None:
    """The columns of rows, if they are known."""
    spec = op.spec
    return tuple(spec.schema.names) if isinstance(spec, Table) and spec.schema is not None else None


@dataclass(frozen=True)
class Conjunction:
    """Two predicates as one."""

    first: Callable[..., Any]
    second: Callable[..., Any]

    def __call__(self, *element: Any) -> Any:
        return self.first(*element) and self.second(*element)

    def __repr__(self) -> str:
        return f"{name_function(self.first)} and {name_function(self.second)}"


def _filter_fusion(op: Op) -> Change | None:
    match op:
        case Filter(input=Filter() as first) as second if first.vectorized == second.vectorized:
            if first.expression is not None and second.expression is not None:
                both = both_conditions(first.expression, second.expression)
                return replace(first, predicate=both), "two conditions are asked in one step"
            elementwise = first.expression is None and second.expression is None and not first.vectorized
            formats = [resolve_format(each.predicate, each.format) for each in (first, second) if elementwise]  # type: ignore[arg-type]  # no expressions
            if elementwise and formats[0] == formats[1]:
                predicate = Conjunction(first.predicate, second.predicate)  # type: ignore[arg-type]  # no expressions
                return replace(first, predicate=predicate, format=formats[0]), "two predicates are one"
    return None


def _filter_pushdown(op: Op) -> Change | None:  # noqa: PLR0911  one line per kind of op
    if not isinstance(op, Filter) or op.expression is None:
        return None
    match op.input:
        case Map(vectorized=True, input=below) as above if _leaves_columns_of(op, above) and (moved := _on(below, op)):
            return replace(above, input=moved), "the function is declared not to write its columns"
        case Select(input=below) as above if moved := _on(below, op):
            return replace(above, input=moved), "the columns are there before they are selected"
        case Repeat(input=below) as above if above.rounds != math.inf:  # one without end ends with an empty round
            return replace(above, input=replace(op, input=below)), "each round is filtered alike"
        case Prefetch(input=below) as above:
            return replace(above, input=replace(op, input=below)), "what is left out need not be kept ready"
        case Concatenate(parts=parts) as above:
            return replace(above, parts=tuple(replace(op, input=part) for part in parts)), "each part is filtered alike"
        case Parquet(filter=condition) as source:
            names = _names(source) or ()
            needed = columns_of(op.expression, source.schema)
            if not needed.issubset(names):
                return None
            both = op.expression if condition is None else both_conditions(condition, op.expression)
            return replace(source, filter=both), "row groups in which it cannot hold are not read"
    return None


def _on(below: Op, op: Filter) -> Filter | None:
    """The filter on the rows below, if its condition can be evaluated on them."""
    if _names(below) is None:
        return None
    with suppress(DatasetError):
        return replace(op, input=below)
    return None


def _leaves_columns_of(op: Filter, above: Map) -> bool:
    """Whether a map neither writes the columns of a condition nor converts them, as its `spec` may."""
    below = above.input.spec
    if above.writes is None or op.expression is None or not isinstance(below, Table) or below.schema is None:
        return False
    needed = columns_of(op.expression, below.schema)
    made = above.result.schema if isinstance(above.result, Table) else None
    kept = made is None or all(
        name in made.names and made.field(name).type == below.schema.field(name).type for name in needed
    )
    return kept and not needed.intersection(above.writes)


def _position_pushdown(op: Op) -> Change | None:
    match op:
        case Shard(input=RandomAccess() as source, shards=shards, index=index) if shards > 0:
            chosen = source.positions[index::shards]
        case Skip(input=RandomAccess() as source, count=count) if count >= 0:
            chosen = source.positions[count:]
        case Take(input=RandomAccess() as source, count=count) if count >= 0:
            chosen = source.positions[:count]
        case _:
            return None
    return replace(source, positions=chosen), "elements that nobody gets are not read"


def columns_read(op: Op, reading: Parquet) -> tuple[str, ...]:
    """The columns of a source of the graph that it can be proved to read; all of them where nothing is proved."""
    sources = [
        each for each in list_ops(_narrow(op, None)) if isinstance(each, Parquet) and each.paths == reading.paths
    ]
    needed = {name for each in sources for name in _columns(each)}
    return tuple(name for name in _columns(reading) if name in needed)


def _columns(reading: Parquet) -> tuple[str, ...]:
    return tuple(reading.schema.names) if reading.columns is None else reading.columns


def _projection_pushdown(op: Op) -> Change | None:
    after = _narrow(op, None)
    return None if after is op else (after, "columns that nobody looks at are not read")


def _narrow(op: Op, columns: frozenset[str] | None) -> Op:
    """The graph that reads only the columns it needs to give these; None for all of them."""
    match op:
        case Parquet() if columns is not None:
            there = _columns(op)
            kept = tuple(name for name in there if name in columns) or there[:1]
            return op if kept == there else replace(op, columns=kept)
        case Select(columns=chosen):
            needed: frozenset[str] | None = frozenset(chosen)
        case Filter(predicate=_) if op.expression is not None:
            names = _names(op.input)
            asked = columns_of(op.expression, op.input.spec.schema) if names is not None else None  # type: ignore[attr-defined]
            needed = columns | asked if columns is not None and asked is not None else None
        case Map(vectorized=True, reads=reads, writes=writes) if reads is not None and writes is not None:
            return op if columns is None else _narrow_map(op, columns, frozenset(reads), frozenset(writes))
        case Concatenate() if columns is not None:
            return _narrow_parts(op, columns)
        case Take() | Skip() | Shard() | Shuffle() | Repeat() | Prefetch():
            needed = columns
        case _:
            needed = None
    return op.with_inputs([_narrow(each, needed) for each in op.inputs])


def _narrow_map(op: Map, columns: frozenset[str], reads: frozenset[str], writes: frozenset[str]) -> Op:
    """The map on fewer columns; its `spec` names all columns of the result, so it leaves out those that are gone."""
    below = _narrow(op.input, (columns - writes) | reads)
    if not isinstance(op.result, Table) or op.result.schema is None:
        return op.with_inputs([below])
    names = _names(below)
    if names is None:
        return op.with_inputs([_narrow(op.input, None)])
    import pyarrow as pa

    kept = [field for field in op.result.schema if field.name in writes or field.name in names]
    return replace(op, input=below, result=Table(pa.schema(kept)))


def _narrow_parts(op: Concatenate, columns: frozenset[str]) -> Op:
    """The parts with the same columns, although one may need more of them than another for a filter of its own."""
    names = _names(op.parts[0])
    if names is None or any(_names(part) != names for part in op.parts):
        return op.with_inputs([_narrow(part, None) for part in op.parts])
    kept = tuple(name for name in names if name in columns) or names[:1]
    parts = [_narrow(part, frozenset(kept)) for part in op.parts]
    return replace(
        op, parts=tuple(part if _names(part) == kept else Select(input=part, columns=kept) for part in parts)
    )


def _map_fusion(op: Op) -> Change | None:
    match op:
        case Map(input=Map() as first) as second:
            alike = ("vectorized", "num_parallel", "deterministic", "workers")
            if any(getattr(first, name) != getattr(second, name) for name in alike):
                return None
            chain = Chain((*_calls(first), *_calls(second)))
            stateless = first.stateless and second.stateless
            fused = replace(
                second, input=first.input, function=chain, reads=None, writes=None, format=None, stateless=stateless
            )
            return fused, "two functions are called one behind the other"
    return None


def _calls(op: Map) -> tuple[Any, ...]:
    call = op.call()
    return call.calls if isinstance(call, Chain) else (call,)


def _batch_fusion(op: Op) -> Change | None:
    match op:
        case AsNumpy(input=Batch(input=below) as batch) if isinstance(below.spec, Table):
            return replace(batch, numpy=True), "a block is made into arrays once, and these are cut into batches"
    return None


def _shuffle_repeat_fusion(op: Op) -> Change | None:
    match op:
        case Repeat(input=Shuffle() as shuffle, count=count):
            fused = ShuffleAndRepeat(
                input=shuffle.input,
                buffer=shuffle.buffer,
                seed=shuffle.seed,
                reshuffle_each_iteration=shuffle.reshuffle_each_iteration,
                count=count,
            )
            why = "what was read in the first round is kept" if fused.keeps else "they are one step"
            return fused, why
    return None


def _map_parallelization(op: Op) -> Change | None:
    match op:
        case Map(num_parallel=None, input=below) if op.vectorized or isinstance(below.spec, BatchSpec):
            if op.stateless:
                return replace(op, num_parallel=AUTOTUNE), "its calls are declared to be independent"
    return None


def _prefetch_insertion(op: Op) -> Change | None:
    """Puts a prefetch after the last op that does work; what only cuts blocks stays with the consumer."""
    if isinstance(op, Batch | Take | Skip | Select) and isinstance(op.inputs[0].spec, Table):
        made = _prefetch_insertion(op.inputs[0])
        return None if made is None else (op.with_inputs([made[0]]), made[1])
    if isinstance(op, Map) and op.num_parallel is not None:
        return Prefetch(input=op), "it works while the consumer does"
    if (
        isinstance(op.spec, Table)
        and not isinstance(op, Prefetch)
        and any(isinstance(each, _WORK) for each in list_ops(op))
    ):
        return Prefetch(input=op), "it works while the consumer does"
    return None


_WORK = (Csv, Filter, Interleave, Map, Parquet, RowFiles, Sample, Shuffle, ShuffleAndRepeat)
"""What is worth a thread of its own if its elements are rows."""

RULES: tuple[Rule, ...] = (
    Rule("noop_elimination", _noop),
    Rule("filter_fusion", _filter_fusion),
    Rule("filter_pushdown", _filter_pushdown),
    Rule("position_pushdown", _position_pushdown),
    Rule("projection_pushdown", _projection_pushdown, at_root=True),
    Rule("map_fusion", _map_fusion),
    Rule("map_batch_fusion", _batch_fusion),
    Rule("shuffle_and_repeat_fusion", _shuffle_repeat_fusion),
    Rule("map_parallelization", _map_parallelization),
    Rule("prefetch_insertion", _prefetch_insertion, at_root=True),
)
"""In the order in which they are applied."""
