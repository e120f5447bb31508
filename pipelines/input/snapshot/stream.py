"""A pass over a snapshot op: when the first element is asked for, it decides whether to write, read or pass through."""

from __future__ import annotations

import logging
from typing import Final

from spanwise.orchestrator.errors import SnapshotDamaged, SnapshotNotFound, StateMismatch
from spanwise.orchestrator.fingerprint import digest, versions
from spanwise.pipelines.input.op import Opening, State, Stream, assign_seeds, list_ops, mix_seed
from spanwise.pipelines.input.ops.cache import with_own_caches
from spanwise.pipelines.input.rows import BlockTypes
from spanwise.pipelines.input.snapshot.attempt import WriteAttempt
from spanwise.pipelines.input.snapshot.encoding import Piece, encoding_of
from spanwise.pipelines.input.snapshot.folder import FolderContent, ReusableChunks, SnapshotFolder, new_run_id
from spanwise.pipelines.input.snapshot.owner import this_writer
from spanwise.pipelines.input.snapshot.parts import SnapshotSplit, SplitDatasets
from spanwise.pipelines.input.snapshot.passing import PassThroughStream
from spanwise.pipelines.input.snapshot.reading import ReadStream
from spanwise.pipelines.input.snapshot.settings import SnapshotSettings
from spanwise.pipelines.input.snapshot.splits import SplitFeed, SplitWriteStream
from spanwise.pipelines.input.snapshot.state import Metadata, Origin, PassThrough, Read, Refuse, Write, decide
from spanwise.pipelines.input.snapshot.storage import files_at
from spanwise.pipelines.input.snapshot.use import SnapshotUse
from spanwise.pipelines.input.snapshot.writing import InputOpener, WriteStream, input_seed

_TRIES: Final = 20
"""How often the folder is looked at again when another writer was faster."""

_log = logging.getLogger("spanwise.snapshot")


