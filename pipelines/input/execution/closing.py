"""Closing what was dropped: never in the thread in which the garbage collector found it.

The collector runs wherever an object is made: in a dispatcher's thread, for example, that holds the lock which the
answer to a closing reader needs. So whatever takes locks of others, waits for threads or asks a server is closed
elsewhere. What is dropped where its last reference ends is closed there, as a file is.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Mapping
from typing import Literal

_collecting: int | None = None  # the thread in which the collector runs


def close_safely(close: Callable[[], None]) -> None:
    """Closes here; in a thread of its own if the garbage collector is running in this one."""
    if _collecting == threading.get_ident():
        threading.Thread(target=close, name="closing", daemon=True).start()
    else:
        close()


def _note_collection(phase: Literal["start", "stop"], facts: Mapping[str, int]) -> None:  # noqa: ARG001  gc's signature
    global _collecting  # noqa: PLW0603  of this process, as the collector is
    _collecting = threading.get_ident() if phase == "start" else None


gc.callbacks.append(_note_collection)
