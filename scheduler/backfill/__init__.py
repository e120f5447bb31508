"""Backfills: which past spans to run again, in which order and with which windows; and running them."""
