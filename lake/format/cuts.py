"""Where shards end: cuts that depend on the rows near them alone, so that an edit moves few of them.

Each row has a *hash*, 64 bits made of its key or content, and a *raw size* in bits. Its *rank* is the float64
quotient of (hash >> 11) / 2**53 by its bits, infinite for a row of no bits. With a target of T bytes, lo is
T/4 and hi 2T bytes. Row by row, where `size` is that of the shard so far:

1. If the row would take a shard that is not empty over hi, the shard ends before it: after the row of least
   rank (the last of equals) of those at which the size was over lo, or after its last row if there is none.
   What follows that cut begins the next shard, for which the row is judged again.
2. Otherwise, if the size including the row is lo or more and the row's rank is less than the float64 quotient
   1 / (6 * T), the shard ends after the row.

So no shard is over hi, unless it is of one row; under lo are only the last one and one before a large row.
Ranks are under 1 / (6 * T) once in 3T/4 bytes; shards hold some 0.88 T on average. Sizes are exact integers
and each quotient is rounded once, so that anyone can find the same cuts. `ALGORITHM` numbers this page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.errors import SchemaError
from lake.format import arrays
from lake.format.arrays import Ints
from lake.format.types import canonical_type

ALGORITHM = 1
SEED = 0x6C616B65  # "lake"

HASHED_COLUMNS = 4  # of rows without a key
HASHED_BYTES = 1024  # of each such column
NULL_LENGTH = 2**64 - 1  # of a null, which is not the same as something empty

Hashes = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]

_BLOCK = 2**14  # rows hashed at a time: what is computed stays in the CPU's cache
_TURNED = 2**18  # words that are laid out anew at a time, for the same reason
_TILE = 32  # rows of these that are copied at once
_FEW = 16  # words of a row up to which that is not worth while

# Of splitmix64; as arrays, which numpy need not convert at each use.
_GAMMA, _LAST_SHIFT = np.array(0x9E3779B97F4A7C15, np.uint64), np.array(31, np.uint64)
_ROUNDS = tuple(
    (np.array(shift, np.uint64), np.array(factor, np.uint64))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
)


# Hashes ---


def row_hashes(batch: pa.RecordBatch, key: str | None, first_row: int, *, seed: int = SEED) -> Hashes:
    """The hash of each row of a batch in stored form whose first row has the number `first_row`.

    It begins as h = mix(seed). For each 8-byte little-endian word of the key's bytes (the last one filled up
    with zeros), then for their number, h = mix(h ^ word), where mix(x) is the first output of splitmix64
    with state x. The bytes are those of strings (UTF-8) and binaries, of integers as 64 bits, so that
    widths do not matter, of a boolean one, of other fixed-width values as Arrow holds them, extensions as
    their storage. A null has no bytes, and 2**64 - 1 for their number.

    Without a key, h goes on like this through the first 4 columns that have bytes, of each the first 1,024
    and the number of all. Here lists and fixed-size lists of fixed-width values (no booleans) have bytes as
    well, null items being zeros, and structs stand for their fields. Where no column has bytes, the row's
    number stands for a key.
    """
    columns = [_key_column(batch.column(key), key)] if key is not None else _content_columns(batch)
    if not columns:
        columns = [pa.array(np.arange(first_row, first_row + batch.num_rows))]
    return _hash(columns, batch.num_rows, seed, None if key is not None else HASHED_BYTES)


def unit(array: pa.Array | pa.ChunkedArray, seed: int) -> Floats:
    """A number in [0, 1) for each row, evenly spread and the same for equal values: its hash by this seed.

    The hash is that of a key (`row_hashes`); the number is (hash >> 11) / 2**53.
    """
    chunks = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
    hashes = [_hash([_key_column(chunk, "unit")], len(chunk), seed, None) for chunk in chunks]
    return _unit(np.concatenate([np.empty(0, np.uint64), *hashes]))


def _unit(hashes: Hashes) -> Floats:
    units: Floats = np.multiply(hashes >> 11, 2.0**-53, dtype=np.float64)
    return units


def _key_column(column: pa.Array, name: str) -> pa.Array:
    plain = arrays.plain(column)
    if not (_is_flat(plain.type) or pa.types.is_null(plain.type)):
        raise SchemaError(
            f"column {name!r} is {canonical_type(column.type)}: keys are strings, binaries or numbers"
        )
    return plain


def _content_columns(batch: pa.RecordBatch) -> list[pa.Array]:
    columns = []
    for leaf in _leaves(batch.columns):
        items = leaf.type.value_type if _is_list(leaf.type) else None
        if _is_flat(leaf.type) if items is None else _is_fixed(items):
            columns.append(leaf)
            if len(columns) == HASHED_COLUMNS:
                break
    return columns


def _leaves(columns: Sequence[pa.Array]) -> Iterator[pa.Array]:
    for column in map(arrays.plain, columns):
        if pa.types.is_struct(column.type):
            yield from _leaves(column.flatten())
        else:
            yield column


def _is_flat(type_: pa.DataType) -> bool:
    return bool(
        arrays.is_text(type_) or arrays.is_octets(type_) or pa.types.is_boolean(type_) or _is_fixed(type_)
    )


def _is_fixed(type_: pa.DataType) -> bool:
    """Whether values are a fixed number of whole bytes."""
    flat = pa.types.is_primitive(type_) or pa.types.is_decimal(type_) or pa.types.is_fixed_size_binary(type_)
    return bool(flat and not pa.types.is_boolean(type_)) or pa.types.is_interval(type_)


def _is_list(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_)
    )


def _hash(columns: Sequence[pa.Array], rows: int, seed: int, limit: int | None) -> Hashes:
    start = np.full(1, seed % 2**64, np.uint64)
    _mix(start)
    hashes = np.full(rows, start[0])
    for first in range(0, rows, _BLOCK):
        block = hashes[first : first + _BLOCK]
        for column in columns:
            _absorb(block, column.slice(first, _BLOCK), limit)
    return hashes


def _mix(state: Hashes) -> None:
    """Replace each state by splitmix64's next output."""
    shifted = np.empty_like(state)
    state += _GAMMA
    for shift, factor in _ROUNDS:
        state ^= np.right_shift(state, shift, out=shifted)
        state *= factor
    state ^= np.right_shift(state, _LAST_SHIFT, out=shifted)


