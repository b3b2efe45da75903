"""Hashes, raw sizes and cuts: against references that go row by row, local under edits, and frozen."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.errors import SchemaError
from lake.format.cuts import ALGORITHM, SEED, Cutter, row_bits, row_hashes, unit
from lake.format.schema import conform, stored_schema
from tests.strategies import (
    BINARIES,
    DECIMALS,
    FLOATS,
    INTEGERS,
    STRINGS,
    TEMPORALS,
    arrays,
    batches,
    build,
    dictionary_types,
    disguises,
    maybe,
    types,
)

KEYS = [pa.bool_(), *INTEGERS, *FLOATS, *DECIMALS, *TEMPORALS, *STRINGS, *BINARIES, pa.uuid()]
WORD = 2**64


# References ---


def mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) % WORD
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB % WORD
    return x ^ x >> 31


def absorb(h: int, octets: bytes | None, limit: int = WORD) -> int:
    if octets is None:
        return mix(h ^ (WORD - 1))
    used = octets[:limit]
    for at in range(0, len(used), 8):
        h = mix(h ^ int.from_bytes(used[at : at + 8], "little"))
    return mix(h ^ len(octets))


def octets_of(item: Any, type_: pa.DataType) -> bytes | None:
    """The bytes of a value, by the docstring of `row_hashes`."""
    if isinstance(type_, pa.BaseExtensionType):
        return octets_of(item, type_.storage_type)
    if isinstance(type_, (pa.DictionaryType, pa.RunEndEncodedType)):
        return octets_of(item, type_.value_type)
    if item is None:
        return None
    if pa.types.is_boolean(type_):
        return bytes([item])
    if pa.types.is_integer(type_):
        return (item % WORD).to_bytes(8, "little")
    if isinstance(item, (str, bytes)):
        return item.encode() if isinstance(item, str) else item
    if isinstance(item, list):
        width = type_.value_type.bit_width // 8
        return b"".join(_fixed(x, type_.value_type)[:width] if x is not None else bytes(width) for x in item)
    return _fixed(item, type_)


def _fixed(item: Any, type_: pa.DataType) -> bytes:
    octets: bytes = build([item], type_).buffers()[1].to_pybytes()[: type_.bit_width // 8]
    return octets


def size_of(item: Any, type_: pa.DataType) -> int:
    """The raw bits of a value, by the docstring of `row_bits`."""
    if isinstance(type_, pa.BaseExtensionType):
        return size_of(item, type_.storage_type)
    if isinstance(type_, (pa.DictionaryType, pa.RunEndEncodedType)):
        return size_of(item, type_.value_type)
    if item is None:
        return 0
    if pa.types.is_struct(type_):
        return sum(size_of(x, field.type) for x, field in zip(item, type_, strict=True))
    if pa.types.is_map(type_):
        return 64 + sum(size_of(k, type_.key_type) + size_of(v, type_.item_type) for k, v in item)
    if pa.types.is_nested(type_):
        head = 0 if pa.types.is_fixed_size_list(type_) else 64
        return head + sum(size_of(x, type_.value_type) for x in item)
    try:
        return int(type_.bit_width)
    except ValueError:
        return 64 + 8 * len(item.encode() if isinstance(item, str) else item)


def ends_of(hashes: Sequence[int], bits: Sequence[int], target: int) -> list[int]:
    """The ends of shards, by the docstring of `lake.format.cuts`, row by row."""
    lo, hi = 2 * target, 16 * target
    ranks = [(h >> 11) / 2**53 / b if b else float("inf") for h, b in zip(hashes, bits, strict=True)]
    ends: list[int] = []
    start, size, row = 0, 0, 0  # of the shard, and the next row to judge
    while row < len(bits):
        if row > start and size + bits[row] > hi:
            end, seen = row, 0
            candidates = []
            for i in range(start, row):
                seen += bits[i]
                if seen > lo:
                    candidates.append((ranks[i], -i))
            if candidates:
                end = 1 - min(candidates)[1]
            ends.append(end)
            start, size = end, sum(bits[end:row])
            continue
        size += bits[row]
        row += 1
        if size >= lo and ranks[row - 1] < 1 / (6 * target):
            ends.append(row)
            start, size = row, 0
    return ends + [len(bits)] * (start < len(bits))


# Hashes ---


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_the_hash_of_a_key_is_what_the_page_says(data: st.DataObject) -> None:
    """Word by word in plain integers, and the same whatever holds the values."""
    type_ = data.draw(st.sampled_from(KEYS) | dictionary_types())
    items = data.draw(st.lists(maybe(type_), max_size=8))
    expected = [absorb(mix(SEED), octets_of(item, type_)) for item in items]

    for chunk in (build(items, type_), *data.draw(disguises(build(items, type_)))[:1]):
        hashes = row_hashes(pa.record_batch([chunk], names=["k"]), "k", 0)
        assert hashes.dtype == np.uint64
        assert hashes.tolist() == expected[: len(chunk)]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.none() | st.binary(max_size=40) | st.binary(min_size=1000, max_size=1100), max_size=12),
    st.booleans(),
)
def test_long_and_short_values_side_by_side(items: list[bytes | None], keyed: bool) -> None:
    """Without a key no more than 1,024 bytes of a column count, but its whole length does."""
    batch = pa.record_batch([pa.array(items, pa.large_binary())], names=["k"])

    hashes = row_hashes(batch, "k" if keyed else None, 0)

    assert hashes.tolist() == [absorb(mix(SEED), item, WORD if keyed else 1024) for item in items]


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_the_hash_of_a_row_without_key_is_what_the_page_says(data: st.DataObject) -> None:
    """The first four columns that have bytes, one after the other; structs stand for their fields."""
    flat = st.sampled_from([pa.int16(), pa.bool_(), pa.string(), pa.null(), pa.decimal128(9, 2)])
    lists = st.sampled_from(
        [pa.list_(pa.int16()), pa.list_(pa.float64(), 3), pa.list_(pa.bool_()), pa.large_list(pa.uuid())]
    )
    columns = data.draw(st.lists(flat | lists, min_size=1, max_size=6))
    rows = data.draw(st.integers(0, 6))
    items = [data.draw(st.lists(maybe(type_), min_size=rows, max_size=rows)) for type_ in columns]
    chunks = [build(column, type_) for column, type_ in zip(items, columns, strict=True)]
    names = [str(i) for i in range(len(columns))]
    batch = pa.RecordBatch.from_arrays(chunks, names)
    struct = pa.record_batch([pa.StructArray.from_arrays(chunks, names)], names=["s"])
    odd = (pa.null(), pa.list_(pa.bool_()), pa.large_list(pa.uuid()))
    used = [(column, type_) for column, type_ in zip(items, columns, strict=True) if type_ not in odd][:4]
    used = used or [(list(range(7, 7 + rows)), pa.int64())]

    expected = []
    for row in range(rows):
        h = mix(SEED)
        for column, type_ in used:
            h = absorb(h, octets_of(column[row], type_), 1024)
        expected.append(h)

    assert row_hashes(batch, None, 7).tolist() == expected
    assert row_hashes(struct, None, 7).tolist() == expected


@settings(deadline=None, max_examples=100)
@given(batches(), st.integers(0, 8))
def test_a_rows_hash_and_size_do_not_depend_on_its_batch(batch: pa.RecordBatch, at: int) -> None:
    """The rest of a batch has the hashes and sizes that it had in the whole."""
    batch = conform(batch, stored_schema(batch.schema))
    rest = batch.slice(at)

    assert row_hashes(rest, None, at).tolist() == row_hashes(batch, None, 0)[at:].tolist()
    assert row_bits(rest).tolist() == row_bits(batch)[at:].tolist()


def test_many_rows_hash_like_few() -> None:
    """Blocks are an implementation's business."""
    keys = [str(i) * (i % 9) for i in range(40_000)]
    batch = pa.record_batch([pa.array(keys)], names=["k"])

    hashes = row_hashes(batch, "k", 0)

    for row in (0, 1, 2**13, 2**14 - 1, 2**14, 2**14 + 1, 39_999):
        assert hashes[row] == absorb(mix(SEED), keys[row].encode())
    assert len(set(hashes.tolist())) == len(set(keys))


