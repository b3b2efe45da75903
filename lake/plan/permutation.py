"""Permutations that are frozen: the same key gives the same order on every machine, for ever.

Saved positions count on it, so nothing here comes from a library's generator, whose streams may change. A
change of any value is a new `ALGORITHM`, which positions name; golden tests pin the values.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

ALGORITHM: Final = 1

Ints: TypeAlias = npt.NDArray[np.int64]
Hashes: TypeAlias = npt.NDArray[np.uint64]

_MASK: Final = 2**64 - 1
_GAMMA: Final = 0x9E3779B97F4A7C15
_MIX: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_ROUNDS: Final = 6  # of the bijection; an even number, so that its halves end where they began


def mix(values: Hashes) -> Hashes:
    """The finaliser of splitmix64, a bijection of 64-bit words."""
    mixed = values
    for shift, factor in _MIX:
        mixed = mixed ^ (mixed >> np.uint64(shift))
        mixed *= np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def key(*parts: int) -> int:
    """One 64-bit word for a sequence of integers; each is taken modulo 2**64.

    >>> hex(key(0))
    '0xe220a8397b1dcdaf'
    """
    word = 0
    for part in parts:
        word = ((word ^ (part & _MASK)) + _GAMMA) & _MASK
        for shift, factor in _MIX:
            word = ((word ^ (word >> shift)) * factor) & _MASK
        word ^= word >> 31
    return word


def keys(prefix: int, last: Ints) -> Hashes:
    """`key(..., x)` for each x of `last`, where `prefix` is the key of what comes before it."""
    return mix((last.astype(np.uint64) ^ np.uint64(prefix)) + np.uint64(_GAMMA))


def permutation(word: int, size: int) -> Ints:
    """The numbers below `size`, ordered by splitmix64 started at `word`. Its outputs are distinct: no ties.

    >>> permutation(key(7), 5).tolist()
    [4, 2, 3, 1, 0]
    """
    steps = np.arange(1, size + 1, dtype=np.uint64)
    steps *= np.uint64(_GAMMA)
    steps += np.uint64(word)
    return np.argsort(mix(steps)).astype(np.int64, copy=False)


def bijection(word: int, size: int, positions: Ints) -> Ints:
    """What a permutation of the numbers below `size` has at `positions`, without computing the rest.

    A Feistel network over the least sufficient number of bits; what falls outside walks on until inside,
    twice on average at most. Meant for large sizes: small ones do not give it enough bits to be even.
    """
    bits = max(2, (size - 1).bit_length())
    widths = bits // 2, bits - bits // 2
    words = [np.uint64(key(word, i)) for i in range(_ROUNDS)]
    result = _feistel(positions.astype(np.uint64), widths, words)
    outside = np.flatnonzero(result >= np.uint64(size))
    while outside.size:
        walked = _feistel(result[outside], widths, words)
        result[outside] = walked
        outside = outside[walked >= np.uint64(size)]
    return result.astype(np.int64)


def _feistel(values: Hashes, widths: tuple[int, int], words: list[np.uint64]) -> Hashes:
    high, low = widths
    left, right = values >> np.uint64(low), values & np.uint64((1 << low) - 1)
    for word in words:
        left, right = right, left ^ (mix(right + word) & np.uint64((1 << high) - 1))
        high, low = low, high
    return (left << np.uint64(low)) | right
