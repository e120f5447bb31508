"""Serving: checks that a model can be served, pushes it, and runs batch inference."""
