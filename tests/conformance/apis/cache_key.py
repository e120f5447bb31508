"""What changes the key that the driver gives a node: `cache_key`."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spanwise.orchestrator import Component, Examples, Input, Model, Output, Pipeline, Run, TransformGraph
from spanwise.orchestrator.driver import drive
from spanwise.orchestrator.store import MemoryStore
from tests.conformance.judge import NotMapped


class Train(Component):
    """What the key is taken of."""

    def run(
        self,
        *,
        examples: Input[list[Examples] | None],
        others: Input[list[Examples] | None],
        model: Output[Model],
        steps: int = 100,
        rate: float = 0.1,
        run_fn: Callable[[], int] | None = None,
    ) -> None: ...


class Retrain(Train):
    """The same, by another class."""


class TrainCandidate(Component):
    """The same, with another name for the output."""

    def run(
        self,
        *,
        examples: Input[list[Examples] | None],
        others: Input[list[Examples] | None],
        candidate: Output[Model],
        steps: int = 100,
        rate: float = 0.1,
        run_fn: Callable[[], int] | None = None,
    ) -> None: ...


class TrainGraph(Component):
    """The same, with another kind of output."""

    def run(
        self,
        *,
        examples: Input[list[Examples] | None],
        others: Input[list[Examples] | None],
        model: Output[TransformGraph],
        steps: int = 100,
        rate: float = 0.1,
        run_fn: Callable[[], int] | None = None,
    ) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Setting:
    """All that could matter to the key."""

    component: type[Component] = Train
    pipeline: str = "taxi"
    node: str = "Train"
    run: int = 1
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"steps": 100, "rate": 0.1})
    module: str = "def run_fn():\n    return 1\n"  #: source of the user's code
    file: str = "taxi_module.py"  #: where that lies
    inputs: Mapping[str, tuple[Examples, ...]] = field(
        default_factory=lambda: {"examples": (_examples(id=1), _examples(id=2, span=6, content="c2"))}
    )

    @property
    def key(self) -> str:
        """As the driver has it."""
        space: dict[str, Any] = {"__name__": "taxi_module"}
        exec(compile(self.module, self.file, "exec"), space)
        made = Lake()
        node = self.component(
            name=self.node,
            run_fn=space["run_fn"],
            **self.parameters,
            examples=made["examples"] if "examples" in self.inputs else None,
            others=made["examples"] if "others" in self.inputs else None,
        )
        Pipeline(self.pipeline, [made, node])
        with tempfile.TemporaryDirectory() as root:
            inputs = {name: tuple(_laid_out(root, each) for each in found) for name, found in self.inputs.items()}
            plan = drive(node, Run(pipeline=self.pipeline, number=self.run), MemoryStore(), inputs, {}, cache=True)
        assert plan.key is not None, plan.reason
        return plan.key.digest


class Lake(Component):
    """Where the examples come from."""

    def run(self, *, examples: Output[Examples]) -> None: ...


def _examples(**facts: Any) -> Examples:
    known: dict[str, Any] = {"id": 1, "uri": "/lake/5", "span": 5, "content": "c1", **facts}
    return Examples(
        known["uri"],
        id=known["id"],
        name=known.get("name", f"taxi/Lake/examples/{known['span']}/{known['id']}"),
        created=known.get("created", datetime(2024, 1, 1, tzinfo=UTC)),
        content=known["content"],
        properties={"span": known["span"], "split_names": ["train"], **known.get("properties", {})},
    )


def _laid_out(root: str, examples: Examples) -> Examples:
    """The same below `root`, where its folder is: a driver refuses inputs that are not there."""
    folder = Path(f"{root}/{examples.uri}")
    folder.mkdir(parents=True, exist_ok=True)
    there = examples.as_kind(Examples)
    there.__dict__["uri"] = str(folder)
    return there


def _other_first(**facts: Any) -> Callable[[Setting], Setting]:
    """The first of the inputs is another in these respects."""
    return lambda setting: replace(setting, inputs={"examples": (_examples(**facts), *setting.inputs["examples"][1:])})


CHANGES: Mapping[str, Callable[[Setting], Setting]] = {
    "nothing": lambda setting: setting,
    "pipeline_name": lambda setting: replace(setting, pipeline="flights"),
    "node_id": lambda setting: replace(setting, node="Train2"),
    "executor_spec": lambda setting: replace(setting, component=Retrain),
    "executor_class": lambda setting: replace(setting, component=Retrain),
    "run_id": lambda setting: replace(setting, run=2),
    "parameters": lambda setting: replace(setting, parameters={"steps": 200, "rate": 0.1}),
    "parameter_order": lambda setting: replace(setting, parameters={"rate": 0.1, "steps": 100}),
    "module_content": lambda setting: replace(setting, module="def run_fn():\n    return 2\n"),
    "module_path": lambda setting: replace(setting, file="elsewhere/taxi_module.py"),
    "input_key": lambda setting: replace(setting, inputs={"others": setting.inputs["examples"]}),
    "input_order": lambda setting: replace(setting, inputs={"examples": setting.inputs["examples"][::-1]}),
    "input_artifact_order": lambda setting: replace(setting, inputs={"examples": setting.inputs["examples"][::-1]}),
    "input_artifact_id": _other_first(id=9, name="taxi/Lake/examples/5/1"),
    "input_artifact_name": _other_first(name="taxi/Lake/examples/5/9"),
    "input_artifact_timestamp": _other_first(created=datetime(2024, 1, 2, tzinfo=UTC)),
    "input_artifact_property": _other_first(properties={"version": 2}),
    "input_artifact_custom_property": _other_first(properties={"fingerprint": "other"}),
    "input_uri": _other_first(uri="/lake/elsewhere"),
    "output_key": lambda setting: replace(setting, component=TrainCandidate),
    "output_type": lambda setting: replace(setting, component=TrainGraph),
    "output_uri": lambda setting: replace(setting, run=3),  # each run has a place of its own for its outputs
}


def compare_keys(given: Mapping[str, Any]) -> dict[str, Any]:
    if given["change"] not in CHANGES:
        raise NotMapped(given["change"])
    return {"same_key": Setting().key == CHANGES[given["change"]](Setting()).key}


APIS = {"cache_key": compare_keys}
