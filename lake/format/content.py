"""Digests of logical values: equal for equal values, whatever chunks, offsets, widths or encoders hold them.

The *canonical stream* of a column is what `value_digest` hashes. All integers in it are little-endian:

1. the row count, u64;
2. one byte: 1 if any row is null, else 0; if 1, also the validity bits, least significant first, filled up
   with zero bits to a whole byte;
3. the values, depending on the type (extensions as their storage, dictionaries and runs as their values):

| type | values |
|---|---|
| null | nothing: every row is null, so 2. says all |
| bool | one bit a row, 0 if null, least significant first, filled up with zero bits to a whole byte |
| other fixed width | each value's bytes as Arrow holds them (floats bit by bit), zeros if null |
| string, binary | each length in bytes, u64, 0 if null; then the bytes of all values |
| list | each length in items, u64, 0 if null; then the digest of the items of all lists |
| map | as a list of structs of key and value, none of them null |
| fixed-size list | the digest of the items of all lists that are not null |
| struct | for each field the digest of its values, null wherever the struct is |

"Other fixed width" are integers, floats, decimals, dates, times, durations, intervals, timestamps and
fixed-size binaries. A nested digest is that of the items or values as a column of their own, by the same
hash; it enters as its bytes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa
import xxhash

from lake.format import arrays
from lake.format.types import canonical_type

_BLOCK = (
    2**17
)  # rows of lengths, or bytes over 8 of values, at a time: what is computed stays in the CPU's cache


class Hash(Protocol):
    """What hashlib and xxhash have in common."""

    def update(self, data: Any, /) -> None: ...

    def digest(self) -> bytes: ...


NewHash = Callable[[], Hash]


def content_digest(fields: Sequence[pa.Field], columns: Sequence[Sequence[pa.Array]]) -> str:
    """The `content` of a part: sha256 over its fields in order, as lower-case hex.

    Of each field: name (UTF-8), canonical type text (UTF-8) and the sha256 `value_digest` of its chunks, each
    preceded by its length in bytes, u64. Nullability and metadata do not count.
    """
    whole = hashlib.sha256()
    for field, chunks in zip(fields, columns, strict=True):
        values = value_digest(chunks or [pa.nulls(0, field.type)])
        for piece in (field.name.encode(), canonical_type(field).encode(), values):
            whole.update(_u64(len(piece)) + piece)
    return whole.hexdigest()


def column_check(array: pa.Array) -> int:
    """The xxh3-64 of a column of one record batch, over the same canonical stream as digests.

    Digests of nested columns enter as the 8 bytes of their xxh3-64, big-endian (xxHash's canonical form).
    """
    return int.from_bytes(value_digest([array], xxhash.xxh3_64), "big")


def value_digest(chunks: Sequence[pa.Array], new_hash: NewHash = hashlib.sha256) -> bytes:
    """The digest of a column's values. `chunks`, at least one, share a canonical type but maybe not a layout.

    Hashes in long runs, so that other threads run meanwhile; copies only what nulls force it to.
    """
    chunks = [arrays.plain(chunk) for chunk in chunks]
    digest = new_hash()
    digest.update(_u64(sum(map(len, chunks))))
    _hash_validity(digest, chunks)
    _hash_values(digest, chunks, new_hash)
    return digest.digest()


def _u64(number: int) -> bytes:
    return struct.pack("<Q", number)


def _hash_validity(digest: Hash, chunks: Sequence[pa.Array]) -> None:
    if any(chunk.null_count for chunk in chunks):
        digest.update(b"\1")
        digest.update(arrays.packed([chunk.is_valid() for chunk in chunks]))
    else:
        digest.update(b"\0")


def _hash_values(digest: Hash, chunks: Sequence[pa.Array], new_hash: NewHash) -> None:
    type_ = chunks[0].type
    if pa.types.is_null(type_):
        return
    if pa.types.is_boolean(type_):
        digest.update(arrays.packed([chunk.fill_null(False) for chunk in chunks]))
    elif arrays.is_text(type_) or arrays.is_octets(type_):
        _hash_lengths(digest, chunks)
        for chunk in chunks:
            digest.update(arrays.octets(chunk))
    elif pa.types.is_struct(type_):
        for field in zip(*(chunk.flatten() for chunk in chunks), strict=True):
            digest.update(value_digest(field, new_hash))
    elif pa.types.is_nested(type_):
        if not pa.types.is_fixed_size_list(type_):
            _hash_lengths(digest, chunks)
        digest.update(value_digest([arrays.items(chunk) for chunk in chunks], new_hash))
    else:
        for chunk in chunks:
            for block in arrays.fixed_blocks(chunk):
                digest.update(block)


def _hash_lengths(digest: Hash, chunks: Sequence[pa.Array]) -> None:
    for chunk in chunks:
        for first in range(0, len(chunk), _BLOCK):
            digest.update(arrays.lengths(chunk.slice(first, _BLOCK)))
