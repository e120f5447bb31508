"""Digests: how plain values, and graphs of values that refer to each other, become a digest. Knows no kind of value.

A digest is a tagged BLAKE2b hash. `orchestrator.fingerprint` says what is digested, and why.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import struct
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeGuard

from spanwise.orchestrator.errors import Unfingerprintable

Scalar: TypeAlias = "None | bool | int | float | complex | str | bytes"
"""What a digest is made of directly."""

# 128 bits: two of 10**12 entries of a cache collide with a probability of 10**-15, and a key stays short in a log.
_SIZE_BYTES = 16
# Raise this number with every change that lets old and new digests disagree about the same thing.
_RECIPES = b"spanwise-1"


def digest(tag: str, *parts: Scalar) -> str:
    """The digest of `parts` under `tag`: 32 hexadecimal digits.

    Each part carries its type and its length, so neither `("ab", "c")` and `("a", "bc")` nor 1, True and "1" agree.
    """
    return hash_parts(tag, map(encode, parts)).hex()


def hash_parts(tag: str, encoded: Iterable[bytes]) -> bytes:
    """The hash of encoded parts under a tag."""
    state = hashlib.blake2b(frame(b"T", tag.encode()), digest_size=_SIZE_BYTES, person=_RECIPES)
    for part in encoded:
        state.update(part)
    return state.digest()


def new_hash() -> hashlib.blake2b:
    """A hash for content that is read piece by piece."""
    return hashlib.blake2b(digest_size=_SIZE_BYTES, person=_RECIPES)


def frame(kind: bytes, payload: bytes) -> bytes:
    """Encoded content with its kind, a letter, and its length in front."""
    return kind + len(payload).to_bytes(8, "little") + payload


def encode_text(text: str) -> bytes:
    """Encodes a text."""
    return frame(b"s", text.encode("utf-8", "surrogatepass"))


def encode(value: Scalar) -> bytes:  # noqa: PLR0911  one line per type
    """Encodes a plain value.

    A float counts by its bits, so 0.0 and -0.0 differ. Every NaN counts as the same one: Python cannot tell them
    apart, and processors disagree about their sign.
    """
    if isinstance(value, str):
        return encode_text(value)
    if isinstance(value, bool):
        return frame(b"b", b"1" if value else b"0")
    if isinstance(value, int):
        return frame(b"i", format(value, "x").encode())
    if isinstance(value, float):
        return frame(b"f", b"nan" if math.isnan(value) else struct.pack("<d", value))
    if isinstance(value, bytes):
        return frame(b"y", value)
    if isinstance(value, complex):
        return frame(b"c", encode(value.real) + encode(value.imag))
    if value is None:
        return frame(b"n", b"")
    raise TypeError(f"a digest is made of plain values, not of {type(value).__qualname__}; use of_value for that")


_SCALARS = frozenset({str, bool, int, float, bytes, complex, types.NoneType})


def is_scalar(value: object) -> TypeGuard[Scalar]:
    """Whether a digest is made of it directly; not of a subclass, which may hold more."""
    return type(value) in _SCALARS


# Values refer to each other in circles (a method names its class, the class holds the method), so they are first
# laid out as a graph, each value described by itself, and digested afterwards, circle by circle. That gives a value
# the same digest wherever the walk came in, and needs no recursion.


@dataclass(slots=True)  # one for each item of a long list: freezing one costs as much as digesting it
class ValueChild:
    """A value that another one is made of."""

    label: str  #: how an error names the way to it
    value: object
    is_needed: bool = True  #: whether it is refused if it has no recipe; otherwise the name of its class stands for it


@dataclass
class ValueNode:
    """One value, described by its own content and its children."""

    tag: str
    parts: list[bytes | ValueChild]
    ordered: bool = True
    arguments: Sequence[str] = ()  #: names by which a caller could pass something to this code
    texts: Sequence[str] = ()  #: texts in it that could be such names, besides its children
    named: Mapping[str, str | ValueChild] = field(default_factory=dict)  #: what counts only where code reads this name
    variables: Mapping[str, object] | None = None  #: of code that reads rules: the globals that texts may name to it
    links: list[bytes | int] = field(default_factory=list)  #: `parts` with each child encoded or numbered


def named_children(**values: object) -> list[bytes | ValueChild]:
    """Children by the names under which an error mentions them; the names are not digested."""
    return [ValueChild(f"its {name}", value) for name, value in values.items()]


def attribute_children(state: Mapping[str, object], *, are_needed: bool = True) -> list[bytes | ValueChild]:
    """Children with their names, whatever their order."""
    parts: list[bytes | ValueChild] = []
    for name in sorted(state):
        parts += [encode_text(name), ValueChild(f"attribute {name!r}", state[name], are_needed)]
    return parts


class NoRecipe(Exception):
    """A value that cannot be described."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


