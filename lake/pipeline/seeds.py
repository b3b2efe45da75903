"""Randomness that is the same on every machine: seeds, words made of them, numbers in [0, 1)."""

from __future__ import annotations

import hashlib
import operator
import secrets
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lake.plan.permutation import key, keys

_BLOCK = 512  # numbers drawn at a time


def seeded(*parts: Any) -> int:
    """A 64-bit number that depends on the parts alone: integers, floats, strings, bytes, None, tuples of these.

    The same in every process, on every machine and in every release.

    >>> seeded("split", 7) == seeded("split", 7), seeded("split", 7) == seeded("split", "7")
    (True, False)
    """
    return int.from_bytes(hashlib.sha256(b"".join(_encoded(parts))).digest()[:8], "little")


def seeded_rng(*parts: Any) -> np.random.Generator:
    """A NumPy generator seeded with `seeded(*parts)`."""
    return np.random.default_rng(seeded(*parts))


def _encoded(part: Any) -> Iterator[bytes]:
    """Each part as a letter for its type, its length, and its bytes: no two sequences of parts are alike."""
    if isinstance(part, tuple):
        yield b"t" + struct.pack("<Q", len(part))
        for each in part:
            yield from _encoded(each)
        return
    if isinstance(part, np.generic):
        part = part.item()
    if part is None:
        letter, data = b"n", b""
    elif isinstance(part, int):
        letter, data = b"i", str(int(part)).encode()
    elif isinstance(part, float):
        letter, data = b"f", struct.pack("<d", part)
    elif isinstance(part, str):
        letter, data = b"s", part.encode()
    elif isinstance(part, bytes):
        letter, data = b"b", part
    else:
        raise TypeError(
            f"a seed is made of numbers, strings, bytes, None and tuples, not {type(part).__name__}"
        )
    yield letter + struct.pack("<Q", len(data)) + data


@dataclass(frozen=True)
class Seed:
    """A seed, and whether nobody chose it."""

    value: int
    drawn: bool

    @classmethod
    def of(cls, seed: int | None) -> Seed:
        """The seed given, or one drawn now."""
        if seed is None:
            return cls(secrets.randbits(63), True)
        try:
            value = operator.index(seed)
        except TypeError:
            raise TypeError(f"a seed is a whole number or None, not {seed!r}") from None
        if not -(2**63) <= value < 2**64:
            raise ValueError(f"a seed has 64 bits: {seed}")
        return cls(value, False)

    def __str__(self) -> str:
        return f"seed={self.value}"


def word(seed: Seed, purpose: int, tag: Any) -> int:
    """A 64-bit word for a use of a seed, about an item or an epoch."""
    return key(seed.value, purpose, *_flat(tag))


def unit(word: int) -> float:
    """A number in [0, 1) made of a word."""
    return float((word >> 11) * 2.0**-53)


def _flat(tag: Any) -> Iterator[int]:
    if isinstance(tag, tuple):
        yield len(tag)
        for part in tag:
            yield from _flat(part)
    else:
        yield tag


class Draws:
    """Numbers in [0, 1) by their index: an endless random sequence that can be entered anywhere."""

    def __init__(self, word: int) -> None:
        self._word = word
        self._first, self._block = 0, list[float]()

    def __getitem__(self, index: int) -> float:
        place = index - self._first
        if not 0 <= place < len(self._block):
            self._first, place = index, 0
            self._block = self.many(index, _BLOCK).tolist()
        return self._block[place]

    def many(self, first: int, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The numbers with the indexes [first, first + count)."""
        hashes = keys(self._word, np.arange(first, first + count, dtype=np.int64))
        numbers: np.ndarray[Any, np.dtype[np.float64]] = np.multiply(hashes >> np.uint64(11), 2.0**-53)
        return numbers
