"""Kept small until its modules land."""
