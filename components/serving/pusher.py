"""Pusher: copies a blessed model to where it is served, as a new version that appears atomically."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from spanwise.components.serving.bucket_push import push_to_bucket
from spanwise.components.serving.folder_push import push_to_folder
from spanwise.components.serving.judged import refuse_other_blessings
from spanwise.components.serving.pushed_versions import PushedVersion, PushRecord
from spanwise.components.serving.root_identity import read_identity
from spanwise.orchestrator.artifact import ArtifactArchive, Blessing, InfraBlessing, Model, PushedModel
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import NodeFailed, ParameterError
from spanwise.orchestrator.run import Trigger
from spanwise.orchestrator.signature import Attempt, Input, Output
from spanwise.orchestrator.storage import is_object_url, parse_url, refuse_url

log = logging.getLogger("spanwise.serving")

_WHY_NONE = {"blessing": ": an Evaluator that compares nothing with a threshold gives none"}


def find_refusal(verdicts: Mapping[str, int | None]) -> str | None:
    """Why a model must not be pushed; None if it may. Pure.

    `verdicts` has the connected inputs by name: 1 blessed, 0 not blessed, None without a verdict, as from an Evaluator
    without thresholds. Without connected inputs every model may be pushed (as in TFX).
    """
    for name, verdict in verdicts.items():
        if verdict is None:
            return f"{name} has no verdict{_WHY_NONE.get(name, '')}"
        if verdict != 1:
            return f"{name} is negative"
    return None


class Pusher(Component):
    """Copies a model to `destination/<version>/` if `blessing` and `infra_blessing`, where connected, are positive.

    Without connected blessings it pushes every model and logs a warning. A person's verdict on the model
    (`spanwise bless|unbless`) replaces `blessing`, connected or not. The version is the time in Unix seconds, or
    one above the highest existing version. A model that is not pushed does not fail the run: the output has `pushed` 0
    and the reason. The same model is not pushed twice in a row, unless its
    version was damaged, and a run as of an earlier time pushes nothing. With
    `keep_versions`, older versions of this pipeline beyond that number are removed; those of others stay.

    It never reuses a cached result. The output holds `push.json`, not a second copy of the model.
    """

    cacheable: ClassVar = False

    def check(self) -> None:
        if not self.parameters["destination"]:
            raise ParameterError(f"{self.name} needs a folder as destination, for example destination='serving'.")
        refuse_url(f"{self.name}.destination", str(self.parameters["destination"]), object_storage=True)
        keep = self.parameters["keep_versions"]
        if isinstance(keep, int) and keep < 1:
            raise ParameterError(f"{self.name}.keep_versions is {keep}; use 1 or more, or None to keep all versions.")
        refuse_other_blessings(self, "blessing", "infra_blessing")

    def run(
        self,
        *,
        model: Input[Model],
        blessing: Input[Blessing | None],
        infra_blessing: Input[InfraBlessing | None],
        pushed_model: Output[PushedModel],
        attempt: Attempt,
        destination: str,
        keep_versions: int | None = None,
    ) -> None:
        person = attempt.run.cause if attempt.run.trigger is Trigger.PUSH else None  # `spanwise push` asks the verdicts
        overruled = attempt.verdicts.get(model.name)
        inputs = {} if person else {"blessing": blessing, "infra_blessing": infra_blessing}
        connected = {name: verdict for name, verdict in inputs.items() if self.inputs[name]}
        if overruled is not None:
            connected.pop("blessing", None)
        reason = find_refusal({name: b.blessed if b is not None else None for name, b in connected.items()})
        if overruled is not None and not overruled.given:
            reason = f"{model.name} is {overruled}"
        if attempt.run.replay and attempt.run.as_of is not None:
            then = f"{attempt.run.as_of.astimezone():%Y-%m-%d %H:%M %Z}"
            reason = f"the run is a replay as of {then}, and a replay never pushes"
        pushed_model.model = model.name
        pushed_model.pushed = 0 if reason else 1
        version = None
        if reason:
            refusals = [verdict for verdict in connected.values() if verdict is not None and verdict.blessed != 1]
            reasons = [reason for verdict in refusals for reason in verdict.reasons or ()]
            pushed_model.reason = f"not pushed: {'; '.join([reason, *reasons])}"
            log.warning("push-refused", extra={"model": model.name, "reason": "; ".join([reason, *reasons])})
        else:
            if not connected and not person and overruled is None:
                log.warning("evaluation-skipped", extra={"model": model.name, "reason": "no blessing is connected"})
            home, root = _find_home(pushed_model.path.parents[2], model.archive)
            version, skipped = push(model, destination, attempt, home=home, root=root, keep_versions=keep_versions)
            pushed_model.reason = skipped or person
            pushed_model.pushed_version = str(version.version)
            pushed_model.pushed_destination = str(version.place)
            event = "push-skipped" if skipped else "model-pushed"
            log.info(event, extra={"folder": version.place, "reason": skipped or person or ""})
        facts = {**pushed_model.properties, "content": model.content, "record": version and version.record}
        (pushed_model.path / "push.json").write_text(json.dumps(facts, indent=2, default=asdict) + "\n")


def push(
    model: Model,
    destination: str | Path,
    attempt: Attempt,
    *,
    home: str,
    root: str = "",
    keep_versions: int | None = None,
) -> tuple[PushedVersion, str | None]:
    """Copies the model to a new version; returns that version, or an existing one with the reason to skip the push.

    `home` and `root` are those of the `PushRecord`.

    Raises:
        Fenced: the run has lost its pipeline to another; nothing was pushed.
        NodeFailed: the destination cannot be written, or the model is damaged; nothing was pushed.
    """
    mine = PushRecord(
        model=model.name,
        content=model.content,
        run=attempt.run.name,
        node=attempt.node,
        home=home,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        root=root,
        began=attempt.run.started.isoformat() if attempt.run.started is not None else "",
    )
    if is_object_url(str(destination)):
        return push_to_bucket(model, parse_url(str(destination)), attempt, mine, keep_versions=keep_versions)
    top, folder = Path(destination).expanduser(), attempt.run.folder
    if not top.is_absolute() and folder and not Path(folder).is_dir():
        raise NodeFailed(
            f"{attempt.node}: {destination} is relative to the folder of the run, {folder}, which is not on this "
            "machine. Give the destination as an absolute path that is, or as a URL."
        )
    return push_to_folder(model, top.absolute(), attempt, mine, keep_versions=keep_versions)


def _find_home(folder: Path, archive: ArtifactArchive | None) -> tuple[str, str]:
    """The home of a pipeline, and the identity of its root: the same on every host that sees the root."""
    if archive is None:
        return str(folder), read_identity(str(folder.parent))
    return f"{archive.url}/{folder.name}", archive.claimed_by() or ""
