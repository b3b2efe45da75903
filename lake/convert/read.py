"""Find out what a user's data is, and read it as a stream of record batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import EllipsisType
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from lake.convert import (
    archive,
    files,
    fit,
    folder,
    hugging_face,
    mds,
    paths,
    samples,
    shuffled,
    table_files,
    tables,
)
from lake.convert.files import Skipped
from lake.convert.source import Access, Meter, Request, Source, bounded
from lake.errors import SchemaError

Order = Literal["given", "shuffled"]
_LISTED_AT_ONCE = 8  # archives


def read(
    data: Any,
    *,
    key: str | EllipsisType | None = ...,
    order: Order | None = None,
    labels: bool = False,
    schema: Any = None,
    endpoint_url: str | None = None,
    region: str | None = None,
    anonymous: bool = False,
) -> Source:
    """A user's data as a stream of record batches, whatever it is.

    Args:
        data: a folder (of files, of MDS shards, or of `save_to_disk`), archives, table files or globs (`str` or
            path, or a list of them), a table or stream, a Hugging Face dataset, or an iterable of
            `(key, {field: value})`.
        key: the key column; by default the one named `key`, if any. None: no key.
        order: "shuffled" gives the rows by the hash of their key; "given" is the default without `labels`.
        labels: for folders and archives: the first directory is the class.
        schema: what the columns shall be: a `pyarrow.Schema`, or a mapping of names to types or, for a
            dictionary column, to its values in code order.
        endpoint_url, region, anonymous: how to reach `s3://` inputs.

    Raises:
        NotFoundError: a path that is not there. ValueError: nothing to read, or an impossible request.
        TypeError: data of no kind that lake reads. SchemaError: values that do not fit. ArchiveError,
        FormatError: a damaged file.
    """
    if any(_path(item) == "" for item in (data if isinstance(data, (list, tuple)) else (data,))):
        raise ValueError("the path is empty: '.' names the working directory")
    if order not in (None, "given", "shuffled"):
        raise ValueError(f'order={order!r}: it is "given" or "shuffled"')
    wanted, vocab = (None, {}) if schema is None else fit.as_schema(schema)
    mixed = order == "shuffled" or (labels and order is None)
    request = Request(wanted, vocab, labels, mixed, Access(endpoint_url, region, anonymous))
    kind = next((kind for kind in KINDS if kind.takes(data)), None)
    if kind is None:
        raise TypeError(
            f"lake cannot read {type(data).__name__}: it reads {', '.join(kind.name for kind in KINDS)}"
        )
    if labels and not kind.files:
        raise ValueError(f"labels=True takes the class from a file's directory; {kind.name} has none")
    source = _fitted(kind.read(data, request), kind, request)
    source.key = _key(source.schema, key)
    if mixed and not kind.files:
        source = _shuffled(source)
    return replace(source, batches=_bounded(source.batches))


# --- finishing --------------------------------------------------------------------------------


def _fitted(source: Source, kind: Kind, request: Request) -> Source:
    """The source in the schema asked for, and not empty unless it knows its types."""
    if request.schema is None:
        fit.check_names(source.schema, source.schema, kind.name)
        return source if source.typed else replace(source, batches=_some(source.batches, kind.name))
    wanted = request.schema
    if kind.keyed and files.KEY not in wanted.names:
        wanted = wanted.insert(0, pa.field(files.KEY, pa.large_string()))
    vocab = {name: values for name, values in source.vocab.items() if name in wanted.names} | dict(
        request.vocab
    )
    if source.schema.equals(wanted, check_metadata=True):
        return replace(source, vocab=vocab)
    fit.check_names(source.schema, wanted, kind.name)
    return replace(
        source,
        schema=wanted,
        vocab=vocab,
        batches=fit.fitted(source.batches, wanted, kind.name, request.vocab),
    )


def _some(batches: Iterator[pa.RecordBatch], what: str) -> Iterator[pa.RecordBatch]:
    """The batches, of which there must be one with rows."""
    for batch in batches:
        if batch.num_rows:
            return chain([batch], batches)
    raise ValueError(f"{what} without a row: nothing says what its columns' types are, unless schema= does")


def _key(schema: pa.Schema, key: str | EllipsisType | None) -> str | None:
    if isinstance(key, EllipsisType):
        return files.KEY if files.KEY in schema.names else None
    if key is not None and key not in schema.names:
        raise SchemaError(f"key={key!r}: there is no such column among {', '.join(map(repr, schema.names))}")
    return key


def _shuffled(source: Source) -> Source:
    if source.key is None:
        raise ValueError(
            'order="shuffled" sorts rows by the hash of their key, and there is no key: name a column with '
            "key="
        )
    batches = shuffled.shuffled(source.batches, source.schema, source.key)
    return replace(source, schema=shuffled.sortable(source.schema), batches=batches, sorted_by=None)


def _bounded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from bounded(batch)


# --- files ------------------------------------------------------------------------------------


def _path(data: Any) -> str | None:
    return os.fspath(data) if isinstance(data, (str, os.PathLike)) else None


def _is_folder(data: Any) -> bool:
    path = _path(data)
    return path is not None and not paths.is_remote(path) and Path(path).is_dir()


def _is_mds(data: Any) -> bool:
    path = _path(data)
    if path is not None and path.endswith(f"/{mds.INDEX}"):
        return paths.is_remote(path) or mds.is_mds(Path(path).parent)
    return _is_folder(data) and mds.is_mds(Path(data))


def _read_mds(data: Any, request: Request) -> Source:
    folder = os.fspath(data).removesuffix(mds.INDEX).rstrip("/")
    return mds.read_mds(mds.Folder(folder, request.access), request)


def _is_saved(data: Any) -> bool:
    return _is_folder(data) and hugging_face.is_saved(Path(data))


def _is_archive(data: Any) -> bool:
    names = [_path(item) for item in (data if isinstance(data, (list, tuple)) else [data])]
    return bool(names) and all(name is not None and archive.is_archive(name) for name in names)


def _is_files(data: Any) -> bool:
    return _path(data) is not None or (
        isinstance(data, (list, tuple)) and bool(data) and all(_path(item) is not None for item in data)
    )


def _read_folder(data: Any, request: Request) -> Source:
    skipped = Skipped()
    root = Path(data)
    members = folder.list_folder(root, skipped)
    source = _of_files(
        members,
        f"folder {os.fspath(data)}",
        lambda batches: folder.FolderReader(root),
        skipped,
        request,
        by_key=True,
    )
    kinds = {table_files.format_of(member.name) for member in members}
    if len(kinds) == 1 and None not in kinds:
        pattern = f"{os.fspath(data).rstrip('/')}/**/*{Path(members[0].name).suffix}"
        source.notes.append(f"the folder's tables are kept as files: for their rows commit {pattern!r}")
    return source


def _read_archive(data: Any, request: Request) -> Source:
    patterns = [os.fspath(item) for item in (data if isinstance(data, (list, tuple)) else [data])]
    found = [place for pattern in patterns for place in paths.find(pattern, request.access)]
    if len(found) == 1:
        return _one_archive(found[0], request)
    if request.labels:
        raise ValueError(f"labels=True takes one archive, and {data} are {len(found):,}")
    return _many_archives(found, request)


def _one_archive(place: paths.File, request: Request) -> Source:
    skipped = Skipped()
    opened = archive.open_archive(place, skipped)
    return _of_files(opened.members, f"archive {place.name}", opened.reader, skipped, request, by_key=False)


def _many_archives(found: list[paths.File], request: Request) -> Source:
    """The samples of archives one after the other, such as the shards of a WebDataset; their fields are the union's."""
    with ThreadPoolExecutor(_LISTED_AT_ONCE) as pool:
        given = replace(request, shuffled=False)
        sources = list(pool.map(lambda place: _one_archive(place, given), found))
    fields = sorted({field.name for source in sources for field in source.schema} - {files.KEY})
    schema = pa.schema([(files.KEY, pa.large_string()), *((name, pa.large_binary()) for name in fields)])
    meter = Meter()

    def batches() -> Iterator[pa.RecordBatch]:
        for place, source in zip(found, sources, strict=True):
            before = meter.read
            for batch in fit.fitted(source.batches, schema, f"archive {place.name}"):
                meter.read = before + source.read
                yield batch

    rows = batches()
    if request.shuffled:
        rows = shuffled.shuffled(rows, schema, files.KEY)
    return Source(
        schema,
        rows,
        rows=sum(source.rows or 0 for source in sources),
        bytes=sum(source.bytes or 0 for source in sources),
        notes=list(dict.fromkeys(note for source in sources for note in source.notes)),
        meter=meter,
    )


