"""Rows of a dataset as samples, one by one: where a pipeline begins."""

from lake.samples.source import Samples

__all__ = ["Samples"]
