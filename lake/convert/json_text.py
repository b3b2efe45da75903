"""What Arrow's JSON reader does not say: zones of times, and in which line a value does not fit. Pure.

Arrow takes text that looks like a time for one, and forgets its zone. So times are read as text, and cast
afterwards: by `lake.convert.fit`, which is exact.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from lake.format import arrays
from lake.format.types import children, values_of, with_children

_ZONE = r"[T ]\d\d.*(Z|[+-]\d\d(:?\d\d)?)$"


def text_type(kind: pa.DataType) -> pa.DataType:
    """What a text parser is told to make of a column that shall have this type in the end."""
    kind = values_of(kind)
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.float64() if pa.types.is_floating(kind) else kind  # narrower ones may overflow


def _json_type(kind: pa.DataType) -> pa.DataType:
    kind = text_type(kind)
    if pa.types.is_timestamp(kind):
        return pa.string()
    if isinstance(kind, pa.BaseExtensionType) or not pa.types.is_nested(kind) or pa.types.is_union(kind):
        return kind
    return with_children(kind, [child.with_type(_json_type(child.type)) for child in children(kind)])


def with_times_as_text(schema: pa.Schema) -> pa.Schema:
    """The schema that the parser is given: times, at any depth, as text."""
    return pa.schema([field.with_type(_json_type(field.type)) for field in schema])


def options(types: pa.Schema | None) -> pa.json.ParseOptions | None:
    """Arrow's options for a file of these columns; None: it finds out."""
    if types is None:
        return None
    return pa.json.ParseOptions(explicit_schema=with_times_as_text(types), unexpected_field_behavior="error")


def settled(batch: pa.RecordBatch, found: pa.Schema) -> pa.Schema:
    """The schema that Arrow found, with the zone of times; those with and without one together stay text."""
    pairs = zip(found, batch.columns, strict=True)
    return pa.schema([field.with_type(_settled(field.type, column)) for field, column in pairs])


def _settled(kind: pa.DataType, texts: pa.Array) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        zoned = pc.match_substring_regex(texts, _ZONE).drop_null()
        some, all_ = pc.any(zoned).as_py(), pc.all(zoned).as_py()
        return kind if not some else pa.timestamp(kind.unit, "UTC") if all_ else pa.string()
    if pa.types.is_struct(kind):
        below = texts.flatten()
    elif arrays.is_list(kind):
        below = [arrays.items(texts)]
    else:
        return kind
    pairs = zip(children(kind), below, strict=True)
    return with_children(kind, [child.with_type(_settled(child.type, values)) for child, values in pairs])


def first_misfit(stream: Any, rows: int, types: pa.Schema | None, block: int) -> str | None:
    """Line, column and what is wrong. The first `rows` rows are fine, one in the next `block` bytes is not."""
    numbers, lines, size, ahead = [], [], 0, rows
    for number, line in enumerate(io.BufferedReader(stream), 1):
        if not line.strip():
            continue
        if ahead:
            ahead -= 1
            continue
        numbers.append(number)
        lines.append(line)
        size += len(line)
        if size > 2 * block:
            break
    fits, refused = 0, len(lines)
    if _wrong(b"".join(lines), types) is None:
        return None
    while refused - fits > 1:
        middle = (fits + refused) // 2
        if _wrong(b"".join(lines[:middle]), types) is None:
            fits = middle
        else:
            refused = middle
    why = _wrong(b"".join(lines[: fits + 1]), types) or ""
    column = _column(lines[fits], types, lambda text, only: _wrong(text, only) is not None)
    where = f"column {column!r}, " if column is not None else ""
    return f"{where}line {numbers[fits]:,} (row {rows + fits:,}): {why}"


def _wrong(text: bytes, types: pa.Schema | None) -> str | None:
    """What Arrow says of these lines; None if they are fine."""
    if not text:
        return None
    settings = pa.json.ReadOptions(block_size=len(text) + 1, use_threads=False)
    try:
        pa.json.read_json(io.BytesIO(text), settings, options(types)).validate(full=True)
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        return re.sub(r" in row \d+", "", str(error).removeprefix("JSON parse error: "))
    return None


def _column(line: bytes, types: pa.Schema | None, misfits: Callable[[bytes, pa.Schema], bool]) -> str | None:
    """The column of a line that does not fit, if one alone does not."""
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    if types is None or not isinstance(fields, dict):
        return None
    for name, value in fields.items():
        if name not in types.names:
            return str(name)
        if misfits(json.dumps({name: value}).encode(), pa.schema([types.field(name)])):
            return str(name)
    return None
