"""The snapshot op: the first pass writes its elements down, and others read them, as long as the graph is the same."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, TypeAlias, get_args

from spanwise.orchestrator.errors import DatasetError, SnapshotDamaged, SnapshotNotFound, StateMismatch
from spanwise.orchestrator.fingerprint import digest, versions
from spanwise.pipelines.input.element import DatasetSpec, ElementSpec, Spec, Unknown
from spanwise.pipelines.input.flow import AnyFlow, extend
from spanwise.pipelines.input.graph.fingerprint import FILES_BY, FilesBy, of_graph
from spanwise.pipelines.input.op import Element, Op, Opening, State, Stream, assign_seeds, list_ops, mix_seed
from spanwise.pipelines.input.snapshot.encoding import Piece, encoding_of
from spanwise.pipelines.input.snapshot.folder import Folder, Found, Kept, new_run_id
from spanwise.pipelines.input.snapshot.owner import this_writer
from spanwise.pipelines.input.snapshot.reading import Reading, Split
from spanwise.pipelines.input.snapshot.splits import Feed, SplitWriting
from spanwise.pipelines.input.snapshot.state import MODES, Metadata, Mode, PassThrough, Read, Refuse, Write, decide
from spanwise.pipelines.input.snapshot.storage import files_at
from spanwise.pipelines.input.snapshot.use import SnapshotUse
from spanwise.pipelines.input.snapshot.writing import Attempt, Inputs, Origin, Writing

Compression: TypeAlias = Literal["auto", "none", "lz4", "zstd"]
COMPRESSIONS: Final = get_args(Compression)

_TRIES: Final = 20
"""How often the folder is looked at again when somebody else was faster."""

_log = logging.getLogger(__name__)


def taken(
    dataset: AnyFlow,
    *,
    path: str,
    compression: Compression,
    reader_fn: Callable[[AnyFlow], AnyFlow] | None,
    writer_fn: Callable[[AnyFlow], AnyFlow | Sequence[AnyFlow]] | None,
    expiry_s: float,
    mode: Mode,
    files_by: FilesBy,
) -> AnyFlow:
    """The dataset with a snapshot behind it: what `Dataset.snapshot` does.

    Raises:
        DatasetError: an argument is wrong.
        Unfingerprintable: the graph depends on something whose content cannot be known.
    """
    if files_by not in FILES_BY:
        raise DatasetError(f"snapshot(files_by={files_by!r}): wants one of {', '.join(FILES_BY)}.")
    op = Snapshot(
        input=dataset.op,
        path=path,
        fingerprint="" if mode == "passthrough" else of_graph(dataset.op, files_by=files_by),
        compression=compression,
        mode=mode,
        expiry_s=expiry_s,
        reader_fn=reader_fn,
        writer_fn=writer_fn,
    )
    op.rehearse(lambda each: extend(dataset, each))
    return extend(dataset, op)


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot(Op):
    own_seeds: ClassVar[bool] = True  # a pass that takes up another one's chunks takes its seeds as well

    input: Op
    path: str
    fingerprint: str  #: of the graph before it, as the user wrote it; empty for `mode="passthrough"`
    compression: Compression = "auto"
    mode: Mode = "auto"
    expiry_s: float = 86_400
    reader_fn: Callable[[Any], Any] | None = None
    writer_fn: Callable[[Any], Any] | None = None
    clock: Callable[[], float] = field(default=time.time, repr=False)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise DatasetError(f"snapshot(mode={self.mode!r}): wants one of {', '.join(MODES)}.")
        if self.compression not in COMPRESSIONS:
            raise DatasetError(f"snapshot(compression={self.compression!r}): wants one of {', '.join(COMPRESSIONS)}.")
        if not self.expiry_s >= 1:
            raise DatasetError(f"snapshot(pending_snapshot_expiry_seconds={self.expiry_s!r}): wants at least 1 second.")
        if self.input.cardinality == math.inf and self.mode != "passthrough":
            raise DatasetError(
                "snapshot: its input never ends, so it would never be whole. Put repeat() behind snapshot()."
            )

    def open(self, opening: Opening) -> Stream:
        return SnapshotStream(self, opening)

    def split(self, feed: Feed, dataset: Callable[[Op], Any]) -> list[Op]:
        """The datasets that `writer_fn` makes of the input.

        Raises:
            DatasetError: it gives something else.
        """
        assert self.writer_fn is not None
        given = self.writer_fn(dataset(feed.op))
        if isinstance(getattr(given, "spec", None), DatasetSpec):
            given = list(given)
        splits = [getattr(each, "op", None) for each in given] if isinstance(given, list | tuple) else []
        ops = [each for each in splits if isinstance(each, Op)]
        if not ops or len(ops) != len(splits):
            raise DatasetError(
                f"snapshot(writer_fn=): wants a list of datasets, or a dataset of them, and was given {given!r:.80}. "
                f"For example: lambda ds: [ds.shard(2, 0), ds.shard(2, 1)]"
            )
        for op in ops:
            _same("writer_fn", op.spec, self.input.spec)
        return ops

    def joined(self, splits: Splits, dataset: Callable[[Op], Any]) -> Op:
        """The dataset that `reader_fn` makes of the splits.

        Raises:
            DatasetError: it gives something else.
        """
        assert self.reader_fn is not None
        given = self.reader_fn(dataset(splits))
        op = getattr(given, "op", None)
        if not isinstance(op, Op):
            raise DatasetError(f"snapshot(reader_fn=): wants a dataset, and was given {given!r:.80}.")
        _same("reader_fn", op.spec, self.input.spec)
        return op

    def rehearse(self, dataset: Callable[[Op], Any]) -> None:
        """Tries the user's functions when the graph is built, so that a mistake is not found at the end of a pass."""
        if self.writer_fn is not None:
            self.split(Feed(self.input.spec, self.input.cardinality), dataset)
        if self.reader_fn is not None:
            self.joined(Splits(parts=(Split(of=self.input.spec, folder=None, run=None, number=0, use=None),)), dataset)


