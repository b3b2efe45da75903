"""Parts: how rows and columns are divided, equal bytes for equal values, files for any Arrow reader."""

from __future__ import annotations

import hashlib
import io
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lake.format.content import value_digest
from lake.format.part import MIB, batch_rows, choose_codec, encode_part, fits, group_fields
from lake.format.schema import conform, stored_schema
from lake.format.values import Part
from tests.strategies import junk_under_nulls, shifted, tables

TARGET = 64 * MIB


def encode(
    batches: list[pa.RecordBatch], *, target: int = TARGET, codec: str | None = None
) -> tuple[Part, bytes]:
    sink = io.BytesIO()
    part = encode_part(batches, sink, content="00" * 32, target=target, codec=codec)
    return part, sink.getvalue()


@st.composite
def stored_tables(draw: st.DrawFn) -> pa.Table:
    """Tables with at least one row in the form in which parts hold them."""
    table = draw(tables())
    stored = stored_schema(table.schema)
    batches = [conform(batch, stored) for batch in table.to_batches()]
    assume(sum(batch.num_rows for batch in batches))
    return pa.Table.from_batches(batches)


def digests(table: pa.Table) -> list[bytes]:
    return [value_digest(column.chunks) for column in table.columns]


# --- layout -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ({"a": 4}, [["a"]]),
        ({"a": 10_000}, [["a"]]),
        ({"key": 20, "jpg": 7000, "label": 8}, [["key", "label"], ["jpg"]]),
        ({"jpg": 7000, "wav": 9000, "label": 8}, [["label"], ["jpg", "wav"]]),
        ({"a": 256, "b": 1}, [["a", "b"]]),  # not over 256 bytes
        ({"a": 257, "b": 1}, [["b"], ["a"]]),
        ({"a": 800, "b": 100}, [["a", "b"]]),  # not over 8 times
        ({"a": 801, "b": 100}, [["b"], ["a"]]),
        ({"a": 9000, "b": 900, "c": 10}, [["b", "c"], ["a"]]),  # the fewest that do
        ({"a": 5000, "b": 900, "c": 10}, [["c"], ["a", "b"]]),
        ({"a": 500, "b": 0}, [["b"], ["a"]]),
        ({"a": 300, "b": 200, "c": 1}, [["a", "b", "c"]]),  # 300 is not enough alone, and 200 is not large
    ],
)
def test_columns_share_a_part_unless_some_are_much_larger(sizes, groups):
    """Over 256 B a row each, and together over 8 times the rest."""
    assert group_fields(sizes) == tuple(map(tuple, groups))


@given(
    st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.floats(0, 20_000), min_size=1, max_size=6)
)
def test_every_column_is_in_exactly_one_part(sizes):
    """And each part keeps their order."""
    groups = group_fields(sizes)
    assert sorted(name for group in groups for name in group) == sorted(sizes)
    for group in groups:
        assert list(group) == [name for name in sizes if name in group]


