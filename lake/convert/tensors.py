"""NumPy arrays and tensors as Arrow columns, and the Arrow types that stand for them.

Arrays of one shape are `arrow.fixed_shape_tensor`. Arrays of several shapes are a struct of `data` (the
elements, row-major) and `shape`; the column's field carries the metadata `lake.tensor: variable_shape`, so
that a reader need not guess. (Arrow's own name for it is not used: whether that gives a struct or an
extension type depends on pyarrow's version.) Tensors are known by what they can do; torch is not imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

MARK = {b"lake.tensor": b"variable_shape"}

Array = np.ndarray[Any, Any]


class Misfit(Exception):
    """A value that a type cannot hold, or types that do not go together; says both."""


def is_array(cls: type) -> bool:
    """Whether values of this type are arrays: NumPy's, torch's, JAX's."""
    return hasattr(cls, "__array__") and hasattr(cls, "shape") and hasattr(cls, "dtype")


def as_numpy(value: Any) -> Any:
    """The array as NumPy's, without copying where that is possible; one of no dimensions as its scalar."""
    if not isinstance(value, np.ndarray):
        try:
            value = value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
        except (TypeError, RuntimeError, ValueError) as error:
            raise Misfit(f"a tensor of {value.dtype} has no NumPy form ({error}): convert it first") from None
    if isinstance(value, np.ma.MaskedArray):
        raise Misfit("a masked array would lose its mask: fill it first")
    return value if value.ndim else value[()]


def arrow_type(dtype: np.dtype[Any]) -> pa.DataType:
    """The Arrow type of one element."""
    if dtype.kind not in "biufmM":
        raise Misfit(f"elements of dtype {dtype} have no tensor type: pass a list")
    try:
        return pa.from_numpy_dtype(dtype.newbyteorder("="))
    except (pa.ArrowNotImplementedError, TypeError):
        raise Misfit(f"elements of dtype {dtype} have no Arrow type: convert them first") from None


def infer(arrays: Sequence[Array]) -> pa.DataType:
    """The type of a column of these arrays."""
    dtypes = {array.dtype for array in arrays}
    kinds = {dtype.kind for dtype in dtypes}
    if len(kinds) > 1 and not kinds <= set("iuf"):
        raise Misfit(f"arrays of {' and '.join(sorted(map(str, dtypes)))} are no one type")
    element = arrow_type(np.result_type(*dtypes))
    shapes = {array.shape for array in arrays}
    if len(shapes) == 1:
        return pa.fixed_shape_tensor(element, shapes.pop())
    ranks = sorted({len(shape) for shape in shapes})
    if len(ranks) > 1:
        raise Misfit(f"arrays of {ranks[0]} and of {ranks[-1]} dimensions are no one type")
    return variable_shape(element, ranks[0])


def variable_shape(element: pa.DataType, dimensions: int) -> pa.DataType:
    """The type of tensors of several shapes; its field is to be marked with `MARK`."""
    return pa.struct([("data", pa.list_(element)), ("shape", pa.list_(pa.int32(), dimensions))])


def is_variable_shape(kind: pa.DataType) -> bool:
    """Whether the type looks like `variable_shape`'s."""
    return bool(
        pa.types.is_struct(kind)
        and kind.names == ["data", "shape"]
        and pa.types.is_list(kind[0].type)
        and pa.types.is_fixed_size_list(kind[1].type)
        and pa.types.is_int32(kind[1].type.value_type)
    )


def marked(field: pa.Field) -> pa.Field:
    """The field with `MARK` where it is one of tensors of several shapes."""
    return field.with_metadata(MARK) if is_variable_shape(field.type) else field


def build_fixed(arrays: Sequence[Array | None], kind: pa.FixedShapeTensorType) -> pa.Array:
    """A column of arrays, each of the type's shape; None is null."""
    shape, dtype = tuple(kind.shape), kind.value_type.to_pandas_dtype()
    if kind.permutation is not None and kind.permutation != sorted(kind.permutation):
        raise Misfit(f"{kind} orders its dimensions otherwise: build the column with pyarrow")
    for array in arrays:
        if array is not None and array.shape != shape:
            raise Misfit(f"an array of shape {list(array.shape)} does not fit shape {list(shape)}")
    blank = np.zeros(shape, dtype)
    stacked = (
        np.stack([blank if a is None else converted(a, dtype) for a in arrays]) if len(arrays) else blank[:0]
    )
    storage = pa.Array.from_buffers(
        kind.storage_type,
        len(arrays),
        [validity([array is not None for array in arrays])],
        children=[_flat(stacked, kind.value_type)],
    )
    return pa.ExtensionArray.from_storage(kind, storage)


def build_variable(arrays: Sequence[Array | None], kind: pa.DataType) -> pa.Array:
    """A column of arrays of any shape of the type's number of dimensions; None is null."""
    element, rank = kind[0].type.value_type, kind[1].type.list_size
    dtype = element.to_pandas_dtype()
    blank = np.zeros((0,) * rank, dtype)
    whole = [blank if array is None else converted(array, dtype) for array in arrays]
    for array in whole:
        if array.ndim != rank:
            raise Misfit(f"an array of {array.ndim} dimensions does not fit one of {rank}")
    sizes = np.array([array.size for array in whole], np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise Misfit(f"a tensor of {int(sizes.max()):,} elements is too large for Arrow's tensor type")
    values = np.concatenate([array.reshape(-1) for array in whole]) if whole else blank.reshape(-1)
    data = pa.Array.from_buffers(
        kind[0].type,
        len(whole),
        [None, pa.py_buffer(offsets.astype(np.int32))],
        children=[_flat(values, element)],
    )
    shapes = np.array([array.shape for array in whole], np.int32).reshape(len(whole), rank)
    shape = pa.Array.from_buffers(
        kind[1].type, len(whole), [None], children=[pa.array(shapes.reshape(-1), pa.int32())]
    )
    valid = validity([array is not None for array in arrays])
    return pa.Array.from_buffers(kind, len(whole), [valid], children=[data, shape])


def validity(valid: Sequence[bool] | Array) -> pa.Buffer | None:
    """The bitmap of a column; None if all of it is there."""
    bits = np.asarray(valid, np.bool_)
    return None if bits.all() else pa.py_buffer(np.packbits(bits, bitorder="little"))


def converted(array: Array, dtype: Any) -> Array:
    """The array with other elements, itself if it has them.

    Raises:
        Misfit: that changes a value, or could: floats are never made narrower.
    """
    dtype = np.dtype(dtype)
    if array.dtype == dtype:
        return array
    if not np.can_cast(array.dtype, dtype, "safe"):
        raise Misfit(f"an array of {array.dtype} does not fit {dtype}")
    made = array.astype(dtype)
    if array.size and not _same(array, made):
        raise Misfit(f"an array of {array.dtype} has values that do not fit {dtype}")
    return made


def _same(array: Array, made: Array) -> bool:
    """Whether a cast that NumPy calls safe kept every value."""
    if array.dtype.kind in "iu" and made.dtype.kind == "f":
        limit = 2 ** (np.finfo(made.dtype).nmant + 1)
        return bool(-limit <= int(array.min()) and int(array.max()) <= limit)
    if array.dtype.kind in "mM":
        return bool((made.astype(array.dtype).view(np.int64) == array.view(np.int64)).all())
    return True


def _flat(array: Array, element: pa.DataType) -> pa.Array:
    """The elements in row-major order, over the array's own memory where it is contiguous."""
    return pa.array(np.ascontiguousarray(array).reshape(-1), element)
