"""Meanings of code: whether another process, which has loaded the same files, would do the same with it.

Files do not say it all. They may have been edited since this process loaded them, and what a module sets as it is
loaded, such as from an environment variable, is another value elsewhere. The cache key is of what is here.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from spanwise.orchestrator import fingerprint, user_code
from spanwise.orchestrator.digest import ValueNode, digest_graph, encode_text
from spanwise.orchestrator.errors import LoadError, Unfingerprintable
from spanwise.orchestrator.user_code import Shipment
from spanwise.orchestrator.value_digest import describe

_Digests = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class CodeMeaning:
    """Digests of some code, by names for people. What cannot be fingerprinted is left out."""

    parts: _Digests
    values: _Digests  #: the plain values that the code refers to

    @classmethod
    def of(cls, parts: Mapping[str, object]) -> Self:
        """The meaning of functions, classes and values that hold some."""
        with fingerprint.noticing_bindings() as bindings:
            found = _digests(parts)
        code = types.FunctionType | types.ModuleType | type
        values = {name: value for name, value in bindings.values() if not isinstance(value, code)}
        return cls(found, _digests(values))

    def refuse_other(self, here: CodeMeaning) -> None:
        """Refuses code that means something else in this process.

        Raises:
            LoadError: it does; the message names what differs.
        """
        if not (parts := _differing(self.parts, here.parts)):
            return
        names = _differing(self.values, here.values) or parts
        raise LoadError(
            f"In the process that was to do the work, on {socket.gethostname()}, {', '.join(names)} "
            f"{'is' if len(names) == 1 else 'are'} not what was sent. If a file was edited meanwhile, start again. If "
            f"it depends on the place where the file is loaded, such as on an environment variable, pass it as a "
            f"parameter, or set it inside of the function that uses it."
        )


def _digests(values: Mapping[str, object]) -> _Digests:
    found = {}
    for name, value in values.items():
        with contextlib.suppress(Unfingerprintable):
            found[name] = digest_graph(value, name, _describe).hex()
    return tuple(found.items())


def _describe(value: object) -> ValueNode:
    """As for a cache key, but without the function that a class was made in, whose name a class sent by value loses."""
    described = describe(value)
    if isinstance(value, type) and "<locals>" in value.__qualname__:
        full, short = encode_text(value.__qualname__), encode_text(value.__name__)
        described.parts = [short if part == full else part for part in described.parts]
    return described


def _differing(wanted: _Digests, here: _Digests) -> list[str]:
    has = dict(here)
    return sorted(name for name, digest in wanted if digest != has.get(name))


@dataclass(frozen=True)
class CheckedShipment:
    """A shipment with the meaning of the code that it names."""

    shipment: Shipment
    meaning: CodeMeaning


def ship_checked(value: object) -> CheckedShipment:
    """As `user_code.ship`, for a process that has to load the same code."""
    shipment = user_code.ship(value)
    return CheckedShipment(shipment, _meaning_of(shipment))


@user_code.load_once
def unpack_checked(sent: CheckedShipment) -> object:
    """As `user_code.unpack`.

    Raises:
        LoadError: its code means something else here.
    """
    value = user_code.unpack(sent.shipment)
    sent.meaning.refuse_other(_meaning_of(sent.shipment))
    return value


def _meaning_of(shipment: Shipment) -> CodeMeaning:
    return CodeMeaning.of(
        {f"{module}.{name}": user_code.look_up(sys.modules[module], name) for module, name in shipment.references}
    )
