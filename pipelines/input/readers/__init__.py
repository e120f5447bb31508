"""Readers of text files, for datasets and for what ingests: one set of rules for both."""
