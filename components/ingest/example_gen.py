"""ExampleGen: chooses the block of input that a run ingests, and publishes its rows as Examples (laws 3 and 4)."""

from __future__ import annotations

import glob
import itertools
import json
import logging
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from spanwise.components.ingest.fingerprint import fingerprint as fingerprint_of
from spanwise.components.ingest.fingerprint import stamp as stamp_of
from spanwise.components.ingest.plan import IngestPlan
from spanwise.components.ingest.readers.custom import FunctionReader, RowReader
from spanwise.components.ingest.source_files import (
    Revision,
    SourceFiles,
    copy_objects,
    find_unreadable,
    newest_object_span,
)
from spanwise.components.ingest.splits import HashSplit, output_splits, split_names
from spanwise.components.ingest.swapped import refuse_swapped
from spanwise.orchestrator.artifact import Examples, Rejects
from spanwise.orchestrator.beam_settings import BEAM_PARAMETERS, BeamOptions, BeamSettings, check_given, choose_beam
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import ParameterError, SpanNotFound, UnreadableInput
from spanwise.orchestrator.history import History
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.signature import Attempt, Output
from spanwise.orchestrator.span import SpanFiles, choose, list_spans
from spanwise.orchestrator.span_pattern import Placeholder, SpanPattern, Wildcard
from spanwise.orchestrator.storage import is_readable_url, is_web_url, refuse_url
from spanwise.pipelines.input.readers.descriptor import Dialect, Format

if TYPE_CHECKING:
    from spanwise.components.ingest.plan import IngestReport

log = logging.getLogger("spanwise.ingest")

_INPUT = "input"  # the one input split of `pattern`; the ratios name what it becomes
_DIALECT = Dialect()
_UNFINISHED = "_temporary"  # where Spark and Hadoop write before they commit
_FEW = 8  # more spans than this are found by one listing of everything


