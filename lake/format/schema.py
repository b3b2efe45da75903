"""Schemas: the form in which a dataset keeps its columns, and how data is brought into it.

A schema has three forms: *canonical*, what readers see; *stored*, what parts contain (dictionary columns as
their values); and whatever an input has, which `conform` turns into the stored form or refuses. What becomes
of each type is in `lake.format.types`, what may be cast in `lake.format.casts`. Field metadata is kept,
sorted by key; schema metadata likewise, without what pandas and Hugging Face put there. Nullability is
kept, and of columns enforced.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import pyarrow as pa

from lake.errors import FormatError, SchemaError
from lake.format import arrays
from lake.format.casts import cast, castable, first_misfit, same_kind
from lake.format.types import (
    canonical_column,
    canonical_field,
    canonical_type,
    children,
    sorted_metadata,
    with_children,
)

__all__ = [
    "canonical_schema",
    "canonical_type",
    "castable",
    "conform",
    "decode_schema",
    "describe",
    "encode_schema",
    "stored_schema",
    "unify_for_append",
]

_FOREIGN_METADATA = (b"pandas", b"huggingface")


def canonical_schema(schema: pa.Schema) -> pa.Schema:
    """The schema as a dataset keeps it and readers see it; equal for inputs that differ only in layout.

    Raises:
        SchemaError: a column name twice, or a type that no dataset can hold.
    """
    _check_names(schema)
    kept = {key: value for key, value in (schema.metadata or {}).items() if key not in _FOREIGN_METADATA}
    return pa.schema([_canonical_column(field) for field in schema], metadata=sorted_metadata(kept))


def _canonical_column(field: pa.Field) -> pa.Field:
    try:
        return canonical_field(field, canonical_column(field.type))
    except SchemaError as error:
        raise _schema_error(f"column {field.name!r}: {error}", field.name) from None


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of parts: canonical, with dictionary columns as their values."""
    canonical = canonical_schema(schema)
    dictionaries = [pa.types.is_dictionary(field.type) for field in canonical]
    fields = [
        field.with_type(field.type.value_type) if decode else field
        for field, decode in zip(canonical, dictionaries, strict=True)
    ]
    return pa.schema(fields, metadata=canonical.metadata)


def _check_names(schema: pa.Schema) -> None:
    seen: set[str] = set()
    for name in schema.names:
        if name in seen:
            raise _schema_error(f"column {name!r} is there twice: rename one", name)
        seen.add(name)


def describe(schema: pa.Schema) -> list[dict[str, Any]]:
    """The columns as a person reads them, JSON-ready: `name`, `type`, `nullable`, and what else there is.

    `dictionary` (with `ordered`) marks dictionary columns; `metadata` is there if not empty; `children` if
    anything below has metadata or may not be null. Canonical schemas with equal descriptions differ in
    nothing but the width of list offsets.
    """
    return [_describe(field) for field in schema]


def _describe(field: pa.Field) -> dict[str, Any]:
    found: dict[str, Any] = {"name": field.name, "type": canonical_type(field), "nullable": field.nullable}
    if field.metadata:
        found["metadata"] = {_readable(key): _readable(value) for key, value in field.metadata.items()}
    if pa.types.is_dictionary(field.type):
        found["dictionary"] = {"ordered": field.type.ordered}
    elif pa.types.is_nested(field.type):
        below = [_describe(child) for child in children(field.type)]
        if pa.types.is_map(field.type):
            below[0]["nullable"] = True  # the key of a map never is null, which says nothing
        if any(not child["nullable"] or child.keys() & {"metadata", "children"} for child in below):
            found["children"] = below
    return found


