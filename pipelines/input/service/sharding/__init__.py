"""Sharding: which part of a dataset is whose. Knows graphs and split numbers; no job, no worker."""