_NAME_IN_TEXT = re.compile(r"@([^\W\d]\w*)|\b(?:from|join)\s+\"?([^\W\d]\w*)", re.IGNORECASE)


def names_in(texts: Iterable[str]) -> set[str]:
    """The names that texts mark as those of variables: `fare > @limit` of pandas, `select * from rides` of SQL."""
    return {marked or table for text in texts for marked, table in _NAME_IN_TEXT.findall(text)}


class ValueGraph:
    """A value and all that it is made of, each as `describe` says; laid out, and not digested yet.

    Raises:
        Unfingerprintable: something in it has no recipe; `who` opens the message.
    """

    def __init__(self, root: object, who: str, describe: Callable[[object], ValueNode]) -> None:
        self.texts = {root} if isinstance(root, str) else set[str]()  #: all texts in it
        self._root, self._who, self._describe = root, who, describe
        self._nodes: list[ValueNode] = []  # the value itself first; none of a plain value
        self._values: list[object] = []  # of each node; kept alive, so that their ids are not used again
        self._numbers: dict[object, int] = {}
        self._unknown: dict[int, NoRecipe] = {}  # those without a recipe
        if not is_scalar(root):
            self._link(root)
            self._lay_out(())

    @property
    def has_names(self) -> bool:
        """Whether there is something in it that counts only where code reads its name."""
        return any(node.named or node.arguments for node in self._nodes)

    def digest(self, texts: Collection[str] = ()) -> bytes:
        """The encoded value, or the encoded digest of it; once. `texts` may be names that code reads, besides its own.

        Raises:
            Unfingerprintable: something that counts because of those names has no recipe.
        """
        if is_scalar(self._root):
            return encode(self._root)
        met, variables = self._lay_out(texts)
        for node in self._nodes:
            node.links += [encode_text(f"{at} {name}") for at, name in enumerate(node.arguments) if name in met]
            for name, counted in node.named.items():
                if name in met and isinstance(counted, str):
                    node.links.append(encode_text(f"{name} {counted}"))
            for name, child in _met_children(node, met, variables):
                node.links += [encode_text(name), self._link(child.value)]
        return _digest_nodes(self._nodes)[0]

    def _lay_out(self, others: Collection[str]) -> tuple[set[str], set[str]]:
        """Describes all that counts. Returns the texts that are met, and the names of variables in them."""
        while True:
            self._describe_values()
            met = self.texts.union(others)
            has_variables = any(node.variables is not None for node in self._nodes)
            variables = names_in(met) if has_variables else set[str]()
            met |= variables
            for node in self._nodes:
                for _, child in _met_children(node, met, variables):
                    self._link(child.value)
            if len(self._values) == len(self._nodes):
                break
        if self._unknown:
            self._refuse_needed(met, variables)
        return met, variables

    def _describe_values(self) -> None:
        for number in itertools.count(len(self._nodes)):  # there are more of them as it goes
            if number == len(self._values):
                return
            try:
                node = self._describe(self._values[number])
            except NoRecipe as error:
                self._unknown[number] = error
                node = ValueNode("unknown", [encode_text(type(self._values[number]).__qualname__)])
            for part in node.parts:
                node.links.append(part if isinstance(part, bytes) else self._link(part.value))
            self.texts.update(node.texts)
            self._nodes.append(node)

    def _link(self, value: object) -> bytes | int:
        """A plain value, encoded; any other one by its number."""
        if is_scalar(value):
            if isinstance(value, str):
                self.texts.add(value)
            return encode(value)
        number = self._numbers.setdefault(_identity(value), len(self._values))
        if number == len(self._values):
            self._values.append(value)
        return number

    def _refuse_needed(self, met: Collection[str], variables: Collection[str]) -> None:
        parents = {0: (-1, self._who)}
        for number in (waiting := [0]):  # there are more of them as it goes
            if (error := self._unknown.get(number)) is not None:
                raise Unfingerprintable(_refusal(parents, number, error)) from error.__cause__
            node = self._nodes[number]
            for child in [*node.parts, *(child for _, child in _met_children(node, met, variables))]:
                if isinstance(child, bytes) or not child.is_needed:
                    continue
                if isinstance(at := self._link(child.value), int) and at not in parents:
                    parents[at] = (number, child.label)
                    waiting.append(at)