def _read_files(data: Any, request: Request) -> Source:
    patterns = [os.fspath(item) for item in (data if isinstance(data, (list, tuple)) else [data])]
    for pattern in patterns:
        if paths.is_remote(pattern) and pattern.endswith("/"):
            raise ValueError(
                f"{pattern}: folders are read from local disks; from a bucket lake reads archives and tables"
            )
    return table_files.read_files(
        [file for pattern in patterns for file in paths.find(pattern, request.access)], request
    )


def _of_files(
    members: list[files.Member],
    what: str,
    open_reader: files.Opener,
    skipped: Skipped,
    request: Request,
    *,
    by_key: bool,
) -> Source:
    """A source of samples made of files."""
    if request.labels:
        grouped = files.group_labelled(members, what, skipped, by_key=by_key)
    else:
        grouped = files.group(members, what, by_key=by_key)
    if not grouped.keys and request.schema is None:
        wanted = "images or audio files in class folders" if request.labels else "files"
        raise ValueError(f"no {wanted} in {what}" + "".join(f"; {note}" for note in skipped.notes()))
    if request.shuffled and grouped.keys:
        grouped = grouped.reordered(shuffled.order_of(pa.array(grouped.keys, pa.large_string())))
    meter = Meter()
    return Source(
        grouped.schema(),
        files.read_batches(grouped, open_reader, meter),
        vocab={files.LABEL: list(grouped.classes)} if request.labels else {},
        rows=len(grouped.keys),
        bytes=grouped.bytes,
        notes=skipped.notes(),
        sorted_by=None if request.shuffled else _sorted_by(grouped.label),
        meter=meter,
    )


