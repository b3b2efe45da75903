"""An iterable of `(key, {field: value})` as record batches.

The types are settled by the first samples and hold for all that follow. Python runs per sample only to take
samples from the iterable and weigh them; columns are then made whole, a batch at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NoReturn

import pyarrow as pa

from lake.convert import columns, fit, tables, tensors
from lake.convert.kept import kept
from lake.convert.source import BATCH_BYTES, BATCH_ROWS, Meter, Request, Source
from lake.convert.tensors import Misfit
from lake.errors import SchemaError

KEY = "key"
WINDOW_ROWS = 10_000  # samples that settle the types
WINDOW_BYTES = 64 << 20  # or as many as this holds

Sample = tuple[Any, Mapping[str, Any]]


@dataclass(slots=True)
class _Run:
    """Some consecutive samples, taken apart."""

    first: int  # the number of the first one
    keys: list[Any] = field(default_factory=list)
    fields: list[dict[str, Any]] = field(default_factory=list)
    bytes: int = 0

    def column(self, name: str) -> list[Any]:
        return [fields.get(name) for fields in self.fields]


def read_samples(data: Iterable[Any], request: Request) -> Source:
    """A source of samples; their types are known when this returns.

    Raises:
        TypeError: the items are not samples. SchemaError: their values have no common type.
        ValueError: there are none, and no `schema=` says what there could be.
    """
    items = iter(data)
    first = next(items, None)
    if isinstance(first, pa.RecordBatch):
        return tables.of_batches(
            first.schema, fit.fitted(chain([first], items), first.schema, "the iterable")
        )
    runs = _runs(items if first is None else chain([first], items))
    window = _window(runs)
    if not window and request.schema is None:
        raise ValueError("the iterable is empty: (key, {field: value}) samples were looked for, or a schema=")
    schema = _given(request.schema) if request.schema is not None else _inferred(window)
    meter = Meter()
    batches = _batches(_drained(window, runs), schema, request, meter)
    return Source(schema, batches, vocab=dict(request.vocab), meter=meter)


def _runs(items: Iterator[Any]) -> Iterator[_Run]:
    """The samples in runs of about `BATCH_BYTES`; one of them ends where the window does."""
    run = _Run(0)
    for row, item in enumerate(items):
        try:
            key, fields = item
            fields = {**fields}
        except (TypeError, ValueError):
            _malformed(item, row)
        key, _ = kept(key)
        run.bytes += _keep(key, fields, row)
        run.keys.append(key)
        run.fields.append(fields)
        if run.bytes >= BATCH_BYTES or len(run.keys) == BATCH_ROWS or row + 1 == WINDOW_ROWS:
            yield run
            run = _Run(row + 1)
    if run.keys:
        yield run


def _keep(key: Any, fields: dict[str, Any], row: int) -> int:
    """Copy what could change among the values, in place; about how many bytes they hold."""
    size = 0
    for name, value in fields.items():
        cls = type(value)
        if cls is bytes or cls is str:
            size += len(value) + 8
        elif cls is int or cls is float:
            size += 8
        else:
            try:
                fields[name], more = kept(value)
            except Misfit as misfit:
                raise SchemaError(
                    f"sample {_shown(key)} (row {row:,}), field {name!r}: {misfit}. Store it as text, or flatter"
                ) from None
            size += more
    return size


def _window(runs: Iterator[_Run]) -> list[_Run]:
    """The first runs, enough to settle the types."""
    window: list[_Run] = []
    rows = size = 0
    while rows < WINDOW_ROWS and size < WINDOW_BYTES and (run := next(runs, None)) is not None:
        window.append(run)
        rows, size = rows + len(run.keys), size + run.bytes
    return window


def _drained(window: list[_Run], runs: Iterator[_Run]) -> Iterator[_Run]:
    """The window's runs, each let go of as it is taken, then the rest."""
    window.reverse()
    while window:
        yield window.pop()
    yield from runs


def _batches(
    runs: Iterator[_Run], schema: pa.Schema, request: Request, meter: Meter
) -> Iterator[pa.RecordBatch]:
    plain = _plain(schema, request)
    for run in runs:
        _check_fields(run, plain, given=request.schema is not None)
        arrays = [
            _column(run, run.keys if column.name == KEY else run.column(column.name), column, request)
            for column in plain
        ]
        meter.read += run.bytes
        batch = pa.RecordBatch.from_arrays(arrays, schema=plain)
        yield fit.fit(batch, schema, "the iterable", run.first, request.vocab)


def _plain(schema: pa.Schema, request: Request) -> pa.Schema:
    """The schema with columns of listed values as those values' type, to be encoded as a batch."""
    return pa.schema(
        [f.with_type(f.type.value_type) if f.name in request.vocab else f for f in schema], schema.metadata
    )


