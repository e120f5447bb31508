"""Drivers: whether a node of a run reuses a result or executes. They read and decide; they start and write nothing."""

from __future__ import annotations

import itertools
import logging
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from spanwise.orchestrator import fingerprint
from spanwise.orchestrator.artifact import Artifact, Blessing, Model, is_readable_as
from spanwise.orchestrator.beam_settings import unverified_part
from spanwise.orchestrator.calendar import Calendar, format_versions
from spanwise.orchestrator.code_digest import OutsideKey, outside_key
from spanwise.orchestrator.collection import COLLECTED
from spanwise.orchestrator.component import Channel, Component, Node, Resolver
from spanwise.orchestrator.continuation import attempted_nodes
from spanwise.orchestrator.errors import Refused, ResolutionError, UsageError
from spanwise.orchestrator.fingerprint import CacheKey
from spanwise.orchestrator.gate import Gate, find_calendar
from spanwise.orchestrator.history import History, identity_of, span_of, version_key, version_of, versions_of
from spanwise.orchestrator.integrity import describe_lost_models, describe_restore, recreate_command
from spanwise.orchestrator.making import name_spans
from spanwise.orchestrator.parameter_record import encode_parameter, is_same_parameter
from spanwise.orchestrator.run import Execution, Run, quote_pipeline
from spanwise.orchestrator.run_facts import read_run_facts
from spanwise.orchestrator.scope import Scope
from spanwise.orchestrator.signature import read_signature
from spanwise.orchestrator.span_resolver import SpanResolver
from spanwise.orchestrator.store import Address, Store, is_marked
from spanwise.orchestrator.verdict import Verdict, find_standing, find_standing_of_model, judges_of

log = logging.getLogger("spanwise.driver")

_MOST_COMMANDS = 5  # in a message

Artifacts: TypeAlias = Mapping[str, tuple[Artifact, ...]]


@dataclass(frozen=True, kw_only=True)
class Reuse:
    """The outputs exist already."""

    outputs: Artifacts
    reason: str
    execution: int | None = None  #: the one that produced them; None for a resolver's choice
    key: CacheKey | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Execute:
    """The work has to be done."""

    reason: str
    prepared: Mapping[str, object]
    parameters: Mapping[str, str]  #: as recorded, JSON text by name
    key: CacheKey | None  #: None when the result must not be reused


Plan: TypeAlias = Reuse | Execute


