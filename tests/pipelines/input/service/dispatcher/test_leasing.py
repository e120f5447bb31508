"""The protocol of leases: consumers are killed, messages are lost, late or doubled, and every element is learned once."""

import itertools
import os
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from spanwise.orchestrator.errors import ServiceError
from spanwise.pipelines.input.service.client.lease_session import LeaseSession
from spanwise.pipelines.input.service.client.leases import BEGINNING, Place
from spanwise.pipelines.input.service.dispatcher import decisions, leasing, records
from spanwise.pipelines.input.service.dispatcher.journal import line_of, record_of
from spanwise.pipelines.input.service.dispatcher.state import ServiceState, records_of
from spanwise.pipelines.input.service.policy import ShardingPolicy
from spanwise.pipelines.input.service.wire.requests import RegisterDataset

EXAMPLES = int(os.environ.get("SPANWISE_TEST_LEASES", "150"))  # the long form: 20000
SPLITS, SIZE = 6, 2
EVERYTHING = [(split, at) for split in range(SPLITS) for at in range(SIZE)]
WANTED = records.CreateJob(job=0, dataset="d", mode=ShardingPolicy.EXACTLY_ONCE, name="job", epoch="0")


@dataclass
class Training:
    """Consumers of one training, one after another; each continues from the checkpoint."""

    learned: list = field(default_factory=list)  # as the checkpoint has it
    state: dict | None = None
    place: Place = BEGINNING
    life: "Life | None" = None
    was_released: bool = False  # the dispatcher has lost one of its consumers
    is_refused: bool = False


class Life:
    """A consumer that yields more than it has learned, as with a shuffle behind it."""

    def __init__(self, training, client, session):
        self.training, self.client, self.session = training, client, session
        self.session.keeps = True
        self.learned = list(training.learned)
        self.yielded = []  # and not learned yet, each with the place behind it
        self.place = training.place  # behind what was learned
        self.sent = None  # the message whose answer it waits for
        self.finished = session.is_spent

    @property
    def course(self):
        return self.session.course

    def read(self, items):
        """A worker sends the next elements of a split."""
        split = self.course.begin_read()
        if split is not None:
            new = range(split.fetched, min(SIZE, split.fetched + items))
            self.course.add(split, [((split.number, at), 1, 1) for at in new])
            split.is_complete, split.is_read = split.fetched == SIZE, False

    def take(self):
        element = self.course.pop()
        if element is not None:
            self.yielded.append((element, self.course.place))
        return element is not None

    def learn(self):
        if self.yielded:
            element, self.place = self.yielded.pop(0)
            self.learned.append(element)

    def store(self):
        """Its checkpoint is durable; what it has committed is not known to anybody yet."""
        if self.finished and not self.yielded:
            self.course.pop()
            self.place = self.course.place
        training = self.training
        training.learned, training.place = list(self.learned), self.place
        training.state = {**self.session.describe(), "over": self.finished}

    def commit(self):
        if self.training.state is not None:
            self.course.commit(self.training.place)

    def wants(self):
        is_idle = self.course.current is None
        return self.session.request(self.client, 0 if self.finished else 2, waits=is_idle and not self.finished)


