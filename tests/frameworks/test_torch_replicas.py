"""PyTorch's own data parallelism in replicas of a Trainer; `make test-torch` installs it."""

import json

import numpy as np
import pytest

from spanwise.components import Trainer
from tests.components.flow import Bench, Lake, only

torch = pytest.importorskip("torch")

ROWS, REPLICAS, BATCH, RATE = 60, 2, 5, 0.1
X = [number / ROWS for number in range(ROWS)]


def train(task):
    """Fits y = 3x + 1 with DistributedDataParallel, which averages the gradients of the replicas."""
    import torch.distributed as dist

    dist.init_process_group("gloo")  # the rendezvous is in the environment, as under torchrun
    linear = torch.nn.Linear(1, 1, dtype=torch.float64)
    for parameter in linear.parameters():
        torch.nn.init.zeros_(parameter)
    model = torch.nn.parallel.DistributedDataParallel(linear)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for batch in task.share("train", ["x"], even=True).batch(BATCH).as_numpy():
        x = torch.tensor(batch["x"], dtype=torch.float64)[:, None]
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), 3 * x + 1).backward()
        optimizer.step()
    learned = [linear.weight.item(), linear.bias.item()]
    said = task.gather({"rank": dist.get_rank(), "world": dist.get_world_size(), "learned": learned})
    dist.destroy_process_group()
    (task.model_dir / "model.json").write_text(json.dumps(said))


def fit_alone():
    """What one process learns from the same steps, each of the batches of all replicas."""
    shares = np.array(X).reshape(REPLICAS, -1, BATCH)
    weight = bias = 0.0
    for x in shares.transpose(1, 0, 2).reshape(-1, REPLICAS * BATCH):
        off = weight * x + bias - (3 * x + 1)
        weight, bias = weight - RATE * 2 * np.mean(off * x), bias - RATE * 2 * np.mean(off)
    return [weight, bias]


def test_replicas_are_the_processes_of_torch_distributed(tmp_path):
    """They find each other by what the Trainer sets, and each step is that of all rows together."""
    lake = Lake(rows={1: {"x": X}}, splits=["train"])

    done = Bench(tmp_path).run(lake, Trainer(examples=lake["examples"], run_fn=train, replicas=REPLICAS))

    said = json.loads((only(done.executions["Trainer"], "model").path / "model.json").read_text())
    assert [(each["rank"], each["world"]) for each in said] == [(0, REPLICAS), (1, REPLICAS)]
    for each in said:
        assert each["learned"] == pytest.approx(fit_alone(), rel=1e-9)