def _readable(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def encode_schema(schema: pa.Schema) -> str:
    """The IPC schema message in base64."""
    return base64.b64encode(schema.serialize()).decode()


def decode_schema(text: str) -> pa.Schema:
    """The schema that `encode_schema` wrote; FormatError if it is none."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (binascii.Error, TypeError, ValueError, OSError, pa.ArrowException) as error:
        raise FormatError(f"not a schema: {error}") from error


def conform(
    batch: pa.RecordBatch, stored: pa.Schema, *, key: str | None = None, first: int = 0
) -> pa.RecordBatch:
    """The rows of `batch` with exactly the schema `stored`; columns that match already are not copied.

    Columns are matched by name. Absent nullable ones are null. Dictionaries and runs are decoded, layouts
    made canonical, numbers and times cast where `castable` says so and every value fits. Errors name rows by
    the `key` column, and by number, the batch's first row being the `first`.

    Raises:
        SchemaError: an unknown or missing column, a type or value that does not fit, a null where none may
            be. It has the attributes `column` and `row` (the first one; None if not about values).
    """
    _check_names(batch.schema)
    known = set(stored.names)
    if unknown := [name for name in batch.schema.names if name not in known]:
        raise _schema_error(f"column {unknown[0]!r} is not in the schema", unknown[0])
    columns = []
    for field in stored:
        try:
            columns.append(_conform_column(batch, field))
        except _Misfit as misfit:
            row = misfit.row
            named = f", key {batch[key][row].as_py()!r}" if key in batch.schema.names else ""
            text = f"column {field.name!r}, row {first + row}{named}: {misfit}"
            raise _schema_error(text, field.name, first + row) from misfit.__cause__
    return pa.RecordBatch.from_arrays(columns, schema=stored)


class _Misfit(Exception):
    """A value that does not fit its column, and its row in the batch."""

    def __init__(self, text: str, row: int) -> None:
        super().__init__(text)
        self.row = row


def _conform_column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    index = batch.schema.get_field_index(field.name)
    if index < 0:
        _check_absent(field)
        return pa.nulls(batch.num_rows, field.type)
    column = batch.column(index)
    if not column.type.equals(field.type, check_metadata=True):
        column = _cast_column(column, field)
    valid = None if field.nullable else arrays.mask(column)
    if valid is not None:
        raise _Misfit("null, but declared not null", int(valid.argmin()))
    return column


def _cast_column(column: pa.Array, field: pa.Field) -> pa.Array:
    _check_castable(column.type, field)
    try:
        return cast(column, field.type)
    except pa.ArrowInvalid as error:
        row = first_misfit(column, field.type)
        shown = f"{str(column[row])[:60]} ({canonical_type(column.type)})"
        text = f"{shown} does not fit {canonical_type(field)}: {error}. Correct it, or overwrite the dataset"
        raise _Misfit(f"{text} with a wider type", row) from error


def _check_castable(given: pa.DataType, field: pa.Field) -> None:
    if not castable(given, field.type):
        wanted = canonical_type(field)
        text = (
            f"column {field.name!r} is {wanted} and cannot take {canonical_type(given)}: convert the data to "
            f"{wanted} (schema= casts what it can), or overwrite the dataset to change the type"
        )
        raise _schema_error(text, field.name)


def _check_absent(field: pa.Field) -> None:
    if not field.nullable:
        raise _schema_error(f"column {field.name!r} is missing, but declared not null", field.name)


def _schema_error(text: str, column: str, row: int | None = None) -> SchemaError:
    error = SchemaError(text)
    error.column, error.row = column, row  # type: ignore[attr-defined]
    return error


def unify_for_append(head: pa.Schema, incoming: pa.Schema) -> pa.Schema:
    """The canonical schema of a dataset with schema `head` after data of schema `incoming` is appended.

    The head's columns keep place, type, nullability and metadata; a null type, alone or inside lists,
    structs and maps, becomes what is appended. So parts may hold a narrower type than their version says:
    readers `conform` them. New columns come last and must be nullable, and so must absent ones.

    Raises:
        SchemaError: names the column and both types, or what is missing.
    """
    head, incoming = canonical_schema(head), canonical_schema(incoming)
    given = {field.name: field for field in incoming}
    fields = [_unified(field, given.pop(field.name, None)) for field in head]
    for field in given.values():
        if not field.nullable:
            text = f"column {field.name!r} is new, so earlier rows have no value: make it nullable"
            raise _schema_error(text, field.name)
    return pa.schema([*fields, *given.values()], metadata=head.metadata)


def _unified(field: pa.Field, given: pa.Field | None) -> pa.Field:
    if given is None:
        _check_absent(field)
        return field
    unified = field.with_type(_filled(field.type, given.type))
    _check_castable(given.type, unified)
    return unified


def _filled(type_: pa.DataType, given: pa.DataType) -> pa.DataType:
    """The type with its nulls replaced by what `given` has in their place."""
    if pa.types.is_null(type_):
        return given
    if not same_kind(type_, given):
        return type_
    if pa.types.is_struct(type_):
        named = {field.name: field.type for field in given}
        return pa.struct([f.with_type(_filled(f.type, named.get(f.name, f.type))) for f in type_])
    pairs = zip(children(type_), children(given), strict=True)
    return with_children(type_, [mine.with_type(_filled(mine.type, other.type)) for mine, other in pairs])
