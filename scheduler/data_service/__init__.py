"""Output of the command line about the data service and snapshots, and its workers on an engine."""
