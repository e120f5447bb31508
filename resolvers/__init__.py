"""Resolvers: which artifacts of past runs a run reads."""

from spanwise.resolvers.champion import Champion
from spanwise.resolvers.fixed import Fixed
from spanwise.resolvers.latest import Latest, LatestBlessed
from spanwise.resolvers.previous import Previous
from spanwise.resolvers.rolling_window import LatestSpans, RollingWindow, WindowSpan
from spanwise.resolvers.unseen_spans import UnseenSpans

__all__ = [
    "Champion",
    "Fixed",
    "Latest",
    "LatestBlessed",
    "LatestSpans",
    "Previous",
    "RollingWindow",
    "UnseenSpans",
    "WindowSpan",
]
