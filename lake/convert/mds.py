"""Folders that MosaicML Streaming wrote (MDS, version 2), read without it, a shard at a time.

A shard is a count, the offsets of its samples, and the samples: the sizes of the values that have no fixed one,
then the values. All of it is taken apart by whole columns. Pickles are kept as the bytes that they are.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import xxhash
import zstandard

from lake.convert import paths, tensors
from lake.convert.source import Access, Meter, Request, Source
from lake.convert.tensors import Misfit
from lake.errors import FormatError, NotFoundError, SchemaError

INDEX: Final = "index.json"

_LIMIT: Final = 64 << 20  # bytes of an index
_NUMBERS: Final = {
    name: pa.from_numpy_dtype(np.dtype("int64" if name == "int" else name))
    for name in (
        "int", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32",
        "float64",
    )
}  # fmt: skip
_TEXTS: Final = frozenset({"str", "json", "str_int", "str_float", "str_decimal"})
_DTYPES: Final = {  # of arrays whose dtype is stored with each
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
_UNPACK: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "zstd": lambda data, size: zstandard.ZstdDecompressor().decompress(data, max_output_size=size),
    "gz": lambda data, size: gzip.GzipFile(fileobj=io.BytesIO(data)).read(size + 1),
    "bz2": lambda data, size: bz2.BZ2File(io.BytesIO(data)).read(size + 1),
    "br": lambda data, size: pa.decompress(data, size, "brotli", asbytes=True),
    "snappy": lambda data, size: pa.decompress(data, size, "snappy", asbytes=True),
}


@dataclass(frozen=True, slots=True)
class Shard:
    """What the index says of one shard."""

    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]  # of a value, where all have the same
    samples: int
    compression: str | None
    raw: dict[str, Any]  # basename, bytes, hashes
    packed: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Folder:
    """Where shards lie, beside their index: a folder, or the prefix of a URL."""

    name: str
    access: Access

    def path(self, file: str) -> str:
        """What a file of it is called."""
        return f"{self.name}/{file}"

    def get(self, file: str) -> bytes | None:
        """A file's bytes, None where there is none."""
        try:
            [found] = paths.find(glob.escape(self.path(file)), self.access)
        except (NotFoundError, ValueError):
            return None
        with found.open() as opened:
            return bytes(opened.read())


def is_mds(folder: Path) -> bool:
    """Whether a folder's index says that its shards are MDS."""
    path = folder / INDEX
    if not path.is_file() or path.stat().st_size > _LIMIT:
        return False
    try:
        shards = json.loads(path.read_bytes())["shards"]
        return bool(shards) and all(shard["format"] == "mds" for shard in shards)
    except (ValueError, KeyError, TypeError):
        return False


def read_mds(folder: Folder, request: Request) -> Source:
    """The samples of a folder, in the order of its shards.

    Raises:
        FormatError: a shard is damaged or cut short, or of another version. SchemaError: shards differ in their
        columns.
    """
    shards = _index(folder)
    first, notes = shards[0], list[str]()
    for number, shard in enumerate(shards):
        if (shard.names, shard.encodings) != (first.names, first.encodings):
            raise SchemaError(
                f"shard {number} of {folder.name} has other columns than the first: {_shown(shard)}"
            )
    for name, encoding in zip(first.names, first.encodings, strict=True):
        if encoding == "pkl":
            notes.append(f"column {name!r} holds pickles, which are kept as bytes: nothing is unpickled")
        elif encoding in ("pil", "jpeg_array", "jpegarray") or encoding.startswith("list["):
            notes.append(f"column {name!r} keeps the bytes of MDS's encoding {encoding!r}")
    columns = _first(folder, shards)
    meter = Meter()
    return Source(
        pa.schema([tensors.marked(pa.field(name, column.type)) for name, column in columns.items()]),
        _batches(folder, shards, {name: column.type for name, column in columns.items()}, meter),
        rows=sum(shard.samples for shard in shards),
        bytes=sum(int(shard.raw["bytes"]) for shard in shards),
        notes=notes,
        meter=meter,
    )


# --- inside -----------------------------------------------------------------------------------


