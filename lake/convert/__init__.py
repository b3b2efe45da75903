"""From whatever holds a user's data to a stream of Arrow record batches. Stores and commits nothing."""

from lake.convert.grouped import SortedByClass
from lake.convert.read import read
from lake.convert.source import Source

__all__ = ["SortedByClass", "Source", "read"]
