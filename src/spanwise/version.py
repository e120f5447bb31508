"""The version of spanwise, where modules can have it without the whole package."""

__version__ = "0.1.0"
