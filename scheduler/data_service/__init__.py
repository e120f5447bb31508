"""Output of the command line about the data service and snapshots, and workers on Ray or Dask."""
