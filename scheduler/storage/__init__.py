"""Storage: what a root holds on disk, what may be deleted, and what is protected from deletion."""
