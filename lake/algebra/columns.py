"""Operators on run-end and dictionary encoded Arrow arrays that never expand them.

Each gives what decoding, `pyarrow.compute` and encoding again would give. Over runs the cost follows the number of
runs; over a dictionary it follows the dictionary, plus one pass over the codes where rows are counted or combined.
A chunked array of such chunks will do wherever an array does. Operators that give a column give one of the same
encoding. Null and NaN mean what they mean to Arrow; an integer that overflows is an `OverflowError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.algebra.runs import Runs, aligned
from lake.algebra.stored import Column, Settle, highs, lows, validity, values
from lake.algebra.weighted import Weighted, averaged, counted, extreme, grouped, occurrences, summed

Encoded: TypeAlias = pa.RunEndEncodedArray | pa.DictionaryArray
Kernel: TypeAlias = Callable[[Any, Any], pa.Array]

_PAIRS = 2**16  # of two dictionaries that may be tabled whatever the number of rows


# --- a column from columns --------------------------------------------------------------------


def add(x: Any, y: Any) -> Encoded:
    """`x + y`, row by row: two columns of one encoding and length, or a column and a number.

    A number takes the type of the column's values.

    Raises:
        OverflowError: a sum that the type cannot hold, with the two numbers.
        ValueError: columns of different lengths, or a number that the type cannot hold.
    """
    return _combined(_checked("add", pc.add_checked), x, y)


def scale(x: Any, factor: Any) -> Encoded:
    """`x * factor`, row by row; the factor, a number, takes the type of the column's values.

    Raises:
        OverflowError: a product that the type cannot hold. ValueError: a factor that it cannot hold.
    """
    if isinstance(factor, pa.Array | pa.ChunkedArray):
        raise TypeError("scale() takes one number; of two columns only sums are made")
    return _combined(_checked("multiply", pc.multiply_checked), x, factor)


def equal(x: Any, y: Any) -> Encoded:
    """Whether `x` and `y`, columns or a column and a value, are equal, row by row; null where one is null.

    Raises:
        TypeError: values that Arrow does not compare. ValueError: a value that is none of the column's type.
    """
    return _combined(_checked("equal", pc.equal), x, y)


def map(x: Any, fn: Callable[[pa.Array], pa.Array]) -> Encoded:
    """The column with `fn(values)` for its values: `fn` gets each run's or each used dictionary value once.

    `fn` takes an array and gives one of the same length, whose elements depend on nothing but theirs.
    """
    column = encoded(x)
    if isinstance(column, pa.RunEndEncodedArray):
        runs = Runs.of(column)
        return Runs(runs.ends, _applied(fn, runs.values)).array(column.type.run_end_type)
    slim = _with_null(_slim(column))
    return _dictionary(slim.indices, _applied(fn, slim.dictionary))


def filter(x: Any, where: Any) -> Encoded:
    """The rows of `x` for which `where` is true; null counts as false.

    `where`: a function of an array of values, called as in `map`; or a mask of as many rows, encoded (what
    `equal` and `map` give) or plain, which costs a pass over its bits.
    """
    column = encoded(x)
    if not callable(where):
        return _selected(column, where)
    if isinstance(column, pa.RunEndEncodedArray):
        runs = Runs.of(column)
        return runs.kept(_judged(where, runs.values)).array(column.type.run_end_type)
    slim = _with_null(_slim(column))
    return column.filter(_judged(where, slim.dictionary).take(slim.indices))


# --- a value from a column ----------------------------------------------------------------------


def count(x: Any) -> pa.Scalar:
    """Rows that are not null (int64)."""
    return counted(_parts(x, validity))


def sum(x: Any) -> pa.Scalar:
    """The sum of the values that are not null, of the type of `pyarrow.compute.sum`; null if there are none.

    Exact for integers and decimals. Of floats it is the exact sum rounded once to a double, which does not depend
    on how the column is encoded or in which order it is added.

    Raises:
        OverflowError: the result's type cannot hold it.
    """
    with _named(x):
        return summed(_parts(x, values), _type(x))


def mean(x: Any) -> pa.Scalar:
    """The exact mean of the values that are not null, rounded once to a double; null if there are none."""
    with _named(x):
        return averaged(_parts(x, values), _type(x))


def min(x: Any) -> pa.Scalar:
    """The least value, nulls and, unless there is nothing else, NaN left out; null if there are none."""
    with _named(x):
        return extreme(_parts(x, lows), _type(x), "min")


def max(x: Any) -> pa.Scalar:
    """The greatest value, as `min`."""
    with _named(x):
        return extreme(_parts(x, highs), _type(x), "max")


def group_count(x: Any) -> pa.Table:
    """How many rows have each value, null included: columns `value` and `count`.

    Over runs in order of first appearance, otherwise in no order that is promised.
    """
    with _named(x):
        return grouped(_parts(x, values), _type(x))


# --- inside ---------------------------------------------------------------------------------------


def encoded(x: Any) -> Encoded:
    """The column as one encoded array.

    Raises:
        TypeError: it is not run-end or dictionary encoded.
    """
    if isinstance(x, pa.ChunkedArray):
        x = x.unify_dictionaries().combine_chunks() if x.num_chunks else pa.array([], x.type)
    if isinstance(x, pa.RunEndEncodedArray | pa.DictionaryArray):
        return x
    if isinstance(x, Column):
        raise TypeError(
            f"column {x.name!r} of {x.snapshot.name!r} is for count, sum, mean, min, max and group_count; for a column "
            "made of it read its rows, ds.scan([name]).to_table()[name], and encode them"
        )
    found = x.type if isinstance(x, pa.Array) else type(x).__name__
    raise TypeError(
        f"an encoded column is wanted, not {found}: pyarrow.compute.run_end_encode or dictionary_encode makes one, "
        "lake.algebra.column names one of a dataset"
    )


@contextmanager
def _named(x: Any) -> Iterator[None]:
    """Where a dataset's column is at fault, the error says which."""
    try:
        yield
    except (TypeError, OverflowError) as error:
        if not isinstance(x, Column):
            raise
        raise type(error)(f"column {x.name!r} of {x.snapshot.name!r}: {error}") from error


