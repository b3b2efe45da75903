"""Files kept on this machine's disk within a budget, shared by all its processes.

>>> import tempfile, hashlib
>>> data = b"a small immutable document"
>>> cache = Cache(tempfile.mkdtemp(), 1_000_000)
>>> cache.blob(hashlib.sha256(data).hexdigest(), lambda: data) == data
True
>>> cache.used, cache.counters.misses
(26, 1)
>>> cache.close()
"""

from lake.cache.cache import DOWNLOADS, Cache, Counters, Entry
from lake.cache.eviction import Needs
from lake.cache.groups import Reservation
from lake.cache.lease import Lease
from lake.cache.sink import Memory, Pieces, Sink
from lake.cache.slots import Slots

__all__ = [
    "DOWNLOADS",
    "Cache",
    "Counters",
    "Entry",
    "Lease",
    "Memory",
    "Needs",
    "Pieces",
    "Reservation",
    "Sink",
    "Slots",
]
