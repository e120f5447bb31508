"""What a test does in a fork of its process, so that the process stays one that nodes can be forked from."""

import multiprocessing
import warnings


def in_fork(function, *arguments):
    """What the function returns or raises in a fork: there it may use Polars and what else starts threads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, from Python 3.12 on: none holds a lock here
        with multiprocessing.get_context("fork").Pool(1) as pool:
            return pool.apply(function, arguments)
