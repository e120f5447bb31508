"""Training: runs a user's training function on a window, in one process or several."""
