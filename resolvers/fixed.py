"""Fixed choices: the spans or the artifact that the pipeline names, whatever was published since."""

from __future__ import annotations

from collections.abc import Sequence

from spanwise.orchestrator import (
    Artifact,
    Channel,
    History,
    Node,
    ParameterError,
    ResolutionError,
    Resolver,
    WindowIncomplete,
)
from spanwise.orchestrator.driver import check_newest
from spanwise.orchestrator.gate import calendar_of
from spanwise.resolvers.exclusion import Exclusion
from spanwise.resolvers.rolling_window import describe_calendar, format_parameter, parse_parameter


class Fixed(Resolver):
    """The newest version of each span from `first` to `last`, or the one artifact that `artifact` names.

    As in a `RollingWindow`, it is an error if something else was given last for a span, or ingested since.
    Spans in `exclude` are left out of the range.
    `artifact` is a name as `spanwise artifacts` prints it, such as `flights/Trainer/model/12`.
    """

    def __init__(
        self,
        source: Channel,
        *,
        first: int | str | None = None,
        last: int | str | None = None,
        artifact: str | None = None,
        exclude: Sequence[int | str] | None = None,
        name: str | None = None,
        after: Sequence[Node] = (),
    ) -> None:
        super().__init__(source, name=name, after=after, many=artifact is None)
        if (artifact is None) is (first is None or last is None):
            raise ParameterError(f"{self.name} takes either first= and last=, or artifact=.")
        self.calendar = calendar_of(source)
        self.first = parse_parameter(source, first)
        self.last = parse_parameter(source, last)
        self.artifact = artifact
        self.exclude = Exclusion.parse(self.calendar, exclude or (), self.name)
        if artifact is not None and self.exclude.ranges:
            raise ParameterError(f"{self.name} takes exclude= beside first= and last=, not beside artifact=.")
        self.parameters = {
            "first": format_parameter(self.calendar, self.first),
            "last": format_parameter(self.calendar, self.last),
            "artifact": artifact,
            "exclude": self.exclude.labels() or None,
        }

    def resolve(self, history: History) -> Sequence[Artifact]:
        if self.artifact is not None:
            found = history.store.artifact(self.artifact)
            if not found.name.startswith(f"{history.address}/"):
                raise ResolutionError(f"{self.name} names {self.artifact}, which is not on {self.source!r}.")
            if (withheld := history.objection(found)) is not None:
                raise ResolutionError(f"{self.name} names {self.artifact}, which was {withheld}")
            return (found,)
        assert self.first is not None
        assert self.last is not None
        exclusion = self.exclude.of_run(self.name, history.run.exclude)
        wanted = (span for span in range(self.first, self.last + 1) if span not in exclusion)
        chosen = {span: history.newest_version(span) for span in wanted}
        missing = [self._describe_gap(history, span) for span, artifact in chosen.items() if artifact is None]
        if missing or not chosen:
            raise WindowIncomplete(
                f"{self.name} wants the spans {self.calendar.label(self.first)} to {self.calendar.label(self.last)} of "
                f"{self.source!r}; missing: {', '.join(missing) or 'all, because the range is empty or excluded'}."
                + describe_calendar(history, self.source, self.calendar)
            )
        there = {self.calendar.label(span): artifact for span, artifact in chosen.items() if artifact is not None}
        for label, artifact in there.items():
            check_newest(self, history, label, artifact)
        return list(there.values())

    def _describe_gap(self, history: History, span: int) -> str:
        withheld = history.withheld(span)
        return self.calendar.label(span) + (f" ({withheld})" if withheld is not None else "")
