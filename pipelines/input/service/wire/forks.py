"""Forks of a process that uses Flight: gRPC's threads are not in them, so what they ask of it would wait for ever.

Nodes are such forks, and so are the workers of a PyTorch loader. Once all clients of a process are closed and gone,
gRPC has ended its threads, and a fork begins anew; a server keeps them (pyarrow never frees one).
"""

from __future__ import annotations

import os
import weakref

from spanwise.orchestrator.errors import ServiceError

_users: weakref.WeakSet[object] = weakref.WeakSet()
_is_orphan = False


def note_user(user: object) -> None:
    """Remembers a Flight client or server of this process, as long as it is there."""
    _users.add(user)


def is_in_use() -> bool:
    """Whether a Flight client or server of this process is there."""
    return bool(_users)


def refuse_orphan() -> None:
    """To be called before a Flight client or server is made.

    Raises:
        ServiceError: this process was forked from one in which another one was.
    """
    if _is_orphan:
        raise ServiceError(
            "this process was forked from one that was using the data service or an elastic job, so its gRPC threads "
            "are missing here, and any request would wait for ever. Close its readers (with `close()`, or the end of "
            "their `with`) and drop them before you start this, or start it in a process of its own, with "
            "`spanwise run` or multiprocessing_context='spawn' of a PyTorch loader."
        )


def _note_fork() -> None:
    global _is_orphan  # noqa: PLW0603  of this process
    _is_orphan = _is_orphan or is_in_use()


os.register_at_fork(after_in_child=_note_fork)