def _same(argument: str, found: ElementSpec, wanted: ElementSpec) -> None:
    if type(found) is not type(wanted) and not isinstance(found, Unknown) and not isinstance(wanted, Unknown):
        raise DatasetError(
            f"snapshot({argument}=): it must give the elements of its input ({wanted}), and gives others ({found})."
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Splits(Op):
    """The splits of a snapshot as a dataset of datasets: what a `reader_fn` is given."""

    parts: Sequence[Split] = field(repr=False)  # no inputs: they are elements

    @property
    def inputs(self) -> tuple[Op, ...]:
        return ()

    @property
    def spec(self) -> Spec:
        return DatasetSpec(self.parts[0].spec)

    @property
    def cardinality(self) -> int:
        return len(self.parts)

    def open(self, opening: Opening) -> Stream:
        return SplitsStream(self.parts, opening)


class SplitsStream(Stream):
    def __init__(self, parts: Sequence[Split], opening: Opening) -> None:
        self._parts = parts
        self._dataset = opening.nested
        self._at = 0

    def __next__(self) -> Element:
        if self._at == len(self._parts):
            raise StopIteration
        self._at += 1
        return self._dataset(self._parts[self._at - 1])

    def state(self) -> State:
        return {"at": self._at}

    def restore(self, state: State) -> None:
        self._at = state["at"]


class Passing(Stream):
    """PASSTHROUGH: the elements of the input."""

    def __init__(self, source: Stream, op: Op, use: SnapshotUse, origin: Origin, skip: int = 0) -> None:
        self._source = source
        self._encoding = encoding_of(op.spec)
        self._use = use
        self._origin = origin
        self._skip = skip  # elements that were given before it was restored

    def __next__(self) -> Piece:
        while True:
            piece = next(self._source)
            count = self._encoding.count(piece)
            skip, self._skip = min(self._skip, count), max(0, self._skip - count)
            if skip < count:
                self._use.elements_passed += count - skip
                return self._encoding.cut(piece, skip, count) if skip else piece

    def state(self) -> State:
        return {"input": self._source.state(), "skip": self._skip, "origin": self._origin}

    def restore(self, state: State) -> None:
        raise NotImplementedError  # SnapshotStream makes another one

    def close(self) -> None:
        self._source.close()


class SnapshotStream(Stream):
    """Decides when the first element is asked for, and then is one of the three streams."""

    def __init__(self, op: Snapshot, opening: Opening) -> None:
        self._op = op
        self._opening = opening
        self._inner: Stream | None = None
        self._folder: Folder | None = None
        self._run: Metadata | None = None
        self._encoding = encoding_of(op.input.spec)
        self._inputs = Inputs(op.input, opening)
        self.use = SnapshotUse(path=op.path)
        if opening.report is not None:
            opening.report(self.use)

    def __next__(self) -> Piece:
        if self._inner is None:
            self._inner = self._begin()
        try:
            return next(self._inner)
        except SnapshotDamaged as error:
            if not self.use.hit:  # it is another snapshot, further up in the graph
                raise
            self._inner = self._after_damage(self._inner, error)
        return next(self)

    # The decision.

    def _begin(self) -> Stream:
        op = self._op
        if op.mode == "passthrough":
            return self._passing("mode='passthrough'")
        try:
            return self._decided()
        except OSError as error:
            if op.mode != "auto":
                raise SnapshotNotFound(f"snapshot(path={op.path!r}): it cannot be reached: {error}.") from error
            _log.warning("snapshot-unreachable", extra={"snapshot": op.path, "reason": str(error)})
            self.use.failed = f"{type(error).__name__}: {error}"
            return self._passing("it cannot be reached")

    def _decided(self) -> Stream:
        op, folder = self._op, self._enter()
        for _ in range(_TRIES):
            found = folder.look()
            now = op.clock()
            abandoned = folder.is_abandoned(found)
            decision = decide(
                final=found.final,
                pending=found.pending,
                now=now,
                expiry_s=op.expiry_s,
                mode=op.mode,
                failed=found.failed,
                abandoned=abandoned,
            )
            if isinstance(decision, Read):
                return self._reading(decision.metadata)
            if isinstance(decision, PassThrough):
                return self._passing(decision.reason)
            if isinstance(decision, Refuse):
                raise SnapshotNotFound(
                    f"snapshot(path={op.path!r}, mode='read'): {folder} cannot be read: {decision.reason.rstrip('.')}. "
                    f"With mode='auto' the first pass writes it."
                )
            kept = self._kept()
            attempt = self._attempt(decision, found, kept.origin or self._origin(), now, abandoned=abandoned)
            if attempt.begin():
                return self._writing(attempt, kept)
        return self._passing("others were faster each time")

    def _enter(self) -> Folder:
        if self._folder is None:
            self._folder = Folder(files_at(self._op.path), self._op.fingerprint)
            self.use.fingerprint = self._folder.fingerprint
        return self._folder

    def _entered(self, state: str, reason: str, run_id: str = "") -> None:
        use = self.use
        use.state, use.reason, use.run_id = state, reason, run_id  # type: ignore[assignment]
        facts = {"snapshot": f"{use.path}/{use.fingerprint}", "reason": reason, "run": run_id}
        _log.debug(f"snapshot-{state}", extra=facts)

    def _passing(self, reason: str) -> Stream:
        self._entered("passthrough", reason)
        origin = self._origin()
        return Passing(self._inputs.open(origin), self._op.input, self.use, origin)

    def _reading(self, run: Metadata) -> Stream:
        self._run = run
        self._entered("read", "", run.run_id)
        folder, opening = self._enter(), self._opening
        if self._op.reader_fn is None:
            return Reading(folder, run, run.chunks, self.use, opening.block)
        spec = self._op.input.spec
        parts = tuple(
            Split(of=spec, folder=folder, run=run, number=number, use=self.use) for number in range(run.splits)
        )
        joined = self._op.joined(Splits(parts=parts), opening.nested)
        return opening.open(assign_seeds(joined, mix_seed(opening.seed, 2)))

    def _writing(self, attempt: Attempt, kept: Kept) -> Stream:
        run = self._run = attempt.run
        reason = f"taken up from run {kept.run_id}" if kept.origin else "written from its beginning"
        self._entered("write", reason, run.run_id)
        if self._op.writer_fn is None:
            return self._sequence(attempt, kept, kept.origin or self._origin(), 0)
        feed = Feed(self._op.input.spec, self._op.input.cardinality)
        splits = self._op.split(feed, self._opening.nested)
        streams = [
            (self._opening.open(assign_seeds(split, mix_seed(self._opening.seed, 3, number))), encoding_of(split.spec))
            for number, split in enumerate(splits)
        ]
        source = self._inputs.open(self._origin())
        return SplitWriting(attempt, source, feed, streams, self._encoding, self.use, self._origin())

    def _sequence(self, attempt: Attempt | None, kept: Kept, origin: Origin, start: int) -> Writing:
        return Writing(
            self._enter(),
            attempt,
            self._inputs,
            kept,
            origin,
            self._encoding,
            self.use,
            is_repeatable=self._is_repeatable(),
            start=start,
        )

    def _attempt(
        self, decision: Write, found: Found, origin: Origin, now: float, *, abandoned: bool = False
    ) -> Attempt:
        op, folder = self._op, self._enter()
        run = Metadata(
            run_id=new_run_id(),
            fingerprint=folder.fingerprint,
            started=now,
            spec=str(op.input.spec),
            versions=versions(["spanwise", "pyarrow", "numpy"]),
            origin=origin if self._is_repeatable() and op.writer_fn is None else None,
            writer=this_writer(),
        )
        return Attempt(
            run=run,
            folder=folder,
            found=found,
            use=self.use,
            compression=op.compression,
            over=op.mode == "write",
            replaces=None if decision.replaces is None else decision.replaces.run_id,
            abandoned=abandoned,
        )

    # What another pass has left.

    def _origin(self) -> Origin:
        shape = digest("shape", *(type(op).__qualname__ for op in list_ops(self._op.input)))
        return {"seed": mix_seed(self._opening.seed, 1), "epoch": list(self._opening.epoch), "shape": shape}

    def _is_repeatable(self) -> bool:
        """Whether a state of the input leads to the same elements in the same order."""
        usual = self._opening.options.deterministic
        given = [getattr(op, "deterministic", None) for op in list_ops(self._op.input)]
        return all(usual if each is None else each for each in given) and usual

    def _kept(self, run_id: str | None = None) -> Kept:
        """The chunks of a run that can be used again; those of the run that has the most, if none is named."""
        folder, op = self._enter(), self._op
        if self._is_repeatable() and op.writer_fn is None and (op.mode != "write" or run_id is not None):
            kept = Kept(folder, run_id or folder.leftovers(), self._encoding.kind)
            if kept.origin is not None and kept.origin["shape"] == self._origin()["shape"]:
                return kept
        return Kept(folder, None, self._encoding.kind)

    def _after_damage(self, reading: Stream, error: SnapshotDamaged) -> Stream:
        """Goes on behind the last element that was given, and writes the snapshot anew on the way."""
        reading.close()
        run, op = self._run, self._op
        if op.mode == "read" or not isinstance(reading, Reading) or run is None:
            raise SnapshotDamaged(f"{error} The snapshot was taken back, and the next pass writes it anew.") from error
        origin = None if run.origin is None else dict(run.origin)
        if origin is None or origin["shape"] != self._origin()["shape"]:
            if reading.at == 0:
                return self._begin()
            raise SnapshotDamaged(
                f"{error} The snapshot was taken back. The elements behind the {reading.at} that were given cannot be "
                f"told, since their order is another one each time: start the pass again, and it is written anew."
            ) from error
        kept, folder = self._kept(run.run_id), self._enter()
        found, now = folder.look(), op.clock()
        decision = decide(final=found.final, pending=found.pending, now=now, expiry_s=op.expiry_s)
        if isinstance(decision, Write):
            attempt = self._attempt(decision, found, origin, now)
            if attempt.begin():
                self._run = attempt.run
                self._entered("write", f"{error}", attempt.run.run_id)
                return self._sequence(attempt, kept, origin, reading.at)
        self._entered("passthrough", f"{error}")
        return self._sequence(None, kept, origin, reading.at)

    # Its place.

    def state(self) -> State:
        if self._inner is None:
            return {"as": "undecided"}
        run_id = "" if self._run is None else self._run.run_id
        facts = {"as": self.use.state, "fingerprint": self.use.fingerprint, "run": run_id}
        return {**facts, "place": self._inner.state()}

    def restore(self, state: State) -> None:
        if state["as"] == "undecided":
            return
        if self._op.mode != "passthrough" and self._enter().fingerprint != state["fingerprint"]:
            raise StateMismatch(
                f"the state is that of a pass over the snapshot {state['fingerprint']}, and the graph has changed "
                f"since: it is {self._enter().fingerprint} now. Start the pass again."
            )
        if state["as"] == "read":
            self._inner = self._read_on(state)
        elif state["as"] == "write":
            self._inner = self._write_on(state)
        else:
            self._inner = self._pass_on(state, "as before")

    def _read_on(self, state: State) -> Stream:
        folder = self._enter()
        final = folder.look().final
        if final is None or final.run_id != state["run"]:
            raise SnapshotNotFound(
                f"the snapshot {folder} that was being read (run {state['run']}) is not there any more. "
                f"Start the pass again."
            )
        stream = self._reading(final)
        stream.restore(state["place"])
        return stream

    def _write_on(self, state: State) -> Stream:
        """Takes the writing up if nobody else has; else reads what was finished meanwhile, or passes through."""
        op, folder, place = self._op, self._enter(), state["place"]
        found, now = folder.look(), op.clock()
        if found.final is not None and found.final.origin == place["origin"] and op.reader_fn is None:
            stream = self._reading(found.final)
            stream.restore(place)
            return stream
        is_ours = found.final is None and found.pending is not None and found.pending.run_id == state["run"]
        if is_ours and self._is_repeatable() and op.writer_fn is None:
            attempt = self._attempt(Write("restored", replaces=found.pending), found, place["origin"], now)
            if attempt.begin():
                self._run = attempt.run
                self._entered("write", "restored", attempt.run.run_id)
                return self._sequence(attempt, self._kept(state["run"]), place["origin"], place["at"])
        return self._pass_on(state, f"run {state['run']} has lost its place")

    def _pass_on(self, state: State, reason: str) -> Stream:
        place = state["place"]
        self._entered("passthrough", reason)
        source = self._inputs.open(place["origin"], place["input"])
        return Passing(source, self._op.input, self.use, place["origin"], place["skip"])

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()
