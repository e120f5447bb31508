"""`spanwise` for tests that send alerts: it looks for what to send, and tries again, every other second."""

import sys

from spanwise.scheduler.alerts import outbox, outbox_bucket
from spanwise.scheduler.daemon import scheduler_alerts
from spanwise.scheduler.main import main

if __name__ == "__main__":
    outbox.FIRST_WAIT_S = 2.0
    outbox_bucket.LOOK_S = 1.0
    scheduler_alerts.DELIVER_S = 0.5
    sys.exit(main(sys.argv[1:]))
