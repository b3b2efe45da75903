"""Files of arrays: NumPy's .npy and .npz, and safetensors. A row is one entry along the first axis.

Headers are read as what they are, text; nothing is unpickled. Local files are mapped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from lake.convert import tensors
from lake.convert.paths import File
from lake.convert.source import BATCH_BYTES, BATCH_ROWS
from lake.convert.tensors import Misfit
from lake.errors import FormatError, SchemaError

VALUES: Final = "values"  # the column of a .npy file, which names none

_HEADER: Final = 100 << 20  # bytes of a safetensors header, at most: its own limit
_TENSOR_TYPES: Final = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "U32": "<u4", "I32": "<i4",
    "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8",
}  # fmt: skip

Arrays = Mapping[str, np.ndarray]


def arrays_of(file: File) -> Arrays:
    """The arrays of a file by name, all of as many rows.

    Raises:
        FormatError: it is no such file, or was cut short. SchemaError: arrays of different lengths or odd types.
    """
    name = file.name.lower()
    try:
        if name.endswith(".safetensors"):
            found = _safetensors(file)
        elif name.endswith(".npz"):
            with file.open() as opened, np.load(opened, allow_pickle=False) as archive:
                found = {each: archive[each] for each in archive.files}
        else:
            found = {VALUES: _npy(file)}
    except (ValueError, EOFError, OSError, KeyError, TypeError) as error:
        if isinstance(error, FormatError | SchemaError):
            raise
        raise FormatError(f"{file.name} is no file of arrays that can be read: {error}") from error
    return _checked(file, _fields(found))


def schema_of(file: File, arrays: Arrays) -> pa.Schema:
    """The columns that the arrays of a file are."""
    return pa.schema([pa.field(name, _type(file, name, array)) for name, array in arrays.items()])


def batches_of(file: File, arrays: Arrays) -> Iterator[pa.RecordBatch]:
    """The rows of a file."""
    schema = schema_of(file, arrays)
    rows = len(next(iter(arrays.values())))
    each = sum(array.nbytes for array in arrays.values()) // max(1, rows)
    step = max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, each)))
    for start in range(0, rows, step):
        columns = [_column(arrays[field.name][start : start + step], field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


# --- inside -----------------------------------------------------------------------------------


def _npy(file: File) -> np.ndarray:
    if file.local and file.size:
        return np.load(file.path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    with file.open() as opened:
        return np.load(opened, allow_pickle=False)  # type: ignore[no-any-return]


def _safetensors(file: File) -> dict[str, np.ndarray]:
    data = pa.memory_map(file.path).read_buffer() if file.local and file.size else file.open().read_buffer()
    octets = np.frombuffer(data, np.uint8)
    length = int.from_bytes(octets[:8].tobytes(), "little")
    if len(octets) < 8 or length > min(_HEADER, len(octets) - 8):
        raise ValueError("its header does not fit into it")
    body = octets[8 + length :]
    found = {}
    for name, said in json.loads(octets[8 : 8 + length].tobytes()).items():
        if name == "__metadata__":
            continue
        if said["dtype"] not in _TENSOR_TYPES:
            raise SchemaError(
                f"{file.name}: tensor {name!r} is {said['dtype']}, which Arrow lacks: store it as F32, or leave it out"
            )
        dtype, shape = np.dtype(_TENSOR_TYPES[said["dtype"]]), [int(size) for size in said["shape"]]
        start, stop = said["data_offsets"]
        if not 0 <= start <= stop <= len(body) or stop - start != dtype.itemsize * math.prod(shape):
            raise ValueError(f"tensor {name!r} lies outside the file")
        found[name] = np.frombuffer(
            body[start:stop].tobytes() if start % dtype.itemsize else body[start:stop], dtype
        ).reshape(shape)
    return found


def _fields(arrays: Arrays) -> Arrays:
    """The fields of structured arrays as arrays of their own."""
    found: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if array.dtype.names is None:
            found[name] = array
            continue
        for field in array.dtype.names:
            found[field if len(arrays) == 1 else f"{name}.{field}"] = array[field]
    return found


def _checked(file: File, arrays: Arrays) -> Arrays:
    if not arrays:
        raise FormatError(f"{file.name} holds no array")
    lengths = {name: array.shape[0] if array.ndim else None for name, array in arrays.items()}
    if None in lengths.values() or len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
        raise SchemaError(
            f"{file.name}: arrays of one table have as many rows along their first axis, and these are {shown}"
        )
    return arrays


def _type(file: File, name: str, array: np.ndarray) -> pa.DataType:
    if array.ndim == 1 and array.dtype.kind in "US":
        return pa.large_string() if array.dtype.kind == "U" else pa.large_binary()
    try:
        element = tensors.arrow_type(array.dtype)
    except Misfit as misfit:
        raise SchemaError(f"{file.name}, array {name!r}: {misfit}") from None
    return element if array.ndim == 1 else pa.fixed_shape_tensor(element, array.shape[1:])


def _column(array: np.ndarray, kind: pa.DataType) -> pa.Array:
    if not isinstance(kind, pa.FixedShapeTensorType):
        native = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
        return pa.array(native, kind)
    plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    storage = pa.FixedSizeListArray.from_arrays(
        pa.array(plain.reshape(-1), kind.value_type), math.prod(array.shape[1:])
    )
    return pa.ExtensionArray.from_storage(kind, storage)
