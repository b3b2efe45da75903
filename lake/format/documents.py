"""Documents: canonical JSON with limits, so that equal values are equal bytes and hostile bytes cost little.

Canonical JSON has sorted keys, no spaces, UTF-8 without escapes that JSON does not demand, and neither NaN
nor infinities. Numbers are written as Python writes them (the shortest text that reads back equal).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from lake.errors import FormatError

DOCUMENT_BYTES = 64 * 2**20
DOCUMENT_LEVELS = 64

NEEDS_READ: frozenset[str] = frozenset()  # names in `needs.read` that this release understands
NEEDS_WRITE: frozenset[str] = frozenset()
NO_NEEDS: dict[str, list[str]] = {"read": [], "write": []}


def canonical(value: Any) -> bytes:
    """The one JSON text of `value`: dicts with str keys, lists, tuples, str, int, float, bool, None.

    >>> canonical({"b": [1, 2.5, None], "a": "é"}).decode()
    '{"a":"é","b":[1,2.5,null]}'

    Raises:
        TypeError: a value or key that JSON does not have; the message says where.
        ValueError: NaN, an infinity, half a surrogate pair, or a limit of documents.
    """
    _check_value(value)
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    data = text.encode()
    if len(data) > DOCUMENT_BYTES:
        raise ValueError(f"a document of {len(data):,} bytes is over the limit of {DOCUMENT_BYTES:,}")
    return data


def parse(data: bytes, what: str) -> dict[str, Any]:
    """The JSON object in `data`; `what` names it in errors.

    Raises:
        FormatError: not a JSON object in UTF-8, a key twice, over 64 MiB or over 64 levels.
    """
    if len(data) > DOCUMENT_BYTES:
        raise FormatError(f"{what}: {len(data):,} bytes, over the limit of {DOCUMENT_BYTES:,} for a document")
    try:
        text = bytes(data).decode()
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
        if text.count("{") + text.count("[") > DOCUMENT_LEVELS:  # fewer cannot be nested too deeply
            _check_value(value)
    except RecursionError:
        raise FormatError(f"{what}: nested over {DOCUMENT_LEVELS} levels") from None
    except ValueError as error:
        raise FormatError(f"{what}: {error}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{what}: a JSON {type(value).__name__}, not an object")
    return value


def check_needs(needs: Any, what: str, *, writing: bool = False) -> dict[str, list[str]]:
    """`needs`, if this release can read (if `writing`: also change) what declares them; else FormatError."""
    if not isinstance(needs, dict) or not all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in needs.values()
    ):
        raise FormatError(f"{what}: `needs` is not a table of lists of names")
    unknown = set(needs.get("read", ())) - NEEDS_READ
    if writing:
        unknown |= set(needs.get("write", ())) - NEEDS_WRITE
        unknown |= set(needs) - {"read", "write"}
    if unknown:
        verb = "write" if writing else "read"
        raise FormatError(f"{what} needs {', '.join(sorted(unknown))}: upgrade lake to {verb} it")
    return needs


def check_fields(document: Mapping[str, Any], known: Iterable[str], what: str, *, writing: bool) -> None:
    """FormatError where a known field is missing or, if `writing`, an unknown one is there."""
    known = set(known)
    if missing := known - set(document):
        raise FormatError(f"{what} lacks {', '.join(sorted(missing))}")
    if writing and (unknown := set(document) - known):
        raise FormatError(f"{what} has unknown {', '.join(sorted(unknown))}: upgrade lake to write here")


def check_writable(data: bytes, what: str) -> None:
    """FormatError if the document's `needs` say that this release must not change what it describes."""
    check_needs(parse(data, what).get("needs", NO_NEEDS), what, writing=True)


def sha256_hex(data: Any) -> str:
    """The sha256 of any buffer, as digests are written."""
    return hashlib.sha256(data).hexdigest()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _check_value(value: Any) -> None:
    """Only what canonical JSON can hold, within the levels; iterative, so that depth costs no stack."""
    level = _containers([("a document", value)])
    for _ in range(DOCUMENT_LEVELS):
        if not level:
            return
        level = _containers([child for path, parent in level for child in _children(path, parent)])
    if level:
        raise ValueError(f"nested over {DOCUMENT_LEVELS} levels")


def _containers(values: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Those values that have children; TypeError if one is no JSON value."""
    found = []
    for path, value in values:
        if isinstance(value, (dict, list, tuple)):
            found.append((path, value))
        elif value is not None and not isinstance(value, (str, int, float)):
            raise TypeError(f"{path}: {type(value).__name__} is not a JSON value")
    return found


def _children(path: str, value: Any) -> Iterable[tuple[str, Any]]:
    if not isinstance(value, dict):
        return [(f"{path}[]", child) for child in value]
    for key in value:
        if not isinstance(key, str):
            raise TypeError(f"{path}: key {key!r} is a {type(key).__name__}, JSON has only str")
    return [(f"{path}.{key}", child) for key, child in value.items()]