def drive(
    node: Node,
    run: Run,
    store: Store,
    inputs: Artifacts,
    mine: Mapping[str, Sequence[Artifact]],
    *,
    cache: bool,
    scopes: Mapping[str, Scope] | None = None,
) -> Plan:
    """Decides what a node does. `inputs` are resolved.

    `mine` is what this run published on a resolver's sources, `scopes` what the resolver chooses among; both by key.

    Raises:
        Refused: a person has refused the span that a gate judges.
        ResolutionError: a resolver found too little, or a required input is empty.
        InputError: the data that a component prepares for is missing or invalid.
    """
    if isinstance(node, Resolver):
        attempted = attempted_nodes(store, run)
        histories = histories_of(store, run, node, mine, scopes or {}, attempted)
        outputs = choose(node, histories)
        chosen, history = tuple(itertools.chain(*outputs.values())), histories[node.source.key]
        if isinstance(node, SpanResolver):
            check_given(node, node, replace(history, mine=()) if history.supplied else history)
        why = node.why(history, chosen)
        choices = [format_choice(found, run) for found in outputs.values()]
        choice = f"chose {' and '.join(choices)}" if choices else "found no artifact to choose"
        return Reuse(
            outputs=outputs,
            reason=choice + (f", {why}" if why else ""),
            parameters={n: encode_parameter(v) for n, v in node.parameters.items()},
        )
    assert isinstance(node, Component)
    _refuse_empty(node, inputs)
    if isinstance(node, Gate) and (decided := _follow_person(node, run, store, inputs)) is not None:
        return decided
    definition = node.definition  # before `prepare` may keep something
    prepared = dict(node.prepare(run, lambda key: history_of(store, run, node[key])))
    parameters = {
        **{n: encode_parameter(v) for n, v in definition.items()},
        **{n: encode_parameter(v) for n, v in prepared.items()},
    }
    said = _find_decided(node, run, store, inputs)
    key, why_not = _key(node, run, inputs, definition, prepared, said)
    earlier = store.find_cached(key.digest) if key is not None and cache else None
    if key is not None and run.replay:  # under a key of its own, so that no ordinary run reuses what it makes
        key = CacheKey.of_parts({**key.parts, "replay": "yes"})
        earlier = earlier or (store.find_cached(key.digest) if cache else None)
    passed = {node.judged: inputs[node.judged]} if isinstance(node, Gate) else {}  # of this run, not of the earlier one
    made = {n: found for n, found in earlier.outputs.items() if n not in passed} if earlier is not None else {}
    gone = next(find_unreadable(store, made), None)
    other = next(_find_other_kinds(node, made), None)
    unfit = node.refuse_reuse(made) if earlier is not None else None
    if earlier is not None and gone is None and other is None and unfit is None:
        return Reuse(
            outputs={**passed, **made},
            reason=f"same inputs, parameters and code as {earlier.name}",
            execution=earlier.id,
            key=key,
            parameters=parameters,
        )
    _refuse_gone(node, run, store, inputs)
    reason = why_not or ("no cached result matched" if cache else "caching is disabled for this run")
    if earlier is not None and gone is not None:
        what = (
            f"{gone.name} was collected" if is_marked(store, COLLECTED, gone) else f"{gone.uri} is missing or damaged"
        )
        reason = f"the cached result of {earlier.name} is unusable: {what}"
    elif earlier is not None and other is not None:
        reason = f"the cached result of {earlier.name} is unusable: {other.name} was published as {other.kind}"
    elif earlier is not None and unfit is not None:
        reason = f"the result of {earlier.name} is not reused: {unfit}"
    return Execute(reason=reason, prepared=prepared, parameters=parameters, key=key)


def history_of(
    store: Store, run: Run, channel: Channel, mine: Sequence[Artifact] = (), scope: Scope | None = None
) -> History:
    """What was published on a channel, as far as this run may see it and the gates of `scope` accept it."""
    scope = scope or Scope(channel.node, channel.key)
    address = Address(run.pipeline, scope.node, scope.key)
    origins = tuple(Address(run.pipeline, *origin) for origin in scope.origins)
    return History(
        store,
        address,
        channel.kind,
        run,
        tuple(mine),
        scope.sources,
        find_calendar(channel),
        origins,
        scope.ingests,
        Address(run.pipeline, *scope.ingested) if scope.ingested is not None else None,
        scope.through,
        compared=scope.compared,
        awaited=scope.awaited,
    )


def histories_of(
    store: Store,
    run: Run,
    node: Resolver,
    mine: Mapping[str, Sequence[Artifact]],
    scopes: Mapping[str, Scope],
    attempted: Collection[str] = (),
) -> Mapping[str, History]:
    """What was published on each channel that a resolver chooses from; `mine` and `scopes` by key.

    What is in `mine` of a node that was not `attempted` was supplied by a base run.
    """
    return {
        key: replace(
            history_of(store, run, source, mine.get(key, ()), scopes.get(key)), supplied=source.node not in attempted
        )
        for key, source in node.sources.items()
    }


def choose(node: Resolver, histories: Mapping[str, History]) -> Artifacts:
    """What a resolver chooses, by key; a key for which it chooses nothing is not there.

    Raises:
        ResolutionError: it found too little, or what it found is of another kind than its channel is now.
    """
    outputs = {key: tuple(found) for key, found in node.choose(histories).items() if found}
    for key, found in outputs.items():
        for artifact in found:
            _check_kind(node, node.sources[key], artifact)
    return outputs


def _check_kind(node: Resolver, source: Channel, chosen: Artifact) -> None:
    """Checks that an artifact was published as the kind that its channel has now."""
    kind = source.kind
    if is_readable_as(chosen, kind):
        return
    base = next(each for each in kind.__bases__ if issubclass(each, Artifact))
    keep = f'class {kind.__name__}({base.__name__}, kind="{chosen.kind}").'
    is_own = not kind.__module__.startswith("spanwise.")
    raise ResolutionError(
        f"{node.name} would read {chosen.name}, which was published as {chosen.kind}, but {source!r} is a channel of "
        f"{kind.kind} now.\nIf it is something else than before, give the output or the node {source.node} another "
        "name, so that its history begins anew."
        + (f" If only its class was renamed, keep the recorded name of the kind: {keep}" if is_own else "")
    )