class ExampleGen(Component):
    """Ingests one span a run, at its newest version.

        ExampleGen(pattern="data/{YYYY}-{MM}-{DD}/v{VERSION}/*.csv")

    A run that names no span takes the newest there is. `patterns` gives a pattern for each split of an input that is
    divided already; otherwise the rows are divided by `ratios`, 2:1 into train and eval unless given, by a hash of
    the row or of its `split_key` columns, the same on every machine. Rows of one key are never in two splits.

    The column types are inferred, and must be those of the previous span; `types` pins some. `drop_columns` leaves out
    what is gone for good, `rename_columns` publishes input columns under other names, where the input has them. A row
    that cannot be read stops the run; with `bad_rows="keep"` it is set aside and counted in the output `rejects`. The
    same files of the same span and version are served from the cache, whenever and in whatever order they are ingested
    again.

    Files in no format that is known here are read by a `reader`, a function from the path of a file to its rows, as
    `pyarrow.Table` or `pyarrow.RecordBatch`; its code is part of the cache key.

    Patterns may be URLs of object storage: `s3://lake/{YYYY}-{MM}-{DD}/*.csv`, or `gs://…` or `az://…`. Each object
    is copied to this machine once, in the revision that was listed. A web server's files are named without wildcards:
    `https://host/trips-{YYYY}-{MM}.parquet`; they cannot be listed, so a run names its span.

    `beam_runner` and `beam_options` send the work to a Beam cluster that sees the same files.
    """

    preload: ClassVar = (
        "pyarrow",
        "pyarrow.csv",
        "pyarrow.parquet",
        "spanwise.components.ingest.ingestion",
        "spanwise.pipelines.input.readers.delimited",
        "pandas",  # which pyarrow imports when rows are hashed, where it is installed
    )
    prepared: ClassVar = ("files", "stamp", "span", "version", "fingerprint", "previous", "compare", "revisions")
    hints: ClassVar = ("revisions", "stamp", *BEAM_PARAMETERS)  # they decide whether there is a result, never which
    libraries: ClassVar = ("pyarrow",)

    def check(self) -> None:
        given: dict[str, object] = dict(self.parameters)
        self._patterns = _parse_patterns(self.name, given["pattern"], given["patterns"])
        choose_splits(tuple(self._patterns), given["ratios"])
        refuse_dropped_in_use(self.name, given)
        if given["reader"] is not None and given["format"] is not None:
            raise ParameterError(
                f"{self.name} takes a format or a reader of your own, one of the two, not format={given['format']!r} "
                "beside reader=…."
            )
        self._refuse_workers_elsewhere(check_given(self.name, given))
        #: how spans are counted and shown
        self.calendar: Calendar = next(iter(self._patterns.values())).calendar

    def _refuse_workers_elsewhere(self, beam: BeamSettings) -> None:
        remote = [pattern.text for pattern in self._patterns.values() if is_readable_url(pattern.text)]
        if remote and not beam.has_workers_here:
            raise ParameterError(
                f"{self.name}: the objects of {remote[0]!r} are copied to this machine, where the workers of "
                f"{beam.runner} cannot read them. Leave out the runner, or add the option "
                "environment_type='LOOPBACK', with which the workers run in the process of the node."
            )

    def prepare(self, run: Run, history: Callable[[str], History]) -> Mapping[str, object]:
        source = SourceFiles()
        try:
            asked = self.requested_span(run)
            block = choose(
                self._patterns, source.list, newest_object_span(self._patterns, source) if asked is None else asked
            )
        except SpanNotFound as error:
            raise SpanNotFound(f"{error}{_relative_hint(self._patterns)}") from error
        _refuse_irregular(self.name, block.files)
        label = block.calendar.label(block.span)
        for pattern in self._patterns.values():
            for folder, why in find_unreadable(pattern, asked, block.span):
                raise UnreadableInput(
                    f"{self.name}: the folder {folder} matches the pattern and cannot be read ({why}), so it is not "
                    f"known whether it has files of span {label}{' or a newer one' if asked is None else ''}. Make it "
                    "readable, or move it away."
                )
        if folders := list(_matching_folders(self._patterns, block)):
            log.warning(
                "folders-skipped", extra={"node": self.name, "span": label, "count": len(folders), "first": folders[0]}
            )
        if block.strays:
            log.warning(
                "stray-files-skipped",
                extra={"node": self.name, "span": label, "count": len(block.strays), "first": block.strays[0]},
            )
        past = history("examples")
        refuse_swapped(past, {name: self.parameters[name] for name in ("pattern", "patterns")})
        local = copy_objects(block.files, source.revisions)
        copies = {split: tuple(local[path] for path in paths) for split, paths in block.files.items()}
        stamp = stamp_of(copies)
        digest = fingerprint_of(copies, _sources(local))
        versions = [a for a in past.of_span(block.span) if a.properties.get("version") == block.version]
        if versions and versions[-1].properties.get("fingerprint") != digest:
            advice = "the pattern has no {VERSION}" if block.version is None else "write a new version"
            log.warning(
                "version-rewritten",
                extra={
                    "node": self.name,
                    "span": label,
                    "version": block.version,
                    "reason": f"its files differ from those of {versions[-1].name}; {advice}",
                },
            )
        return {
            "files": {split: list(paths) for split, paths in block.files.items()},
            "stamp": stamp,
            "span": block.span,
            "version": block.version,
            "fingerprint": digest,
            "revisions": {path: source.revisions[path] for path in local if path in source.revisions},
            **choose_comparison(past, block.span, block.version, digest),
        }

    @property
    def takes_span(self) -> bool:
        """Whether its files are of different spans; without that, everything is span 0."""
        return any(pattern.has_span for pattern in self._patterns.values())

    def requested_span(self, run: Run) -> int | None:
        """The span that the run asks it for; None: the newest."""
        return run.span_for(self.name, self.calendar, takes_span=self.takes_span)

    def available(self, spans: Collection[int] | None = None) -> Mapping[int, int | None]:
        """The newest version of each span that is complete in every split; only of the named spans, if any."""
        if spans is not None and len(spans) <= _FEW:
            found = {
                s: v for span in spans for s, v in list_spans(self._patterns, SourceFiles().list, span).spans.items()
            }
        else:
            every = list_spans(self._patterns, SourceFiles().list).spans
            found = {s: v for s, v in every.items() if spans is None or s in spans}
        ready = {
            s: [v for v, splits in versions.items() if len(splits) == len(self._patterns)]
            for s, versions in found.items()
        }
        return {span: versions[-1] for span, versions in ready.items() if versions}

    def mark(self, span: int) -> str:
        """Changes with the names, sizes and times of the files of a span, whichever version they are of."""
        source = SourceFiles()
        found = list_spans(self._patterns, source.list, span).spans.get(span, {})
        paths = sorted({path for splits in found.values() for files in splits.values() for path in files})
        return json.dumps([[path, *source.mark(path)] for path in paths])

    def run(
        self,
        *,
        attempt: Attempt,
        examples: Output[Examples],
        rejects: Output[Rejects | None],
        files: Mapping[str, Sequence[str]],
        stamp: str,
        span: int,
        version: int | None,
        fingerprint: str,
        previous: Mapping[str, str] | None,
        compare: Literal["all", "shared"],
        revisions: Mapping[str, Revision],
        pattern: str | None = None,  # noqa: ARG002  read when the node is made
        patterns: Mapping[str, str] | None = None,  # noqa: ARG002  read when the node is made
        ratios: Mapping[str, int] | None = None,
        split_key: Sequence[str] = (),
        format: Format | None = None,  # noqa: A002  the field's word
        reader: RowReader | None = None,
        types: Mapping[str, str] | None = None,
        drop_columns: Sequence[str] = (),
        rename_columns: Mapping[str, str] | None = None,
        bad_rows: Literal["stop", "keep"] = "stop",
        dialect: Dialect = _DIALECT,
        beam_runner: str | None = None,
        beam_options: BeamOptions | None = None,
    ) -> None:
        assert rejects is not None, "an output is always given"
        splits = choose_splits(tuple(self._patterns), ratios)
        beam = choose_beam(attempt.run, beam_runner, beam_options)
        self._refuse_workers_elsewhere(beam)
        local = copy_objects(files, revisions)
        plan = IngestPlan(
            files={split: tuple(local[path] for path in paths) for split, paths in files.items()},
            sources=_sources(local),
            stamp=stamp,
            fingerprint=fingerprint,
            destination=str(examples.path),
            rejects=str(rejects.path) if bad_rows == "keep" else None,
            ratios={split.name: split.weight for split in splits} or None,
            split_key=tuple(split_key),
            previous=tuple(previous.items()) if previous is not None else None,
            types=dict(types or {}),
            dropped=tuple(drop_columns),
            renamed=dict(rename_columns or {}),
            format=format,
            reader=None if reader is None else FunctionReader(reader),
            dialect=dialect,
            beam=beam,
        )
        report = ingest_compared(plan, compare)
        describe_examples(examples, report, span=span, version=version, fingerprint=fingerprint, calendar=self.calendar)
        if gone := [*drop_columns, *(name for name in rename_columns or {} if name not in dict(report.columns))]:
            examples.dropped_columns = gone
        if report.new_columns:
            log.info("columns-added", extra={"span": span, "columns": report.new_columns})
        if report.rejected:
            rejects.span, rejects.version, rejects.rows = span, version, report.rejected
            rejects.calendar = self.calendar.value
            first = report.reject_examples[0]
            facts = {"rows": report.rejected, "first": f"{first.path}, line {first.line}", "reason": first.reason}
            log.warning("rows-rejected", extra=facts)