@given(st.integers(1, 10**7), st.integers(0, 2**38), st.integers(1, 2**34))
def test_batches_are_even_and_of_the_promised_size(rows, raw, target):
    """Small parts make batches of up to 16 MiB, others of target / 64 within limits, give or take a row."""
    size = batch_rows(rows, raw, target)

    limit = 16 * MIB if raw < target // 4 else min(max(target // 64, 256 * 1024), 4 * MIB)
    row = raw / rows
    count = -(-rows // size)
    assert 1 <= size <= rows
    assert size * row <= limit + row
    assert count == 1 or row > limit or size * row * 2 > limit - row


@given(
    st.lists(st.tuples(st.integers(1, 10**7), st.integers(0, 2**38)), min_size=1, max_size=5),
    st.integers(1, 2**34),
)
def test_arrays_give_what_numbers_give(parts, target):
    """Planning computes a million at once."""
    rows, raw = (np.array(column) for column in zip(*parts, strict=True))
    assert batch_rows(rows, raw, target).tolist() == [batch_rows(*part, target) for part in parts]


def test_the_batch_size_is_frozen():
    """Plans of versions that exist hang on it."""
    cases = [
        (1000, 64 * MIB),
        (1000, 15 * MIB),
        (1000, 16 * MIB - 1),
        (1000, 16 * MIB),
        (7, 130 * MIB),
        (3, 0),
        (10**6, MIB),
    ]
    assert [batch_rows(rows, raw, TARGET) for rows, raw in cases] == [16, 1000, 1000, 63, 1, 3, 10**6]
    assert batch_rows(10**6, 100 * MIB, 1024 * MIB) == 142_858
    assert batch_rows(10**6, 8 * MIB, 8 * MIB) == 31_250


def test_a_part_fits_a_target_if_it_has_the_batches_of_that_target():
    """Found by content, it may have been written for another."""
    batch = pa.record_batch({"x": pa.array(np.arange(200_000))})
    part, _ = encode([batch], target=MIB)
    assert len(part.batches) > 1
    assert fits(part, 200_000, MIB)
    assert not fits(part, 200_000, TARGET)


# --- codec ------------------------------------------------------------------------------------


def noise(rows: int, width: int, seed: int = 0) -> pa.Array:
    values = np.random.default_rng(seed).integers(0, 256, rows * width, np.uint8)
    return pa.FixedSizeListArray.from_arrays(pa.array(values), width)


def test_what_compresses_is_compressed_and_what_does_not_is_stored():
    """Noise is mapped from disk; text is worth decoding."""
    assert choose_codec([pa.record_batch({"x": noise(1000, 1000)})]) == "none"
    words = pa.array(["the quick brown fox"] * 10_000, pa.large_string())
    assert choose_codec([pa.record_batch({"x": words})]) == "zstd"
    floats = pa.array(np.random.default_rng(0).standard_normal(10**5).astype(np.float32))
    assert choose_codec([pa.record_batch({"x": floats})]) == "none"  # saves some 8 %
    assert choose_codec([pa.record_batch({"x": pa.array(range(10**5))})]) == "zstd"


def test_the_sample_sees_beginning_middle_and_end():
    """A part that begins with zeros is not thereby compressible."""
    batch = pa.record_batch(
        {"x": pa.concat_arrays([pa.array(np.zeros(5000)), pa.array(np.random.default_rng(0).random(10**6))])}
    )
    assert choose_codec([batch]) == "none"


def test_an_unknown_codec_is_refused():
    """Only these two are in the format."""
    with pytest.raises(ValueError, match="lz4"):
        encode([pa.record_batch({"x": [1]})], codec="lz4")


def test_a_part_without_rows_or_columns_is_refused():
    """No shard is empty."""
    with pytest.raises(ValueError, match="one row"):
        encode([pa.record_batch({"x": pa.array([], pa.int64())})])


# --- bytes ------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(stored_tables(), st.sampled_from(["none", "zstd"]), st.data())
def test_equal_values_are_equal_bytes(table, codec, data):
    """Whatever the chunks, slices, offsets and what lies under nulls."""
    whole = table.combine_chunks().to_batches()[0]
    edges = sorted({0, whole.num_rows, *data.draw(st.lists(st.integers(0, whole.num_rows), max_size=3))})
    layouts = st.sampled_from([lambda array: array, shifted, junk_under_nulls])

    disguised = []
    for start, end in pairwise(edges):
        columns = [data.draw(layouts)(column) for column in whole.slice(start, end - start).columns]
        disguised.append(pa.RecordBatch.from_arrays(columns, schema=whole.schema))

    assert encode(disguised, codec=codec) == encode(table.to_batches(), codec=codec)


@settings(max_examples=40, deadline=None)
@given(stored_tables(), st.sampled_from(["none", "zstd"]))
def test_any_arrow_reader_reads_a_part(table, codec):
    """It is a plain Arrow IPC file, and its digest is the sha256 of its bytes."""
    part, data = encode(table.to_batches(), codec=codec)

    with pa.ipc.open_file(data) as reader:
        read = reader.read_all()

    read.validate(full=True)
    assert digests(read) == digests(table)
    assert read.schema.names == table.schema.names == list(part.fields)
    assert part.digest == hashlib.sha256(data).hexdigest()
    assert part.bytes == len(data)


def many_batches() -> tuple[list[pa.RecordBatch], Part, bytes]:
    rng = np.random.default_rng(1)
    rows = 3000
    table = pa.table(
        {
            "key": pa.array([f"k{i:05}" for i in range(rows)], pa.large_string()),
            "x": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(rows * 64, np.float32)), 64),
            "maybe": pa.array(rng.random(rows), mask=rng.random(rows) < 0.3),
        }
    )
    batches = table.to_batches(max_chunksize=171)
    return batches, *encode(batches, target=MIB, codec="none")


