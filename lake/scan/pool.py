"""Buffers that are used again, once nobody can see what was in them."""

from __future__ import annotations

import sys
import threading
from typing import Final

import numpy as np

from lake.parts import Raw

_ALIGN: Final = 64  # what processors and torch like best
_TRACKED: Final = 32  # buffers of one size that are looked at; others end with their last user


def _references(owners: list[np.ndarray], i: int) -> int:
    return sys.getrefcount(owners[i])


_IDLE: Final = _references(
    [np.empty(0, np.uint8)], 0
)  # how many references Python counts where there is no user


class Pool:
    """Memory for arrays of bytes. Thread-safe.

    A buffer is free when nothing refers to it: no view, no Arrow array, no tensor or view of a tensor. Who
    keeps only an address (`data_ptr()`) is not seen.
    """

    def __init__(self) -> None:
        self._owners: dict[int, list[np.ndarray]] = {}
        self._lock = threading.Lock()

    def take(self, rows: int, width: int) -> Raw:
        """An array [rows, width] with anything in it."""
        size = rows * width
        with self._lock:
            owner = self._free(-(-size // _ALIGN) * _ALIGN)
        start = -owner.ctypes.data % _ALIGN
        return owner[start : start + size].reshape(rows, width)

    def _free(self, size: int) -> np.ndarray:
        owners = self._owners.setdefault(size, [])
        for i in range(len(owners)):
            if _references(owners, i) == _IDLE:
                owners.append(owners.pop(i))
                return owners[-1]
        if len(owners) == _TRACKED:
            del owners[0]
        owners.append(np.empty(size + _ALIGN, np.uint8))
        return owners[-1]
