"""The web page: what the metadata knows, to look at and to act on. Needs the extra `spanwise[ui]`."""
