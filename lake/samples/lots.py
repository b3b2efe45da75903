"""Which rows are drawn: pure functions of the rows, their weights or strata, a seed and an epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from lake.pipeline.seeds import Draws, Seed, word
from lake.plan.permutation import Ints, key, keys, permutation

STRETCH: Final = 64  # draws among which each stratum has its share, to within one

_ROW, _SHIFT, _ORDER, _PASS = range(3, 7)  # what a word of the seed is for

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, eq=False)
class Weighted:
    """Rows with replacement, each draw on its own: a row's chance is its weight's part of all."""

    rows: Ints
    weights: Floats

    def order(self, seed: Seed, epoch: int, size: int) -> Ints:
        """The rows drawn in an epoch."""
        edges = np.cumsum(self.weights)
        edges /= edges[-1]
        points = Draws(word(seed, _ROW, epoch)).many(0, size)
        return self.rows[np.searchsorted(edges[:-1], points, side="right")]


@dataclass(frozen=True, eq=False)
class Stratified:
    """Rows of strata by their shares; of one stratum each row once before any comes again.

    Whatever 64 draws in a row from a multiple of 64 on: each stratum has its share of them, rounded up or down.
    """

    strata: Sequence[Ints]  # the rows of each
    shares: Sequence[float]

    def order(self, seed: Seed, epoch: int, size: int) -> Ints:
        """The rows drawn in an epoch."""
        chosen = self._chosen(seed, epoch, size)
        drawn = np.empty(size, np.int64)
        for place, rows in enumerate(self.strata):
            at = np.flatnonzero(chosen == place)
            passes = range(-(-len(at) // len(rows)))
            lots = [rows[permutation(key(word(seed, _PASS, epoch), place, n), len(rows))] for n in passes]
            drawn[at] = np.concatenate([*lots, rows[:0]])[: len(at)]
        return drawn

    def _chosen(self, seed: Seed, epoch: int, size: int) -> Ints:
        """The stratum of each draw: evenly spaced points of each stretch, in random order."""
        stretches = -(-size // STRETCH)
        shifts = Draws(word(seed, _SHIFT, epoch)).many(0, stretches)
        points = (np.arange(STRETCH) + shifts[:, None]) / STRETCH
        edges = np.cumsum(self.shares) / np.sum(self.shares)
        even = np.searchsorted(edges[:-1], points, side="right")
        dice = keys(word(seed, _ORDER, epoch), np.arange(stretches * STRETCH)).reshape(even.shape)
        mixed = np.take_along_axis(even, np.argsort(dice, axis=1), axis=1)
        return mixed.reshape(-1)[:size]


def strata_of(
    rows: Ints, codes: Ints, values: Sequence[Any], shares: Mapping[Any, float] | None
) -> Stratified:
    """Strata of rows by their codes, which number `values`: in equal shares, or those given to the values.

    Raises:
        ValueError: a share for a value that no row has.
    """
    ends = np.cumsum(np.bincount(codes, minlength=len(values)))
    groups = np.split(rows[np.argsort(codes, kind="stable")], ends[:-1])
    present = {value: group for value, group in zip(values, groups, strict=True) if len(group)}
    if shares is None:
        return Stratified(list(present.values()), [1.0] * len(present))
    absent = [value for value, share in shares.items() if share and value not in present]
    if absent:
        raise ValueError(f"no row has the value {absent[0]!r}; there are {', '.join(map(repr, present))}")
    kept = [(present[value], share) for value, share in shares.items() if share]
    return Stratified([group for group, _ in kept], [share for _, share in kept])
