"""The project: the pipeline file, the settings and the root that a command works with."""
