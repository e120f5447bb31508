"""Saves: workers write a snapshot of a dataset together."""