def check_given(node: Resolver, window: SpanResolver, history: History) -> None:
    """Checks that a window reads what its source gave last for each span that it wants, this run's own above all.

    Raises:
        ResolutionError: it leaves something out, since a higher version was published before, a gate withholds it, or
            it is in another artifact of the same version.
    """
    mine = {} if history.as_of else {span_of(a): a for a in history.mine if "span" in a.properties}
    explained = window.explain(history)
    history.refuse_parts(wanted.span for wanted in explained if wanted.chosen is not None)
    for wanted in explained:
        own = mine.get(wanted.span)
        if wanted.chosen is not None:
            _check_kind(node, node.source, wanted.chosen)
            check_newest(node, history, wanted.label, wanted.chosen)
        elif own is not None:
            raise ResolutionError(
                f"{node.name} would leave out span {wanted.label}, but {history.address.node} gave {own.name} in this "
                f"run: {wanted.withheld}."
            )


def check_newest(node: Resolver, history: History, label: str, chosen: Artifact) -> None:
    """Checks that what was chosen for a span is what its source gave last, made from what was ingested last.

    Raises:
        ResolutionError: a higher version was published before, or what it was made from was replaced since.
    """
    source, last = history.address.node, history.last_given(span_of(chosen))
    if (replaced := history.replaced_origin(chosen)) is not None:
        raise ResolutionError(_describe_replaced(node, history, label, chosen, *replaced))
    if last is None or chosen.id == last.id:
        return
    raise ResolutionError(
        f"{node.name} would read {chosen.name} ({_version_text(chosen)}) of span {label}, but {source} gave "
        f"{last.name} ({_version_text(last)}) last. A window reads the highest version of a span.\n"
        f"If {last.name} is right, add its data to the input as v{version_key(chosen) + 1}. If the versions of the "
        f"input begin anew, give the node {source} another name, so that its history begins anew. "
        f"If {chosen.name} is right, restore its data and run span {label} again."
    )


def _describe_replaced(
    node: Resolver, history: History, label: str, chosen: Artifact, origin: Artifact, newest: Artifact
) -> str:
    last = " ".join(f"--to {node}" for node in history.last_nodes)
    spans = history.name_spans(span_of(chosen), label)
    giver = newest.name.split("/")[1]
    since = (
        f"{node.name} would read {chosen.name} of span {label}, which was made from {origin.name} "
        f"({_version_text(origin)}), but {giver} gave {newest.name} ({_version_text(newest)}) since"
    )
    if (barren := history.find_barren_run(newest)) is not None:
        return (
            f"{since}, of which {history.address.node} made nothing in run {barren}.\n"
            f"To leave out the span by name, pass exclude=, or for one run:  --exclude {label}"
        )
    return f"{since}.\nMake it from that:  spanwise run {quote_pipeline(history.run)} {spans} {last}"


def _version_text(artifact: Artifact) -> str:
    version = version_of(artifact)
    return "no version" if version is None else f"v{version}"


def _follow_person(node: Gate, run: Run, store: Store, inputs: Artifacts) -> Reuse | None:
    """Passes what a person has accepted; None when no person has decided."""
    (artifact,) = inputs[node.judged]
    decided = _decided_by_person(artifact, run, store)
    if decided is None:
        return None
    if not decided.given:
        label = Calendar.from_name(artifact.properties.get("calendar") or run.calendar).label(span_of(artifact))
        raise Refused(f"span {label} was {decided}")
    return Reuse(
        outputs={node.judged: (artifact,)},
        reason=str(decided),
        parameters={n: encode_parameter(v) for n, v in node.parameters.items()},
    )