def _parts(x: Any, settle: Settle) -> Iterable[Weighted]:
    """The values of a column and how many rows have each; of a dataset's, as far as the question needs them."""
    return x.parts(settle) if isinstance(x, Column) else [Weighted.of(encoded(x))]


def _type(x: Any) -> pa.DataType:
    """The type of a column's values."""
    return x.type if isinstance(x, Column) else encoded(x).type.value_type


def _combined(kernel: Kernel, x: Any, y: Any) -> Encoded:
    if not isinstance(y, pa.Array | pa.ChunkedArray):
        return _with_scalar(kernel, x, y)
    one, other = encoded(x), encoded(y)
    if isinstance(one, pa.RunEndEncodedArray) and isinstance(other, pa.RunEndEncodedArray):
        ends, left, right = aligned(Runs.of(one), Runs.of(other))
        return Runs(ends, kernel(left, right)).array(one.type.run_end_type)
    if isinstance(one, pa.DictionaryArray) and isinstance(other, pa.DictionaryArray):
        return _paired(kernel, one, other)
    raise TypeError(f"columns of one encoding are wanted, not {one.type} and {other.type}")


def _with_scalar(kernel: Kernel, x: Any, value: Any) -> Encoded:
    column = encoded(x)
    type_ = column.type.value_type
    try:  # a number has a type of its own first, so that the cast is checked; one above int64 has none but uint64
        given = value if isinstance(value, pa.Scalar) else pa.scalar(value, _wide(value))
        scalar = given.cast(type_)
    except (pa.ArrowException, OverflowError) as error:
        raise ValueError(f"{value!r} is no {type_}, which the column's values are") from error
    return map(column, lambda values: kernel(values, scalar))


def _wide(value: Any) -> pa.DataType | None:
    return pa.uint64() if isinstance(value, int) and value >= 2**63 else None


def _paired(kernel: Kernel, x: pa.DictionaryArray, y: pa.DictionaryArray) -> pa.DictionaryArray:
    """Row by row over dictionaries: the kernel sees each pair of values that occurs once."""
    if len(x) != len(y):
        raise ValueError(f"columns of {len(x):,} and {len(y):,} rows have no rows in common to combine")
    left, right = _with_null(x), _with_null(y)
    pairs = left.indices.to_numpy().astype(np.int64) * len(right.dictionary) + right.indices.to_numpy()
    room = len(left.dictionary) * len(right.dictionary)
    if room <= _PAIRS or room <= len(pairs):
        seen = np.zeros(room, np.bool_)
        seen[pairs] = True
        used = np.flatnonzero(seen)
        codes = (np.cumsum(seen) - 1)[pairs]
    else:
        used, codes = np.unique(pairs, return_inverse=True)
    before, after = np.divmod(used, np.int64(len(right.dictionary) or 1))
    values = kernel(left.dictionary.take(pa.array(before)), right.dictionary.take(pa.array(after)))
    return _dictionary(pa.array(codes, pa.int32()), values)


