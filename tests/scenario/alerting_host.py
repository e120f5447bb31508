"""A host that raises and delivers alerts: a process that does what it is told on stdin, a line for each.

    put KIND SUBJECT [CAUSE]   `record` instead: only where every host sees it
    deliver
    retry S                    how long from now on it makes requests again while the storage is away

It says the id of its process first. Each line is answered by one, a report. Its clock is so many seconds ahead. It counts itself as a machine of its own.

Without arguments it is the process that sends for a host: a warm one, as importing Apprise takes half a second.
"""

import json
import os
import shlex
import subprocess
import sys
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

from spanwise.orchestrator import process
from spanwise.scheduler.alerts import channel, outbox, outbox_bucket
from spanwise.scheduler.alerts.alert import Alert
from spanwise.scheduler.alerts.channel import read_routes
from spanwise.scheduler.project import child_process
from spanwise.scheduler.project.settings import AlertSettings


def main(place: str, url: str, name: str, ahead_s: str, lease_s: str) -> None:
    process.machine = lambda: name
    outbox_bucket.LEASE_S = float(lease_s)
    outbox_bucket.AWAY_S = 0.0
    channel._start_sender = start_sender
    routes = read_routes(AlertSettings(urls=(url,)))
    say(str(os.getpid()))
    for line in sys.stdin:
        command, *words = shlex.split(line)
        now = datetime.now(UTC) + timedelta(seconds=float(ahead_s))
        if command == "deliver":
            report = asdict(outbox.deliver(place, routes, now))
        elif command == "retry":
            outbox_bucket.PATIENCE = timedelta(seconds=float(words[0]))
            report = {}
        else:
            kind, subject, cause = [*words, "failure flights"][:3]
            alert = Alert(kind=kind, pipeline="flights", cause=cause, subject=subject, at=now)
            report = {"stored": outbox.put(place, alert, spool=command == "put")}
        say(json.dumps(report, default=str))


def start_sender() -> subprocess.Popen[bytes]:
    words = child_process.command("tests.scenario.alerting_host")
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(words, start_new_session=True, **streams)


def send() -> None:
    process.die_with_parent = lambda _parent: None  # its parent is the server of warm commands
    sys.argv.append("0")
    channel.main()


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:] else send()
