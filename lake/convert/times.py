"""Dates and times, Python's, NumPy's and pandas', as Arrow columns: never cut, never moved between zones. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lake.convert.tensors import Misfit

_RANK = {"D": 0, "s": 1, "ms": 2, "us": 3, "ns": 4}
_AS_SECONDS = {"h", "m"}
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_NUMPY = (np.datetime64, np.timedelta64)


def infer_datetime(values: Sequence[Any]) -> pa.DataType:
    """The type of a column of these: date32 of NumPy's whole days, else a timestamp of the finest unit."""
    there = [value for value in values if value is not None]
    if len({_zone(value) is None for value in there}) > 1:
        raise Misfit("times with and without a zone are no one type")
    unit = _finest(there)
    if unit == "D":
        return pa.date32()
    return pa.timestamp(unit, None if _zone(there[0]) is None else pa.infer_type(there).tz)


def infer_timedelta(values: Sequence[Any]) -> pa.DataType:
    """The type of a column of these: a duration of the finest unit."""
    unit = _finest([value for value in values if value is not None])
    return pa.duration("s" if unit == "D" else unit)


def build(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """The values as a column of dates, times, timestamps or durations; None is null.

    Raises:
        Misfit: a value has a zone and the type none, or the other way round; or it is no whole day.
        pa.ArrowInvalid: a value is finer than the type's unit, or out of its range.
    """
    there = [value for value in values if value is not None]
    if pa.types.is_time(kind):
        _check_zones(there, None, kind)
        return pa.array(values, pa.time64("us")).cast(kind)
    if pa.types.is_date(kind):
        return _dates(values, there, kind)
    if pa.types.is_timestamp(kind):
        _check_zones(there, kind.tz, kind)
    unit = _finest(there)
    finer = _RANK[unit] > _RANK[kind.unit]
    if any(isinstance(value, _NUMPY) for value in there):
        return _from_numpy(values, unit if finer else kind.unit, kind).cast(kind)
    return pa.array(values, _with_unit(kind, unit)).cast(kind) if finer else pa.array(values, kind)


def _dates(values: Sequence[Any], there: list[Any], kind: pa.DataType) -> pa.Array:
    for value in there:
        if isinstance(value, np.datetime64) and _unit(value) == "D":
            continue
        if isinstance(value, (datetime.datetime, np.datetime64)):
            raise Misfit(f"{type(value).__name__} does not fit {kind}, which holds whole days")
    if any(isinstance(value, np.datetime64) for value in there):
        days = [np.datetime64("NaT") if value is None else np.datetime64(value, "D") for value in values]
        return pa.array(np.array(days, "M8[D]")).cast(kind)
    return pa.array(values, kind)


def _from_numpy(values: Sequence[Any], unit: str, kind: pa.DataType) -> pa.Array:
    """Some of the values are NumPy's: all become so, in this unit."""
    cls, code = (np.timedelta64, "m8") if pa.types.is_duration(kind) else (np.datetime64, "M8")
    scalars = [cls("NaT") if value is None else _as_numpy(value, cls) for value in values]
    seconds = np.array(scalars, f"{code}[s]")
    limit = np.iinfo(np.int64).max // _PER_SECOND[unit] - 1
    if (np.abs(seconds.astype(np.int64)[~np.isnat(seconds)]) > limit).any():
        raise Misfit(f"a value is out of the range of {_with_unit(kind, unit)}")
    return pa.array(np.array(scalars, f"{code}[{unit}]"))


def _as_numpy(value: Any, cls: Any) -> Any:
    if isinstance(value, cls):
        return value
    return value.to_numpy() if hasattr(value, "to_numpy") else cls(value, "us")


def _with_unit(kind: pa.DataType, unit: str) -> pa.DataType:
    return pa.duration(unit) if pa.types.is_duration(kind) else pa.timestamp(unit, kind.tz)


def _finest(values: list[Any]) -> str:
    """The unit that loses nothing of any of them."""
    return max(map(_unit, values), key=_RANK.__getitem__, default="s")


def _unit(value: Any) -> str:
    if not isinstance(value, _NUMPY):
        return getattr(value, "unit", "us")  # pandas' have one
    unit = np.datetime_data(value.dtype)[0]
    if unit in _AS_SECONDS:
        return "s"
    if unit not in _RANK:
        raise Misfit(
            f"a {type(value).__name__} in units of {unit!r} has no Arrow type: say it in days or seconds"
        )
    return unit


def _zone(value: Any) -> Any:
    return getattr(value, "tzinfo", None)


def _check_zones(values: list[Any], zone: str | None, kind: pa.DataType) -> None:
    odd = next((value for value in values if (_zone(value) is None) != (zone is None)), None)
    if odd is None:
        return
    has, way = (
        ("without", ".replace(tzinfo=...) says which zone it is in")
        if _zone(odd) is None
        else ("with", ".astimezone(...).replace(tzinfo=None) gives one without")
    )
    raise Misfit(f"{odd!r}, a {type(odd).__name__} {has} a zone, does not fit {kind}: {way}")
