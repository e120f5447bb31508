"""The client: the side of the data service that a trainer sees."""