def _decided_by_person(artifact: Artifact, run: Run, store: Store) -> Verdict | None:
    """What a person has said of an artifact, or else of the same data of the same version, published before it."""
    address = Address(*artifact.name.split("/")[:3])
    before = versions_of(store, address, span_of(artifact), None, as_of=run.heard_until)
    same = [a for a in before if identity_of(a) == identity_of(artifact)]
    said = (find_standing(store, "accepted", a, as_of=run.heard_until).personal for a in [artifact, *reversed(same)])
    return next((verdict for verdict in said if verdict is not None), None)


def is_on_disk(artifact: Artifact) -> bool:
    """Whether the files of an artifact exist with the size that was published, or are in the archive."""
    path = Path(artifact.uri)
    if not artifact.is_here:
        return artifact.archive is not None and artifact.archive.has(artifact.uri)
    if not path.is_dir():
        return path.stat().st_size == artifact.size_bytes
    found = (file.lstat() for file in path.rglob("*"))  # a link counts for nothing, as when its folder was digested
    return sum(each.st_size for each in found if stat.S_ISREG(each.st_mode)) == artifact.size_bytes


def _key(
    node: Component,
    run: Run,
    inputs: Artifacts,
    definition: Mapping[str, object],
    prepared: Mapping[str, object],
    decided: Mapping[str, str],
) -> tuple[CacheKey | None, str | None]:
    if not node.cacheable:
        return None, "it has effects outside the store, so it is never served from the cache"
    if not node.cache:
        return None, "caching is disabled for this node"
    noticed = OutsideKey()
    asked = outside_key.set(noticed)
    try:
        return fingerprint.cache_key(
            component=f"{run.pipeline}/{node.name}",
            code=fingerprint.of_class(type(node)),
            parameters=_fingerprint_parameters(node, definition, prepared),
            inputs={n: [fingerprint.of_artifact(a) for a in found] for n, found in inputs.items()},
            libraries=fingerprint.versions(node.libraries),
            extra={**unverified_part(node.parameters, run.beam), **decided, **read_run_facts(node, run)},
        ), None
    except UsageError as error:
        log.warning("caching-refused", extra={"node": node.name, "reason": str(error)})
        return None, f"it cannot be cached: {error}"
    finally:
        outside_key.reset(asked)
        if noticed.imports:
            log.warning(
                "dynamic-import: %s imports modules by names that are known only when it runs (%s), so their code is "
                "not in the cache key. Import them by a statement, or name their version in a parameter of the node.",
                node.name,
                ", ".join(sorted(noticed.imports)),
            )
        if noticed.files:
            log.warning(
                "file-outside-key: the code or a parameter of %s names %s, and what files hold that code opens is not "
                "in the cache key. Read or digest it in `prepare`, publish it with an Importer, or pass what it holds "
                "as a parameter.",
                node.name,
                ", ".join(sorted(noticed.files)),
            )


def _find_decided(node: Component, run: Run, store: Store, inputs: Artifacts) -> dict[str, str]:
    """The part of a cache key for what people have said of the models that a node may take a blessing of."""
    if not any(issubclass(spec.kind, Blessing) for spec in read_signature(type(node)).inputs.values()):
        return {}
    models = (a for found in inputs.values() for a in found if a.is_a(Model))
    said = [find_standing_of_model(store, model, as_of=run.heard_until).personal for model in models]
    words = [verdict.word for verdict in said if verdict is not None]
    return {"verdict": " and ".join(words)} if words else {}


def _fingerprint_parameters(
    node: Component, definition: Mapping[str, object], prepared: Mapping[str, object]
) -> dict[str, str]:
    given, found = ({n: v for n, v in values.items() if n not in node.hints} for values in (definition, prepared))
    return fingerprint.of_parameters(type(node), given, found, who=node.name)


def find_edits(node: Component, made: Execution) -> list[str]:
    """What the pipeline says of a node otherwise than when it was executed: code, parameters and kinds of outputs.

    Of a result that is never cached the code is not recorded. What `prepare` found is not compared.
    """
    others = {f"output {a.name.split('/')[2]}" for a in _find_other_kinds(node, made.outputs)}
    return [*Definition(node).edits_since(made), *sorted(others)]


