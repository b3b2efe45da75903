"""Rows of a dataset as samples, one by one: where a pipeline begins.

source         all rows in the order of a plan
drawn, lots    rows drawn at random, by weights or by shares of a column's values
values         columns as Python values
"""

from lake.samples.drawn import Drawn
from lake.samples.source import Samples

__all__ = ["Drawn", "Samples"]
