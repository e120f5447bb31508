"""The actions: what each asks for, what it will do, and the command that it is. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from spanwise.orchestrator.errors import UsageError
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.run_command import format_replayed, list_spans

Form: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class FormField:
    """One thing that a form asks for."""

    name: str
    label: str
    required: bool = True
    check: bool = False  #: yes or no
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Action:
    """One action."""

    name: str
    title: str
    does: str  #: what it will do, in a sentence
    fields: Sequence[FormField]
    command: Callable[[Form], list[str]]  #: the words after `spanwise`
    plan: Callable[[Form], list[str]] | None = None  #: the command that shows what it would do
    danger: bool = False

    def words(self, form: Form) -> list[str]:
        """The command of a form that was filled in.

        Raises:
            UsageError: something is missing.
        """
        for each in self.fields:
            if each.required and not form.get(each.name, "").strip():
                raise UsageError(f"{each.label} is missing.")
        return self.command({each.name: form.get(each.name, "") for each in self.fields})


_FILE = FormField(name="file", label="Pipeline file")
_PARAMS = FormField(name="params", label="Arguments", required=False, hint="such as window=7 'data=my data'")
_RUN = FormField(name="run", label="Run")
_MODEL = FormField(name="model", label="Model")
_BECAUSE = FormField(name="because", label="Why", hint="recorded, for whoever reads it in a year")
_SCHEDULE = FormField(name="pipeline", label="Schedule")


def _given(form: Form, name: str, option: str) -> list[str]:
    return [f"{option}={form[name].strip()}"] if form.get(name, "").strip() else []


def _arguments(form: Form) -> list[str]:
    """The arguments of the pipeline function, as a shell would split them."""
    try:
        return [f"--param={text}" for text in shlex.split(form.get("params", ""))]
    except ValueError as error:
        raise UsageError(f"Arguments: {error}. Write each as name=value, in quotes where it has a space.") from error


def _run(form: Form) -> list[str]:
    spans = [f"--span={span}" for span in form.get("span", "").split()]
    part = [*_given(form, "first", "--from"), *_given(form, "only", "--only")]
    excluded = [f"--exclude={span}" for span in form.get("exclude", "").split()]
    options = [*spans, *part, *_arguments(form), *excluded, *_given(form, "as_of", "--as-of")]
    return ["run", *options, "--", form["file"]]


def fill_run(run: Run) -> dict[str, str]:
    """The form that runs the pipeline of a run again as the run was asked for."""
    return {
        "file": run.source,
        "span": " ".join(list_spans(run)),
        "params": shlex.join(run.typed),
        "exclude": " ".join(run.exclude),
        "as_of": format_replayed(run),
    }


def _backfill(form: Form) -> list[str]:
    first, last = form.get("first", "").strip(), form.get("last", "").strip()
    what = ["--missed"] if form.get("missed") else ["--stale"] if form.get("stale") else []
    if first and not what:
        named = f"{node}={first}" if (node := form.get("node", "").strip()) else first
        what = [f"--span={named}..{last}" if last and last != first else f"--span={named}"]
    ticked = [name for name in ("train_once", "force", "skip_absent", "warm_start") if form.get(name)]
    options = [f"--{name.replace('_', '-')}" for name in ticked]
    return ["backfill", *what, *options, *_arguments(form), "--", form["file"]]


def _judge(word: str) -> Callable[[Form], list[str]]:
    def command(form: Form) -> list[str]:
        chosen = [f"--span={form['span'].strip()}", f"--because={form['because'].strip()}"]
        return [word, *chosen, *_given(form, "version", "--version"), "--", form["file"]]

    return command


def _about(*words: str, of: str) -> Callable[[Form], list[str]]:
    """A command about one thing, with a reason."""
    return lambda form: [*words, *_given(form, "because", "--because"), "--", form[of].strip()]


_SPAN = FormField(name="span", label="Span", hint="or A..B for all from A to B")

_ALL = (
    Action(
        name="run",
        title="Run a pipeline",
        does="Runs the pipeline for the span, or for the newest one; models that pass are pushed, as in every run.",
        fields=(
            _FILE,
            FormField(name="span", label="Span", required=False, hint="empty is the newest; or NODE=SPAN of each"),
            FormField(name="first", label="From node", required=False, hint="this node and all after it"),
            FormField(name="only", label="Only node", required=False),
            FormField(name="exclude", label="Excluded spans", required=False, hint="windows leave them out"),
            FormField(name="as_of", label="As of", required=False, hint="replays this moment: nothing newer is read"),
            _PARAMS,
        ),
        command=_run,
    ),
    Action(
        name="resume",
        title="Resume a run",
        does="Keeps the nodes that succeeded and runs the rest, for the same span and the arguments typed for it.",
        fields=(_RUN,),
        command=_about("resume", of="run"),
    ),
    Action(
        name="stop",
        title="Stop a run",
        does="Asks the run to end, waits, and kills what does not end. What its nodes have published stays.",
        fields=(_RUN,),
        command=_about("stop", of="run"),
        danger=True,
    ),
    Action(
        name="backfill",
        title="Backfill spans",
        does="Pauses the schedule, waits for the running run, runs each span at its newest version, oldest first.",
        fields=(
            _FILE,
            FormField(name="first", label="First span", required=False),
            FormField(name="last", label="Last span", required=False),
            FormField(name="node", label="Node", required=False, hint="whose spans these are, where several ingest"),
            _PARAMS,
            FormField(name="missed", label="All missed ticks", required=False, check=True),
            FormField(name="stale", label="All spans with a newer version", required=False, check=True),
            FormField(name="train_once", label="Train one model at the end", required=False, check=True),
            FormField(name="force", label="Include spans that no window reads", required=False, check=True),
            FormField(name="skip_absent", label="Skip spans without input", required=False, check=True),
            FormField(name="warm_start", label="Warm-start models", required=False, check=True),
        ),
        command=_backfill,
        plan=lambda form: [*_backfill(form)[:1], "--dry-run", *_backfill(form)[1:]],
    ),
    Action(
        name="accept",
        title="Accept a span",
        does="Windows read it from now on, whatever its gate says, until a new version comes.",
        fields=(
            _FILE,
            _SPAN,
            FormField(name="version", label="Version", required=False, hint="empty is the one that windows read"),
            _BECAUSE,
        ),
        command=_judge("accept"),
    ),
    Action(
        name="refuse",
        title="Refuse a span",
        does="No window reads it from now on. Models that learned from it stay; they are listed.",
        fields=(
            _FILE,
            _SPAN,
            FormField(name="version", label="Version", required=False, hint="empty is the one that windows read"),
            _BECAUSE,
        ),
        command=_judge("refuse"),
        danger=True,
    ),
    Action(
        name="bless",
        title="Bless a model",
        does="It may be pushed, and be the champion, whatever its Evaluator says.",
        fields=(_MODEL, _BECAUSE),
        command=_about("bless", of="model"),
    ),
    Action(
        name="unbless",
        title="Take the blessing of a model back",
        does="The champion before it is compared with from now on. What serves stays: push another to roll back.",
        fields=(_MODEL, _BECAUSE),
        command=_about("unbless", of="model"),
        danger=True,
    ),
    Action(
        name="push",
        title="Push a model",
        does="It becomes the version that serves, in a run of the Pusher alone. This is how to roll back.",
        fields=(
            _MODEL,
            FormField(name="node", label="Node", required=False, hint="the Pusher, where several read the model"),
            _BECAUSE,
        ),
        command=lambda form: ["push", *_given(form, "node", "--node"), *_about(of="model")(form)],
        danger=True,
    ),
    Action(
        name="pause",
        title="Pause a schedule",
        does="No scheduler takes its ticks; they are recorded as missed. A running run goes on.",
        fields=(
            _SCHEDULE,
            _BECAUSE,
            FormField(
                name="until", label="Until", required=False, hint="such as 2026-03-02T06:00, in the schedule's zone"
            ),
        ),
        command=lambda form: [
            "schedule", "pause", f"--because={form['because'].strip()}", *_given(form, "until", "--until"), "--",
            form["pipeline"].strip(),
        ],
    ),
    Action(
        name="unpause",
        title="Resume a schedule",
        does="Schedulers take its ticks again; those that fell into the pause are missed.",
        fields=(_SCHEDULE,),
        command=_about("schedule", "resume", of="pipeline"),
    ),
    Action(
        name="tick",
        title="Run what is due",
        does="Runs the ticks that are due, as a scheduler would, and ends. A scheduler that is started goes on.",
        fields=(_FILE,),
        command=_about("schedule", "tick", of="file"),
    ),
    Action(
        name="acknowledge",
        title="Give up missed ticks",
        does="They need no backfill any more, and are no longer listed.",
        fields=(
            _SCHEDULE,
            FormField(name="span", label="Span", required=False, hint="or A..B for all from A to B"),
            FormField(name="tick", label="Or tick", required=False, hint="its name, for this one alone"),
            _BECAUSE,
        ),
        command=lambda form: [
            "schedule", "acknowledge", *_given(form, "span", "--span"), *_given(form, "tick", "--tick"),
            f"--because={form['because'].strip()}", "--", form["pipeline"].strip(),
        ],
    ),
    Action(
        name="pin",
        title="Pin an artifact",
        does="Garbage collection keeps it, and what it needs, until it is unpinned.",
        fields=(FormField(name="artifact", label="Artifact"), _BECAUSE),
        command=_about("pin", of="artifact"),
    ),
    Action(
        name="unpin",
        title="Unpin an artifact",
        does="Garbage collection may remove it again.",
        fields=(FormField(name="artifact", label="Artifact"),),
        command=_about("unpin", of="artifact"),
    ),
    Action(
        name="gc",
        title="Plan a garbage collection",
        does="Shows what would be removed, and removes nothing.",
        fields=(FormField(name="pipeline", label="Pipeline", required=False, hint="empty is all"),),
        command=lambda form: ["gc", "--dry-run", *(["--", name] if (name := form.get("pipeline", "").strip()) else [])],
    ),
)  # fmt: skip

ACTIONS: Mapping[str, Action] = {action.name: action for action in _ALL}