class Service:
    """A dispatcher's pure part, and the network before it."""

    def __init__(self, trainings=1):
        dataset = RegisterDataset(dataset="d", structure="numbers", splits=(SPLITS,))
        self.state = ServiceState([dataset])
        self.exchanges = leasing.Exchanges()
        self.under_way = []  # messages that may still arrive, with who sent them
        self.keys = map(str, itertools.count())
        self.trainings = [Training() for _ in range(trainings)]
        for training in self.trainings:
            self.join(training)
            training.life.store()  # nothing counts before the first checkpoint

    def change(self, changes):
        for record in changes:
            self.state.apply(record)
        return changes

    def join(self, training):
        session = LeaseSession(training.state, training.place)
        changes = decisions.join(
            self.state, WANTED, client_key=next(self.keys), holder=session.holder, resumes=training.state is not None
        )
        self.change(changes)
        client = next(each.client for each in changes if isinstance(each, records.AcquireClient))
        training.life = Life(training, client, session)

    def send(self, life):
        life.sent = life.wants()
        self.under_way.append((life, life.sent))

    def arrive(self, number, *, answered=True, doubled=False):
        """A message arrives: in time, or long after its sender has given it up or has died."""
        if not self.under_way:
            return
        life, message = self.under_way[number % len(self.under_way)]
        if not doubled:
            self.under_way.remove((life, message))
        if message.client not in self.state.clients:
            return  # the dispatcher does not know it
        is_awaited = life.sent is message and life.training.life is life
        try:
            self.change(leasing.exchange(self.state, self.exchanges, message))
        except ServiceError:
            if is_awaited:
                self._refuse(life.training)
            return
        answer = leasing.answer(self.state, self.exchanges, message)
        if is_awaited and answered:
            life.sent = None
            life.finished = life.session.receive(message, answer) or life.finished

    def _refuse(self, training):
        assert training.was_released, "its leases went to nobody, and its state is the newest"
        training.is_refused, training.life = True, None

    def release(self, number):
        """A consumer that has died was silent for too long."""
        lives = {each.life.client: each for each in self.trainings if each.life is not None}
        dead = [client for client in self.state.clients if client not in lives]
        if dead:
            client = dead[number % len(dead)]
            holder = self.state.holders[client]
            for each in self.trainings:
                if each.state is not None and each.state["holder"] == holder:
                    each.was_released = True
            self.change([records.ReleaseClient(client=client)])
            self.exchanges.forget_gone(self.state)

    def restart(self):
        """What was under way is lost with the connections."""
        journal = [line_of(record) for record in records_of(self.state)]
        self.state = ServiceState(map(record_of, journal))
        self.exchanges = leasing.Exchanges()
        self.under_way.clear()


def act(service, action, training, number):  # noqa: C901, PLR0912  a case per action
    life = training.life
    if life is None:
        if action == "restore" and not training.is_refused:
            service.join(training)
        elif action == "release":
            service.release(number)
        return
    match action:
        case "ask":
            service.send(life)
            service.arrive(-1)
        case "ask unanswered":
            service.send(life)
            service.arrive(-1, answered=False)
        case "ask twice":
            service.send(life)
            service.arrive(-1, doubled=True)
        case "ask late":
            service.send(life)
        case "arrive":
            service.arrive(number)
        case "read":
            for _ in range(SPLITS):
                life.read(1 + number % SIZE)
        case "take":
            for _ in range(1 + number):
                life.take()
        case "learn":
            for _ in range(1 + number):
                life.learn()
        case "store":
            life.store()
        case "commit":
            life.commit()
        case "kill":
            training.life = None
        case "release":
            service.release(number)
        case "restart":
            service.restart()


def play_to_the_end(service):
    """Nobody is killed any more, and all messages arrive; who was killed is restored, or is given up."""
    while service.under_way:  # from the dead too
        service.arrive(0, answered=False)
    for _ in range(40):
        for training in service.trainings:
            act(service, "restore", training, 0)
            for action in ("ask", *["read"] * SPLITS, *["take", "learn"] * SPLITS, "store", "commit"):
                if training.life is not None:
                    act(service, action, training, 4)
        for _ in range(len(service.state.clients)):
            service.release(0)


FATES = [
    "kill",
    "restore",
    "release",
    "restart",
    "arrive",
    "ask unanswered",
    "ask twice",
    "ask late",
    "store",
    "commit",
]
ACTIONS = ["ask", "read", "take", "take", "learn", "learn", "store", "commit"] * 2 + FATES
STEPS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1), st.integers(0, 4)), min_size=30, max_size=100)