@pytest.mark.parametrize("width", [0, 1, 3, 12, 127, 128, 129, 136, 140, 1023, 1024, 4096])
def test_wide_rows_hash_as_the_page_says(width: int) -> None:
    """Of few words or many, that fill them or not, and on either side of where they are laid out anew."""
    rows = 2500
    octets = np.random.default_rng(width).integers(0, 256, rows * width, np.uint8)
    type_ = pa.list_(pa.uint8(), width)
    column = pa.Array.from_buffers(type_, rows, [None], children=[pa.array(octets, pa.uint8())])
    batch = pa.record_batch([column], names=["x"])

    hashes = row_hashes(batch, None, 0)

    for row in (0, 1, 31, 32, 33, 2047, 2048, 2049, 2499):
        item = octets[row * width : (row + 1) * width].tobytes()
        assert hashes[row] == absorb(mix(SEED), item, 1024)


def test_the_width_of_an_integer_key_does_not_matter() -> None:
    """A key that comes back from pandas as int64 keeps its rows on their side of a split."""
    numbers = [0, 1, -1, 127, -128, None]
    hashes = [
        row_hashes(pa.record_batch([pa.array(numbers, t)], names=["k"]), "k", 0)
        for t in (pa.int8(), pa.int64())
    ]

    assert hashes[0].tolist() == hashes[1].tolist()


