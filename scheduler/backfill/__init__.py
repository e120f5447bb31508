"""Backfills: mending the past. What is to be run again, in which order, on which window; and doing it."""
