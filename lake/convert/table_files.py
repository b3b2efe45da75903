"""Files of tables: Parquet, CSV, JSON lines, Arrow and arrays, one or many, local or in a bucket, read as streams."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from lake.convert import array_files, csv_text, fit, json_text
from lake.convert.json_text import text_type
from lake.convert.paths import File, reaching
from lake.convert.source import BATCH_BYTES, Meter, Request, Source
from lake.errors import FormatError, SchemaError
from lake.format import arrays

_BLOCK_BYTES = 16 << 20  # of text: types are inferred from the first block, and no line may be longer
_PARQUET_ROWS = 1 << 15
_OPEN_AT_ONCE = 8
_CONVERT = "convert it (iconv -f WINDOWS-1252 -t UTF-8, with the encoding that it has)"
_COMPRESSION = (".gz", ".zst", ".bz2", ".lz4")


@dataclass(frozen=True, slots=True)
class Format:
    """How files of one format are read."""

    name: str
    probe: Callable[
        [File, Request], tuple[pa.Schema, int | None]
    ]  # the schema, and the rows if they are known
    batches: Callable[[File, pa.Schema, Meter], Iterator[pa.RecordBatch]]
    typed: bool  # a file says itself what its types are, so that it may be empty


def format_of(name: str) -> Format | None:
    """The format that a file's name says it has."""
    path = PurePosixPath(name.lower())
    suffix = path.suffix
    if suffix in _COMPRESSION and PurePosixPath(path.stem).suffix in _TEXT:
        suffix = PurePosixPath(path.stem).suffix
    return FORMATS.get(suffix)


def read_files(files: Sequence[File], request: Request) -> Source:
    """The rows of all files, one after the other, as one table.

    Raises:
        SchemaError: the files' columns differ, or a value does not fit.
        FormatError: a file is not what its name says.
    """
    kinds = {kind.name: (kind, file.name) for file in files for kind in [_known(file)]}
    if len(kinds) > 1:
        (_, a), (_, b), *_ = kinds.values()
        raise ValueError(f"{a} and {b} are of different formats: commit one kind at a time")
    kind = next(iter(kinds.values()))[0]
    with ThreadPoolExecutor(_OPEN_AT_ONCE) as pool:
        probed = list(pool.map(lambda file: kind.probe(file, request), files))
    schema = request.schema
    if schema is None:
        schema = fit.widest((file.name, found) for file, (found, _) in zip(files, probed, strict=True))
    counts = [rows for _, rows in probed if rows is not None]
    meter, notes = Meter(), list[str]()
    return Source(
        schema,
        _rows(files, kind, schema, request, meter, notes),
        rows=sum(counts) if len(counts) == len(files) else None,
        bytes=sum(file.size for file in files),
        notes=notes,
        meter=meter,
        typed=kind.typed,
    )


def _rows(
    files: Sequence[File], kind: Format, schema: pa.Schema, request: Request, meter: Meter, notes: list[str]
) -> Iterator[pa.RecordBatch]:
    for file in files:
        before = meter.read
        batches = kind.batches(file, schema, meter)
        if kind is _CSV and request.schema is None:
            batches = csv_text.noticed(batches, file.name, notes)
        yield from fit.fitted(batches, schema, file.name, request.vocab)
        meter.read = before + file.size


def _known(file: File) -> Format:
    kind = format_of(file.name)
    if kind is None:
        raise ValueError(f"{file.name}: lake reads tables from {', '.join(FORMATS)} (text also compressed)")
    return kind


# --- Parquet ----------------------------------------------------------------------------------


def _parquet(file: File) -> pq.ParquetFile:
    with _is(file, "Parquet"):
        return pq.ParquetFile(file.open(), pre_buffer=not file.local, page_checksum_verification=True)


def _probe_parquet(file: File, request: Request) -> tuple[pa.Schema, int]:
    opened = _parquet(file)
    return opened.schema_arrow, opened.metadata.num_rows