def _parse_patterns(node: str, pattern: object, patterns: object) -> Mapping[str, SpanPattern]:
    if (pattern is None) == (patterns is None):
        raise ParameterError(
            f"{node} takes a pattern, or patterns by split, one of the two: "
            "pattern='data/{YYYY}-{MM}-{DD}/*.csv', or patterns={'train': 'train/{SPAN}/*', 'eval': 'eval/{SPAN}/*'}."
        )
    texts = patterns if isinstance(patterns, Mapping) else {_INPUT: pattern}
    for text in texts.values():
        refuse_url(f"{node}.pattern", str(text), object_storage=True, web=True)
    found = {str(split): SpanPattern.parse(_expand_home(str(text))) for split, text in texts.items()}
    for each in found.values():
        _refuse_listing(node, each)
    split_names(tuple(found))
    list_spans(found, lambda _: ())  # refuses patterns that do not count in the same way
    return found


def _refuse_listing(node: str, pattern: SpanPattern) -> None:
    """Refuses wildcards where there are no listings; a date, or a number of known width, gives the name of a file."""
    for part in pattern.parts if is_web_url(pattern.text) else ():
        if isinstance(part, Wildcard):
            shown = part.text
        elif isinstance(part, Placeholder) and part.name in ("SPAN", "VERSION") and part.width is None:
            shown = f"{{{part.name}}}"
        else:
            continue
        raise ParameterError(
            f"{node}.pattern {pattern.text!r} has {shown}, but a web server's files cannot be listed. Use dates, or "
            "numbers of one width: {YYYY}-{MM}-{DD}, {SPAN:4}."
        )