def _met_children(
    node: ValueNode, met: Collection[str], variables: Collection[str]
) -> Iterator[tuple[str, ValueChild]]:
    """What counts since code reads its name, by that name, in the same order each time."""
    for name, child in node.named.items():
        if name in met and isinstance(child, ValueChild):
            yield name, child
    if node.variables is not None:
        for name in sorted(variables & node.variables.keys()):
            yield f"@{name}", ValueChild(f"global {name!r}", node.variables[name])


def digest_graph(root: object, who: str, describe: Callable[[object], ValueNode]) -> bytes:
    """The encoded value, or the encoded digest of it and all that it is made of, each as `describe` says.

    Raises:
        Unfingerprintable: something in it has no recipe; `who` opens the message.
    """
    return encode(root) if is_scalar(root) else ValueGraph(root, who, describe).digest()


class SameValue:
    """Base of records that `describe` creates anew each time: equal ones are one value."""


def _identity(value: object) -> object:
    return value if isinstance(value, SameValue) else id(value)


def _refusal(parents: Mapping[int, tuple[int, str]], number: int, error: NoRecipe) -> str:
    way = []
    while number >= 0:
        number, label = parents[number]
        if label:
            way.append(label)
    return (
        f"{' -> '.join(reversed(way))} -> {error.what}: the cache key must cover everything that can change the "
        f"result, and this has no content to compare. Make it inside the function that uses it, or pass what it is "
        f"made from (a path, a name, numbers) instead."
    )


def _digest_nodes(nodes: Sequence[ValueNode]) -> list[bytes]:
    """The encoded digest of each node, from those that refer to nothing upwards."""
    done = [b""] * len(nodes)
    for circle in _circles([[link for link in node.links if isinstance(link, int)] for node in nodes]):
        if len(circle) == 1 and circle[0] not in nodes[circle[0]].links:
            done[circle[0]] = _digest_node(nodes[circle[0]], done)
            continue
        # Colour refinement: each member is distinguished by its surroundings, one step further each round, until that
        # tells no more of them apart; then all colours together make each member depend on the whole circle.
        for member in circle:
            done[member] = frame(b"D", b"circle")
        colours = 0
        while colours < (colours := len({done[member] for member in circle})):
            fresh = [_digest_node(nodes[member], done) for member in circle]
            for member, colour in zip(circle, fresh, strict=True):
                done[member] = colour
        whole = sorted({done[member] for member in circle})
        for member in circle:
            done[member] = frame(b"D", hash_parts("circle", [done[member], *whole]))
    return done


def _digest_node(node: ValueNode, done: Sequence[bytes]) -> bytes:
    parts = [link if isinstance(link, bytes) else done[link] for link in node.links]
    return frame(b"D", hash_parts(node.tag, parts if node.ordered else sorted(parts)))


def _circles(links: Sequence[Sequence[int]]) -> Iterator[list[int]]:  # noqa: C901  one algorithm, as in its paper
    """The strongly connected parts of a graph, those that are referred to first (Tarjan 1972, without recursion)."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    waiting: list[int] = []
    is_waiting = [False] * len(links)
    for root in range(len(links)):
        work = [(root, iter(links[root]))] if root not in order else []
        while work:
            node, rest = work[-1]
            if node not in order:
                order[node] = low[node] = len(order)
                waiting.append(node)
                is_waiting[node] = True
            for child in rest:
                if child not in order:
                    work.append((child, iter(links[child])))
                    break
                if is_waiting[child]:
                    low[node] = min(low[node], order[child])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    circle = [waiting.pop()]
                    while circle[-1] != node:
                        circle.append(waiting.pop())
                    for member in circle:
                        is_waiting[member] = False
                    yield circle
