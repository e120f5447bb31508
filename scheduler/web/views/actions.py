"""Actions: a form that says what will be done, the job that does it, and what was asked for so far."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from spanwise.orchestrator.digest import digest
from spanwise.orchestrator.errors import NotRecorded, SpanwiseError, UsageError
from spanwise.orchestrator.run import go_to
from spanwise.scheduler.client.commands import run_text
from spanwise.scheduler.client.folders import locate
from spanwise.scheduler.web.actions.catalog import ACTIONS, Action
from spanwise.scheduler.web.actions.jobs import list_requests, number_of_job, read_job, start_job
from spanwise.scheduler.web.pages import Page, make_url
from spanwise.scheduler.web.site import Ask, WebSite

_LISTED = 100
_PLAN_S = 120.0


@dataclass(frozen=True)
class Redirected(Exception):
    """The answer is another page."""

    where: str


def _find(name: str) -> Action:
    if name not in ACTIONS:
        raise NotRecorded(f"There is no action {name!r}; the actions are: {', '.join(ACTIONS)}.")
    return ACTIONS[name]


def format_command(site: WebSite, words: Sequence[str]) -> str:
    """A command as a person types it, with the folder in which it is typed where that is not the server's."""
    folder, typed = locate(site.store, words, site.root)
    return f"{go_to(str(folder or ''))}{shlex.join(['spanwise', *typed])}"


def show_action(site: WebSite, ask: Ask) -> Page:
    """The form of an action; a POST plans it or starts it. Where another plan was shown than is made now, this one is.

    Raises:
        Redirected: it was started.
        UsageError: the reader may only look.
    """
    action = _find(ask.path["action"])
    values = {f.name: (ask.form or ask.query).get(f.name, "") for f in action.fields}
    plan, shown, trouble, changed = "", "", "", False
    if ask.form:
        if not ask.may_act or ask.visit is None:
            raise UsageError("You may look, not act: the token of an operator is needed.")
        try:
            words = action.words(values)
            starts = action.plan is None or ask.form.get("step") == "start"
            if action.plan is not None:
                folder, planned = locate(site.store, action.plan(values), site.root)
                plan = run_text(site.client.session, planned, folder=folder, limit_s=_PLAN_S)
                shown = digest("planned", format_command(site, words), plan)
                changed = starts and ask.form.get("planned") != shown
            if starts and not changed:
                number = start_job(site, words, ask.visit.person)
                raise Redirected(make_url("jobs", number))
        except SpanwiseError as error:
            trouble = str(error)
    try:
        command = format_command(site, action.words(values))
    except (SpanwiseError, KeyError):
        command = ""
    facts = {
        "action": action,
        "values": values,
        "plan": plan,
        "planned": shown,
        "changed": changed,
        "trouble": trouble,
        "command": command,
        "may_act": ask.may_act,
    }
    return Page("action.html", action.title, facts, status=400 if trouble else 200)


def show_job(site: WebSite, ask: Ask) -> Page:
    """What a command prints, live."""
    job = read_job(site, number_of_job(ask.path["number"]))
    return Page("job.html", job.request.line, {"job": job}, tab="activity")


def show_activity(site: WebSite, _ask: Ask) -> Page:
    """What was asked for on the page, newest first."""
    requests = list_requests(site.store, _LISTED)
    jobs = [read_job(site, asked.number) for asked in requests]
    return Page("activity.html", "Activity", {"jobs": jobs, "actions": ACTIONS.values()}, tab="activity")
