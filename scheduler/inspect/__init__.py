"""Inspection: answers about runs, artifacts, windows and lineage. Reads only."""
