"""The bytes of parts, as columns: from the lake's folder, the cache or the bucket, verified on the way."""

from lake.parts.chunk import Chunk, Raw, array_of, raw_of, width
from lake.parts.meter import Meter
from lake.parts.reader import PartReader, located

__all__ = ["Chunk", "Meter", "PartReader", "Raw", "array_of", "located", "raw_of", "width"]
