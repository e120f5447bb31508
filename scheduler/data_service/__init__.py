"""The data service and snapshots as the command line shows them, and workers on Ray or Dask."""
