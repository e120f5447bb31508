"""How a run goes: what to do next, doing it, recording it."""

__version__ = "0.1.0"
