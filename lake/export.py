"""Write a version's rows as files that other tools read: tables, archives or folders of samples.

One shard is in memory at a time. What is being written has another name until it is whole, and nothing that is
there already is written over. `lk.commit` reads all of it back.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from lake.errors import SchemaError
from lake.format.arrays import is_octets, is_text
from lake.jsonable import jsonable
from lake.progress import progress as show
from lake.snapshot import Snapshot

Format = Literal["parquet", "csv", "jsonl", "arrow", "webdataset", "folder"]

PART_BYTES = 512 * 2**20  # decoded, of each part in a folder of parts, about

Write = Callable[[pa.Table], object]  # takes the next rows


@dataclass(frozen=True)
class _Kind:
    """One format: its suffixes, the first of which we give, and what opens a file, or folder, of it for writing."""

    suffixes: tuple[str, ...]
    open: Callable[[Path, pa.Schema, str | None], AbstractContextManager[Write]]


def export(
    snapshot: Snapshot,
    path: str | os.PathLike[str],
    form: Format | None = None,
    *,
    columns: Sequence[str] | None = None,
    progress: bool | None = None,
) -> None:
    """Write the rows to `path`: one file if it ends as files of the format do, otherwise a folder of parts.

    Raises:
        FileExistsError: there is something already.
        SchemaError: the format has no way to write a column.
    """
    target = _target(path)
    name = _format(target, form)
    kind = _KINDS[name]
    schema = _schema(snapshot, columns)
    key = snapshot.document.key if snapshot.document.key in schema.names else None
    single = kind.open is _folder or target.suffix.lower() in kind.suffixes
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        _whole(target) as fresh,
        show(progress, f"export {snapshot.name}", snapshot.document.raw_bytes, unit="bytes") as bar,
    ):
        for file, start, stop in _files(fresh, kind, snapshot, single=single):
            with kind.open(file, schema, key) as write:
                for shard in snapshot.manifest.shards(start, stop):
                    read = snapshot.reader.read(shard, schema.names, [(0, shard.rows)])
                    write(snapshot.reader.table(read, schema.names))
                    bar.advance(shard.raw_bytes)


# --- where to -----------------------------------------------------------------------------------


def _target(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"export writes to a path, not to {type(path).__name__}")
    text = os.fspath(path)
    if not text:
        raise ValueError("the path to export to is empty: name a file or a folder")
    if "://" in text:
        raise ValueError(f"{text}: export writes to local disks; copy from there")
    target = Path(text).absolute()
    if target.is_dir() and not any(target.iterdir()):
        return target
    if target.exists():
        raise FileExistsError(f"{target} exists: remove it, or export elsewhere")
    return target


def _format(target: Path, asked: str | None) -> Format:
    """The format asked for, or that the path's suffix says; Parquet where it says none."""
    said = next((name for name, kind in _KINDS.items() if target.suffix.lower() in kind.suffixes), None)
    if asked is not None and asked not in _KINDS:
        raise ValueError(f"format={asked!r}: it is one of {', '.join(get_args(Format))}")
    if asked is not None and said is not None and asked != said:
        raise ValueError(f"{target.name} has the suffix of {said}, but the format asked for is {asked}")
    found: Format = asked or said or "parquet"  # type: ignore[assignment]
    return found


def _schema(snapshot: Snapshot, columns: Sequence[str] | None) -> pa.Schema:
    schema = snapshot.document.schema
    return pa.schema([schema.field(name) for name in snapshot.columns(columns)], schema.metadata)


@contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """A path beside the target, which takes its place in the end; nothing is left of it if that fails."""
    fresh = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield fresh
        if target.is_dir():
            target.rmdir()  # an empty one
        fresh.rename(target)
    finally:
        if fresh.is_dir():
            shutil.rmtree(fresh)
        fresh.unlink(missing_ok=True)


def _files(path: Path, kind: _Kind, snapshot: Snapshot, *, single: bool) -> list[tuple[Path, int, int]]:
    """The files to write and the runs of shards that go into each: a folder of parts unless it is a single one."""
    sizes = snapshot.manifest.raw_bytes
    if single:
        return [(path, 0, len(sizes))]
    path.mkdir()
    numbers = (np.cumsum(sizes) - sizes) // PART_BYTES  # of the part in which each shard begins
    starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()]
    stops = [*starts[1:], len(sizes)]
    return [
        (path / f"part-{number:05}{kind.suffixes[0]}", start, stop)
        for number, (start, stop) in enumerate(zip(starts, stops, strict=True))
    ]


# --- tables -------------------------------------------------------------------------------------


@contextmanager
def _parquet(path: Path, schema: pa.Schema, key: str | None) -> Iterator[Write]:
    """A row group for each shard."""
    with _possible("Parquet"), pq.ParquetWriter(path, schema, compression="zstd") as out:
        yield lambda table: out.write_table(table, row_group_size=table.num_rows)


@contextmanager
def _arrow(path: Path, schema: pa.Schema, key: str | None) -> Iterator[Write]:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as out:
        yield out.write_table


