"""The ledger: what the metadata store records of ticks, pauses and schedulers."""
