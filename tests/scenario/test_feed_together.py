"""Replicas that a data service feeds in rounds: each gets its batch of a round, and no row comes twice in a pass."""

import json

import pytest

from spanwise.components import Trainer
from tests.components.flow import Bench, Lake, only
from tests.scenario.served import Servers

ROWS = {span: {"x": list(range(span * 100, span * 100 + 60))} for span in (1, 2)}
STEPS = 6


def take_rounds(task):
    """The steps of all replicas: what each got in each."""
    rows = task.examples.dataset("train", ["x"]).repeat().batch(10).as_numpy()
    mine = rows.distribute(
        task.parameters["service"], job_name="steps", consumer_index=task.rank, num_consumers=task.replicas
    )
    steps = [task.gather(batch["x"].tolist()) for batch in mine.take(STEPS)]
    (task.model_dir / "steps").write_text(json.dumps(steps))


@pytest.mark.slow
def test_replicas_get_rounds_of_a_data_service(tmp_path):
    """All of a round come from one worker, in the order of its batches."""
    lake = Lake(rows=ROWS, splits=["train"])
    with Servers(tmp_path / "journal") as servers:
        given = {"service": servers.target}
        trainer = Trainer(examples=lake["examples"], run_fn=take_rounds, replicas=2, parameters=given, timeout_s=100)
        execution = Bench(tmp_path / "root").run(lake, trainer).executions["Trainer"]

    assert execution.error is None
    steps = json.loads((only(execution, "model").path / "steps").read_text())
    batches = [list(range(start + at, start + at + 10)) for start in (100, 200) for at in range(0, 60, 10)]
    whole = [batches[at : at + 2] for at in range(0, 12, 2)]
    assert len(steps) == STEPS
    assert all(step in whole for step in steps)
