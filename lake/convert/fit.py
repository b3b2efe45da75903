"""Make record batches fit a schema, or say which row does not. Pure.

Fitting is what `schema=` asks for, and what several files of one table need. Casts are safe: a value that
the wanted type cannot hold is an error that names its row, never a changed value; but floats may round to
narrower ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lake.errors import SchemaError
from lake.format.arrays import is_text, items, plain
from lake.format.casts import same_kind
from lake.format.types import children, values_of

Vocab = Mapping[str, list[Any]]
_CANNOT = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)


def as_schema(schema: Any) -> tuple[pa.Schema, dict[str, list[Any]]]:
    """A caller's `schema=` as Arrow's, and the values of the columns for which it lists them, in code order.

    A mapping of names to types, or to lists of values, will do as well.

    >>> as_schema({"x": pa.float32(), "label": ["cat", "dog"]})[1]
    {'label': ['cat', 'dog']}
    """
    if isinstance(schema, pa.Schema):
        _unique(schema.names, "schema=")
        return schema, {}
    if not isinstance(schema, Mapping):
        raise TypeError(
            f"schema= takes a pyarrow.Schema or a mapping of names to types, not {type(schema).__name__}"
        )
    vocab = {name: list(kind) for name, kind in schema.items() if isinstance(kind, (list, tuple))}
    return pa.schema([_field(name, kind) for name, kind in schema.items()]), vocab


def fitted(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, what: str, vocab: Vocab | None = None
) -> Iterator[pa.RecordBatch]:
    """The same rows with exactly this schema. A batch that has it already is passed on untouched.

    Raises:
        SchemaError: a column is missing (unless nullable) or unexpected, or a value does not fit.
    """
    row = 0
    for batch in batches:
        yield fit(batch, schema, what, row, vocab or {})
        row += batch.num_rows


def fit(batch: pa.RecordBatch, schema: pa.Schema, what: str, row: int, vocab: Vocab) -> pa.RecordBatch:
    """One batch, its first row being the `row`-th, with exactly this schema."""
    if batch.schema.equals(schema, check_metadata=True) and not vocab and all(f.nullable for f in schema):
        return batch
    check_names(batch.schema, schema, what)
    present = set(batch.schema.names)
    columns = []
    for field in schema:
        column = batch.column(field.name) if field.name in present else pa.nulls(batch.num_rows)
        if not field.nullable and column.null_count:
            at = row + pc.index(column.is_null(), True).as_py()
            raise SchemaError(
                f"column {field.name!r} of {what} is null in row {at:,}, and schema= says that it never is"
            )
        columns.append(_column(column, field, what, row, vocab.get(field.name)))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def check_names(found: pa.Schema, wanted: pa.Schema, what: str) -> None:
    """That the columns found can be those wanted: none unexpected, none missing that must be there."""
    _unique(found.names, what)
    expected, there = set(wanted.names), set(found.names)
    extra = [name for name in found.names if name not in expected]
    if extra:
        raise SchemaError(
            f"{what} has a column {extra[0]!r} that the schema lacks: add it to schema=, or drop it"
        )
    missing = [f.name for f in wanted if not f.nullable and f.name not in there]
    if missing:
        raise SchemaError(f"{what} has no column {missing[0]!r}, and schema= says that it is never null")


def widest(schemas: Iterable[tuple[str, pa.Schema]]) -> pa.Schema:
    """The one schema that files of one table can have: same columns, nulls and ints widened.

    Raises:
        SchemaError: two files differ otherwise; names them, the column and both types.
    """
    named = iter(schemas)
    first, result = next(named)
    _unique(result.names, first)
    for name, schema in named:
        if schema.equals(result):
            continue
        _unique(schema.names, name)
        odd = sorted(set(schema.names) ^ set(result.names))
        if odd:
            has, lacks = (name, first) if odd[0] in schema.names else (first, name)
            raise SchemaError(
                f"{has} has a column {odd[0]!r} and {lacks} has not: say schema= with it nullable"
            )
        result = pa.schema(
            [_wider(field, schema.field(field.name), first, name) for field in result], result.metadata
        )
    return result


def _wider(a: pa.Field, b: pa.Field, first: str, second: str) -> pa.Field:
    if a.equals(b):
        return a
    try:
        merged = pa.unify_schemas([pa.schema([a]), pa.schema([b])], promote_options="permissive")
    except _CANNOT:
        raise SchemaError(
            f"column {a.name!r} is {a.type} in {first} and {b.type} in {second}: say which with schema="
        ) from None
    return merged.field(0)


def _column(column: pa.Array, field: pa.Field, what: str, row: int, values: list[Any] | None) -> pa.Array:
    if values is None and column.type.equals(field.type):
        return column
    try:
        return _cast(column, field.type, values)
    except _CANNOT as error:
        at = _first_misfit(column, field.type, values)
        raise SchemaError(
            f"column {field.name!r} of {what}, row {row + at:,}: {_shown(column[at])} of type {column.type} "
            f"does not fit {_wanted(field.type, values)}: correct it, or say another type with schema= "
            f"({error})"
        ) from None


def _cast(column: pa.Array, kind: pa.DataType, values: list[Any] | None) -> pa.Array:
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), kind)
    if isinstance(column.type, pa.BaseExtensionType) and not isinstance(kind, pa.BaseExtensionType):
        column = column.storage
    if values is not None:
        plain = _cast(column, kind.value_type, None)
        codes = pc.index_in(plain, pa.array(values, kind.value_type))
        if codes.null_count > plain.null_count:
            raise pa.ArrowInvalid("not among the values listed")
        return pa.DictionaryArray.from_arrays(codes, pa.array(values, kind.value_type))
    if pa.types.is_dictionary(kind) and not pa.types.is_dictionary(column.type):
        encoded = _cast(column, kind.value_type, None).dictionary_encode()
        return pa.DictionaryArray.from_arrays(encoded.indices.cast(kind.index_type), encoded.dictionary)
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(column.type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _cast(column, kind.storage_type, None))
    _check_meaning(column.type, kind)
    made = column.cast(kind)
    _check_values(column, made)
    return made


def _check_meaning(source: pa.DataType, kind: pa.DataType) -> None:
    """Refuse casts that Arrow calls safe and that say something else afterwards."""
    t = pa.types
    source, kind = values_of(source), values_of(kind)
    if same_kind(source, kind):
        for mine, wanted in _pairs(source, kind):
            _check_meaning(mine.type, wanted.type)
    elif t.is_timestamp(source) and t.is_timestamp(kind) and (source.tz is None) != (kind.tz is None):
        way = 'assume_timezone(column, "...")' if source.tz is None else "local_timestamp(column)"
        raise pa.ArrowInvalid(f"only one of them has a zone: pyarrow.compute.{way} converts")
    elif t.is_timestamp(source) and (t.is_date(kind) or t.is_time(kind)):
        raise pa.ArrowInvalid("half of each value would be lost")


def _pairs(source: pa.DataType, kind: pa.DataType) -> list[tuple[pa.Field, pa.Field]]:
    """The children of two types of one kind, those of structs by name."""
    if not pa.types.is_struct(source):
        return list(zip(children(source), children(kind), strict=True))
    named = {field.name: field for field in source}
    if lost := sorted(named.keys() - set(kind.names)):
        raise pa.ArrowInvalid(f"the field {lost[0]!r} would be lost")
    return [(named[field.name], field) for field in kind if field.name in named]


def _check_values(column: pa.Array, made: pa.Array) -> None:
    """Refuse what Arrow's safe casts overlook: floats that became infinite or were cut, numbers as booleans."""
    column, made = plain(column), plain(made)
    if pa.types.is_struct(column.type) and pa.types.is_struct(made.type):
        given = dict(zip(column.type.names, column.flatten(), strict=True))
        for field, child in zip(made.type, made.flatten(), strict=True):
            if field.name in given:
                _check_values(given[field.name], child)
    elif same_kind(column.type, made.type):
        _check_values(items(column), items(made))
    elif _overlooked(column.type, made.type):
        rounds = pa.types.is_floating(made.type) and not pa.types.is_integer(column.type)
        wide = column.cast(pa.float64(), safe=False)
        back = (made.cast(pa.uint8()) if pa.types.is_boolean(made.type) else made).cast(pa.float64())
        same = pc.equal(pc.is_inf(wide), pc.is_inf(back)) if rounds else pc.equal(wide, back)
        if not pc.all(same).as_py():
            raise pa.ArrowInvalid("the value would change")


