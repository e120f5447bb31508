"""Transform: turns examples into features, and keeps the graph that does the same in serving."""
