"""Actions: what a reader may have done, as the command that does it, in a process that outlives the page."""
