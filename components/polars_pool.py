"""Polars' thread pool: it does not survive a fork, and then whatever needs it hangs silently.

Importing Polars starts no threads, using it does. A process that was forked from one where Polars had been used (a
notebook, a pipeline file that looks at its data) must leave the work to a fresh process.
"""

from __future__ import annotations

import threading

PATIENCE_S = 2.0
"""How long a live thread pool may take to add two numbers. Too short a wait only costs a fresh process."""


def is_usable() -> bool:
    """Whether Polars works in this process; tries it in a thread that may be left waiting."""
    import polars as pl

    done = threading.Event()

    def ask() -> None:
        pl.DataFrame({"value": [2, 1]}).lazy().sort("value").select(pl.col("value").sum(), pl.len()).collect()
        pl.DataFrame({"value": [2, 1]}).with_columns(pl.col("value") + 1, other=pl.col("value") * 2)
        done.set()

    threading.Thread(target=ask, daemon=True).start()
    return done.wait(PATIENCE_S)
