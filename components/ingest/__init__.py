"""Ingest: turns the source data of one span into examples."""
