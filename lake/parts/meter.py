"""What reading has cost so far."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields


@dataclass
class Meter:
    """Counts that any thread may add to."""

    bytes_fetched: int = 0  # from the store
    requests: int = 0  # to the store
    bytes_from_cache: int = 0
    batches: int = 0  # handed out
    rows: int = 0  # handed out
    decode_seconds: float = 0.0  # of all threads together: mapping, decompressing, verifying
    stall_seconds: float = 0.0  # that the consumer waited

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def add(self, **more: float) -> None:
        """Add to the counts that are named."""
        with self._lock:
            for name, amount in more.items():
                setattr(self, name, getattr(self, name) + amount)

    def counts(self) -> dict[str, float]:
        """All counts by name."""
        with self._lock:
            return {field.name: getattr(self, field.name) for field in fields(self)}
