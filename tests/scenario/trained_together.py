"""A Trainer whose replicas are on two hosts and average gradients by JAX: `python -m … ROOT HOW NAME=MARK …`.

HOW is what happens to the first attempt after its second checkpoint: `well`, `killed-0`, `killed-1`, or `waits`, in
which rank 1 stands still until somebody ends it. Prints what becomes of the node, then the model.
"""

import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

from spanwise.components import Trainer
from spanwise.orchestrator import Pipeline, Retry
from spanwise.orchestrator.agents.placed_executor import PlacedExecutor
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.runner import run
from spanwise.orchestrator.store import MemoryStore
from tests.components.flow import Lake, only
from tests.scenario.hosts_engine import HostsEngine

say = partial(print, flush=True)

ROWS = 48
BATCH = 4
EPOCHS = 2
STEP = 0.5


def expected():
    """The weight that one process learns of whole batches, and the numbers of all rows."""
    x = np.arange(ROWS) / ROWS
    weight = 0.0
    for _ in range(EPOCHS):
        for at in range(0, ROWS // 2, BATCH):
            rows = np.concatenate([x[at : at + BATCH], x[ROWS // 2 + at : ROWS // 2 + at + BATCH]])
            weight -= STEP * float((2 * rows * (rows * weight - 3 * rows)).mean())
    return weight


def train(task):
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.distributed.initialize(task.coordinator, task.replicas, task.rank, heartbeat_timeout_seconds=15)
    mesh = Mesh(np.array(jax.devices()), "hosts")
    of_all = NamedSharding(mesh, PartitionSpec("hosts"))
    add = jax.jit(
        jax.shard_map(
            lambda x: jax.lax.psum(x, "hosts"), mesh=mesh, in_specs=PartitionSpec("hosts"), out_specs=PartitionSpec()
        )
    )

    def mean(value):
        """Over all replicas, by JAX."""
        mine = jax.make_array_from_process_local_data(of_all, np.array([value], np.float32))
        return float(add(mine)[0]) / task.replicas

    say(
        f"{os.uname().nodename}: rank {task.rank} of {jax.process_count()}, the sum of ranks is {mean(task.rank) * task.replicas}"
    )
    gradient = jax.jit(lambda weight, x: jnp.mean(2 * x * (x * weight - 3 * x)))
    iterator = task.share("train", ["x"], even=True).repeat(EPOCHS).batch(BATCH).as_numpy().iterator()
    weight, step = task.load_checkpoint(iterator) or (0.0, 0)
    say(f"begins at step {step}")
    for batch in iterator:
        weight -= STEP * mean(gradient(weight, batch["x"] / ROWS))
        step += 1
        task.save_checkpoint((weight, step), iterator)
        if step == 2 and task.attempt == 1:
            happen(task)
    if task.rank == 0:
        (task.model_dir / "weight.json").write_text(json.dumps({"weight": weight, "steps": step}))
    jax.distributed.shutdown()


def happen(task):
    how = task.parameters["how"]
    if how == f"killed-{task.rank}":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "waits":
        (Path(task.parameters["root"]) / f"working-{task.rank}").touch()
        if task.rank == 1:
            time.sleep(1000)


def main(root, how, places):
    lake = Lake(
        rows={1: {"x": list(map(float, range(ROWS // 3)))}, 2: {"x": list(map(float, range(ROWS // 3, ROWS)))}},
        splits=["train"],
    )
    trainer = Trainer(
        examples=lake["examples"],
        run_fn=train,
        replicas=2,
        timeout_s=120,
        retry=Retry(times=1, backoff_s=2.0),
        parameters={"how": how, "root": str(root)},
    )
    pipeline = Pipeline("p", [lake, trainer])

    def observe(event):
        if event.node == "Trainer":
            say(event.what, json.dumps(event.message))

    with PlacedExecutor(pipeline, HostsEngine(places), root=root, away=["Trainer"]) as executor:
        outcome = run(
            pipeline, executor=executor, store=MemoryStore(), root=root, request=RunRequest(), observe=observe
        )
    execution = outcome.executions["Trainer"]
    say("attempt", execution.attempt)
    if execution.outputs:
        say("model", (only(execution, "model").path / "weight.json").read_text())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], [tuple(each.split(":", 1)) for each in sys.argv[3:]])
