"""Values as JSON that says their types, so that they come back as they were; for what positions must hold."""

from __future__ import annotations

import base64
from typing import Any, Final

import numpy as np

LONGEST: Final = 16_384  # bytes of a value in a position, about


class Unstorable(Exception):
    """A value that JSON cannot hold exactly, or a long one."""


def encode(value: Any) -> Any:
    """The value in JSON.

    >>> decode(encode({"mean": 0.5, "of": (1, None)}))
    {'mean': 0.5, 'of': (1, None)}

    Raises:
        Unstorable: it is none of None, numbers, strings, bytes, arrays, and lists, tuples and dicts of these.
    """
    made, size = _encode(value)
    if size > LONGEST:
        raise Unstorable(f"{size:,} bytes")
    return made


def decode(made: Any) -> Any:
    """The value that `encode` was given."""
    if not isinstance(made, list):
        return made
    kind, *parts = made
    if kind == "list":
        return [decode(part) for part in parts]
    if kind == "tuple":
        return tuple([decode(part) for part in parts])
    if kind == "dict":
        return {decode(key): decode(value) for key, value in parts}
    if kind == "float":
        return float.fromhex(parts[0])
    data = base64.b64decode(parts[0])
    if kind == "bytes":
        return data
    dtype, shape = parts[1:]
    array = np.frombuffer(bytearray(data), dtype).reshape(shape)
    return array if kind == "array" else array[()]


def _encode(value: Any) -> tuple[Any, int]:
    kind = type(value)
    if value is None or kind in (bool, int):
        return value, 8
    if kind is str:
        return value, len(value)
    if kind is float:
        return ["float", value.hex()], 24
    if kind is bytes:
        return ["bytes", base64.b64encode(value).decode()], len(value)
    if isinstance(value, np.generic) or kind is np.ndarray:
        if value.dtype.hasobject or value.dtype.kind == "V":
            raise Unstorable(f"an array of {value.dtype}")
        if value.nbytes > LONGEST:
            raise Unstorable(f"{value.nbytes:,} bytes")
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        name = "array" if kind is np.ndarray else "scalar"
        return [name, data, value.dtype.str, list(value.shape)], value.nbytes
    if kind not in (list, tuple, dict):
        raise Unstorable(f"a {kind.__name__}")
    if len(value) > LONGEST:
        raise Unstorable(f"{len(value):,} members")
    if kind is dict:
        pairs = [(_encode(key), _encode(member)) for key, member in value.items()]
        made = [[key[0], member[0]] for key, member in pairs]
        return ["dict", *made], sum(key[1] + member[1] for key, member in pairs)
    members = [_encode(member) for member in value]
    return [kind.__name__, *(made for made, _ in members)], 8 + sum(size for _, size in members)
