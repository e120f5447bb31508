"""Snapshots: the elements of a dataset kept on disk under the fingerprint of its graph, written once and shared."""
