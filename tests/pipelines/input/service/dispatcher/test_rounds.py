"""Rounds of a coordinated read: whatever comes and goes, all consumers are given the same ones."""

import random

import pytest

from spanwise.pipelines.input.service.client.course import RoundCourse, task_of
from spanwise.pipelines.input.service.dispatcher import decisions
from spanwise.pipelines.input.service.dispatcher.records import CreateJob, RegisterWorker, RemoveWorker
from spanwise.pipelines.input.service.dispatcher.rounds import agreed, later
from spanwise.pipelines.input.service.dispatcher.state import ServiceState, records_of
from spanwise.pipelines.input.service.policy import ShardingPolicy
from spanwise.pipelines.input.service.wire.requests import RegisterDataset, RoundPlan, RoundReport

CONSUMERS = 3


def test_tasks_serve_in_turn_until_a_later_plan_begins():
    """A plan that begins at or before another one's first round takes its place altogether."""
    plans = [RoundPlan(first=0, tasks=(1, 2)), RoundPlan(first=9, tasks=(1,)), RoundPlan(first=3, tasks=(2, 3, 4))]

    assert [task_of(plans, number) for number in range(11)] == [1, 2, 1, 2, 3, 4, 2, 3, 4, 2, 3]
    assert task_of([], 0) is None


def test_what_is_in_hand_by_an_old_plan_counts_up_to_the_next():
    """A consumer that has not heard of a plan may hold elements of rounds that are others by now."""
    plans = [RoundPlan(first=0, tasks=(1,)), RoundPlan(first=5, tasks=(2,))]

    assert agreed(plans, [RoundReport(plans=2, ready=8, agreed=5), RoundReport(plans=1, ready=7, agreed=4)]) == 5
    assert agreed(plans, [RoundReport(plans=2, ready=8, agreed=5), RoundReport(plans=2, ready=7, agreed=4)]) == 7
    assert agreed(plans, [RoundReport(plans=2, ready=8, agreed=5), None]) is None


def test_what_a_consumer_has_leave_to_give_stays_agreed():
    """A dispatcher that was started again takes it from those who remember."""
    plans = [RoundPlan(first=0, tasks=(1,))]

    assert agreed(plans, [RoundReport(plans=1, ready=9, agreed=7), RoundReport(plans=0, ready=0, agreed=0)]) == 7


def test_reports_may_arrive_in_any_order():
    """By a later plan less may be in hand; by the same one, never."""
    old, new = RoundReport(plans=1, ready=9, agreed=4), RoundReport(plans=2, ready=6, agreed=5)

    assert later(old, new) == later(new, old) == later(new, new) == new
    assert later(None, old) == old


