"""Profiling: where the time of one pass goes, and which change would make it faster."""
