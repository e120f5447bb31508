"""What the racing processes do. Each opens the store at the url for itself."""

from dataclasses import replace

from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.run import Run, State
from spanwise.orchestrator.store import AlreadyClaimed, Claim
from spanwise.orchestrator.verdict import Verdict, append
from tests.contract.records import EXAMPLES, MODELS, begin, examples, model, publish_one
from tests.forkserver import FORKS


def race(count, target, *arguments):
    """Runs `target(barrier, *arguments)` in `count` processes and returns what each returned."""
    barrier, answers = FORKS.Barrier(count), FORKS.Queue()
    racers = [FORKS.Process(target=_answer, args=(answers, target, barrier, *arguments)) for _ in range(count)]
    for racer in racers:
        racer.start()
    found = [answers.get(timeout=120) for _ in racers]
    for racer in racers:
        racer.join()
    failed = [answer for answer in found if isinstance(answer, BaseException)]
    assert not failed, failed
    return found


def start(target, *arguments):
    """Starts one process that is to be killed."""
    process = FORKS.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def _answer(answers, target, barrier, *arguments):
    try:
        answers.put(target(barrier, *arguments))
    except Exception as error:  # noqa: BLE001  told to the test, which fails with it
        barrier.abort()
        answers.put(RuntimeError(f"{type(error).__name__}: {error}"))


def claim_each(barrier, url, rounds):
    """The rounds that this process won."""
    store = open_store(url)
    won = []
    for number in range(rounds):
        barrier.wait()
        try:
            store.claim(Claim("race", str(number)), Claim("also", str(number)))
        except AlreadyClaimed:
            continue
        won.append(number)
    store.close()
    return won


def judge_each(barrier, url, count):
    """Records verdicts of a person on one artifact."""
    store = open_store(url)
    barrier.wait()
    for number in range(count):
        append(store, [Verdict(mark="accepted", artifact="a", given=True, by="ann@host", because=f"{number}")])
    store.close()


def open_each(barrier, urls):
    """Opens databases that are not there yet, at the same moment as all others, and writes to each."""
    written = []
    for url in urls:
        barrier.wait()
        store = open_store(url)
        written.append(store.begin_run(Run(pipeline="flights")).number)
        store.close()
    return written


def publish_each(barrier, url, count):
    """The names of what this process published, at an address and for a span that all others publish at too."""
    store = open_store(url)
    barrier.wait()
    names = []
    for _ in range(count):
        names += [publish_one(store, MODELS, model()).name, publish_one(store, EXAMPLES, examples(7)).name]
    store.close()
    return names


def publish_until_killed(url):
    """Publishes three models, a span, a mark and a cache key at a time, for ever."""
    store = open_store(url)
    while True:
        begun = begin(store)
        drafts = {"model": (model(), model(), model()), "examples": (examples(begun.run),)}
        done = replace(begun, state=State.COMPLETE, outputs=drafts, key=f"key {begun.run}")
        store.publish(done, Claim("made", str(begun.run)))
