"""When and why a run starts, and what happens if the last one has not ended; the command line.

Nothing is imported here: `spanwise --help` passes by.
"""