def _sorted_by(label: np.ndarray[Any, Any] | None) -> str | None:
    """The label column, where the classes come one after the other."""
    if label is None or not len(label):
        return None
    changes = int(np.count_nonzero(np.diff(label)))
    return files.LABEL if 0 < changes < len(np.unique(label)) and len(label) > 2 * (changes + 1) else None


# --- the table --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of data: how it is recognised and read. The first that takes the data reads it."""

    name: str
    takes: Callable[[Any], bool]
    read: Callable[[Any, Request], Source]
    files: bool = False  # samples made of files: labels come from their directories, order from their names
    keyed: bool = False  # the key column is made here, so that schema= need not name it


KINDS = (
    Kind("an MDS folder", _is_mds, _read_mds),
    Kind(
        "a folder of save_to_disk",
        _is_saved,
        lambda data, request: hugging_face.read_saved(Path(data), request),
    ),
    Kind("a folder", _is_folder, _read_folder, files=True, keyed=True),
    Kind("an archive", _is_archive, _read_archive, files=True, keyed=True),
    Kind("table files", _is_files, _read_files),
    Kind("a Hugging Face dataset", hugging_face.is_hugging_face, hugging_face.read_hugging_face),
    Kind("an Arrow table or stream", tables.is_arrow, tables.read_arrow),
    Kind("a pandas DataFrame", tables.is_pandas, tables.read_pandas),
    Kind("a polars LazyFrame", tables.is_lazy_polars, tables.read_lazy_polars),
    Kind("anything with an Arrow stream", tables.is_stream, tables.read_stream),
    Kind(
        "an iterable of (key, {field: value})",
        lambda data: isinstance(data, Iterable),
        samples.read_samples,
        keyed=True,
    ),
)
