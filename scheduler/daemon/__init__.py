"""The daemon: the process that watches the clock and starts, follows and stops scheduled runs."""
