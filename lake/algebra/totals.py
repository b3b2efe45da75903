"""The exact total of numbers that occur many times, whatever their order: nothing is rounded until the end.

A double is an integer times a power of two. The integers are cut into limbs of 18 bits and their counts into limbs
of 16, so that the products of half a million of them add up exactly in doubles, exponent by exponent; Python's
integers put the limbs together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]

_LIMB, _ROWS_LIMB, _AT_ONCE = 18, 16, 2**19  # 18 + 16 + 19 bits are the 53 of a double
_MANTISSA = 53


def total(values: pa.Array, rows: Ints) -> Fraction | float:
    """The sum of numbers without nulls, of which `rows[i]` rows have the i-th.

    A float only where there is no number: NaN, or an infinity.

    >>> total(pa.array([1e308, 1.0, -1e308]), np.array([5, 3, 5]))
    Fraction(3, 1)
    """
    if pa.types.is_decimal(values.type):
        return _of_decimals(values.to_pylist(), rows)
    if pa.types.is_floating(values.type):
        return _of_floats(values.cast(pa.float64()).to_numpy(), rows)
    wide = pa.uint64() if pa.types.is_uint64(values.type) else pa.int64()
    return Fraction(_of_integers(values.cast(wide).to_numpy(zero_copy_only=False), rows))


def _of_integers(numbers: npt.NDArray[Any], rows: Ints) -> int:
    most = max(int(numbers.max(initial=0)), -int(numbers.min(initial=0)))
    if most * int(rows.sum()) < 2**63:
        return int(np.dot(numbers.astype(np.int64), rows))
    return _placed(_magnitudes(numbers), numbers < 0, np.zeros(len(numbers), np.int64), rows)


def _of_floats(numbers: npt.NDArray[np.float64], rows: Ints) -> Fraction | float:
    finite = np.isfinite(numbers)
    if not finite.all():
        with np.errstate(invalid="ignore"):  # the infinities of both signs are no number
            return float(numbers[~finite].sum())
    if (short := _short(numbers, rows)) is not None:
        return short
    mantissas, exponents = np.frexp(numbers)
    integers = np.ldexp(mantissas, _MANTISSA).astype(np.int64)
    lowest = int(exponents.min(initial=0))
    places = exponents.astype(np.int64) - lowest
    found = _placed(_magnitudes(integers), integers < 0, places, rows)
    return Fraction(found) * Fraction(2) ** (lowest - _MANTISSA)


def _short(numbers: npt.NDArray[np.float64], rows: Ints) -> Fraction | None:
    """The total of numbers with few digits: integers, in some unit, whose sums all fit a double. None of others."""
    largest = float(np.abs(numbers).max(initial=0.0)) * float(rows.sum())
    if not math.isfinite(largest):
        return None
    unit = math.frexp(largest)[1] + 1 - _MANTISSA
    integers = np.rint(np.ldexp(numbers, -unit))
    if not np.array_equal(np.ldexp(integers, unit), numbers):
        return None
    return Fraction(int(np.dot(integers, rows.astype(np.float64)))) * Fraction(2) ** unit


def _of_decimals(numbers: list[Decimal], rows: Ints) -> Fraction:
    return sum(
        (Fraction(number) * count for number, count in zip(numbers, rows.tolist(), strict=True)), Fraction()
    )


def _magnitudes(numbers: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    return np.where(numbers < 0, -numbers, numbers).astype(np.uint64)  # -(-2**63) wraps to the right bits


def _placed(
    magnitudes: npt.NDArray[np.uint64], negative: npt.NDArray[np.bool_], places: Ints, rows: Ints
) -> int:
    """The sum of `± magnitudes * 2**places * rows`."""
    found = 0
    for begin in range(0, len(rows), _AT_ONCE):
        part = slice(begin, begin + _AT_ONCE)
        signs = np.where(negative[part], -1.0, 1.0)
        for row_place, row_limb in _limbs(rows[part].astype(np.uint64), _ROWS_LIMB):
            for place, limb in _limbs(magnitudes[part], _LIMB):
                sums = np.bincount(places[part], weights=signs * limb * row_limb)
                held = np.flatnonzero(sums)
                found += sum(int(sums[at]) << (at + place + row_place) for at in held.tolist())
    return found


def _limbs(numbers: npt.NDArray[np.uint64], bits: int) -> Iterator[tuple[int, npt.NDArray[np.float64]]]:
    """The pieces of so many bits that the numbers consist of, each with its place; pieces of zeros are left out."""
    mask = np.uint64(2**bits - 1)
    for place in range(0, 64, bits):
        limb = (numbers >> np.uint64(place)) & mask
        if limb.any():
            yield place, limb.astype(np.float64)
