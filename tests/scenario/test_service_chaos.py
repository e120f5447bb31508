"""Servers and consumers are killed while consumers read, and every element is counted: each mode keeps its word."""

import os
import pickle
import random
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import cache, partial

import pytest

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.service.client import coordinated
from spanwise.pipelines.input.service.dispatcher import records
from spanwise.pipelines.input.service.dispatcher.journal import record_of
from spanwise.pipelines.input.service.sharding.splits import splits_of
from tests.pipelines.input.service.consumers import Consumers, groups, is_consecutive
from tests.scenario.served import FORKS, Consumer, Servers, learn, numbers
from tests.servers import eventually

ROUNDS = int(os.environ.get("SPANWISE_TEST_CHAOS", "1"))  # the full form: 200
ELEMENTS = 1_000
LEARNED = 500  # by a training that stores and commits; the kills come within them
SOON_S = 300.0
LEASES = ("at_least_once", "exactly_once")
STATIC = ("data",) if ROUNDS == 1 else ("data", "file", "hint")
CLIENT_TIMEOUT_S = 4 if ROUNDS == 1 else 6  # under leases, where somebody waits for what a killed consumer held


class Round:
    """Two consumers of one job, and the kills that they live through or not."""

    def __init__(self, servers, folder, mode, number, dice):
        self.servers, self.folder, self.mode, self.dice = servers, folder, mode, dice
        self.name = f"{mode}-{number}"
        self.consumers = []  # in the order in which they have joined
        self.killed = []  # servers, by name
        self.lost = set()  # consumers that were killed, by their place

    def play(self):
        for _ in range(2):
            self.begin()
        eventually(lambda: any(consumer.given() for consumer in self.consumers), SOON_S)
        victims = ["dispatcher", "left", "right"] + (["consumer"] * 3 if self.leases else [])
        for _ in range(self.dice.randint(1, 2)):
            self.await_elements(self.dice.randrange(ELEMENTS // 2))
            victim = self.dice.choice(victims)
            if victim == "consumer":
                self.strike()
            else:
                self.killed.append(victim)
                self.servers.restart(victim)
        deadline = time.monotonic() + SOON_S
        for place, consumer in enumerate(self.consumers):
            consumer.process.join(max(0.0, deadline - time.monotonic()))
            assert consumer.process.exitcode is not None, f"{self}: consumer {place} hangs"
            assert place in self.lost or consumer.has_ended, f"{self}: consumer {place} has failed"

    @property
    def leases(self):
        return self.mode in LEASES

    def await_elements(self, more):
        """Waits until the consumers have got some more elements, or have ended."""
        before = sum(len(consumer.given()) for consumer in self.consumers)
        eventually(
            lambda: (
                sum(len(consumer.given()) for consumer in self.consumers) >= before + more
                or all(consumer.process.exitcode is not None for consumer in self.consumers)
            ),
            SOON_S,
        )

    def begin(self):
        """Starts a consumer, and waits until it has joined, so that it is known which client it is."""
        path = self.folder / f"{self.name}-{len(self.consumers)}"
        self.consumers.append(Consumer(path, numbers, self.servers.target, ELEMENTS, self.mode, self.name))
        eventually(lambda: len(self.clients()) == len(self.consumers) or self.consumers[-1].has_ended, SOON_S)

    def strike(self):
        place = self.dice.randrange(len(self.consumers))
        if self.consumers[place].process.exitcode is None:
            self.consumers[place].kill()
            if not self.consumers[place].has_ended:
                self.lost.add(place)
                self.begin()

    def clients(self):
        """Of this round's job, in the order in which they have joined; and what each has acknowledged.

        That is parts of splits: the split, from which of its elements on, and up to which one (None: to its end). A
        split that a killed consumer has acknowledged in part goes on at that place with another consumer.
        """
        job, found, reached = None, {}, {}
        with suppress(FileNotFoundError):
            for line in (self.servers.folder / "journal").read_bytes().splitlines(keepends=True):
                match record_of(line):
                    case records.CreateJob(name=self.name, job=number):
                        job = number
                    case records.AcquireClient(client=client, job=number) if number == job:
                        found[client] = []
                    case records.LeaseSplits(client=client, done=done, progress=progress) if client in found:
                        for split, end in [*progress, *((split, None) for split in done)]:
                            found[client].append((split, reached.get(split, 0), end))
                            reached[split] = end
        return found

    def __repr__(self):
        return f"{self.name}, {self.killed} killed, consumers {sorted(self.lost)} of {len(self.consumers)} too"


def elements_of(parts):
    return {element for split, first, end in parts for element in elements_of_split(split)[first:end]}


@cache
def elements_of_split(split):
    return list(inputs.Dataset(splits_of(inputs.range(ELEMENTS).op).part(split)))


def check_acknowledged(round_):
    """What a consumer has acknowledged it was given; nobody else was, after it."""
    times = [dict(consumer.given()) for consumer in round_.consumers]  # the last time, for each element
    for place, parts in enumerate(round_.clients().values()):
        for element in elements_of(parts):
            assert element in times[place], (
                f"{round_}: {element}, acknowledged by consumer {place}, was not given to it"
            )
            at = times[place][element]
            again = [other for other, given in enumerate(times) if other != place and given.get(element, 0) > at]
            assert not again, f"{round_}: {element}, acknowledged by consumer {place}, was given to {again}"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["off", *STATIC, "dynamic", *LEASES])
def test_each_mode_keeps_its_word_while_members_are_killed(tmp_path, mode):
    """OFF: each worker's whole dataset, its beginning again if it was restarted. Static: likewise, of its shard.
    DYNAMIC: at most once, and all if no worker was killed. Leases: none missing, and what was acknowledged is not given
    again; exactly once: nobody gets one twice, nor do two that live.
    """
    dice = random.Random(f"{os.environ.get('SPANWISE_TEST_SEED', 'spanwise')} {mode}")
    kills = Counter()
    timeout_s = CLIENT_TIMEOUT_S if mode in LEASES else 20
    with Servers(tmp_path / "service", timeout_s) as servers:
        for number in range(ROUNDS):
            round_ = Round(servers, tmp_path, mode, number, dice)
            round_.play()
            kills.update([*round_.killed, *["consumer"] * len(round_.lost)])
            found = [[element for element, _ in consumer.given()] for consumer in round_.consumers]
            seen = Counter(element for each in found for element in each)
            assert seen.keys() <= set(range(ELEMENTS)), round_
            if mode == "dynamic":
                assert max(seen.values()) == 1, round_
                assert {"left", "right"} & set(round_.killed) or len(seen) == ELEMENTS, round_
            else:
                assert len(seen) == ELEMENTS, round_
            if mode == "off" or mode in STATIC:
                times = 2 if mode == "off" else 1
                assert min(seen.values()) >= times, round_
                assert {"left", "right"} & set(round_.killed) or max(seen.values()) == times, round_
            if round_.leases:
                check_acknowledged(round_)
            if mode == "exactly_once":
                lived = Counter(e for place, each in enumerate(found) if place not in round_.lost for e in each)
                assert set(lived.values()) <= {1}, round_
                assert all(max(Counter(each).values(), default=1) == 1 for each in found), round_
    sys.stdout.write(f"{mode}: {ROUNDS} rounds, killed: {dict(kills)}\n")


def has_begun(path, training):
    return path.exists() or training.exitcode is not None


@pytest.mark.slow
@pytest.mark.parametrize("mode", LEASES)
def test_what_was_committed_with_a_checkpoint_is_every_element_once(tmp_path, mode):
    """Whoever is killed: what the last checkpoint of a training has learned is the dataset, through a shuffle and batches."""
    dice = random.Random(f"{os.environ.get('SPANWISE_TEST_SEED', 'spanwise')} committed {mode}")
    kills = Counter()
    with Servers(tmp_path / "service", client_timeout_s=60) as servers:
        for number in range(ROUNDS):
            path, name = tmp_path / f"{mode}-{number}", mode if number % 2 else None
            name = name and f"{name}-{number}"
            arguments = (path, servers.target, LEARNED, mode, name)
            for life in range(1 + dice.randint(1, 3)):
                training = FORKS.Process(target=learn, args=arguments)
                training.start()
                eventually(partial(has_begun, path, training), SOON_S)
                if life == 0 and dice.random() < 0.5:
                    kills["server"] += 1
                    servers.restart(dice.choice(["dispatcher", "left", "right"]))
                training.join(dice.uniform(0.0, 0.7))
                training.kill()
                training.join()
                kills["training"] += training.exitcode != 0
            if not path.with_suffix(".end").exists():
                training = FORKS.Process(target=learn, args=arguments)
                training.start()
                training.join(SOON_S)
                assert training.exitcode == 0, f"{path.name}: the training hangs or fails"
            learned, _ = pickle.loads(path.read_bytes())
            assert sorted(learned) == list(range(LEARNED)), path.name
    sys.stdout.write(f"committed in {mode}: {ROUNDS} rounds, killed: {dict(kills)}\n")


@pytest.mark.slow
def test_every_round_is_of_one_worker_while_servers_are_killed(tmp_path, monkeypatch):
    """Coordinated reads: all consumers get their part of each round from one worker, and nobody hangs."""
    monkeypatch.setattr(coordinated, "MAX_ROUNDS_AHEAD", 8)
    dice = random.Random(f"{os.environ.get('SPANWISE_TEST_SEED', 'spanwise')} coordinated")
    kills = Counter()
    with Servers(tmp_path / "service", client_timeout_s=60) as servers:
        for number in range(ROUNDS):
            killed = []
            dataset = groups(3, pause_s=0.002)
            with Consumers(3, partial(dataset.distribute, servers.target, "off", f"coordinated-{number}")) as consumers:
                found = consumers.read(20)
                for _ in range(dice.randint(1, 2)):
                    killed.append(dice.choice(["dispatcher", "left", "right"]))
                    killing = threading.Timer(dice.uniform(0.0, 0.2), servers.restart, killed[-1:])
                    killing.start()
                    found += consumers.read(dice.randint(20, 100))
                    killing.join()
                found += consumers.read(100)
            wrong = [each for each in found if not is_consecutive(each) or each[0] % 3]
            assert not wrong, f"round {number}, {killed} killed"
            kills.update(killed)
    sys.stdout.write(f"coordinated: {ROUNDS} rounds, killed: {dict(kills)}\n")
