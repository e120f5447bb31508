"""Reports: pages that a browser shows from the disk, with everything in one file and nothing from the network."""

from spanwise.components.report.page import Cell, ReportPage, escaped
from spanwise.components.report.plot import Line, Series, bars, histogram, lines

__all__ = ["Cell", "Line", "ReportPage", "Series", "bars", "escaped", "histogram", "lines"]
