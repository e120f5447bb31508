"""Processes that tests start and kill: forks of one server, which has imported what they work with.

A process has one such server, whose list of modules is the one that was set last: so it is set here, and names all.
"""

import multiprocessing

PRELOAD = [
    "spanwise.orchestrator.mlmd.store",
    "spanwise.pipelines.input.dataset",
    "spanwise.pipelines.input.service.client.distribute",
    "spanwise.pipelines.input.service.dispatcher.dispatcher",
    "spanwise.pipelines.input.service.worker.worker",
    "spanwise.scheduler.cli.service",
    "tests.contract.racers",
    "tests.contract.served_graphs",
    "tests.scenario.served",
    "tests.scenario.snapshots",
]
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(PRELOAD)