@pytest.mark.parametrize(
    "type_", [pa.list_(pa.int8()), pa.list_(pa.int8(), 2), pa.struct([("a", pa.int8())])]
)
def test_nested_columns_are_no_keys(type_: pa.DataType) -> None:
    """Said by name and type."""
    with pytest.raises(SchemaError, match=r"'k' is .*: keys are strings, binaries or numbers"):
        row_hashes(pa.record_batch([pa.nulls(1, type_)], names=["k"]), "k", 0)


# Units ---


@settings(deadline=None, max_examples=60)
@given(st.lists(st.none() | st.text(max_size=20), max_size=20), st.integers(-5, 2**64))
def test_units_are_the_hash_by_that_seed(items: list[str | None], seed: int) -> None:
    """In [0, 1), exact in float64, the same for chunks."""
    array = pa.array(items, pa.string())
    expected = [(absorb(mix(seed % WORD), octets_of(item, pa.string())) >> 11) / 2**53 for item in items]

    assert unit(array, seed).tolist() == expected
    assert unit(pa.chunked_array([array, array]), seed).tolist() == expected * 2
    assert all(0 <= u < 1 for u in expected)


def test_units_are_spread_evenly_and_seeds_are_independent() -> None:
    """A tenth is a tenth, of consecutive keys too, and another seed draws anew."""
    keys = pa.array(range(100_000))
    first, second = unit(keys, 0), unit(keys, 1)

    assert np.histogram(first, 10, (0, 1))[0] == pytest.approx([10_000] * 10, rel=0.05)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02
    assert np.mean((first < 0.1) & (second < 0.1)) == pytest.approx(0.01, rel=0.15)


# Sizes ---


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_the_size_of_a_row_is_what_the_page_says(data: st.DataObject) -> None:
    """Value by value, for every type, whatever holds the values."""
    type_ = data.draw(types())
    items = data.draw(st.lists(maybe(type_), max_size=8))
    expected = [size_of(item, type_) for item in items]
    array = build(items, type_)

    assert row_bits(pa.record_batch([array], names=["x"])).tolist() == expected
    found: list[int] = []
    for chunk in data.draw(disguises(array)):
        found += row_bits(pa.record_batch([chunk], names=["x"])).tolist()
    assert found == expected


def test_sizes_of_columns_add_up() -> None:
    """A row of three booleans has three bits."""
    batch = pa.record_batch({"a": [True, None], "b": [False, True], "c": [True, True], "d": ["xy", None]})

    assert row_bits(batch).tolist() == [3 + 64 + 16, 2]


# Cuts ---