def _overlooked(before: pa.DataType, after: pa.DataType) -> bool:
    """Whether Arrow casts numbers, or text that holds some, into these without looking at all of them."""
    t = pa.types
    number = t.is_integer(before) or t.is_floating(before)
    if t.is_boolean(after):
        return bool(number)
    if t.is_decimal(after):
        return bool(t.is_floating(before))
    narrow = t.is_float16(after) or t.is_float32(after)
    return bool(narrow and before != after and (number or t.is_decimal(before) or is_text(before)))


def _first_misfit(column: pa.Array, kind: pa.DataType, values: list[Any] | None) -> int:
    """The first row that cannot be cast, found by halving."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _cast(column.slice(low, middle - low), kind, values)
            low = middle
        except _CANNOT:
            high = middle
    return low


def _field(name: str, kind: Any) -> pa.Field:
    if isinstance(kind, (list, tuple)):
        return pa.field(name, pa.dictionary(pa.int32(), pa.array(kind).type))
    return kind.with_name(name) if isinstance(kind, pa.Field) else pa.field(name, kind)


def _unique(names: list[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise SchemaError(f"{what} has two columns named {name!r}: rename one")
        seen.add(name)


def _wanted(kind: pa.DataType, values: list[Any] | None) -> str:
    return str(kind) if values is None else f"the {len(values):,} values listed"


def _shown(scalar: pa.Scalar) -> str:
    text = repr(scalar.as_py())
    return text if len(text) <= 60 else text[:57] + "..."