class SnapshotStream(Stream):
    """Decides when the first element is asked for, and then delegates to one of the three streams."""

    def __init__(self, op: SnapshotSettings, opening: Opening) -> None:
        self._op = op
        self._opening = opening
        self._inner: Stream | None = None
        self._folder: SnapshotFolder | None = None
        self._run: Metadata | None = None
        self._encoding = encoding_of(op.input.spec)
        self._types = BlockTypes.of_stream("snapshot", op.input.spec)
        is_seeded = op.options is not None and op.options.seed is not None  # what is cached may have another seed
        self._inputs = InputOpener(with_own_caches(op.input) if is_seeded else op.input, opening)
        self.use = SnapshotUse(path=op.path)
        if opening.report is not None:
            opening.report(self.use)

    def __next__(self) -> Piece:
        if self._inner is None:
            self._inner = self._begin()
        try:
            piece = next(self._inner)
        except SnapshotDamaged as error:
            if not self.use.hit:  # another snapshot, further up in the graph, is damaged
                raise
            self._inner = self._after_damage(self._inner, error)
            return next(self)
        if self._types is not None:  # a pass that was cut short may have written others
            self._types.check(piece)
        return piece

    # The decision.

    def _begin(self) -> Stream:
        op = self._op
        if op.mode == "passthrough":
            return self._pass_through("mode='passthrough'")
        op.refuse_rebound()
        try:
            return self._decide()
        except OSError as error:
            if op.mode != "auto":
                raise SnapshotNotFound(f"snapshot(path={op.path!r}): it could not be reached: {error}.") from error
            _log.warning("snapshot-unreachable", extra={"snapshot": op.path, "reason": str(error)})
            self.use.failed = f"{type(error).__name__}: {error}"
            return self._pass_through("it could not be reached")

    def _decide(self) -> Stream:
        op, folder = self._op, self._open_folder()
        for _ in range(_TRIES):
            found = folder.look()
            now = op.clock()
            abandoned = folder.is_abandoned(found, now)
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
                return self._read(decision.metadata)
            if isinstance(decision, PassThrough):
                return self._pass_through(decision.reason)
            if isinstance(decision, Refuse):
                raise SnapshotNotFound(
                    f"snapshot(path={op.path!r}, mode='read'): {folder} cannot be read: {decision.reason.rstrip('.')}. "
                    f"With mode='auto' the first pass writes it."
                )
            kept = self._reusable()
            attempt = self._attempt(decision, found, kept.origin or self._origin(), now, abandoned=abandoned)
            if attempt.begin():
                return self._write(attempt, kept)
        return self._pass_through("other writers were faster each time")

    def _open_folder(self) -> SnapshotFolder:
        if self._folder is None:
            self._folder = SnapshotFolder(files_at(self._op.path), self._op.fingerprint)
            self.use.fingerprint = self._folder.fingerprint
        return self._folder

    def _note(self, state: str, reason: str, run_id: str = "") -> None:
        use = self.use
        use.state, use.reason, use.run_id = state, reason, run_id  # type: ignore[assignment]
        facts = {"snapshot": f"{use.path}/{use.fingerprint}", "state": state, "reason": reason, "run": run_id}
        _log.debug("snapshot-opened", extra=facts)

    def _pass_through(self, reason: str) -> Stream:
        self._note("passthrough", reason)
        origin = {**self._origin(), "epoch": list(self._opening.epoch)}
        return PassThroughStream(self._inputs.open(origin), self._op.input, self.use, origin)

    def _read(self, run: Metadata) -> Stream:
        self._run = run
        self._note("read", "", run.run_id)
        folder, opening = self._open_folder(), self._opening
        if self._op.reader_fn is None:
            return ReadStream(folder, run, run.chunks, self.use, opening.block)
        spec = self._op.input.spec
        parts = tuple(
            SnapshotSplit(of=spec, folder=folder, run=run, number=number, use=self.use) for number in range(run.splits)
        )
        joined = self._op.join(SplitDatasets(parts=parts), opening.nested)
        opening = opening.with_options(joined.settings, mix_seed(opening.seed, 2))
        return opening.open(assign_seeds(joined.op, opening.seed))

    def _write(self, attempt: WriteAttempt, kept: ReusableChunks) -> Stream:
        run = self._run = attempt.run
        reason = f"add_snapshot up from run {kept.run_id}" if kept.origin else "written from its beginning"
        self._note("write", reason, run.run_id)
        if self._op.writer_fn is None:
            return self._sequence(attempt, kept, kept.origin or self._origin(), 0)
        feed = SplitFeed(self._op.input.spec, self._op.input.cardinality)
        splits = self._op.split(feed, self._opening.nested)
        openings = [
            self._opening.with_options(split.settings, mix_seed(self._opening.seed, 3, number))
            for number, split in enumerate(splits)
        ]
        streams = [
            (opening.open(assign_seeds(split.op, opening.seed)), encoding_of(split.spec))
            for opening, split in zip(openings, splits, strict=True)
        ]
        source = self._inputs.open(self._origin())
        return SplitWriteStream(attempt, source, feed, streams, self._encoding, self.use, self._origin())

    def _sequence(self, attempt: WriteAttempt | None, kept: ReusableChunks, origin: Origin, start: int) -> WriteStream:
        return WriteStream(
            self._open_folder(),
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
        self, decision: Write, found: FolderContent, origin: Origin, now: float, *, abandoned: bool = False
    ) -> WriteAttempt:
        op, folder = self._op, self._open_folder()
        run = Metadata(
            run_id=new_run_id(),
            fingerprint=folder.fingerprint,
            started=now,
            spec=str(op.input.spec),
            versions=versions(["spanwise", "pyarrow", "numpy"]),
            origin=origin if self._is_repeatable() and op.writer_fn is None else None,
            writer=this_writer(),
        )
        return WriteAttempt(
            run=run,
            folder=folder,
            found=found,
            use=self.use,
            compression=op.compression,
            over=op.mode == "write",
            check=op.refuse_changed_files,
            replaces=None if decision.replaces is None else decision.replaces.run_id,
            abandoned=abandoned,
        )

    # What an earlier pass has left.

    def _origin(self) -> Origin:
        """What the elements that are written follow from: a first pass, whichever pass happens to write them."""
        shape = digest("shape", *(type(op).__qualname__ for op in list_ops(self._op.input)))
        return {
            "seed": input_seed(self._opening.seed),
            "epoch": [0],
            "shape": shape,
            "files": digest("files", *(part for stamp in self._op.stamps for part in stamp)),
        }

    def _is_repeatable(self) -> bool:
        """Whether a state of the input leads to the same elements in the same order."""
        ops, is_ordered = list_ops(self._op.input), self._opening.is_ordered
        ordered = is_ordered(None) and all(is_ordered(getattr(op, "deterministic", None)) for op in ops)
        return ordered and all(op.proves_place for op in ops)

    def _reusable(self, run_id: str | None = None) -> ReusableChunks:
        """The chunks of a run that can be reused; by default those of the run that has the most."""
        folder, op = self._open_folder(), self._op
        if self._is_repeatable() and op.writer_fn is None and (op.mode != "write" or run_id is not None):
            kept = ReusableChunks(folder, run_id or folder.leftovers(), self._encoding.kind)
            # what was committed was compared with its files then; an attempt that was killed never was
            parts = ("shape",) if run_id is not None else ("shape", "files")
            if kept.origin is not None and all(kept.origin.get(part) == self._origin()[part] for part in parts):
                return kept
        return ReusableChunks(folder, None, self._encoding.kind)

    def _after_damage(self, reading: Stream, error: SnapshotDamaged) -> Stream:
        """Continues behind the last element that was yielded, and writes the snapshot again on the way."""
        reading.close()
        run, op = self._run, self._op
        if op.mode == "read" or not isinstance(reading, ReadStream) or run is None:
            raise SnapshotDamaged(f"{error} The snapshot was withdrawn; the next pass writes it again.") from error
        origin = None if run.origin is None else dict(run.origin)
        if origin is None or origin["shape"] != self._origin()["shape"]:
            if reading.at == 0:
                return self._begin()
            raise SnapshotDamaged(
                f"{error} The snapshot was withdrawn. Elements behind the first {reading.at} are unknown, since their "
                f"order differs each time: start the pass again, which writes it again."
            ) from error
        kept, folder = self._reusable(run.run_id), self._open_folder()
        found, now = folder.look(), op.clock()
        decision = decide(final=found.final, pending=found.pending, now=now, expiry_s=op.expiry_s)
        if isinstance(decision, Write):
            attempt = self._attempt(decision, found, origin, now)
            if attempt.begin():
                self._run = attempt.run
                self._note("write", f"{error}", attempt.run.run_id)
                return self._sequence(attempt, kept, origin, reading.at)
        self._note("passthrough", f"{error}")
        return self._sequence(None, kept, origin, reading.at)

    # Its state.

    def state(self) -> State:
        if self._inner is None:
            return {"as": "undecided", **self._inputs.unopened}
        run_id = "" if self._run is None else self._run.run_id
        facts = {"as": self.use.state, "fingerprint": self.use.fingerprint, "run": run_id}
        return {**facts, "place": self._inner.state()}

    def restore(self, state: State) -> None:
        if state["as"] == "undecided":
            return
        if self._op.mode != "passthrough" and self._open_folder().fingerprint != state["fingerprint"]:
            raise StateMismatch(
                f"the state belongs to a pass over the snapshot {state['fingerprint']}, but the graph has changed: its "
                f"snapshot is {self._open_folder().fingerprint} now. Start the pass again."
            )
        if state["as"] == "read":
            self._inner = self._continue_reading(state)
        elif state["as"] == "write":
            self._inner = self._continue_writing(state)
        else:
            self._inner = self._continue_passing(state, "as before")

    def _continue_reading(self, state: State) -> Stream:
        folder = self._open_folder()
        final = folder.look().final
        if final is None or final.run_id != state["run"]:
            raise SnapshotNotFound(
                f"the snapshot {folder} that was being read (run {state['run']}) no longer exists. "
                f"Start the pass again."
            )
        stream = self._read(final)
        stream.restore(state["place"])
        return stream

    def _continue_writing(self, state: State) -> Stream:
        """Continues to write if nobody else has; else reads what was completed meanwhile, or passes through."""
        op, folder, place = self._op, self._open_folder(), state["place"]
        found, now = folder.look(), op.clock()
        if found.final is not None and found.final.origin == place["origin"] and op.reader_fn is None:
            stream = self._read(found.final)
            stream.restore(place)
            return stream
        is_ours = found.final is None and (found.pending is None or found.pending.run_id == state["run"])
        if is_ours and self._is_repeatable() and op.writer_fn is None:
            attempt = self._attempt(Write("restored", replaces=found.pending), found, place["origin"], now)
            if attempt.begin():
                self._run = attempt.run
                self._note("write", "restored", attempt.run.run_id)
                return self._sequence(attempt, self._reusable(state["run"]), place["origin"], place["at"])
        return self._continue_passing(state, f"run {state['run']} is no longer the attempt")

    def _continue_passing(self, state: State, reason: str) -> Stream:
        place = state["place"]
        self._note("passthrough", reason)
        source = self._inputs.open(place["origin"], place["input"])
        return PassThroughStream(source, self._op.input, self.use, place["origin"], place["skip"])

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()