def _parquet_batches(file: File, schema: pa.Schema, meter: Meter) -> Iterator[pa.RecordBatch]:
    opened = _parquet(file)
    metadata, before, rows = opened.metadata, meter.read, 0
    raw = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    each = max(1, raw // max(1, metadata.num_rows))
    with _is(file, "Parquet"):
        for batch in opened.iter_batches(batch_size=max(1, min(_PARQUET_ROWS, BATCH_BYTES // each))):
            rows += batch.num_rows
            meter.read = before + file.size * rows // metadata.num_rows
            yield batch


# --- Arrow ------------------------------------------------------------------------------------


def _arrow(file: File) -> Any:
    """A reader of an IPC file (which has `num_record_batches`) or stream."""
    with _is(file, "Arrow"):
        handle = pa.memory_map(file.path) if file.local and file.size else file.open()
        magic = handle.read(6)
        handle.seek(0)
        if magic[:4] == b"FEA1":
            raise FormatError(f"{file.name} is Feather version 1: write it again as version 2")
        return pa.ipc.open_file(handle) if magic == b"ARROW1" else pa.ipc.open_stream(handle)


def _probe_arrow(file: File, request: Request) -> tuple[pa.Schema, None]:
    return _arrow(file).schema, None


def _arrow_batches(file: File, schema: pa.Schema, meter: Meter) -> Iterator[pa.RecordBatch]:
    reader, before = _arrow(file), meter.read
    with _is(file, "Arrow"):
        if not hasattr(reader, "num_record_batches"):
            for batch in reader:
                batch.validate()
                meter.read = min(before + file.size, meter.read + batch.nbytes)
                yield batch
            return
        for i in range(reader.num_record_batches):
            batch = reader.get_batch(i)
            batch.validate()
            meter.read = before + file.size * (i + 1) // reader.num_record_batches
            yield batch


# --- text -------------------------------------------------------------------------------------


def _csv(file: File, types: pa.Schema | None, *, threads: bool = True, stream: Any = None) -> Any:
    options: dict[str, Any] = {}
    if types is not None:
        options["convert_options"] = pa.csv.ConvertOptions(
            column_types={f.name: text_type(f.type) for f in types}
        )
    reader = pa.csv.open_csv(
        _text(file) if stream is None else stream,
        read_options=pa.csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=threads),
        parse_options=pa.csv.ParseOptions(delimiter=_delimiter(file), newlines_in_values=True),
        **options,
    )
    assert reader.schema.names  # which are decoded only now, and may not be UTF-8
    return reader


def _delimiter(file: File) -> str:
    return "\t" if ".tsv" in file.name.lower() else ","


def _probe_csv(file: File, request: Request) -> tuple[pa.Schema, None]:
    _check_encoding(file)
    with _fits(file, lambda: _csv_place(file, request.schema)):
        schema = _csv(file, request.schema).schema
    bad = [field.name for field in schema if arrays.is_octets(field.type)] if request.schema is None else []
    if bad:
        raise SchemaError(
            f"{file.name} is not UTF-8, in column {bad[0]!r}: {_CONVERT}, or keep the bytes with "
            f"schema={{{bad[0]!r}: pyarrow.binary(), ...}}"
        )
    return schema, None


def _csv_batches(file: File, schema: pa.Schema, meter: Meter) -> Iterator[pa.RecordBatch]:
    with _fits(file, lambda: _csv_place(file, schema)):
        stream = csv_text.Counting(_text(file))
        yield from _counted(_csv(file, schema, stream=stream), file, meter)
    if stream.quotes % 2 and (line := csv_text.unclosed(_text(file), _delimiter(file))) is not None:
        raise FormatError(
            f"{file.name} ends inside the quote that opens in line {line:,}: it was cut short, or a quote is "
            "missing or too many"
        )


def _csv_place(file: File, types: pa.Schema | None) -> str | None:
    """Arrow's message about a file that does not fit, with line and column: read in one thread, it has them."""
    names: list[str] = []
    try:
        reader = _csv(file, types, threads=False)
        names = reader.schema.names
        for _ in reader:
            pass
    except pa.ArrowInvalid as error:
        return re.sub(
            r"In CSV column #(\d+): Row #(\d+): (.*)",
            lambda found: (
                f"column {names[int(found[1])]!r}, line {found[2]}: {found[3]}" if names else found[0]
            ),
            str(error),
        )
    return None


def _json(file: File, types: pa.Schema | None, *, threads: bool = True) -> Any:
    reader = pa.json.open_json(
        _text(file),
        read_options=pa.json.ReadOptions(block_size=_BLOCK_BYTES, use_threads=threads),
        parse_options=json_text.options(types),
    )
    _ = reader.schema.names  # which are decoded only now, and may not be UTF-8
    return reader


def _probe_json(file: File, request: Request) -> tuple[pa.Schema, None]:
    _check_encoding(file)
    with _fits(file, lambda: _json_place(file, request.schema)):
        if request.schema is not None:
            return _json(file, request.schema).schema, None
        found = _json(file, None).schema
        texts = json_text.with_times_as_text(found)
        if texts.equals(found):
            return found, None
        return json_text.settled(_json(file, texts).read_next_batch(), found), None


def _json_batches(file: File, schema: pa.Schema, meter: Meter) -> Iterator[pa.RecordBatch]:
    with _fits(file, lambda: _json_place(file, schema)):
        for batch in _counted(_json(file, schema), file, meter):
            batch.validate(full=True)  # Arrow's parser lets through what is not UTF-8
            yield batch


def _json_place(file: File, types: pa.Schema | None) -> str | None:
    rows = 0
    try:
        for batch in _json(file, types, threads=False):
            batch.validate(full=True)
            rows += batch.num_rows
    except pa.ArrowInvalid:
        return json_text.first_misfit(_text(file), rows, types, _BLOCK_BYTES)
    return None


def _text(file: File) -> pa.NativeFile:
    if not file.size:
        raise ValueError(f"{file.name} is empty: a table was looked for")
    with reaching(file.name):
        return file.filesystem.open_input_stream(file.path, compression="detect")


def _check_encoding(file: File) -> None:
    with _text(file) as stream:
        start = stream.read(4)
    if start[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in start:
        raise SchemaError(f"{file.name} is not UTF-8 but, by its first bytes, UTF-16 or UTF-32: {_CONVERT}")


def _counted(batches: Any, file: File, meter: Meter) -> Iterator[pa.RecordBatch]:
    before, text = meter.read, 0
    for batch in batches:
        text += batch.nbytes
        meter.read = before + min(file.size, text)
        yield batch


# --- arrays -----------------------------------------------------------------------------------


def _probe_arrays(file: File, request: Request) -> tuple[pa.Schema, int]:
    found = array_files.arrays_of(file)
    return array_files.schema_of(file, found), len(next(iter(found.values())))


def _array_batches(file: File, schema: pa.Schema, meter: Meter) -> Iterator[pa.RecordBatch]:
    found, before, rows = array_files.arrays_of(file), meter.read, 0
    count = len(next(iter(found.values())))
    for batch in array_files.batches_of(file, found):
        rows += batch.num_rows
        meter.read = before + file.size * rows // count
        yield batch


# --- errors -----------------------------------------------------------------------------------


@contextmanager
def _is(file: File, kind: str) -> Iterator[None]:
    """Damage, as an error that names the file."""
    try:
        with reaching(file.name):
            yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise FormatError(f"{file.name} is no {kind} file that can be read: {error}") from error


@contextmanager
def _fits(file: File, again: Callable[[], str | None]) -> Iterator[None]:
    """A value of another type than the first block's, as an error that names file, row, column and way out.

    `again`: reads the file once more to find the place, where it says more than Arrow's own message.
    """
    try:
        with _is(file, "text"):
            yield
    except FormatError as error:
        if isinstance(error.__cause__, UnicodeDecodeError):
            raise SchemaError(
                f"{file.name} is not UTF-8, in its column names: {_CONVERT}"
            ) from error.__cause__
        if not isinstance(error.__cause__, pa.ArrowInvalid):
            raise
        message = again() or str(error.__cause__)
        if "UTF8" in message:
            raise SchemaError(f"{file.name} is not UTF-8: {message}; {_CONVERT}") from error.__cause__
        raise SchemaError(
            f"{file.name}: {message}. Types come from the first {_BLOCK_BYTES >> 20} MiB: say others with "
            "schema="
        ) from error.__cause__


_TEXT = (".csv", ".tsv", ".jsonl", ".ndjson")
_PARQUET = Format("Parquet", _probe_parquet, _parquet_batches, typed=True)
_ARROW = Format("Arrow", _probe_arrow, _arrow_batches, typed=True)
_CSV = Format("CSV", _probe_csv, _csv_batches, typed=False)
_JSON = Format("JSON lines", _probe_json, _json_batches, typed=False)
_NUMPY = Format("NumPy", _probe_arrays, _array_batches, typed=True)
_SAFETENSORS = Format("safetensors", _probe_arrays, _array_batches, typed=True)
FORMATS = {
    ".parquet": _PARQUET,
    ".pq": _PARQUET,
    ".arrow": _ARROW,
    ".arrows": _ARROW,
    ".feather": _ARROW,
    ".ipc": _ARROW,
    ".csv": _CSV,
    ".tsv": _CSV,
    ".jsonl": _JSON,
    ".ndjson": _JSON,
    ".npy": _NUMPY,
    ".npz": _NUMPY,
    ".safetensors": _SAFETENSORS,
}
