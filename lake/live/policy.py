"""When a batch is made, and what follows when handing it over fails. Pure."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from lake.config import parse_bytes, parse_duration
from lake.errors import CommitStateUnknown

MOST_FILES = 10_000  # of a batch
MOST_BYTES = 1 << 30
TRIES = 5
_PATIENCE = 60.0  # seconds after which less than a full batch is handed over
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds before a batch is tried again
_TRANSIENT = {errno.ENOSPC, errno.EDQUOT, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EMFILE, errno.ENFILE}


@dataclass(frozen=True, slots=True)
class Every:
    """How often there is a batch: after so many seconds, or as soon as there are so many bytes."""

    seconds: float
    bytes: int | None = None

    @classmethod
    def of(cls, every: float | str) -> Every:
        """What a user wrote: "10s", 10, or "64MB", which also ends after a minute.

        >>> Every.of("10s"), Every.of("64MB")
        (Every(seconds=10.0, bytes=None), Every(seconds=60.0, bytes=64000000))

        Raises:
            ValueError: it is neither a duration nor a size.
        """
        if not isinstance(every, str):
            return cls(parse_duration(every))
        try:
            return cls(parse_duration(every))
        except ValueError:
            pass
        try:
            size = parse_bytes(every)
        except ValueError:
            size = None
        if not size or every.strip().isdecimal():
            raise ValueError(f"every={every!r} is no duration such as '10s' and no size such as '64MB'")
        return cls(_PATIENCE, size)

    def due(self, waited: float, size: int) -> bool:
        """Whether there is a batch: so long after the last one, of so many bytes that have arrived."""
        return waited >= self.seconds or (self.bytes is not None and size >= self.bytes)


def transient(error: BaseException) -> bool:
    """Whether the cause lies outside of the batch and may pass, so that trying again can only help."""
    if isinstance(error, CommitStateUnknown) or getattr(error, "retryable", False):
        return True
    return isinstance(error, OSError) and error.errno in _TRANSIENT


def pause(failures: int) -> float:
    """Seconds until a batch that failed so often is tried again.

    >>> [pause(n) for n in (1, 2, 3, 9)]
    [1.0, 2.0, 4.0, 30.0]
    """
    return min(_FIRST_PAUSE * 2.0 ** min(failures - 1, 16), _LONGEST_PAUSE)
