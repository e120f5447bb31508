"""Execution: runs the functions of a graph in threads or worker processes."""
