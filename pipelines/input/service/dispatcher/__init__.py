"""The dispatcher: knows datasets, jobs and workers, and hands out the work."""
