"""Elastic training: a job cut into tasks, a master that hands them out, workers that come and go."""
