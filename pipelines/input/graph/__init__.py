"""Graphs: how a dataset's graph is rewritten and fingerprinted."""
