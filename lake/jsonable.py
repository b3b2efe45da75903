"""Values as JSON has them: bytes in base64, times in ISO 8601, NaN and infinities null."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from datetime import date, time
from decimal import Decimal
from typing import Any


def jsonable(value: Any) -> Any:
    """The value in what JSON has; of arrays and tensors nested lists, of other things their text.

    >>> jsonable({"a": b"xyz", "b": (1, float("nan")), "c": date(2026, 1, 2), "d": Decimal("1.50")})
    {'a': 'eHl6', 'b': [1, None], 'c': '2026-01-02', 'd': '1.50'}
    """
    if isinstance(value, Mapping):
        return {str(name): jsonable(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(member) for member in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal) and value.as_tuple().exponent == 0:  # DuckDB makes one of a sum of integers
        return int(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if hasattr(value, "tolist"):
        return jsonable(value.tolist())
    return value.isoformat() if isinstance(value, date | time) else str(value)