def push_all(hashes: Sequence[int], bits: Sequence[int], target: int, portions: Sequence[int]) -> list[int]:
    cutter = Cutter(target)
    ends: list[int] = []
    for first, last in pairwise([0, *sorted(p for p in portions if p <= len(bits)), len(bits)]):
        part = np.array(hashes[first:last], np.uint64), np.array(bits[first:last], np.int64)
        ends += cutter.push(*part)
        assert not ends or ends[-1] <= last
    return ends + cutter.finish()


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    """Hashes, sizes and a target, such that every rule comes up: ties, no bits, rows over every limit."""
    target = draw(st.sampled_from([1, 10, 100]))
    sizes = st.sampled_from(
        [0, 1, target, 2 * target, 5 * target, 14 * target, 16 * target, 17 * target, 40 * target]
    )
    small = st.integers(0, 3 * target)
    high = st.integers(2**62, WORD - 1) | st.sampled_from([2**63, WORD - 1])  # rarely cut: forced ones
    hashes = st.integers(0, WORD - 1)
    rows = draw(st.lists(st.tuples(hashes | high, small | small | sizes), max_size=60))
    return [h for h, _ in rows], [b for _, b in rows], target


@settings(deadline=None, max_examples=500)
@given(streams(), st.lists(st.integers(0, 60), max_size=5))
def test_cuts_are_what_the_page_says_in_any_portions(
    stream: tuple[list[int], list[int], int], portions: list[int]
) -> None:
    """The vectorised search finds the cuts of the loop over rows, however the rows arrive."""
    hashes, bits, target = stream

    assert push_all(hashes, bits, target, portions) == ends_of(hashes, bits, target)
    assert push_all(hashes, bits, target, range(len(bits))) == ends_of(hashes, bits, target)


@settings(deadline=None, max_examples=200)
@given(streams())
def test_shards_keep_their_limits(stream: tuple[list[int], list[int], int]) -> None:
    """Over twice the target only one of one row; under a quarter only the last and one before a large row."""
    hashes, bits, target = stream
    ends = push_all(hashes, bits, target, [])

    assert ends == sorted(set(ends))
    assert ends[-1:] == [len(bits)] * bool(bits)
    for first, last in pairwise([0, *ends]):
        size = sum(bits[first:last])
        assert size <= 16 * target or last - first == 1
        if size < 2 * target and last < len(bits):
            assert max(bits[last:]) > 14 * target - 1


def random_stream(seed: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, WORD, rows, np.uint64), rng.integers(200, 2000, rows)


def test_shards_hold_about_seven_eighths_of_the_target() -> None:
    """On average: a quarter at least, then a cut in three quarters, and rarely one that is forced."""
    hashes, bits = random_stream(1, 400_000)
    ends = push_all(hashes.tolist(), bits.tolist(), 10_000, [100_000])

    assert len(ends) > 1000
    assert bits.sum() / 8 / len(ends) == pytest.approx(8_800, rel=0.02)


def test_many_rows_are_cut_like_few() -> None:
    """At full scale and in uneven portions the cuts are those of the loop over rows."""
    hashes, bits = random_stream(2, 30_000)

    assert push_all(hashes.tolist(), bits.tolist(), 40_000, [1, 5_000, 5_001]) == ends_of(
        hashes.tolist(), bits.tolist(), 40_000
    )


