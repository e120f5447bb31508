"""Snapshots: the elements of a dataset, stored under the fingerprint of its graph, written once and shared."""