@contextmanager
def _csv(path: Path, schema: pa.Schema, key: str | None) -> Iterator[Write]:
    """Text in quotes, so that it differs from null; dictionary columns as their values."""
    plain = pa.schema([field.with_type(_value_type(field.type)) for field in schema])
    for field in plain:
        if (
            pa.types.is_nested(field.type)
            or is_octets(field.type)
            or isinstance(field.type, pa.BaseExtensionType)
        ):
            raise SchemaError(
                f"CSV cannot hold column {field.name!r} ({field.type}): leave it out with columns="
            )
    with _possible("CSV"), pa.OSFile(str(path), "wb") as file, pacsv.CSVWriter(file, plain) as out:
        yield lambda table: out.write_table(table.cast(plain))


@contextmanager
def _jsonl(path: Path, schema: pa.Schema, key: str | None) -> Iterator[Write]:
    """An object a line: bytes in base64, times in ISO 8601, NaN and infinities null."""
    with path.open("w", encoding="utf-8", newline="\n") as out:

        def write(table: pa.Table) -> None:
            for batch in table.to_batches():
                columns = [_values(column) for column in batch.columns]
                for row in zip(*columns, strict=True):
                    record = jsonable(dict(zip(schema.names, row, strict=True)))
                    out.write(json.dumps(record, ensure_ascii=False) + "\n")

        yield write


@contextmanager
def _possible(what: str) -> Iterator[None]:
    """Say of a type that Arrow cannot write so that there is a way out."""
    try:
        yield
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise SchemaError(f"{what} cannot hold every column: {error}; leave one out with columns=") from error


def _value_type(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def _values(column: pa.Array) -> list[Any]:
    """The values as Python has them, times as text: Python's lack nanoseconds."""
    type_ = column.type
    if pa.types.is_timestamp(type_) or pa.types.is_time(type_):
        column = column.cast(pa.string())
    values: list[Any] = column.to_pylist()
    return values


# --- samples ------------------------------------------------------------------------------------


@contextmanager
def _webdataset(path: Path, schema: pa.Schema, key: str | None) -> Iterator[Write]:
    """A tar whose members are named as a folder's files; the same rows make the same bytes."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as out:

        def add(name: str, data: bytes) -> None:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            out.addfile(member, io.BytesIO(data))

        yield _samples(add, schema, key)


@contextmanager
def _folder(path: Path, schema: pa.Schema, key: str | None) -> Iterator[Write]:
    """A file for each value that is not null: its name is the key, its extension the column."""
    path.mkdir()

    def add(name: str, data: bytes) -> None:
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("xb") as out:
            out.write(data)

    yield _samples(add, schema, key)


def _samples(add: Callable[[str, bytes], object], schema: pa.Schema, key: str | None) -> Write:
    """What writes rows as samples by way of `add(name, data)`. Without a key they are named by their numbers.

    No name comes twice, which readers would take for one sample: the names are remembered, some 100 bytes each.
    """
    fields = [name for name in schema.names if name != key]
    for name in fields:
        if "/" in name or name.startswith("."):
            raise SchemaError(f"column {name!r} cannot be a file's extension: leave it out with columns=")
    count = 0
    written: set[str] = set()

    def write(table: pa.Table) -> None:
        nonlocal count
        for batch in table.to_batches():
            names = [f"{number:09}" for number in range(count, count + batch.num_rows)]
            if key is not None:
                names = [_file_name(name) for name in _values(batch[key])]
            count += batch.num_rows
            columns = [_files_of(batch[name]) for name in fields]
            for name, *values in zip(names, *columns, strict=True):
                for field, data in zip(fields, values, strict=True):
                    if data is not None:
                        add(_once(f"{name}.{field}", written, name, field), data)

    return write


def _once(name: str, written: set[str], key: str, field: str) -> str:
    if name in written:
        raise ValueError(
            f"key {key!r} and column {field!r} give the file {name!r}, which is there already: export rows with "
            "keys of their own, and columns whose names end in no other's (columns= leaves some out), or as Parquet"
        )
    written.add(name)
    return name


def _file_name(key: Any) -> str:
    """A key as a path below the folder."""
    name = key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else str(key)
    if (
        key is None
        or name != str(PurePosixPath(name))
        or name in ("", ".")
        or {"..", "/"} & {*PurePosixPath(name).parts}
    ):
        raise ValueError(f"key {key!r} cannot be a file's name")
    return name


def _files_of(column: pa.Array) -> list[bytes | None]:
    """What the file of each value holds: bytes as they are, text as UTF-8, everything else as JSON; null: no file."""
    column = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    if is_octets(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    if is_text(column.type):
        return column.cast(pa.large_binary()).to_pylist()  # type: ignore[no-any-return]
    return [None if value is None else json.dumps(jsonable(value)).encode() for value in _values(column)]


_KINDS: dict[str, _Kind] = {
    "parquet": _Kind((".parquet", ".pq"), _parquet),
    "csv": _Kind((".csv",), _csv),
    "jsonl": _Kind((".jsonl", ".ndjson"), _jsonl),
    "arrow": _Kind((".arrow", ".feather", ".ipc"), _arrow),
    "webdataset": _Kind((".tar",), _webdataset),
    "folder": _Kind((), _folder),
}
