"""Runs started by a person: launching, resuming, stopping and following them."""
