"""A sample's values as nothing can change them any more, and about how many bytes they hold. Pure.

A generator may fill one array, bytearray, list or dict over and over; columns are made many samples later. So
what could change is copied when the sample arrives. Bytes, text and numbers are kept as they are, a time that
is none (`NaT`) as None.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import numpy as np

from lake.convert import tensors
from lake.convert.tensors import Misfit
from lake.format.types import MAX_DEPTH

_NUMBERS = frozenset({int, float, bool, type(None)})
_ATOMS = _NUMBERS | {bytes, str}
_TIMES = (datetime.datetime, datetime.timedelta, np.datetime64, np.timedelta64)


def kept(value: Any, depth: int = 0) -> tuple[Any, int]:
    """The value, copied where it could change, and its bytes.

    >>> buffer = bytearray(b"ab")
    >>> kept([1, buffer])
    ([1, b'ab'], 26)

    Raises:
        Misfit: it is nested too deep, or holds itself.
    """
    cls = type(value)
    if cls is bytes or cls is str:
        return value, len(value) + 8
    if cls in _NUMBERS:
        return value, 8
    if isinstance(value, (list, tuple)):
        return _kept_list(value, _deeper(depth))
    if isinstance(value, Mapping):
        return _kept_dict(value, _deeper(depth))
    if isinstance(value, (bytearray, memoryview)):
        return (copy := bytes(value)), len(copy) + 8
    if isinstance(value, _TIMES):
        return (value if value == value else None), 8  # only NaT is not itself
    if tensors.is_array(cls) and not isinstance(value, np.generic):
        return _kept_array(value)
    return value, 8


def _kept_list(value: list[Any] | tuple[Any, ...], depth: int) -> tuple[Any, int]:
    types = set(map(type, value))
    if types <= _NUMBERS:
        return value[:], 8 * len(value) + 8
    if types <= _ATOMS:
        return value[:], 8 + sum(kept(item)[1] for item in value)
    pairs = [kept(item, depth) for item in value]
    return [item for item, _ in pairs], 8 + sum(size for _, size in pairs)


def _kept_dict(value: Mapping[Any, Any], depth: int) -> tuple[Any, int]:
    found = dict(value)
    size = 8
    for name, item in found.items():
        found[name], more = kept(item, depth)
        size += more
    return found, size


def _kept_array(value: Any) -> tuple[Any, int]:
    try:
        array = tensors.as_numpy(value)
    except Misfit:  # making its column says so, with the sample's key
        return value, 8
    return (array.copy(), array.nbytes + 8) if isinstance(array, np.ndarray) else kept(array)


def _deeper(depth: int) -> int:
    if depth + 1 >= MAX_DEPTH:
        raise Misfit(f"a value nested over {MAX_DEPTH} deep, or one that holds itself, cannot be stored")
    return depth + 1
