"""About how much memory an item takes: what bounds buffers by bytes."""

from __future__ import annotations

import sys
from typing import Any, Final

_DEEP: Final = 4  # levels of containers that are looked into
_WIDE: Final = 64  # members of a container; the rest is taken to be like these


def size_of(item: Any, levels: int = _DEEP) -> int:
    """Bytes of an item and what it holds, about: strings, bytes, arrays and tensors count in full."""
    size = getattr(item, "nbytes", None)  # arrays, tensors, memoryviews, Arrow
    if isinstance(size, int):
        return size + 100
    own = sys.getsizeof(item, 64)
    if not levels or isinstance(item, str | bytes | bytearray | int | float) or item is None:
        return own
    if isinstance(item, dict):
        return own + _members(list(item.values()), levels)
    if isinstance(item, list | tuple | set | frozenset):
        return own + _members(list(item) if not isinstance(item, list) else item, levels)
    inner = getattr(item, "__dict__", None)
    return own + (_members(list(inner.values()), levels) if isinstance(inner, dict) else 0)


def _members(members: list[Any], levels: int) -> int:
    if len(members) <= _WIDE:
        return sum(size_of(each, levels - 1) for each in members)
    looked = members[:: len(members) // _WIDE]
    return sum(size_of(each, levels - 1) for each in looked) * len(members) // len(looked)