@settings(max_examples=EXAMPLES, deadline=None)
@given(STEPS, st.integers(1, 2))
def test_every_element_is_learned_once_whatever_is_killed_lost_late_or_doubled(steps, count):
    """As the checkpoints have it; and who was not silent for too long can always continue from its newest state."""
    service = Service(count)
    for action, which, number in steps:
        act(service, action, service.trainings[which % count], number)
    play_to_the_end(service)

    found = [element for each in service.trainings if not each.is_refused for element in each.learned]
    assert len(found) == len(set(found))
    if not any(each.is_refused for each in service.trainings):
        assert sorted(found) == EVERYTHING
        assert all(each.life.finished for each in service.trainings)


def learn_some(service, training, *, commit):
    """A training learns from its first splits, and stores what it has learned."""
    act(service, "ask", training, 0)
    for action in ("read", "take", "learn", "store", *(["commit", "ask"] if commit else [])):
        act(service, action, training, 3)


def test_a_consumer_that_died_again_before_its_first_checkpoint_leaves_its_leases_to_the_next():
    """The state knows nothing of the consumer in between: the leases belong to all that were restored from it."""
    service = Service()
    (training,) = service.trainings
    learn_some(service, training, commit=False)
    for _ in range(3):
        for action in ("kill", "restore", "ask", "read", "take"):
            act(service, action, training, 1)

    assert training.life is not None
    assert {client for job in service.state.jobs.values() for client in job.leased.values()} == {training.life.client}


def test_a_dead_consumers_last_message_changes_nothing_when_it_arrives_behind_its_successors():
    """Neither a commit nor a request for more splits."""
    service = Service()
    (training,) = service.trainings
    learn_some(service, training, commit=False)
    for action in ("commit", "ask late", "kill", "restore", "ask late"):
        act(service, action, training, 0)
    service.arrive(1)
    before = list(records_of(service.state))
    service.arrive(0)

    assert list(records_of(service.state)) == before
    assert not training.is_refused


def test_a_consumer_is_not_at_its_end_whose_answer_with_splits_was_lost():
    """Another one would believe that nobody needs it any more."""
    service = Service(2)
    one, other = service.trainings
    act(service, "ask unanswered", one, 0)
    for _ in range(SPLITS):
        for action in ("ask", "read", "take", "learn", "store", "commit"):
            act(service, action, other, 4)
    act(service, "ask", one, 0)
    act(service, "ask", other, 0)

    assert one.life.course.current is not None
    assert not other.life.finished


def test_what_was_committed_and_not_reported_is_part_of_a_state():
    """A loop commits by itself until it takes its first state, and may die before the dispatcher has learned of that."""
    service = Service()
    (training,) = service.trainings
    learn_some(service, training, commit=False)
    for action in ("commit", "store", "kill", "restore", "ask"):
        act(service, action, training, 0)
    learned = {split for split, _ in training.learned}

    assert learned
    assert not {split for split, given in training.life.session.course.order() if given == 0} & learned
    play_to_the_end(service)
    assert sorted(training.learned) == EVERYTHING


def test_what_a_dead_consumer_has_said_first_does_not_release_the_one_that_was_restored_since():
    """Its message arrives after the other has joined, and before that one has said anything."""
    service = Service()
    (training,) = service.trainings
    for action in ("kill", "restore", "ask late", "kill", "restore"):
        act(service, action, training, 0)
    play_to_the_end(service)

    assert sorted(training.learned) == EVERYTHING


def test_splits_that_another_consumer_has_committed_meanwhile_are_no_longer_ones_own():
    """To continue would be to learn from them twice, so the state is refused."""
    service = Service(2)
    one, other = service.trainings
    learn_some(service, one, commit=False)
    act(service, "kill", one, 0)
    service.release(0)
    for _ in range(SPLITS):
        for action in ("ask", "read", "take", "learn", "store", "commit"):
            act(service, action, other, 4)
    for action in ("restore", "ask"):
        act(service, action, one, 0)

    assert one.is_refused
    assert sorted(other.learned) == EVERYTHING