def _expand_home(text: str) -> str:
    return str(Path(text).expanduser()) if text.startswith("~") else text


def choose_splits(inputs: tuple[str, ...], ratios: object) -> tuple[HashSplit, ...]:
    """The splits that rows are divided into; none if the input's own splits are used."""
    if isinstance(ratios, Mapping):
        return output_splits(inputs, [HashSplit(str(name), weight) for name, weight in ratios.items()])
    return output_splits(inputs) if inputs == (_INPUT,) else ()


def refuse_dropped_in_use(node: str, given: Mapping[str, Any]) -> None:
    """Refuses parameters that need a column which `drop_columns` leaves out.

    Raises:
        ParameterError: names the first such column.
    """
    for name in given["drop_columns"]:
        for parameter, why in (("split_key", "which split_key needs"), ("types", "whose type is pinned in types")):
            if name in (given[parameter] or ()):
                raise ParameterError(
                    f"{node}: drop_columns leaves out {name!r}, {why}. Take it out of drop_columns or of {parameter}."
                )


def _relative_hint(patterns: Mapping[str, SpanPattern]) -> str:
    """Where patterns begin that are relative, for the message that nothing matches them; empty when others match."""
    relative = [pattern.text for pattern in patterns.values() if _is_relative(pattern.text)]
    if not relative or any(any(SourceFiles().list(pattern.glob())) for pattern in patterns.values()):
        return ""  # where there are other spans, the folder is right
    return f" {relative[0]!r} is relative to {Path.cwd()}."


def _is_relative(pattern: str) -> bool:
    return not (is_readable_url(pattern) or Path(pattern).is_absolute())


def _sources(local: Mapping[str, str]) -> dict[str, str]:
    """The URL of each copy, of files and where they are read."""
    return {copy: path for path, copy in local.items() if copy != path}


def _refuse_irregular(node: str, files: Mapping[str, Sequence[str]]) -> None:
    """Refuses what has the name of an input file and is none: rows would be missing, or a read would never end."""
    for path in itertools.chain.from_iterable(files.values()):
        if not is_readable_url(path) and not Path(path).is_file():
            what = "a link to nothing" if Path(path).is_symlink() else "not a regular file (a pipe, socket or device)"
            raise UnreadableInput(
                f"{node}: {path} matches the pattern and is {what}. Restore its file, or move it out of the span."
            )
        if not path.isascii() and path != path.encode(errors="replace").decode():
            raise UnreadableInput(
                f"{node}: the name of {path.encode(errors='backslashreplace').decode()} is not UTF-8. Rename the file."
            )
        if _UNFINISHED in Path(path).parts:
            raise UnreadableInput(
                f"{node}: {path} matches the pattern and is what a job of Spark or Hadoop has not committed. Wait for "
                f"the job; if none is running, remove the folder {_UNFINISHED}."
            )


