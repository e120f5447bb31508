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
from spanwise.orchestrator.gate import calendar_of
from spanwise.resolvers.exclusion import Exclusion
from spanwise.resolvers.rolling_window import (
    WindowSpan,
    describe_calendar,
    describe_spans,
    format_parameter,
    parse_parameter,
)


class Fixed(Resolver):
    """The newest version of each span from `first` to `last`, or the one artifact that `artifact` names.

    As in a `RollingWindow`, it is an error if something else was given last for a span, or ingested since.
    Spans in `exclude` are left out of the range.
    `artifact` is a name as `spanwise artifacts` prints it, such as `flights/Trainer/model/12`.
    """

    is_fixed = True

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
        exclusion = Exclusion.parse(self.calendar, exclude or (), self.name)
        if artifact is not None and exclusion.ranges:
            raise ParameterError(f"{self.name} takes exclude= beside first= and last=, not beside artifact=.")
        if artifact is None:
            self.exclude = exclusion  # without it, it is no SpanExcluder: --exclude would have no effect
        self.parameters = {
            "first": format_parameter(self.calendar, self.first),
            "last": format_parameter(self.calendar, self.last),
            "artifact": artifact,
            "exclude": exclusion.labels() or None,
        }

    def resolve(self, history: History) -> Sequence[Artifact]:
        if self.artifact is not None:
            return (self._find_named(history, self.artifact),)
        found = self.explain(history)
        self.refuse(history, found)
        return [s.chosen for s in found if s.chosen is not None]

    def refuse(self, history: History, found: Sequence[WindowSpan]) -> None:
        """Refuses a range with a gap, and an empty one.

        Raises:
            WindowIncomplete: the message names the gaps.
        """
        if self.artifact is not None:
            return
        missing = [_describe_gap(each) for each in found if each.chosen is None]
        if missing or not found:
            raise WindowIncomplete(
                f"{self.name} wants the spans {self.parameters['first']} to {self.parameters['last']} of "
                f"{self.source!r}; missing: {', '.join(missing) or 'all, because the range is empty or excluded'}."
                + describe_calendar(history, self.source, self.calendar)
            )

    def explain(self, history: History, at: int | None = None) -> tuple[WindowSpan, ...]:  # noqa: ARG002  its end is fixed
        """The spans of its range, oldest first; none where one artifact is named, whatever comes for its span."""
        exclusion = self.exclude.of_run(self.name, history.run.exclude) if self.artifact is None else ()
        return describe_spans(history, self.calendar, [span for span in self._range() if span not in exclusion])

    def explain_excluded(self, history: History, at: int | None = None) -> tuple[WindowSpan, ...]:  # noqa: ARG002
        """The spans of its range, oldest first, that are left out by name."""
        exclusion = self.exclude.of_run(self.name, history.run.exclude)
        return describe_spans(history, self.calendar, [span for span in self._range() if span in exclusion])

    def _range(self) -> Sequence[int]:
        return () if self.first is None or self.last is None else range(self.first, self.last + 1)

    def _find_named(self, history: History, name: str) -> Artifact:
        found = history.store.artifact(name)
        if not found.name.startswith(f"{history.address}/"):
            raise ResolutionError(f"{self.name} names {name}, which is not on {self.source!r}.")
        if (withheld := history.objection(found)) is not None:
            raise ResolutionError(f"{self.name} names {name}, which was {withheld}")
        return found


def _describe_gap(gap: WindowSpan) -> str:
    return gap.label + (f" ({gap.withheld})" if gap.withheld is not None else "")
