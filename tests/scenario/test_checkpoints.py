"""A Trainer that was killed and retried goes on from its last checkpoint, in any framework."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from spanwise.components import Trainer
from spanwise.orchestrator import Retry
from tests.components.flow import Bench, Lake, only

EPOCHS, KILLED_IN = 8, 5

DRAW = np.random.default_rng(11)
ROWS = {
    span: {
        "a": DRAW.normal(size=200).tolist(),
        "b": DRAW.normal(size=200).tolist(),
        "late": (DRAW.random(200) < 0.4).astype(int).tolist(),
    }
    for span in (1, 2)
}


def kept(folder: Path, name: str, write) -> None:
    """Puts a checkpoint in its place at once: whoever is killed while writing leaves the one before."""
    draft = folder / f"{name}.draft"
    write(draft)
    draft.replace(folder / name)


def interrupted(task, epoch: int) -> None:
    """The machine goes away in the middle of an epoch of the first attempt."""
    if task.parameters["killed"] and task.attempt == 1 and epoch == KILLED_IN:
        os.kill(os.getpid(), signal.SIGKILL)


def train_with_scikit_learn(task) -> None:
    """One pass over the rows is one epoch; after each, the model and the epoch are a checkpoint."""
    import joblib
    from sklearn.linear_model import SGDClassifier

    model, first = SGDClassifier(loss="log_loss", random_state=0, shuffle=False), 0
    if (task.checkpoints / "model.joblib").exists():
        model, first = joblib.load(task.checkpoints / "model.joblib")
    for epoch in range(first, EPOCHS):
        for batch in task.examples.dataset("train", ["a", "b", "late"]).batch(64):
            x = np.column_stack([batch["a"].to_numpy(), batch["b"].to_numpy()])
            model.partial_fit(x, batch["late"].to_numpy(), classes=[0, 1])
            interrupted(task, epoch)
        done = (model, epoch + 1)
        kept(task.checkpoints, "model.joblib", lambda draft, done=done: joblib.dump(done, draft))
    note(task, first, model.coef_.ravel().tolist())


def train_with_torch(task) -> None:
    """The same, with the state of the model, of its optimizer and of the random numbers."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    optimizer, first = torch.optim.Adam(model.parameters(), lr=0.01), 0
    if (task.checkpoints / "state.pt").exists():
        state = torch.load(task.checkpoints / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        first = state["epoch"]
    for epoch in range(first, EPOCHS):
        for batch in task.examples.dataset("train", ["a", "b", "late"]).batch(64):
            x = torch.tensor(np.column_stack([batch["a"].to_numpy(), batch["b"].to_numpy()]), dtype=torch.float32)
            y = torch.tensor(batch["late"].to_numpy(), dtype=torch.float32)
            optimizer.zero_grad()
            torch.nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y).backward()
            optimizer.step()
            interrupted(task, epoch)
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "epoch": epoch + 1,
        }
        kept(task.checkpoints, "state.pt", lambda draft, state=state: torch.save(state, draft))
    note(task, first, [float(v) for p in model.parameters() for v in p.detach().ravel()])


def note(task, first: int, weights: list[float]) -> None:
    said = {"attempt": task.attempt, "first": first, "weights": weights}
    (task.model_dir / "model.json").write_text(json.dumps(said))


def trained(root: Path, train, *, killed: bool):
    lake = Lake(rows=ROWS, splits=["train"])
    trainer = Trainer(
        examples=lake["examples"],
        run_fn=train,
        parameters={"killed": killed},
        retry=Retry(times=1, backoff_s=0),
    )
    outcome = Bench(root).run(lake, trainer)
    return outcome, json.loads((only(outcome.executions["Trainer"], "model").path / "model.json").read_text())


@pytest.mark.parametrize(
    ("library", "train"),
    [("sklearn", train_with_scikit_learn), ("torch", train_with_torch)],
    ids=["scikit-learn", "PyTorch"],
)
def test_a_killed_training_goes_on_from_its_last_checkpoint(tmp_path, library, train):
    """The second attempt begins with the epoch that was cut short, and ends with the very same model."""
    pytest.importorskip(library)

    outcome, model = trained(tmp_path / "killed", train, killed=True)
    _, whole = trained(tmp_path / "whole", train, killed=False)

    assert outcome.executions["Trainer"].attempt == 2
    assert (model["attempt"], model["first"]) == (2, KILLED_IN)
    assert (whole["attempt"], whole["first"]) == (1, 0)
    assert model["weights"] == whole["weights"]
    assert not list((tmp_path / "killed" / "p" / ".runs" / "1").glob("*.checkpoints"))
