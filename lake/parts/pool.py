"""Buffers that are used again, once nobody can see what was in them."""

from __future__ import annotations

import sys
import threading
from typing import Final

import numpy as np

from lake.parts.chunk import Raw

_ALIGN: Final = 64  # what processors and torch like best
_TRACKED: Final = 32  # buffers of one size that are looked at; others end with their last user


class _Buffer:
    """Memory, and the aligned part of it that is handed out."""

    __slots__ = ("memory", "view")

    def __init__(self, size: int) -> None:
        self.memory = np.empty(size + _ALIGN, np.uint8)
        start = -self.memory.ctypes.data % _ALIGN
        self.view = self.memory[start : start + size]

    @property
    def references(self) -> int:
        """How many refer to the memory: views of views refer to it, too, not to each other."""
        return sys.getrefcount(self.memory)


_IDLE: Final = _Buffer(0).references  # where there is no user


class Pool:
    """Memory for arrays of bytes. Thread-safe.

    A buffer is free when nothing refers to it: no view, no Arrow array, no tensor or view of a tensor. Who
    keeps only an address (`data_ptr()`) is not seen.
    """

    def __init__(self) -> None:
        self._buffers: dict[int, list[_Buffer]] = {}
        self._lock = threading.Lock()

    def take(self, rows: int, width: int) -> Raw:
        """An array [rows, width] with anything in it."""
        size = rows * width
        with self._lock:
            return self._free(_capacity(size)).view[:size].reshape(rows, width)

    def _free(self, size: int) -> _Buffer:
        buffers = self._buffers.setdefault(size, [])
        for buffer in buffers:  # always the same ones first: they are in the processor's cache
            if buffer.references == _IDLE:
                return buffer
        if len(buffers) == _TRACKED:
            del buffers[0]
        buffers.append(_Buffer(size))
        return buffers[-1]


def _capacity(size: int) -> int:
    """The size of buffer for so many bytes: few different ones, and at most an eighth too large.

    >>> _capacity(1000), _capacity(1 << 20), _capacity((1 << 20) + 1)
    (1024, 1048576, 1179648)
    """
    step = max(_ALIGN, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step
