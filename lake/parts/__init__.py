"""The bytes of parts, as columns: from the lake's folder, the cache or the bucket, verified on the way."""

from lake.parts.access import OPEN_PARTS, Access
from lake.parts.chunk import Chunk, Raw, array_of, raw_of, width
from lake.parts.meter import Meter
from lake.parts.pool import Pool
from lake.parts.reader import PartReader
from lake.parts.views import Views, is_wide

__all__ = [
    "OPEN_PARTS",
    "Access",
    "Chunk",
    "Meter",
    "PartReader",
    "Pool",
    "Raw",
    "Views",
    "array_of",
    "is_wide",
    "raw_of",
    "width",
]