def test_batches_of_a_part_have_equal_rows_but_for_the_last():
    """So a row's batch is found by division."""
    batches, part, data = many_batches()
    size = batch_rows(3000, part.raw_bytes, MIB)
    assert len(part.batches) > 3
    assert [batch.rows for batch in part.batches] == [size] * (3000 // size) + [3000 % size] * (
        3000 % size > 0
    )
    with pa.ipc.open_file(data) as reader:
        assert [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)] == [
            b.rows for b in part.batches
        ]
        assert reader.read_all() == pa.Table.from_batches(batches)


def test_batches_lie_where_the_part_says():
    """Message and body are found by offset and lengths, and the message has the manifest's check."""
    _, part, data = many_batches()
    for batch in part.batches:
        message = data[batch.offset : batch.offset + batch.meta_length]
        assert hashlib.sha256(message).digest()[:8] == batch.check
        read = pa.ipc.read_message(data[batch.offset : batch.offset + batch.meta_length + batch.length])
        assert read.type == "record batch"
        assert read.body.size == batch.length


def test_raw_bytes_bound_what_the_part_takes_in_memory():
    """Readers reserve that much."""
    batches, part, _ = many_batches()
    assert sum(batch.nbytes for batch in batches) <= part.raw_bytes * 1.01
    assert encode([batches[0]], codec="zstd")[0].raw_bytes == encode([batches[0]], codec="none")[0].raw_bytes


def test_the_input_is_hashed_and_written_as_it_comes():
    """Memory holds about a batch: no write is larger than the largest body."""
    batches, part, data = many_batches()
    written = []
    encode_part(batches, _Recorder(written), content="00" * 32, target=MIB, codec="none")
    assert b"".join(written) == data
    assert len(written) > len(part.batches)
    assert max(map(len, written)) <= max(batch.length for batch in part.batches)


class _Recorder:
    def __init__(self, written: list[bytes]) -> None:
        self.written = written

    def write(self, data: object) -> None:
        self.written.append(bytes(data))  # type: ignore[call-overload]


def test_a_slice_drags_nothing_of_its_parent_into_the_file():
    """Rows that were not committed must not be in the lake."""
    parent = pa.record_batch(
        {"x": pa.array([b"public", b"SECRET" * 20, b"public"], pa.large_binary()), "n": [1, 2**60 + 7, 3]}
    )
    _, data = encode([parent.slice(0, 1), parent.slice(2, 1)], codec="none")
    assert b"SECRET" not in data
    assert (2**60 + 7).to_bytes(8, "little") not in data


def test_metadata_and_nullability_are_not_in_the_file():
    """They are the version's, so changing them leaves parts as they are."""
    plain = pa.schema([("x", pa.int64())])
    rich = pa.schema([pa.field("x", pa.int64(), nullable=False, metadata={"unit": "m"})], metadata={"a": "b"})
    values = [pa.array([1, 2, 3])]
    assert encode([pa.RecordBatch.from_arrays(values, schema=plain)]) == encode(
        [pa.RecordBatch.from_arrays(values, schema=rich)]
    )


def test_the_bytes_of_a_part_are_frozen():
    """Stored uncompressed, a part has the same digest under every release of lake and pyarrow."""
    batch = pa.record_batch(
        {
            "key": pa.array(["robin", "wren", None], pa.large_string()),
            "x": pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2)),
            "n": pa.array([True, None, False]),
        }
    )
    part, data = encode([batch], codec="none")
    assert len(data) == part.bytes
    assert part.digest == "30276302092d10acf11be0ea73d8e13bd176fb5cb1f967a79d2715d78efb758d"
    assert (part.bytes, part.raw_bytes, part.codec) == (1122, 75, "none")
