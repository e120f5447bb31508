"""The ops: one file each, with the frozen dataclass that describes it and the stream that runs it."""
