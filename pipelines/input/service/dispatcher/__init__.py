"""The dispatcher: knows datasets, jobs, consumers and workers, and hands out the work. Knows no element."""
