"""Tuning: measures a running graph and chooses its settings."""
