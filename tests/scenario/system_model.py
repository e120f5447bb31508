"""A model of the system: what should be published, accepted, learned and served after any history of commands.

It knows no store, no cache and no file format. What spanwise does is compared with it step by step (test_system.py).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

SIZE = 3  #: spans of the window


@dataclass(frozen=True)
class Edition:
    """The data of one version of one span; what was rewritten under the same version is another edition."""

    span: int
    version: int
    value: int  #: below zero, the gate refuses it


@dataclass(frozen=True)
class Learned:
    """A model: what it learned from, and the code that trained it. Better code makes better models."""

    window: tuple[Edition, ...]
    code: int


class Fails(Exception):
    """The command must fail; the message is the node at which it does, or empty when nothing begins."""


@dataclass
class SystemModel:
    """What is true of the lake and of everything that was published."""

    lake: dict[int, dict[int, int]] = field(default_factory=dict)  #: the value by span and version
    given: list[Edition] = field(default_factory=list)  #: each once, the one that a run's source gave last at the end
    accepted: dict[Edition, bool] = field(default_factory=dict)  #: the verdict of the gate
    overruled: dict[Edition, bool] = field(default_factory=dict)  #: the verdict of a person
    blessed: dict[Learned, bool] = field(default_factory=dict)
    ruled: dict[Learned, bool] = field(default_factory=dict)  #: the verdict of a person
    said: list[Edition | Learned] = field(
        default_factory=list
    )  #: what a person refused, and what one blessed, in order
    trained: list[Learned] = field(default_factory=list)  #: by ordinary runs, by their publication; not collected
    pushed: list[Learned] = field(default_factory=list)  #: in the order in which it was recorded
    gone: set[Edition] = field(default_factory=set)  #: their files were collected
    serves: Learned | None = None  #: in the folder; not what was pushed last where a push died before it was recorded

    def copy(self) -> SystemModel:
        return copy.deepcopy(self)

    def arrive(self, span: int, version: int, value: int) -> None:
        self.lake.setdefault(span, {})[version] = value

    def vanish(self, span: int, version: int) -> None:
        del self.lake[span][version]

    def ingest(self, span: int) -> Edition:
        """A run's source gives the newest version of its span, and the gate judges it."""
        if not self.lake.get(span):
            raise Fails("Ingest")
        version = max(self.lake[span])
        edition = Edition(span, version, self.lake[span][version])
        self.give(edition)
        self.check(edition)
        if not self.holds(edition):
            raise Fails("Check")
        return edition

    def check(self, edition: Edition) -> None:
        """The gate judges it, unless a person has."""
        if edition not in self.overruled:
            self.accepted[edition] = edition.value >= 0

    def give(self, edition: Edition) -> None:
        """It is the one that a run's source gave last."""
        if edition in self.given:
            self.given.remove(edition)
        self.given.append(edition)
        self.gone.discard(edition)  # ingested again

    def holds(self, edition: Edition) -> bool:
        return self.overruled.get(edition, self.accepted.get(edition, False))

    def current(self, span: int) -> Edition | None:
        """What stands for a span: its newest version, as it was given last."""
        editions = [e for e in self.given if e.span == span]
        newest = max((e.version for e in editions), default=None)
        return next((e for e in reversed(editions) if e.version == newest), None)

    def wanted(self) -> range:
        """The spans of the window, which ends at the highest span that was ever given."""
        end = max((e.span for e in self.given), default=0)
        return range(max(1, end - SIZE + 1), end + 1)

    def window(self, exclude: frozenset[int] = frozenset()) -> tuple[Edition, ...]:
        """The accepted editions that a run learns from: of each span its newest version, which is what was given last."""
        wanted = [span for span in self.wanted() if span not in exclude]
        chosen = [self.current(span) for span in wanted]
        last = [next((e for e in reversed(self.given) if e.span == span), None) for span in wanted]
        if not chosen or chosen != last or not all(e is not None and self.holds(e) for e in chosen):
            raise Fails("Window")
        return tuple(e for e in chosen if e is not None)

    def judge(self, verdict: Callable[[Edition], bool], span: int) -> None:
        """A person accepts or refuses what stands for a span."""
        edition = self.current(span)
        if edition is None or (verdict(edition) and edition in self.gone):
            raise Fails("")
        self.overruled[edition] = verdict(edition)
        if not verdict(edition):
            self.said.append(edition)

    def train(self, window: tuple[Edition, ...], code: int, *, breaks: bool = False) -> Learned:
        """Trains, evaluates against what serves and pushes what is at least as good."""
        learned = Learned(window, code)
        if learned not in self.trained:
            if breaks or self.gone.intersection(window):
                raise Fails("Learn")
            self.trained.append(learned)
        self.bless(learned)
        self.serve(learned)
        return learned

    def bless(self, learned: Learned) -> None:
        """The Evaluator compares a model with the champion."""
        champion = self.champion(learned)
        self.blessed[learned] = champion is None or learned.code >= champion.code

    def rule(self, learned: Learned, *, given: bool) -> None:
        """A person blesses a model, or takes its blessing back: no Evaluator overrules that."""
        self.ruled[learned] = given
        if given:
            self.said.append(learned)

    def push(self, learned: Learned) -> None:
        """A person pushes a model; nothing begins if it is not blessed, or learned what was refused since."""
        since = len(self.said) - self.said[::-1].index(learned) if learned in self.said else 0
        refused = [edition for edition in learned.window if not self.overruled.get(edition, True)]
        if not self.is_blessed(learned) or any(edition in self.said[since:] for edition in refused):
            raise Fails("")
        self.serve(learned)

    def serve(self, learned: Learned, *, recorded: bool = True) -> None:
        """A Pusher puts a blessed model into the folder, and records it unless it dies in between."""
        if self.is_blessed(learned):
            self.serves = learned
            if recorded and learned != self.last_pushed:
                self.pushed.append(learned)

    def any_model(self, chance: float) -> int:
        """The place of one of the models, chosen by a number below 1."""
        return int(chance * len(self.trained))

    def spare_model(self) -> int:
        """The place of the newest model that is blessed and does not serve; if none is, of the first of all."""
        spare = [n for n, m in enumerate(self.trained) if self.is_blessed(m) and m != self.last_pushed]
        return max(spare, default=0)

    def collect(self, gone: set[Edition], kept: Collection[Learned]) -> None:
        """The files of these editions are gone, and of the models all but these; those that serve or may are kept."""
        for learned in [m for m in self.trained if m not in kept]:
            assert not self.is_blessed(learned), "a blessed model was collected"
            assert learned not in self.pushed, "a model that was pushed was collected"
            self.trained.remove(learned)
            del self.blessed[learned]
        self.gone = gone

    def is_blessed(self, learned: Learned) -> bool:
        return self.ruled.get(learned, self.blessed.get(learned, False))

    def champion(self, candidate: Learned) -> Learned | None:
        """The model to beat: what was pushed last, but not what a person took back, nor the candidate itself.

        When none of these is left, the newest that is blessed.
        """
        served = (m for m in reversed(self.pushed) if self.ruled.get(m, True))
        blessed = (m for m in reversed(self.trained) if self.is_blessed(m))
        return next((m for m in (*served, *blessed) if m != candidate), None)

    @property
    def last_pushed(self) -> Learned | None:
        return self.pushed[-1] if self.pushed else None

    def follow(self, learned: Learned | None, done: Collection[str], judged: Edition | None) -> None:
        """What the nodes of a run that died had recorded, each of them as far as it came."""
        if judged is not None:
            self.give(judged)
            if "Check" in done:  # without a verdict, it counts as refused
                self.check(judged)
        if learned is None:
            return
        if learned not in self.trained:
            self.trained.append(learned)
        if "Judge" in done:
            self.bless(learned)
        if "Pusher" in done:
            self.serve(learned)

    def restore(self, then: SystemModel) -> None:
        """Everything that is recorded is as it was then; the lake and what serves are not of it."""
        lake, serves = self.lake, self.serves
        vars(self).update(vars(then.copy()))
        self.lake, self.serves = lake, serves

    def run(self, span: int, code: int, *, exclude: frozenset[int] = frozenset(), breaks: bool = False) -> Learned:
        self.ingest(span)
        return self.train(self.window(exclude), code, breaks=breaks)

    def backfill(self, span: int, code: int) -> Learned | None:
        """As a run, but nothing happens for a span that has left the window, and nothing begins for a lower version."""
        if max(self.lake.get(span, {}), default=0) < max((e.version for e in self.given if e.span == span), default=0):
            raise Fails("")
        if self.given and span < self.wanted().start:
            return None
        return self.run(span, code)
