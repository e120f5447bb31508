"""The worker: runs the graphs of jobs and answers consumers with their elements. Knows no job but its own tasks."""
