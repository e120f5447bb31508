"""What a test does in a fork of its process, so that the process stays one that nodes can be forked from."""

import gc
import multiprocessing
import warnings
from concurrent.futures import ProcessPoolExecutor


def in_fork(function, *arguments):
    """What the function returns or raises in a fork: there it may use Polars and what else starts threads.

    Raises BrokenProcessPool where the fork dies.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, from Python 3.12 on: none holds a lock here
        gc.disable()
        try:
            context = multiprocessing.get_context("fork")
            with ProcessPoolExecutor(1, mp_context=context, initializer=_keep_what_is_there) as pool:
                return pool.submit(function, *arguments).result()
        finally:
            gc.enable()


def _keep_what_is_there():
    """What has threads, as a Flight client, would wait for them when it is collected, and a fork has none of them."""
    gc.freeze()
    gc.enable()
