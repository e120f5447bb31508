"""The worker: runs the graphs of jobs ahead of the consumers."""