def _index(folder: Folder) -> list[Shard]:
    where, data = folder.path(INDEX), folder.get(INDEX)
    if data is None:
        raise NotFoundError(f"no file {where!r}")
    try:
        said = json.loads(data)
        if said.get("version") != 2 or any(shard["version"] != 2 for shard in said["shards"]):
            raise FormatError(f"{where}: version {said.get('version')} of MDS, and lake reads version 2")
        return [_shard(shard, where) for shard in said["shards"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{where} is no index of MDS shards: {error!r}") from error


def _shard(said: dict[str, Any], where: str) -> Shard:
    names, encodings, sizes = (tuple(said[f"column_{what}"]) for what in ("names", "encodings", "sizes"))
    if not len(names) == len(encodings) == len(sizes) or int(said["samples"]) < 0:
        raise FormatError(f"{where}: {len(names)} columns, {len(encodings)} encodings and {len(sizes)} sizes")
    files = [said["raw_data"], *([said["zip_data"]] if said.get("zip_data") else [])]
    for file in files:
        if Path(file["basename"]).name != file["basename"]:
            raise FormatError(f"{where}: {file['basename']!r} is not the name of a file beside it")
    compression = said.get("compression")
    return Shard(
        names,
        encodings,
        tuple(size or None for size in sizes),
        int(said["samples"]),
        compression.partition(":")[0] if compression else None,
        said["raw_data"],
        said.get("zip_data"),
    )


def _first(folder: Folder, shards: Sequence[Shard]) -> dict[str, pa.Array]:
    """The columns of the first shard that has samples, which settle the types of arrays."""
    shard = next((shard for shard in shards if shard.samples), None)
    if shard is None:
        raise ValueError(f"no samples in {folder.name}")
    return _columns(folder, shard, {})


def _batches(
    folder: Folder, shards: Sequence[Shard], types: dict[str, pa.DataType], meter: Meter
) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([tensors.marked(pa.field(name, kind)) for name, kind in types.items()])
    for shard in shards:
        if shard.samples:
            yield pa.RecordBatch.from_arrays(list(_columns(folder, shard, types).values()), schema=schema)
        meter.read += int(shard.raw["bytes"])


def _columns(folder: Folder, shard: Shard, types: dict[str, pa.DataType]) -> dict[str, pa.Array]:
    path, data = _bytes(folder, shard)
    try:
        values = _values(data, shard)
        return {
            name: _column(name, encoding, *value, types.get(name))
            for name, encoding, value in zip(shard.names, shard.encodings, values, strict=True)
        }
    except (ValueError, IndexError, pa.ArrowInvalid) as error:
        if isinstance(error, SchemaError | FormatError):
            raise
        raise FormatError(f"{path} is damaged or cut short: {error}") from error
    except Misfit as misfit:
        raise SchemaError(f"{path}: {misfit}") from None


def _bytes(folder: Folder, shard: Shard) -> tuple[str, bytes]:
    """A shard's bytes as they were before compression, held against the sizes and hashes that the index has."""
    path = folder.path(shard.raw["basename"])
    data = folder.get(shard.raw["basename"])
    if data is not None:
        return path, _checked(path, data, shard.raw)
    if shard.packed is None:
        raise FormatError(f"{path} is missing, and the index names it")
    path = folder.path(shard.packed["basename"])
    packed = folder.get(shard.packed["basename"])
    if packed is None:
        raise FormatError(f"{path} is missing, and the index names it")
    if shard.compression not in _UNPACK:
        raise FormatError(f"{path}: compression {shard.compression!r} is none of {', '.join(_UNPACK)}")
    try:
        data = _UNPACK[shard.compression](_checked(path, packed, shard.packed), int(shard.raw["bytes"]))
    except (OSError, EOFError, zstandard.ZstdError, pa.ArrowException) as error:
        raise FormatError(f"{path} is no {shard.compression} that can be read: {error}") from error
    return path, _checked(path, data, shard.raw)


def _checked(path: str, data: bytes, said: dict[str, Any]) -> bytes:
    if len(data) != int(said["bytes"]):
        raise FormatError(f"{path}: {len(data):,} bytes, and the index says {int(said['bytes']):,}")
    for name, expected in (said.get("hashes") or {}).items():
        found = _hash(name, data)
        if found is not None and found != expected:
            raise FormatError(f"{path} differs from its {name} in the index")
    return data


def _hash(name: str, data: bytes) -> str | None:
    """The hash of this name; None where nobody here knows it."""
    if name in ("xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128"):
        return str(getattr(xxhash, name)(data).hexdigest())
    return hashlib.new(name, data).hexdigest() if name in hashlib.algorithms_guaranteed else None


Value = tuple[np.ndarray, np.ndarray, bytes]  # where values begin, how long they are, in which bytes


def _values(data: bytes, shard: Shard) -> list[Value]:
    """Where the values of each column lie."""
    octets = np.frombuffer(data, np.uint8)
    count = int(np.frombuffer(data, "<u4", 1)[0])
    if count != shard.samples:
        raise ValueError(f"{count:,} samples, and the index says {shard.samples:,}")
    offsets = np.frombuffer(data, "<u4", count + 1, 4).astype(np.int64)
    if (np.diff(offsets) < 0).any() or offsets[0] < 4 * (count + 2) or offsets[-1] > len(data):
        raise ValueError("samples outside the file")
    ragged = sum(size is None for size in shard.sizes)
    at = offsets[:-1] + 4 * ragged
    if (at > offsets[1:]).any():
        raise ValueError("a sample without the sizes of its values")
    heads = octets[offsets[:-1, None] + np.arange(4 * ragged)]
    stated = np.ascontiguousarray(heads).view("<u4").reshape(count, ragged).astype(np.int64)
    found, column = [], 0
    for size in shard.sizes:
        if size is None:
            lengths, column = stated[:, column], column + 1
        else:
            lengths = np.full(count, size, np.int64)
        found.append((at, lengths, data))
        at = at + lengths
    if (at != offsets[1:]).any():
        raise ValueError("values that do not fill their sample")
    return found


def _column(
    name: str, encoding: str, at: np.ndarray, lengths: np.ndarray, data: bytes, kind: pa.DataType | None
) -> pa.Array:
    if encoding in _NUMBERS:
        number = _NUMBERS[encoding]
        raw = _fixed(at, int(lengths[0]), data)
        return pa.Array.from_buffers(number, len(at), [None, pa.py_buffer(raw)])
    base, _, said = encoding.partition(":")
    if base == "ndarray":
        return _arrays(said, at, lengths, data, kind)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    view = memoryview(data)
    joined = b"".join([view[a : a + n] for a, n in zip(at.tolist(), lengths.tolist(), strict=True)])
    text = encoding in _TEXTS
    column = pa.Array.from_buffers(
        pa.large_string() if text else pa.large_binary(),
        len(at),
        [None, pa.py_buffer(ends), pa.py_buffer(joined)],
    )
    if text:
        column.validate(full=True)
    return column


def _arrays(
    said: str, at: np.ndarray, lengths: np.ndarray, data: bytes, kind: pa.DataType | None
) -> pa.Array:
    """Arrays: of a dtype and shape that the encoding says, or that come with each."""
    dtype, _, sizes = said.partition(":")
    if dtype and sizes:
        shape = tuple(int(size) for size in sizes.split(","))
        element = pa.from_numpy_dtype(np.dtype(dtype))
        tensor = pa.fixed_shape_tensor(element, shape)
        raw = _fixed(at, int(lengths[0]), data).reshape(-1)
        flat = pa.Array.from_buffers(element, len(at) * int(np.prod(shape)), [None, pa.py_buffer(raw)])
        return pa.ExtensionArray.from_storage(
            tensor, pa.Array.from_buffers(tensor.storage_type, len(at), [None], children=[flat])
        )
    arrays = [_array(dtype, data[a : a + n]) for a, n in zip(at.tolist(), lengths.tolist(), strict=True)]
    kind = kind or tensors.infer(arrays)
    make = tensors.build_fixed if isinstance(kind, pa.FixedShapeTensorType) else tensors.build_variable
    return make(arrays, kind)


def _array(dtype: str, value: bytes) -> np.ndarray:
    """One array that says its shape, and its dtype too unless that is known."""
    if not dtype:
        dtype, value = _DTYPES[value[0]], value[1:]
    rank, width = value[0] >> 2, 1 << value[0] % 4
    shape = np.frombuffer(value, f"<u{width}", rank, 1).astype(np.int64)
    found: np.ndarray = np.frombuffer(value, dtype, offset=1 + rank * width).reshape(shape)
    return found


def _fixed(at: np.ndarray, size: int, data: bytes) -> np.ndarray:
    """Values of one size, end to end: [n, size]."""
    return np.ascontiguousarray(np.frombuffer(data, np.uint8)[at[:, None] + np.arange(size)])


def _shown(shard: Shard) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in zip(shard.names, shard.encodings, strict=True))