Edit = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]
EDITS: dict[str, Edit] = {
    "insert": lambda rows, at, rng: np.insert(rows, at, rng.integers(0, WORD, dtype=np.uint64)),
    "delete": lambda rows, at, rng: np.delete(rows, at),
    "edit": lambda rows, at, rng: np.concatenate(
        [rows[:at], rng.integers(0, WORD, 1, np.uint64), rows[at + 1 :]]
    ),
    "insert many": lambda rows, at, rng: np.insert(rows, at, rng.integers(0, WORD, 30, np.uint64)),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_changes_the_shard_it_falls_in_and_rarely_more(name: str) -> None:
    """Of 300 edits in a stream of some 250 shards, hardly one changes more than two, and none many."""
    rng = np.random.default_rng(3)
    rows, _ = random_stream(4, 20_000)
    before = shards_of(rows)
    changed = [
        len(shards_of(EDITS[name](rows, int(rng.integers(len(rows))), rng)) - before) for _ in range(300)
    ]

    assert len(before) > 200
    assert np.mean(np.array(changed) <= 2) > 0.95
    assert max(changed) <= 8


def shards_of(rows: np.ndarray) -> set[bytes]:
    """Each shard's content; a row's size is made of its hash."""
    bits = (rows % np.uint64(1000)).astype(np.int64) + 200
    cutter = Cutter(7_000)
    ends = cutter.push(rows, bits) + cutter.finish()
    return {hashlib.sha256(rows[first:last].tobytes()).digest() for first, last in pairwise([0, *ends])}


@pytest.mark.parametrize(
    "column",
    [
        pa.array(range(20_000)),
        pa.array([f"speaker-{i}" for i in range(20_000)]),
        pa.array(np.arange(40_000).reshape(-1, 2).tolist(), pa.list_(pa.int32())),
        pa.array(
            [{"data": [i, i + 1]} for i in range(20_000)], pa.struct([("data", pa.list_(pa.int16(), 2))])
        ),
    ],
    ids=["numbers", "strings", "lists", "structs"],
)
def test_a_row_put_in_front_moves_no_later_cut_without_a_key_either(column: pa.Array) -> None:
    """Where rows have content to hash, their position does not matter."""
    longer = pa.concat_arrays([column.slice(17, 1), column])
    before, after = (cuts_without_key(array) for array in (column, longer))

    assert len(before) > 20
    assert len(set(after) - {end + 1 for end in before}) <= 2


def cuts_without_key(column: pa.Array) -> list[int]:
    batch = pa.record_batch([column], names=["x"])
    cutter = Cutter(2_000)
    return cutter.push(row_hashes(batch, None, 0), row_bits(batch)) + cutter.finish()


def test_rows_without_content_are_cut_by_their_number() -> None:
    """A column of nulls has no bits, so all its rows are one shard; lists of lists go by position."""
    nulls = pa.record_batch([pa.nulls(1000)], names=["x"])
    nested = pa.array([[[i]] for i in range(5000)])

    assert Cutter(1).push(row_hashes(nulls, None, 0), row_bits(nulls)) == []
    assert len(cuts_without_key(nested)) > 10


def test_hashes_and_cuts_are_frozen() -> None:
    """Every release must cut as the first did, or nothing is reused."""
    keys = pa.array([f"sample-{i:06}" for i in range(3000)])
    batch = pa.record_batch({"key": keys, "x": pa.array([i % 7 for i in range(3000)], pa.uint8())})
    hashes = row_hashes(batch, "key", 0)
    content = row_hashes(batch, None, 0)

    assert ALGORITHM == 1
    assert SEED == 0x6C616B65
    assert [hex(h) for h in hashes[:3]] == ["0x953c865411cd41f2", "0xc43f4de52038b2b", "0xa7e23d140e9ced9a"]
    assert [hex(h) for h in content[:3]] == ["0xf72507ef2e64b1db", "0x2447f56a6fe48cc", "0x696a25122a135ea1"]
    assert push_all(hashes.tolist(), row_bits(batch).tolist(), 4_000, []) == [
        353,
        473,
        720,
        851,
        980,
        1036,
        1375,
        1574,
        1790,
        1887,
        2220,
        2461,
        2628,
        2693,
        2805,
        3000,
    ]
    assert unit(keys, 0)[:2].tolist() == [0.006060938233379942, 0.2474252694498138]


@pytest.mark.parametrize("target", [0, -1])
def test_a_target_is_at_least_a_byte(target: int) -> None:
    """Rather than endless shards of one row."""
    with pytest.raises(ValueError, match="at least 1 byte"):
        Cutter(target)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_a_slice_of_a_column_has_its_sizes(data: st.DataObject) -> None:
    """Offsets into shared buffers are not sizes."""
    array = data.draw(arrays(data.draw(types()), min_size=2))
    whole = row_bits(pa.record_batch([array], names=["x"]))

    assert row_bits(pa.record_batch([array.slice(1, 1)], names=["x"])).tolist() == whole[1:2].tolist()
