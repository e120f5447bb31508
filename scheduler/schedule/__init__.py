"""Schedules: which ticks there are, what each one means, and what follows from them. Pure: starts no run."""