def _matching_folders(patterns: Mapping[str, SpanPattern], block: SpanFiles) -> Iterator[str]:
    """The folders that match as if they were files of the block; nothing below them is read, unless by `**`."""
    for pattern in patterns.values():
        if "**" in pattern.text or is_readable_url(pattern.text):
            continue
        for path in glob.iglob(pattern.glob(block.span if pattern.has_span else None)):  # noqa: PTH207  as above
            if pattern.match(path) == (block.span, block.version) and Path(path).is_dir():
                yield path


def choose_comparison(past: History, span: int, version: int | None, digest: str | None) -> dict[str, object]:
    """The columns that the block's are compared with, and whether it must have all of them or agree on those it has.

    They are those of the span before, leaving out those that a gate or a person has refused: what is wrong with one
    span must not be asked of the next. The oldest span is compared with the one after it, of which it may lack columns
    that came later, but none that it had itself when it was ingested before. The same input is compared with what it
    was compared with then: else the arrival of other spans would make unchanged files a new artifact, or an error.
    `digest` is that of the input; None where it is not known beforehand, and then the version alone tells, if any.
    """
    identified = version is not None or digest is not None
    for known in reversed(past.of_span(span)) if identified else ():
        if known.properties.get("version") == version and digest in (None, known.properties.get("fingerprint")):
            then = past.store.producer(known).parameters
            if "previous" in then and "compare" in then:
                previous = _in_order(json.loads(then["previous"]), known.properties.get("columns"))
                return {"previous": previous, "compare": json.loads(then["compare"])}
    below = next((other for other in past.spans(below=span) if not _is_refused(past, other)), None)
    if below is not None:
        return {"previous": _columns(past, below), "compare": "all"}
    after = itertools.takewhile(lambda other: other > span, past.spans())
    above = next((other for other in reversed([*after]) if not _is_refused(past, other)), None)
    if above is None:
        return {"previous": None, "compare": "shared"}
    columns = _columns(past, above)
    if past.newest_version(span) is None or _is_refused(past, span):
        return {"previous": columns, "compare": "shared"}
    before = _columns(past, span)
    return {"previous": {name: columns[name] for name in columns if name in before}, "compare": "all"}


def _is_refused(past: History, span: int) -> bool:
    newest = past.newest_version(span)
    return newest is not None and past.judge([newest])[newest.name].refusal() is not None


def _in_order(previous: object, columns: object) -> object:
    """The columns that were compared with. Old records sorted them: those take the order of what was published."""
    if not isinstance(previous, Mapping) or not isinstance(columns, Mapping) or list(previous) != sorted(previous):
        return previous
    return {name: previous[name] for name in dict.fromkeys([*columns, *previous]) if name in previous}


def _columns(past: History, span: int) -> dict[str, str]:
    artifact = past.newest_version(span)
    assert artifact is not None, "history gave this span"
    return cast("dict[str, str]", artifact.properties.get("columns"))


def ingest_compared(plan: IngestPlan, compare: Literal["all", "shared"]) -> IngestReport:
    """Ingests, compared with the columns of another span: all of them, or those that both have."""
    from spanwise.components.ingest.ingestion import ingest

    if compare == "all" or plan.previous is None:
        return ingest(plan)
    plan = replace(plan, order=tuple(dict(plan.previous)))
    report = ingest(replace(plan, previous=None))
    found, later = dict(report.columns), dict(plan.previous or ())
    shared = {name: type_ for name, type_ in later.items() if name in found and type_ != "null"}
    if all(found[name] == type_ for name, type_ in shared.items()):
        return report
    for folder in (plan.destination, plan.rejects):
        if folder is not None:
            shutil.rmtree(folder)
    return ingest(replace(plan, previous=tuple(shared.items())))


def describe_examples(
    examples: Examples, report: IngestReport, *, span: int, version: int | None, fingerprint: str, calendar: Calendar
) -> None:
    """Sets what every Examples says of itself."""
    examples.span = span
    examples.version = version
    examples.split_names = list(report.rows)
    examples.fingerprint = fingerprint
    examples.rows = report.rows
    examples.columns = dict(report.columns)
    examples.calendar = calendar.value
