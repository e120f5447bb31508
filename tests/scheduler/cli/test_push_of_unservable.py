"""push and what an InfraValidator has refused: nobody serves by name what could not be loaded."""

from pathlib import Path

import pytest

from tests.scheduler.cli.rides import PARTS
from tests.scheduler.conftest import Command, run_warm

PIPELINE = (
    PARTS
    + """
def fail_at_home(model, table):
    if Path.cwd().name == "home":  # the folder of the fresh process
        raise RuntimeError("no module named 'torch'")
    return predict(model, table)

def rides(k: int = 1) -> Pipeline:
    rows = Rows()
    trainer = Trainer(examples=rows["examples"], run_fn=train, parameters={"k": k})
    evaluator = measure(trainer["model"], examples=rows["examples"])
    infra = InfraValidator(examples=rows["examples"], model=trainer["model"], predict_fn=fail_at_home)
    pusher = Pusher(
        model=trainer["model"], blessing=evaluator["blessing"], infra_blessing=infra["blessing"], destination="serving"
    )
    return Pipeline("rides", [rows, trainer, evaluator, infra, pusher])
"""
)


def test_a_model_that_could_not_be_served_is_pushed_only_once_a_person_has_blessed_it(
    tmp_path: Path, spanwise: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by name nor as the champion, although its Evaluator has blessed it; the command that is named works."""
    monkeypatch.chdir(tmp_path)
    Path("rides.py").write_text(PIPELINE)
    done = run_warm("run", "rides.py", cwd=tmp_path, reads_data=True)
    assert "infra_blessing is negative" in done.stdout

    for named in ("rides/Trainer/model/1", "rides"):
        code, _, err = spanwise("push", named, "--because", "needed today")
        assert code == 2
        assert "not served by InfraValidator in run 1: a fresh process failed: RuntimeError: no module named" in err
        assert "spanwise bless rides/Trainer/model/1 --because TEXT" in err
        assert not Path("serving").exists()

    spanwise("bless", "rides/Trainer/model/1", "--because", "the servers have torch")
    assert spanwise("push", "rides", "--because", "needed today")[0] == 0
    assert len([path for path in Path("serving").iterdir() if path.name.isdigit()]) == 1
