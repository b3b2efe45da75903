"""Hugging Face datasets, in memory or as `save_to_disk` left them, as Arrow columns that stand on their own.

What their features say beyond Arrow becomes Arrow's: class labels dictionaries in the order of their names,
images and audio the bytes of their files, arrays of a fixed shape tensors. The package is never imported: an
object is known by what is imported already, and a folder by its JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.convert.source import BATCH_BYTES, Meter, Request, Source, metered
from lake.errors import FormatError, SchemaError

SPLIT: Final = "split"

_ROWS: Final = 1 << 16
_PROBE: Final = 64
_FILES: Final = frozenset(
    {"Image", "Audio", "Video", "Pdf"}
)  # features that hold a file's bytes, or its path
_ARRAYS: Final = frozenset({"Array2D", "Array3D", "Array4D", "Array5D"})

Features = Mapping[str, Any]  # what a feature says of itself, as `dataset_info.json` has it
Tables = Callable[[], Iterator[pa.Table]]


@dataclass(frozen=True, slots=True)
class Split:
    """One split: what reads it, its features, and how many rows it has if that is known."""

    name: str | None
    features: Features | None
    tables: Tables
    rows: int | None


# --- what it is -------------------------------------------------------------------------------


def is_hugging_face(data: Any) -> bool:
    """A Dataset, IterableDataset, DatasetDict or IterableDatasetDict; the package is not imported for the question."""
    package = sys.modules.get("datasets")
    names = ("Dataset", "IterableDataset", "DatasetDict", "IterableDatasetDict")
    return package is not None and isinstance(data, tuple(getattr(package, name) for name in names))


def is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` made the folder."""
    if (folder / "dataset_dict.json").is_file():
        return True
    return (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()


def read_hugging_face(data: Any, request: Request) -> Source:
    """A source of the package's own objects; those of a dict one after the other, named in a column `split`."""
    if isinstance(data, Mapping):
        return _read([_of_object(each, str(name)) for name, each in data.items()])
    return _read([_of_object(data, None)])


def read_saved(folder: Path, request: Request) -> Source:
    """A source of a folder that `save_to_disk` made.

    Raises:
        FormatError: its JSON is not what the package writes, or a file is missing.
    """
    try:
        if (folder / "dataset_dict.json").is_file():
            names = json.loads((folder / "dataset_dict.json").read_bytes())["splits"]
            return _read([_of_folder(folder / name, name) for name in names])
        return _read([_of_folder(folder, None)])
    except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
        if isinstance(error, SchemaError):
            raise
        raise FormatError(
            f"{folder} is no dataset that Hugging Face's save_to_disk made: {error!r}"
        ) from error


# --- inside -----------------------------------------------------------------------------------


def _of_object(data: Any, name: str | None) -> Split:
    features = None if data.features is None else data.features.to_dict()
    arrow = data.with_format("arrow")
    rows = len(data) if hasattr(data, "__len__") else None
    step = _ROWS
    if rows:
        sample = arrow[: min(_PROBE, rows)]
        step = max(1, min(_ROWS, BATCH_BYTES * sample.num_rows // max(1, sample.nbytes)))
    elif rows is None:
        step = 1024
    return Split(name, features, lambda: arrow.iter(step), rows)


def _of_folder(folder: Path, name: str | None) -> Split:
    info = json.loads((folder / "dataset_info.json").read_bytes())
    state = json.loads((folder / "state.json").read_bytes())
    files = [folder / Path(file["filename"]).name for file in state["_data_files"]]
    if state.get("_indices_data_files"):
        raise FormatError(
            f"{folder} has rows picked by an index: save it again with dataset.flatten_indices()"
        )
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"{file} is missing")
    return Split(name, info.get("features"), partial(_stored, files), None)


def _stored(files: Sequence[Path]) -> Iterator[pa.Table]:
    for file in files:
        with pa.memory_map(str(file)) as mapped, pa.ipc.open_stream(mapped) as stream:
            for batch in stream:
                batch.validate()
                yield pa.Table.from_batches([batch])


def _read(splits: Sequence[Split]) -> Source:
    """The splits as one source; all have the columns of the first."""
    if not splits:
        raise ValueError("a dataset dict without a split")
    tables = [iter(split.tables()) for split in splits]
    firsts = [next(each, None) for each in tables]
    known = next((table for table in firsts if table is not None), None)
    if known is None:
        raise ValueError("the dataset has no rows, and so no columns that lake could take over")
    features = splits[0].features or {}
    if SPLIT in known.column_names and splits[0].name is not None:
        raise SchemaError(f"the dataset has a column {SPLIT!r}, which would name the splits: rename it")
    schema = _converted(known.slice(0, 0), features).schema
    names = [str(split.name) for split in splits if split.name is not None]
    vocab = _vocab(features, schema)
    if names:
        schema = schema.append(pa.field(SPLIT, pa.dictionary(pa.int32(), pa.string())))
        vocab[SPLIT] = names
    counts, meter = [split.rows for split in splits], Meter()
    whole = [_after(first, rest) for first, rest in zip(firsts, tables, strict=True)]
    return Source(
        schema,
        metered(_batches(splits, whole, features, schema, names), meter),
        vocab=vocab,
        rows=sum(count for count in counts if count is not None) if None not in counts else None,
        meter=meter,
    )


def _batches(
    splits: Sequence[Split],
    tables: Sequence[Iterable[pa.Table]],
    features: Mapping[str, Any],
    schema: pa.Schema,
    names: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    """The rows of all splits under one schema; with `names`, each says from which split it is."""
    for number, (split, own) in enumerate(zip(splits, tables, strict=True)):
        _check(split, features)
        for table in own:
            made = _converted(table, features)
            if names:
                codes = pa.array(np.full(len(made), number, np.int32))
                made = made.append_column(SPLIT, pa.DictionaryArray.from_arrays(codes, pa.array(names)))
            _check_columns(made, schema, split)
            yield from made.cast(schema).to_batches()


def _after(first: pa.Table | None, rest: Iterator[pa.Table]) -> Iterator[pa.Table]:
    if first is not None:
        yield first
    yield from rest


def _check(split: Split, features: Features) -> None:
    if (split.features or {}) != features:
        raise SchemaError(
            f"the split {split.name!r} has other features than the first: cast it, or commit the splits apart"
        )


def _check_columns(table: pa.Table, schema: pa.Schema, split: Split) -> None:
    if table.column_names != schema.names:
        raise SchemaError(
            f"rows of {split.name or 'the dataset'} have the columns {', '.join(table.column_names)}, others "
            f"{', '.join(schema.names)}"
        )


def _vocab(features: Features, schema: pa.Schema) -> dict[str, list[Any]]:
    return {
        name: list(said["names"])
        for name, said in features.items()
        if name in schema.names and _kind(said) == "ClassLabel"
    }


def _kind(said: Any) -> str:
    return str(said.get("_type", "")) if isinstance(said, Mapping) else ""


def _converted(table: pa.Table, features: Features) -> pa.Table:
    """The table with what features mean as Arrow types, without the package's metadata."""
    columns = {
        name: _column(name, column, features.get(name))
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    return pa.table(columns)


def _column(name: str, column: pa.ChunkedArray, said: Any) -> pa.ChunkedArray:
    kind = _kind(said)
    if kind == "ClassLabel":
        return _labels(name, column, list(said["names"]))
    if kind in _FILES and pa.types.is_struct(column.type):
        return _bytes_of(column)
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    if kind in _ARRAYS and None not in said["shape"] and not column.null_count:
        return _tensors(column, tuple(said["shape"]))
    return column


def _labels(name: str, column: pa.ChunkedArray, names: list[str]) -> pa.ChunkedArray:
    """Codes of class names; -1, which stands for no label, is null."""
    codes = pc.if_else(pc.less(column, 0), pa.scalar(None, column.type), column).cast(pa.int32())
    if len(codes) and (pc.max(codes).as_py() or 0) >= len(names):
        raise SchemaError(f"column {name!r} has the label {pc.max(codes)}, and {len(names):,} names")
    values = pa.array(names, pa.string())
    kind = pa.dictionary(pa.int32(), pa.string())
    return pa.chunked_array([pa.DictionaryArray.from_arrays(chunk, values) for chunk in codes.chunks], kind)


def _bytes_of(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The bytes of each file: those that are there, else those that lie where its path says."""
    data, paths = pc.struct_field(column, "bytes"), pc.struct_field(column, "path")
    missing = pc.and_(pc.is_null(data), pc.is_valid(paths))
    if not pc.any(missing).as_py():
        return data.cast(pa.large_binary())
    read = [
        Path(path).read_bytes() if wanted else there
        for path, wanted, there in zip(paths.to_pylist(), missing.to_pylist(), data.to_pylist(), strict=True)
    ]
    return pa.chunked_array([pa.array(read, pa.large_binary())])


def _tensors(column: pa.ChunkedArray, shape: tuple[int, ...]) -> pa.ChunkedArray:
    """Nested lists that all have one shape, as tensors of it."""
    made = []
    for chunk in column.chunks:
        flat = chunk
        while pa.types.is_nested(flat.type):
            flat = flat.flatten()
        kind = pa.fixed_shape_tensor(flat.type, shape)
        if len(flat) != len(chunk) * int(np.prod(shape)):
            return column
        storage = pa.FixedSizeListArray.from_arrays(flat, int(np.prod(shape)))
        made.append(pa.ExtensionArray.from_storage(kind, storage))
    if not made:
        inner = column.type
        while pa.types.is_nested(inner):
            inner = inner.value_type
        return pa.chunked_array([], pa.fixed_shape_tensor(inner, shape))
    return pa.chunked_array(made)
