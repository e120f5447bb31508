"""The consumer's side: the op that reads a job's elements from workers, and registers the dataset they come from."""