def _with_null(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """The same column, with a code for null where rows are null."""
    if not column.indices.null_count:
        return column
    null = len(column.dictionary)
    values = pa.concat_arrays([column.dictionary, pa.nulls(1, column.dictionary.type)])
    return pa.DictionaryArray.from_arrays(column.indices.cast(pa.int64()).fill_null(null), values)


def _slim(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """The same column, without dictionary values that no row has: no function shall stumble over those."""
    used, _, _ = occurrences(column)
    if len(used) == len(column.dictionary):
        return column
    codes = np.zeros(len(column.dictionary), np.int32)
    codes[used] = np.arange(len(used))
    return pa.DictionaryArray.from_arrays(
        pa.array(codes).take(column.indices), column.dictionary.take(pa.array(used))
    )


def _dictionary(codes: pa.Array, values: pa.Array) -> pa.DictionaryArray:
    """The column of these codes, each value in its dictionary once and null in none."""
    distinct = values.dictionary_encode()
    return pa.DictionaryArray.from_arrays(distinct.indices.take(codes), distinct.dictionary)


def _selected(column: Encoded, where: Any) -> Encoded:
    mask = where.combine_chunks() if isinstance(where, pa.ChunkedArray) else where
    if not isinstance(mask, pa.Array) or _value_type(mask) != pa.bool_():
        raise TypeError(
            f"where is a function of values or a boolean mask, not {getattr(mask, 'type', type(mask))}"
        )
    if len(mask) != len(column):
        raise ValueError(f"a mask of {len(mask):,} rows for a column of {len(column):,}")
    if isinstance(column, pa.DictionaryArray):
        plain = pc.run_end_decode(mask) if isinstance(mask, pa.RunEndEncodedArray) else mask.cast(pa.bool_())
        return column.filter(plain)
    if isinstance(mask, pa.DictionaryArray):
        mask = mask.cast(pa.bool_())
    if not isinstance(mask, pa.RunEndEncodedArray):
        mask = pc.run_end_encode(mask, run_end_type=pa.int64())
    ends, values, chosen = aligned(Runs.of(column), Runs.of(mask))
    return Runs(ends, values).kept(chosen).array(column.type.run_end_type)


def _value_type(array: pa.Array) -> pa.DataType:
    is_encoded = isinstance(array, pa.RunEndEncodedArray | pa.DictionaryArray)
    return array.type.value_type if is_encoded else array.type


def _judged(where: Callable[[pa.Array], Any], values: pa.Array) -> pa.Array:
    found = _applied(where, values)
    if not pa.types.is_boolean(found.type):
        raise TypeError(f"where says of each value whether its rows stay, as booleans, not as {found.type}")
    return found


def _applied(fn: Callable[[pa.Array], Any], values: pa.Array) -> pa.Array:
    if not callable(fn):
        raise TypeError(f"a function of an array of values is wanted, not {type(fn).__name__}")
    found = fn(values)
    if isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    if not isinstance(found, pa.Array) or len(found) != len(values):
        what = f"{len(found):,} of them" if isinstance(found, pa.Array) else type(found).__name__
        raise ValueError(f"the function makes an array of {len(values):,} values of as many, not {what}")
    return found


def _checked(name: str, kernel: Kernel) -> Kernel:
    """The kernel, whose overflow names the numbers."""

    def call(x: pa.Array, y: Any) -> pa.Array:
        try:
            return kernel(x, y)
        except pa.ArrowNotImplementedError as error:
            raise TypeError(f"{name}: no such operation on {x.type} and {y.type}") from error
        except pa.ArrowInvalid as error:
            raise OverflowError(f"{name}: {_culprit(name, kernel, x, y)} overflows {x.type}") from error

    return call


def _culprit(name: str, kernel: Kernel, x: pa.Array, y: Any) -> str:
    """The first pair of values that the kernel refuses."""
    low, high = 0, len(x)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            kernel(x[low:middle], y[low:middle] if isinstance(y, pa.Array) else y)
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return f"{x[low]} {'+' if name == 'add' else '*'} {y[low] if isinstance(y, pa.Array) else y}"
