"""Evaluation: measures a model beside the one it would replace, and decides whether it is good enough."""