def _absorb(hashes: Hashes, column: pa.Array, limit: int | None) -> None:
    """Take the bytes of each row of a plain column, at most `limit`, and their number into its hash."""
    valid = arrays.mask(column)
    nulls = None if valid is None else np.flatnonzero(~valid)
    if nulls is not None:
        kept = hashes[nulls] ^ np.uint64(NULL_LENGTH)
        _mix(kept)
    if not pa.types.is_null(column.type):
        _absorb_bytes(hashes, column, limit)
    if nulls is not None:
        hashes[nulls] = kept


def _absorb_bytes(hashes: Hashes, column: pa.Array, limit: int | None) -> None:
    type_ = column.type
    if pa.types.is_boolean(type_):
        _absorb_words(hashes, column.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint64), 1)
    elif _is_fixed(type_) and type_.bit_width in (8, 16, 32, 64):
        kind = "i" if pa.types.is_signed_integer(type_) else "u"
        words = np.frombuffer(column.buffers()[1], f"{kind}{type_.bit_width // 8}")
        words = words[column.offset : column.offset + len(column)].astype(
            np.int64 if kind == "i" else np.uint64
        )
        _absorb_words(
            hashes, words.view(np.uint64), 8 if pa.types.is_integer(type_) else type_.bit_width // 8
        )
    elif _is_fixed(type_):
        _absorb_fixed(hashes, _octets(column), type_.bit_width // 8, limit)
    elif pa.types.is_fixed_size_list(type_):
        size = type_.list_size
        items = column.values.slice(column.offset * size, len(column) * size)
        _absorb_fixed(hashes, _octets(items), size * type_.value_type.bit_width // 8, limit)
    else:
        _absorb_ragged(hashes, *_ragged(column), limit)


def _octets(column: pa.Array) -> npt.NDArray[np.uint8]:
    blocks = list(arrays.fixed_blocks(column))
    return blocks[0] if len(blocks) == 1 else np.concatenate([np.empty(0, np.uint8), *blocks])


def _absorb_words(hashes: Hashes, words: Hashes, length: int) -> None:
    hashes ^= words
    _mix(hashes)
    hashes ^= np.uint64(length)
    _mix(hashes)


def _absorb_fixed(hashes: Hashes, data: npt.NDArray[np.uint8], width: int, limit: int | None) -> None:
    """Rows of `width` bytes each, one after the other in `data`."""
    used = width if limit is None else min(width, limit)
    rows = len(hashes)
    if used < 8 and used:
        data = np.pad(data, (0, 8))
    table = np.ndarray((rows, used // 8), "<u8", data, 0, (width, 8))
    step = _TURNED // max(used // 8, _FEW)
    for first in range(0, rows, step):
        block = hashes[first : first + step]
        for words in _turned(table[first : first + step]):
            block ^= words
            _mix(block)
    if used % 8:  # the last 8 bytes, without those that were words already
        last = np.ndarray((rows,), "<u8", data, max(used - 8, 0), (width,))
        hashes ^= last >> (64 - used % 8 * 8) if used > 8 else last & (2 ** (used * 8) - 1)
        _mix(hashes)
    hashes ^= np.uint64(width)
    _mix(hashes)


def _turned(table: Hashes) -> Hashes:
    """The columns of `table`, each in one piece: rows a power of two apart would fight for a few lines of the cache."""
    rows, count = table.shape
    if count <= _FEW:
        return table.T
    turned = np.empty((count, rows + 8), np.uint64)[:, :rows]  # nor are these a power of two apart
    for first in range(0, rows, _TILE):
        turned[:, first : first + _TILE] = table[first : first + _TILE].T
    return turned


def _ragged(column: pa.Array) -> tuple[npt.NDArray[np.uint8], Ints, Ints]:
    """The bytes that rows of strings, binaries or lists lie in, where each begins, and how many it has."""
    where = arrays.offsets(column).astype(np.int64)
    if pa.types.is_nested(column.type):
        data = _octets(column.values.slice(where[0], where[-1] - where[0]))
        where = (where - where[0]) * (column.type.value_type.bit_width // 8)
    elif where[-1] == where[0]:
        data = np.empty(0, np.uint8)
        where = where - where[0]
    else:
        data = np.frombuffer(column.buffers()[2], np.uint8, where[-1] - where[0], where[0])
        where = where - where[0]
    return data, where[:-1], np.diff(where)


def _absorb_ragged(
    hashes: Hashes, data: npt.NDArray[np.uint8], starts: Ints, lengths: Ints, limit: int | None
) -> None:
    used = lengths if limit is None else np.minimum(lengths, limit)
    if len(data) < 8:
        data = np.pad(data, (0, 8))
    windows = np.ndarray((len(data) - 7,), "<u8", data, 0, (1,))  # the word that begins at each byte
    whole = used >> 3
    for word in range(int(whole.max(initial=0))):
        rows = np.flatnonzero(whole > word)
        _absorb_at(hashes, rows, windows[starts[rows] + 8 * word])
    rows = np.flatnonzero(used & 7)
    if len(rows):
        ends, rest = starts[rows] + used[rows], used[rows] & 7
        last = windows[np.maximum(ends - 8, 0)]  # the 8 bytes before the end, or those around it
        last <<= np.maximum(8 - ends, 0).astype(np.uint64) * 8
        _absorb_at(hashes, rows, last >> (64 - 8 * rest).astype(np.uint64))
    hashes ^= lengths.view(np.uint64)
    _mix(hashes)


def _absorb_at(hashes: Hashes, rows: Ints, words: Hashes) -> None:
    if len(rows) == len(hashes):
        hashes ^= words
        _mix(hashes)
    else:
        words ^= hashes[rows]
        _mix(words)
        hashes[rows] = words


# Sizes ---


def row_bits(batch: pa.RecordBatch) -> Ints:
    """The raw size of each row of a batch, in bits (so that booleans count exactly).

    The sum over columns of: null 0; fixed width its width; string and binary 64 and the bytes; list and map
    64 and the items; struct its fields; fixed-size list its items; extensions as their storage, dictionaries
    and runs as their values.
    """
    bits = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        bits += _bits(column)
    return bits


def _bits(array: pa.Array) -> Ints | int:
    """The raw size of each row, or of every row."""
    array = arrays.plain(array)
    if pa.types.is_null(array.type):
        return 0
    bits = _bits_unmasked(array)
    valid = arrays.mask(array)
    return bits if valid is None else np.where(valid, bits, 0)


def _bits_unmasked(array: pa.Array) -> Ints | int:
    """The same, but anything where null."""
    type_ = array.type
    if pa.types.is_struct(type_):
        return sum((_bits(child) for child in array.flatten()), 0)
    if arrays.is_text(type_) or arrays.is_octets(type_):
        return 64 + 8 * arrays.lengths(array)
    if not pa.types.is_nested(type_):
        return int(type_.bit_width)
    if pa.types.is_fixed_size_list(type_):
        size = type_.list_size
        each = _bits(array.values.slice(array.offset * size, len(array) * size))
        return _sums(each, np.full(len(array), size))
    lengths = arrays.lengths(array)
    return 64 + _sums(_bits(arrays.items(array)), lengths)


def _sums(each: Ints | int, lengths: Ints) -> Ints:
    """The sums of runs of these lengths, one after the other."""
    if isinstance(each, int):
        return each * lengths
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(each)])
    ends = np.cumsum(lengths)
    sums: Ints = before[ends] - before[ends - lengths]
    return sums


# Cuts ---


class Cutter:
    """Finds where shards end, in a stream of rows given in any portions; the cuts do not depend on these.

    It keeps a few numbers for rows since the last cut, not the rows.
    """

    def __init__(self, target: int) -> None:
        if target < 1:
            raise ValueError(f"a shard's target is at least 1 byte, not {target}")
        self._lo, self._hi = 2 * target, 16 * target  # bits
        self._common = 1 / (6 * target)  # ranks under it cut
        self._rows = 0  # seen
        self._bits = 0  # of these
        self._cut_row = 0  # where the shard begins
        self._cut_bits = 0  # of rows before it
        self._least = _Least()

    def push(self, hashes: Hashes, bits: Ints) -> list[int]:
        """The ends of shards that the next rows decide: numbers of rows from the start of the stream.

        An end may lie before rows pushed earlier.
        """
        ends: list[int] = []
        sizes = self._bits + np.cumsum(bits)  # of the stream up to and including each row
        ranks = np.full(len(bits), np.inf)
        np.divide(_unit(hashes), bits, out=ranks, where=bits > 0)
        common = np.flatnonzero(ranks < self._common)
        at = 0  # the first row not yet judged
        while at < len(bits):
            over = max(at, int(np.searchsorted(sizes, self._cut_bits + self._hi, "right")))
            enough = max(at, int(np.searchsorted(sizes, self._cut_bits + self._lo, "left")))
            found = int(np.searchsorted(common, enough))
            natural = int(common[found]) if found < len(common) else len(bits)
            if natural < over or natural == over == self._cut_row - self._rows:
                at = natural + 1
                self._cut(self._rows + at, int(sizes[natural]))
            else:
                self._least.add(ranks, sizes, at, over, self._rows, self._cut_bits + self._lo)
                at = over
                if over == len(bits):
                    break
                before = int(sizes[over - 1]) if over else self._bits
                self._cut(*self._least.after(self._cut_bits + self._lo) or (self._rows + over, before))
            ends.append(self._cut_row)
        self._rows += len(bits)
        self._bits = int(sizes[-1]) if len(bits) else self._bits
        return ends

    def finish(self) -> list[int]:
        """The end of the last shard, if rows are left for one."""
        return [self._rows] if self._cut_row < self._rows else []

    def _cut(self, row: int, bits: int) -> None:
        self._cut_row, self._cut_bits = row, bits
        self._least.forget(row)


class _Least:
    """Of rows added in order, those ranking lower than all later ones: the least of any last rows is one."""

    def __init__(self) -> None:
        self._ends = np.empty(0, np.int64)  # the row's number + 1
        self._sizes = np.empty(0, np.int64)  # of the stream up to and including the row
        self._ranks = np.empty(0, np.float64)

    def add(self, ranks: Floats, sizes: Ints, first: int, last: int, rows: int, lo: int) -> None:
        """Take rows `first` to `last` of a portion that begins at row `rows`, but none of size up to `lo`."""
        first = max(first, int(np.searchsorted(sizes[:last], lo, "right")))
        if first >= last:
            return
        part = ranks[first:last]
        least = np.minimum.accumulate(part[::-1])[::-1]
        kept = np.append(np.flatnonzero(part[:-1] < least[1:]), len(part) - 1)
        still = int(np.searchsorted(self._ranks, least[0], "left"))
        self._ends = np.concatenate([self._ends[:still], rows + first + 1 + kept])
        self._sizes = np.concatenate([self._sizes[:still], sizes[first + kept]])
        self._ranks = np.concatenate([self._ranks[:still], part[kept]])

    def after(self, size: int) -> tuple[int, int] | None:
        """End and size of the row of least rank, the last of equals, of those with more than `size`."""
        first = int(np.searchsorted(self._sizes, size, "right"))
        return (int(self._ends[first]), int(self._sizes[first])) if first < len(self._sizes) else None

    def forget(self, row: int) -> None:
        """Drop rows before this one."""
        first = int(np.searchsorted(self._ends, row, "right"))
        self._ends, self._sizes, self._ranks = self._ends[first:], self._sizes[first:], self._ranks[first:]
