"""An answer as a file that other tools read: Parquet or Arrow, written as its rows come."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from lake.errors import SchemaError

Columnar = Literal["parquet", "arrow"]


def write_answer(rows: pa.RecordBatchReader, out: IO[bytes], form: Columnar) -> None:
    """Write the rows to a binary file: Parquet, or an Arrow stream.

    Raises:
        SchemaError: Parquet has no such type.
    """
    try:
        with _writer(rows.schema, out, form) as writer:
            for batch in rows:
                writer.write_batch(batch)
    except pa.ArrowNotImplementedError as error:
        raise SchemaError(
            f"{form} cannot hold this answer: {error}; leave the column out, or cast it"
        ) from error


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path beside `path` to write to, which takes its place in the end; nothing is left of it if that fails.

    Raises:
        FileExistsError: there is something already.
    """
    target = Path(path)
    if target.exists():
        raise FileExistsError(f"{target} exists: remove it, or write elsewhere")
    fresh = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield fresh
        fresh.rename(target)
    finally:
        fresh.unlink(missing_ok=True)


def _writer(schema: pa.Schema, out: IO[bytes], form: Columnar) -> Any:
    if form == "parquet":
        return pq.ParquetWriter(out, schema, compression="zstd")
    return pa.ipc.new_stream(out, schema)
