"""Which artifacts of past runs a run reads."""

from resolvers.fixed import Fixed
from resolvers.latest import Latest, LatestBlessed
from resolvers.previous import Previous
from resolvers.rolling_window import LatestSpans, RollingWindow, WindowSpan

__all__ = ["Fixed", "Latest", "LatestBlessed", "LatestSpans", "Previous", "RollingWindow", "WindowSpan"]