def _column(run: _Run, values: list[Any], column: pa.Field, request: Request) -> pa.Array:
    try:
        array = columns.build(values, column.type)
    except Misfit:
        at = columns.first_misfit(values, column.type)
        try:
            columns.build([values[at]], column.type)
        except Misfit as misfit:
            _does_not_fit(run, at, column, str(misfit), request)
        raise
    if array.null_count and not column.nullable:
        at = values.index(None)
        _does_not_fit(
            run, at, column, f"None does not fit {column.type}, which schema= says is never null", request
        )
    return array


# --- schema -----------------------------------------------------------------------------------


def _given(schema: pa.Schema) -> pa.Schema:
    """The caller's schema, with a key where it names none."""
    return schema if KEY in schema.names else schema.insert(0, pa.field(KEY, pa.large_string()))


def _inferred(window: list[_Run]) -> pa.Schema:
    """The key, then the fields by name, with the types that the window's values have in common."""
    names = sorted(_names(window))
    if KEY in names:
        raise SchemaError(
            f"the samples have a field named {KEY!r}, which holds their keys: name it otherwise"
        )
    for run in window:
        _check_fields(run, pa.schema([(name, pa.null()) for name in [KEY, *names]]), given=False)
    keys = _common(window, KEY, list(chain.from_iterable(run.keys for run in window)))
    if not (pa.types.is_large_string(keys) or pa.types.is_large_binary(keys) or pa.types.is_integer(keys)):
        raise SchemaError(f"the samples' keys are {keys}: a key is a str, bytes or an int")
    fields = [pa.field(KEY, keys)]
    for name in names:
        values = list(chain.from_iterable(run.column(name) for run in window))
        fields.append(tensors.marked(pa.field(name, _common(window, name, values))))
    return pa.schema(fields)


def _names(window: list[_Run]) -> set[str]:
    names: set[Any] = set()
    for run in window:
        names.update(*run.fields)
    odd = [name for name in names if not isinstance(name, str)]
    if odd:
        raise SchemaError(f"a field is named {odd[0]!r}: field names are str")
    return names


def _common(window: list[_Run], name: str, values: list[Any]) -> pa.DataType:
    try:
        return columns.infer(values)
    except Misfit as misfit:
        at = columns.first_odd(values)
        key = list(chain.from_iterable(run.keys for run in window))[at]
        what = "the key" if name == KEY else f"field {name!r}"
        raise SchemaError(
            f"sample {_shown(key)} (row {at:,}), {what}: {misfit}. Convert the values to one type, or say "
            "which with schema="
        ) from None


# --- errors -----------------------------------------------------------------------------------


def _check_fields(run: _Run, schema: pa.Schema, *, given: bool) -> None:
    """That every sample has the schema's fields and no others, whole columns at a time."""
    wanted = {f.name for f in schema} - {KEY}
    optional = {f.name for f in schema if f.nullable} if given else set()
    common = wanted.intersection(*run.fields)
    everything = set().union(*run.fields)
    if everything <= wanted and wanted - common <= optional:
        return
    for i, fields in enumerate(run.fields):
        where = f"sample {_shown(run.keys[i])} (row {run.first + i:,})"
        if missing := sorted(wanted - set(fields) - optional):
            raise SchemaError(
                f"{where} has no field {missing[0]!r}: give None where there is no value, or say schema= "
                "with the field nullable"
            )
        if extra := sorted(set(fields) - wanted, key=str):
            raise SchemaError(
                f"{where} has a field {extra[0]!r} that "
                + (
                    "schema= lacks: add it there, or drop it"
                    if given
                    else "no sample before it had: say schema="
                )
            )


def _does_not_fit(run: _Run, at: int, column: pa.Field, misfit: str, request: Request) -> NoReturn:
    what = "the key" if column.name == KEY else f"field {column.name!r}"
    origin = "schema=" if request.schema is not None else f"the first {WINDOW_ROWS:,} samples"
    raise SchemaError(
        f"sample {_shown(run.keys[at])} (row {run.first + at:,}), {what}: {misfit}. The type comes from "
        f"{origin}: convert the value, or say a type that holds all of them with schema="
    )


def _malformed(item: Any, row: int) -> NoReturn:
    hint = ""
    if isinstance(item, Mapping):
        hint = ": for rows without keys, commit pyarrow.Table.from_pylist(rows)"
    elif isinstance(item, str):
        hint = ": for a dict of samples, commit its items()"
    shown = _shown(item)
    raise TypeError(f"item {row:,} of the iterable is {shown}, not a sample (key, {{field: value}}){hint}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