class World:
    """A dispatcher, consumers, and messages between them that may be late; `given` is what each consumer gave."""

    def __init__(self):
        dataset = RegisterDataset(dataset="d", structure="int64", splits=(10,), infinite=True)
        wanted = CreateJob(job=0, dataset="d", mode=ShardingPolicy.OFF, name="j", epoch="0", consumers=CONSUMERS)
        self.state = ServiceState([dataset])
        self.workers = 0
        self.arrive()
        for index in range(CONSUMERS):
            self.do(decisions.join(self.state, wanted, index, str(index)))
        (self.job,) = self.state.jobs
        self.courses = [RoundCourse() for _ in range(CONSUMERS)]
        self.fetched = [{} for _ in range(CONSUMERS)]  # of each task, how many elements a consumer has got
        self.reports = [None] * CONSUMERS  # what the dispatcher has heard
        self.asked = [[] for _ in range(CONSUMERS)]  # reports on their way
        self.answers = [[] for _ in range(CONSUMERS)]  # and answers
        self.given = [[] for _ in range(CONSUMERS)]

    def do(self, records):
        for record in records:
            self.state.apply(record)

    def arrive(self):
        self.workers += 1
        worker = RegisterWorker(worker=f"w{self.workers}", address=f"w{self.workers}", process="here:1")
        self.do(decisions.arrive(self.state, worker))

    def lose(self, choice):
        workers = sorted(self.state.workers)
        self.state.apply(RemoveWorker(worker=workers[choice % len(workers)]))

    def fetch(self, consumer, choice):
        """Some more elements of a task: its lane gives them in order."""
        tasks = sorted(self.state.jobs[self.job].tasks)
        if tasks:
            task = tasks[choice % len(tasks)]
            first = self.fetched[consumer].get(task, 0)
            self.courses[consumer].add(task, [((task, number), 1) for number in range(first, first + choice + 1)])
            self.fetched[consumer][task] = first + choice + 1

    def ask(self, consumer):
        self.asked[consumer].append(self.courses[consumer].report)

    def hear(self, consumer, choice):
        """The dispatcher hears of a report on its way, and answers it."""
        asked = self.asked[consumer]
        if not asked:
            return
        report = asked.pop(choice % len(asked))
        self.reports[consumer] = later(self.reports[consumer], report)
        plans = self.state.jobs[self.job].plans
        before = agreed(plans, self.reports)
        self.do(decisions.plan_rounds(self.state, self.job, before))
        now = agreed(plans, self.reports)
        assert before == now, "a new plan takes nothing back"
        self.answers[consumer].append((report.plans, plans[report.plans :], now or 0))

    def learn(self, consumer, choice):
        if self.answers[consumer]:
            self.courses[consumer].update(*self.answers[consumer].pop(choice % len(self.answers[consumer])))

    def give(self, consumer):
        while self.courses[consumer].may_yield:
            self.given[consumer].append(self.courses[consumer].pop())

    def restart(self):
        """The dispatcher forgets what is not in its journal; who waits for an answer does not get it."""
        self.state = ServiceState(records_of(self.state))
        self.reports = [None] * CONSUMERS
        self.asked = [[] for _ in range(CONSUMERS)]
        self.answers = [[] for _ in range(CONSUMERS)]

    def step(self, name, consumer, choice):
        match name:
            case "arrive" | "restart":
                getattr(self, name)()
            case "lose" if self.state.workers:
                self.lose(choice)
            case "ask" | "give":
                getattr(self, name)(consumer)
            case "fetch" | "hear" | "learn":
                getattr(self, name)(consumer, choice)

    def settle(self):
        """From now on nobody comes or goes: everything is fetched, reported and heard."""
        if not self.state.workers:
            self.arrive()
        for _ in range(6):
            for consumer in range(CONSUMERS):
                for choice in range(len(self.state.jobs[self.job].tasks)):
                    self.fetch(consumer, choice)
                self.ask(consumer)
                self.hear(consumer, -1)
                self.learn(consumer, -1)
                self.give(consumer)


STEPS = ["arrive", "lose", "restart", *["fetch", "ask", "hear", "learn", "give"] * 4]


@pytest.mark.parametrize("seed", range(10))
def test_all_consumers_are_given_the_same_rounds(seed):
    """Workers come and are lost, the dispatcher forgets, messages are late: what one consumer is given in a round, all
    are, of each task in order; and when it has become quiet, rounds go on.
    """
    dice = random.Random(seed)
    for number in range(10):
        world = World()
        for _ in range(400):
            world.step(dice.choice(STEPS), dice.randrange(CONSUMERS), dice.randrange(5))
            longest = max(world.given, key=len)
            assert all(longest[: len(each)] == each for each in world.given), number
        before = len(longest)
        world.settle()

        longest = max(world.given, key=len)
        assert len(longest) > before, number
        assert all(longest[: len(each)] == each for each in world.given), number
        for task in {task for task, _ in longest}:
            numbers = [at for each, at in longest if each == task]
            assert numbers == list(range(len(numbers)))


def test_lanes_of_lost_tasks_are_dropped():
    """When no round is theirs any more, nothing of them is kept."""
    course = RoundCourse()
    course.add(1, [(number, 1) for number in range(9)])
    course.add(2, [(number, 1) for number in range(9)])
    course.update(0, [RoundPlan(first=0, tasks=(1,))], 2)
    course.update(1, [RoundPlan(first=2, tasks=(2,))], 4)
    before = course.held(1)
    found = [course.pop() for _ in range(4)]

    assert found == [0, 1, 0, 1]
    assert (before, course.held(1), course.held(2)) == ((9, 9), (0, 0), (7, 7))
    assert not course.may_yield


def test_rounds_are_planned_once_for_the_same_workers():
    """The journal gets a record when workers come or go, and not with every round."""
    world = World()
    world.settle()
    world.settle()

    assert [plan.first for plan in world.state.jobs[world.job].plans] == [0]
    assert agreed(world.state.jobs[world.job].plans, world.reports) > 0
