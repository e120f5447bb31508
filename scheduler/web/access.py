"""Access: who may see and who may act, by tokens, sessions in cookies, and tokens of forms. Pure.

A session is a signed text: its role, its person, when it ends, and a random word. What signs it is derived from the
tokens of the server, so sessions outlive a restart with the same tokens, and end when the tokens change.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from spanwise.orchestrator.errors import UsageError

SESSION_S = 12 * 3600
LEAST_TOKEN = 16
"""Characters that a token must have."""

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class WebRole(StrEnum):
    """What a reader may do."""

    VIEWER = "viewer"  #: look at everything
    OPERATOR = "operator"  #: also act

    @property
    def may_act(self) -> bool:
        return self is WebRole.OPERATOR


@dataclass(frozen=True, kw_only=True)
class AccessPolicy:
    """Who is let in."""

    hosts: frozenset[str]  #: the names by which the server may be called
    tokens: Mapping[WebRole, str] = field(
        default_factory=dict, repr=False
    )  #: by what they permit; none: no token needed
    trust_header: str = ""  #: the header in which a reverse proxy names the person whom it has authenticated
    role: WebRole = WebRole.OPERATOR  #: of those who need no token
    secure: bool = False  #: the cookie is sent over TLS only
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    @property
    def key(self) -> bytes:
        """What signs sessions and forms."""
        if not self.tokens:
            return self.secret
        return hashlib.sha256("\0".join(sorted(self.tokens.values())).encode()).digest()

    @property
    def cookie(self) -> str:
        """The name of the cookie of sessions, of this key alone: a browser has one jar for all ports of a host."""
        return f"spanwise_session_{_sign(self.key, 'cookie', '')[:12]}"

    def make_cookie(self, visit: Visit) -> str:
        """The header that gives a browser a session."""
        secure = "; Secure" if self.secure else ""
        return f"{self.cookie}={visit.seal(self.key)}; Path=/; Max-Age={SESSION_S}; HttpOnly; SameSite=Lax{secure}"

    def role_of(self, token: str) -> WebRole | None:
        """What a token permits; compared in constant time, with every token."""
        found = None
        for role, known in self.tokens.items():
            if hmac.compare_digest(token.encode(), known.encode()):
                found = role
        return found


@dataclass(frozen=True, kw_only=True)
class Visit:
    """One reader, as a request identifies them."""

    role: WebRole
    person: str  #: who acts, for the records
    word: str  #: random, of the session
    until: int = 0  #: seconds since 1970

    @classmethod
    def begin(cls, role: WebRole, person: str) -> Self:
        return cls(role=role, person=person, word=secrets.token_urlsafe(12), until=int(time.time()) + SESSION_S)

    @classmethod
    def by_token(cls, role: WebRole) -> Self:
        """Of somebody who is known by a token alone."""
        return cls.begin(role, f"{role.value} by token")

    def seal(self, key: bytes) -> str:
        """The session as the text of a cookie."""
        body = json.dumps([self.role.value, self.person, self.word, self.until]).encode().hex()
        return f"{body}.{_sign(key, 'session', body)}"

    @classmethod
    def unseal(cls, text: str, key: bytes) -> Self | None:
        """The session of a cookie; None when it was not signed with this key, or is over."""
        body, _, signature = text.partition(".")
        if not hmac.compare_digest(signature.encode(), _sign(key, "session", body).encode()):
            return None
        role, person, word, until = json.loads(bytes.fromhex(body))
        return None if until < time.time() else cls(role=WebRole(role), person=person, word=word, until=until)

    def form_token(self, key: bytes) -> str:
        """What a form of this session must send back."""
        return _sign(key, "form", self.word)

    def accepts_form(self, token: str, key: bytes) -> bool:
        """Whether a form was made for this session."""
        return hmac.compare_digest(token.encode(), self.form_token(key).encode())


def sign_path(key: bytes, path: str, until: int) -> str:
    """What lets a file be fetched for a while without a session: a sandboxed frame has none."""
    return _sign(key, "file", f"{until}:{path}")


def accepts_path(key: bytes, path: str, until: int, signature: str) -> bool:
    """Whether such a signature is ours and still holds."""
    return until >= time.time() and hmac.compare_digest(signature.encode(), sign_path(key, path, until).encode())


def _sign(key: bytes, purpose: str, text: str) -> str:
    return hmac.new(key, f"{purpose}:{text}".encode(), hashlib.sha256).hexdigest()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def make_policy(
    host: str,
    *,
    tokens: Mapping[WebRole, str],
    trust_header: str = "",
    role: WebRole = WebRole.OPERATOR,
    names: tuple[str, ...] = (),
    secure: bool = False,
) -> AccessPolicy:
    """The policy of a server on this address.

    Raises:
        UsageError: others reach the address and nobody authenticates them, or a token is too short.
    """
    if not tokens and not trust_header and not is_loopback(host):
        raise UsageError(
            f"{host} can be reached from other machines, so the page needs to know who asks. Set a token of at least "
            f"{LEAST_TOKEN} characters:\n"
            "  export SPANWISE_UI_TOKEN=\"$(python -c 'import secrets; print(secrets.token_urlsafe(24))')\"\n"
            "Or, behind a reverse proxy that authenticates, name the header that it sets:  "
            "--trust-header X-Forwarded-User\n"
            "Or serve this machine alone:  --host 127.0.0.1"
        )
    for of, token in tokens.items():
        if len(token) < LEAST_TOKEN:
            raise UsageError(f"The token of the {of} has {len(token)} characters; it needs at least {LEAST_TOKEN}.")
    if len(set(tokens.values())) < len(tokens):
        raise UsageError("The tokens of viewer and operator are the same; make two.")
    own = {host, *names, *(_LOOPBACK_NAMES if is_loopback(host) or host in ("0.0.0.0", "::") else ())}  # noqa: S104
    hosts = frozenset(name.lower() for name in own)
    return AccessPolicy(hosts=hosts, tokens=dict(tokens), trust_header=trust_header, role=role, secure=secure)
