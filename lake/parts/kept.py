"""Decoded columns that are likely to be asked for again, within a number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable

from lake.parts.chunk import Chunk


class Kept:
    """Chunks by name, the least recently used of which go. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes = limit, 0
        self._chunks: OrderedDict[Hashable, Chunk] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: Hashable) -> Chunk | None:
        """What is kept under a name."""
        with self._lock:
            found = self._chunks.get(name)
            if found is not None:
                self._chunks.move_to_end(name)
            return found

    def put(self, name: Hashable, chunk: Chunk) -> None:
        """Keep a chunk; what has no room with it goes."""
        with self._lock:
            if name not in self._chunks:
                self._chunks[name] = chunk
                self._bytes += chunk.array.nbytes
            while self._bytes > self._limit:
                self._bytes -= self._chunks.popitem(last=False)[1].array.nbytes