@dataclass(frozen=True)
class Definition:
    """What the pipeline says of a node now; it is digested once, and compared with any number of executions."""

    node: Component

    def edits_since(self, made: Execution) -> list[str]:
        """What it says otherwise than when the node was executed: code and parameters."""
        if made.key_parts and self._parts is not None:
            return [name for name, part in self._parts.items() if part != made.key_parts.get(name)]
        return self.recorded_edits_since(made)

    def recorded_edits_since(self, made: Execution) -> list[str]:
        """The parameters that are recorded otherwise; functions by their names alone."""
        now = self._recorded.items()
        return [f"parameter {n}" for n, text in now if not is_same_parameter(text, made.parameters.get(n))]

    @cached_property
    def _parts(self) -> Mapping[str, str] | None:
        """The parts of its cache key; None where it cannot be fingerprinted any more."""
        try:
            parameters = _fingerprint_parameters(self.node, self.node.definition, {})
            return {
                "code": fingerprint.of_class(type(self.node)),
                **{f"parameter {name}": part for name, part in parameters.items()},
            }
        except UsageError:
            return None

    @cached_property
    def _recorded(self) -> Mapping[str, str]:
        given = self.node.definition.items()
        return {name: encode_parameter(value) for name, value in given if name not in self.node.hints}


def _refuse_empty(node: Component, inputs: Artifacts) -> None:
    for name, spec in read_signature(type(node)).inputs.items():
        found = len(inputs.get(name, ()))
        if not found and not spec.optional:
            channels = ", ".join(map(repr, node.inputs[name]))
            raise ResolutionError(f"{node.name} needs {name!r}, but {channels} is empty in this run.")
        if found > 1 and not spec.many:
            raise ResolutionError(f"{node.name} takes one {name!r}, not {found}; annotate it Input[list[…]].")


def _find_other_kinds(node: Component, outputs: Artifacts) -> Iterator[Artifact]:
    """The artifacts that were published as another kind than the node's outputs are now."""
    kinds = {key: channel.kind for key, channel in node.outputs.items()}
    return (a for key in outputs.keys() & kinds for a in outputs[key] if not is_readable_as(a, kinds[key]))


def find_unreadable(store: Store, artifacts: Artifacts) -> Iterator[Artifact]:
    """The artifacts whose files cannot be read: removed, truncated, or about to be removed."""
    return (a for found in artifacts.values() for a in found if not is_on_disk(a) or is_marked(store, COLLECTED, a))


def _refuse_gone(node: Component, run: Run, store: Store, inputs: Artifacts) -> None:
    """Refuses inputs whose files were removed or truncated: the result would be silently wrong."""
    spared = node.may_be_damaged()
    gone = list(find_unreadable(store, {name: found for name, found in inputs.items() if name not in spared}))
    if not gone:
        return
    first = gone[0]
    what = first.name if len(gone) == 1 else f"{first.name} and {len(gone) - 1} more"
    why = "were garbage-collected." if is_marked(store, COLLECTED, first) else f"are missing or damaged: {first.uri}"
    commands = list(
        dict.fromkeys(
            recreate_command(
                run,
                artifact,
                judges_of(store, "accepted", artifact),
                spans=name_spans(store, artifact, calendar=run.calendar),
            )
            for artifact in gone
            if not artifact.is_a(Model)
        )
    )
    more = [f"… and {len(commands) - _MOST_COMMANDS} more like these."] if len(commands) > _MOST_COMMANDS else []
    lines = (
        [f"Recreate them:  {commands[0]}", *(f"  {c}" for c in commands[1:_MOST_COMMANDS]), *more] if commands else []
    )
    if commands and run.as_of is not None:
        lines = [describe_restore(run.as_of)]
    lines += describe_lost_models(gone)
    raise ResolutionError(f"{node.name} reads {what}, but the files {why}\n" + "\n".join(lines))


def format_choice(chosen: Sequence[Artifact], run: Run) -> str:
    """What a resolver chose: spans and versions, or names where artifacts have no span."""
    versions = [(a.properties.get("span"), a.properties.get("version")) for a in chosen]
    spans = [(s, v if isinstance(v, int) else None) for s, v in versions if isinstance(s, int)]
    if not chosen:
        return "no artifact"
    if len(spans) < len(chosen):
        return ", ".join(a.name for a in chosen)
    return format_versions(spans, Calendar.from_name(chosen[0].properties.get("calendar") or run.calendar))
