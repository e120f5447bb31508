"""Champion: what serves, by random histories of training, judging, pushing, taking back and replaying."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.orchestrator import (
    Component,
    Execution,
    Input,
    Model,
    Output,
    Pipeline,
    PipelineError,
    PushedModel,
    Run,
    State,
)
from spanwise.orchestrator.serving import claim_pushes, pushes
from spanwise.orchestrator.verdict import Verdict, append
from spanwise.resolvers import Champion, Latest
from tests.published import Published, Train

STEPS = st.one_of(
    st.tuples(st.just("train"), st.booleans()),  # whether the Evaluator blesses it
    st.tuples(st.just("replay"), st.booleans()),
    st.tuples(st.sampled_from(["bless", "unbless", "push"]), st.integers(0, 5)),  # a model, or the last one
)


class History:
    """A history in the store, and beside it the few facts that decide who is champion."""

    def __init__(self):
        self.published = Published()
        self.models, self.blessed, self.overruled, self.served = [], {}, {}, []
        self.moments = []  #: (time, champion)

    def step(self, what, which):
        if what == "train":
            model = self.published.a_model(blessed=which).name
            self.models.append(model)
            self.blessed[model] = which
        elif what == "replay":
            self._publish("Train", "model", Model("/m"), replay=True)
        elif self.models:
            model = self.models[min(which, len(self.models) - 1)]
            if what == "push":
                self._push(model)
                self.served.append(model)
            else:
                verdict = Verdict(mark="blessed", artifact=model, given=what == "bless", by="ann@host", because="so")
                append(self.published.store, [verdict])
                self.overruled[model] = what == "bless"

    def champion(self):
        """The law: the last push that no person has taken back; else the newest model that is blessed."""
        served = [m for m in self.served if self.overruled.get(m, True)]
        blessed = [m for m in self.models if self.overruled.get(m, self.blessed[m])]
        return served[-1] if served else blessed[-1] if blessed else None

    def chosen(self, as_of=None):
        source = self.published.model
        found = Champion(source).resolve(self.published.history(source, as_of=as_of))
        return found[0].name if found else None

    def _push(self, model):
        draft = PushedModel("/pushed")
        draft.pushed, draft.model, draft.pushed_destination = 1, model, "/serving/1"
        self._publish("Pusher", "pushed_model", draft)

    def _publish(self, node, key, draft, *, replay=False):
        store = self.published.store
        run = store.begin_run(Run(pipeline="taxi", replay=replay))
        begun = store.begin(Execution(pipeline="taxi", run=run.number, node=node, replay=replay))
        ended = Execution(**{**begun.__dict__, "state": State.COMPLETE, "outputs": {key: (draft,)}})
        store.publish(ended, *claim_pushes(store, ended, [draft]))


@given(st.lists(STEPS, max_size=12))
def test_the_champion_is_what_serves(steps):
    """After every step, and read back as of every earlier moment."""
    history = History()
    for what, which in steps:
        history.step(what, which)
        assert history.chosen() == history.champion()
        history.moments.append((history.published.now, history.champion()))
        history.published.now = history.published.now.replace(hour=(len(history.moments)))
    for moment, champion in history.moments:
        assert history.chosen(as_of=moment) == champion


def test_the_same_push_twice_in_a_row_is_one_entry():
    """A run that finds its model serving already changes nothing."""
    history = History()
    for step in (("train", True), ("train", True), ("push", 0), ("push", 0), ("push", 1), ("push", 0)):
        history.step(*step)

    found = [push.model for push in pushes(history.published.store, "taxi/Train/model")]

    assert found == [history.models[0], history.models[1], history.models[0]]


@pytest.mark.parametrize(("awaited", "chosen"), [((), 0), (("Pusher",), 1)], ids=["beside", "before"])
def test_a_push_of_the_run_counts_only_if_it_was_awaited(awaited, chosen):
    """A Pusher that runs beside may be faster or slower; the choice is the same."""
    history = History()
    for step in (("train", True), ("push", 0), ("train", True), ("push", 1)):
        history.step(*step)
    source = history.published.model
    seen = history.published.history(source, mine=[history.published.store.artifact(history.models[1])])
    pushing = next(iter(pushes(history.published.store, "taxi/Train/model"))).run
    run = Run(pipeline="taxi", number=int(pushing.rpartition("/")[2]))

    (found,) = Champion(source).resolve(replace(seen, run=run, compared=False, awaited=frozenset(awaited)))

    assert found.name == history.models[chosen]


class Push(Component):
    def run(self, model: Input[Model], pushed_model: Output[PushedModel]) -> None: ...


@pytest.mark.parametrize("pushed_by", ["production", "Train", "LastPushed"])
def test_pushes_of_a_node_that_is_no_pusher_of_the_pipeline_are_not_asked_for(pushed_by):
    """Nothing would ever count, as if nothing was pushed: the pipeline is not built."""
    train = Train()
    pushers = [Push(model=train["model"], name=name) for name in ("Staging", "Production")]
    others = [train, *pushers, Latest(pushers[0]["pushed_model"], name="LastPushed")]

    Pipeline("taxi", [*others, Champion(train["model"], pushed_by="Production")])
    with pytest.raises(PipelineError, match="no Pusher of this pipeline; its Pushers: Staging, Production"):
        Pipeline("taxi", [*others, Champion(train["model"], pushed_by=pushed_by)])
