"""Datasets that are made elsewhere: a dispatcher deals out work, workers run graphs, consumers read what these give."""
