"""The span index: names by which to find the highest span without listing all spans. It knows names, not the store.

It finds a span as one finds a word in a dictionary. For every published span there are names of the address with the
number of its digits, and with each of its prefixes except the whole:

    20130105  ->  address:+8, address:+8:2, address:+8:20, … address:+8:2013010

The whole is the artifact itself, `address/20130105/1`. The names are inserted before the artifact, so a crash can leave
names without an artifact, which the search skips; if the longest name exists, all do. Consecutive spans need a new
name once in ten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from spanwise.orchestrator.errors import StoreError

MOST_DIGITS = 20
"""In a span: more than 64 bits have."""

Exist = Callable[[Sequence[str]], set[str]]
"""Which of these names exist."""


def index_names(address: str, span: int) -> list[str]:
    """The names that must exist before an artifact of this span is published, the longest last."""
    digits = str(abs(span))
    if len(digits) > MOST_DIGITS:
        raise StoreError(f"Span {span} of {address} has {len(digits)} digits; the limit is {MOST_DIGITS}.")
    head = _head(address, span < 0, len(digits))
    return [head, *(f"{head}:{digits[:length]}" for length in range(1, len(digits)))]


def descend(
    address: str, below: int | None, exist: Exist, published: Callable[[Sequence[int]], set[int]]
) -> Iterator[int]:
    """The spans that are published, highest first, lower than `below`.

    `exist` looks up names of the index, `published` returns which of some spans exist.
    """
    counts = range(1, MOST_DIGITS + 1)
    order = [(False, count) for count in reversed(counts)] + [(True, count) for count in counts]
    known = exist([_head(address, negative, count) for negative, count in order])

    def walk(negative: bool, count: int, prefix: str) -> Iterator[int]:
        rest = count - len(prefix) - 1
        digits = "0123456789" if negative else "9876543210"
        longer = [prefix + digit for digit in digits if _reaches(negative, prefix + digit, rest, below)]
        if rest == 0:
            spans = [-int(whole) if negative else int(whole) for whole in longer if _canonical(negative, whole)]
            there = published(spans) if spans else set()
            yield from (span for span in spans if span in there)
            return
        head = _head(address, negative, count)
        ahead = exist([f"{head}:{part}" for part in longer]) if longer else set()
        for part in longer:
            if f"{head}:{part}" in ahead:
                yield from walk(negative, count, part)

    for negative, count in order:
        if _head(address, negative, count) in known:
            yield from walk(negative, count, "")


def list_candidates(address: str, below: int | None, exist: Exist) -> list[int]:
    """The spans lower than `below` that may be published, highest first; of ten neighbours, at least one is.

    Goes down level by level, with one question for all prefixes of a level, so that thousands of spans take a few.
    """
    signs = [(negative, count) for negative in (False, True) for count in range(1, MOST_DIGITS + 1)]
    known = exist([_head(address, *sign) for sign in signs])
    found: list[int] = []
    for negative, count in (sign for sign in signs if _head(address, *sign) in known):
        head = _head(address, negative, count)
        prefixes = [""]
        for rest in range(count - 1, -1, -1):
            longer = [prefix + digit for prefix in prefixes for digit in "0123456789"]
            longer = [prefix for prefix in longer if _reaches(negative, prefix, rest, below)]
            if rest and longer:
                ahead = exist([f"{head}:{prefix}" for prefix in longer])
                longer = [prefix for prefix in longer if f"{head}:{prefix}" in ahead]
            prefixes = longer
        found += [-int(whole) if negative else int(whole) for whole in prefixes if _canonical(negative, whole)]
    return sorted(found, reverse=True)


def _head(address: str, negative: bool, count: int) -> str:
    return f"{address}:{'-' if negative else '+'}{count}"


def _reaches(negative: bool, prefix: str, rest: int, below: int | None) -> bool:
    """Whether any span with these leading digits and `rest` more is lower than `below`."""
    if below is None:
        return True
    first = int(prefix) * 10**rest
    lowest: int = -(first + 10**rest - 1) if negative else first
    return lowest < below


def _canonical(negative: bool, digits: str) -> bool:
    """False for -0 and 01, which no span is written as."""
    return str(int(digits)) == digits and not (negative and digits == "0")
