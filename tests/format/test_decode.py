"""Reading parts: every way gives the same rows, and bytes that are not what they should be give an error."""

from __future__ import annotations

import hashlib
import io
from contextlib import nullcontext, suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lake.errors import FormatError, IntegrityError
from lake.format import ipc
from lake.format.content import value_digest
from lake.format.decode import (
    OpenPart,
    column_ranges,
    decode_batch,
    decode_columns,
    head_range,
    message_range,
    needs_head,
    open_mapped,
)
from lake.format.part import MIB, encode_part
from lake.format.schema import conform, stored_schema
from lake.format.values import Part
from tests.strategies import tables

CODECS = st.sampled_from(["none", "zstd"])


def encode(table: pa.Table, *, target: int = MIB, codec: str = "none") -> tuple[Part, bytes]:
    sink = io.BytesIO()
    part = encode_part(table.to_batches(), sink, content="00" * 32, target=target, codec=codec)
    return part, sink.getvalue()


@st.composite
def stored_tables(draw: st.DrawFn) -> pa.Table:
    table = draw(tables())
    stored = stored_schema(table.schema)
    batches = [conform(batch, stored) for batch in table.to_batches()]
    assume(sum(batch.num_rows for batch in batches))
    return pa.Table.from_batches(batches)


def birds(rows: int = 3000) -> pa.Table:
    rng = np.random.default_rng(1)
    return pa.table(
        {
            "key": pa.array([f"k{i:05}" for i in range(rows)], pa.large_string()),
            "x": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(rows * 64, np.float32)), 64),
            "maybe": pa.array(rng.random(rows), mask=rng.random(rows) < 0.3),
            "words": pa.array([["a", None, "bc"][: i % 4] for i in range(rows)], pa.list_(pa.large_string())),
        }
    )


def ranged(
    part: Part, data: bytes, index: int, columns: list[str], stored: pa.Schema, **options: object
) -> pa.RecordBatch:
    """The way of a reader who fetches no more than it must; `data` holds nothing else."""
    start, length = message_range(part, index)
    message = data[start : start + length]
    head = data[slice(*head_range(part))] if needs_head(message, part, index, stored) else None
    wanted = column_ranges(message, part, index, columns, stored, head=head)
    got = {(start, length): data[start : start + length] for start, length in wanted}
    return decode_columns(part, index, message, got, columns, stored, head=head, **options)  # type: ignore[arg-type]


def extent(part: Part, data: bytes, index: int) -> bytes:
    batch = part.batches[index]
    return data[batch.offset : batch.offset + batch.meta_length + batch.length]


def same(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    return one.schema.equals(other.schema, check_metadata=True) and all(
        value_digest([a]) == value_digest([b]) for a, b in zip(one.columns, other.columns, strict=True)
    )


# --- the same rows every way ------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(stored_tables(), CODECS, st.data())
def test_every_way_of_reading_gives_the_rows_that_were_written(table, codec, data):
    """Whole, mapped, or a few columns from their ranges; with every check on."""
    part, file = encode(table, codec=codec)
    stored = table.schema
    columns = data.draw(st.lists(st.sampled_from(stored.names), unique=True, min_size=1))
    expected = table.combine_chunks().to_batches()[0]
    chosen = pa.RecordBatch.from_arrays(
        [expected.column(name) for name in columns],
        schema=pa.schema([stored.field(name) for name in columns]),
    )

    assert len(part.batches) == 1
    assert same(decode_batch(part, 0, extent(part, file, 0), columns, stored, first_read=True), chosen)
    assert same(ranged(part, file, 0, columns, stored, first_read=True), chosen)
    for options in ({}, {"verify": True}, {"first_read": True}):
        assert same(OpenPart(file, part, stored).batch(0, columns, **options), chosen)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_batches_together_are_the_part(tmp_path, codec):
    """In order, nothing twice."""
    table = birds()
    part, file = encode(table, codec=codec)
    (tmp_path / "x.arrow").write_bytes(file)
    opened = open_mapped(str(tmp_path / "x.arrow"), part, table.schema)
    assert len(part.batches) > 3
    for read in (
        [opened.batch(i) for i in range(len(part.batches))],
        [decode_batch(part, i, extent(part, file, i), None, table.schema) for i in range(len(part.batches))],
        [ranged(part, file, i, table.schema.names, table.schema) for i in range(len(part.batches))],
    ):
        assert pa.Table.from_batches(read) == table


def test_a_mapped_part_without_compression_is_not_copied(tmp_path):
    """Its batches take no memory."""
    table = birds()
    part, file = encode(table)
    (tmp_path / "x.arrow").write_bytes(file)
    opened = open_mapped(str(tmp_path / "x.arrow"), part, table.schema)
    before = pa.total_allocated_bytes()
    batch = opened.batch(1, ["x", "key"])
    assert pa.total_allocated_bytes() == before
    assert batch.schema.names == ["x", "key"]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_column_costs_its_own_bytes(codec):
    """Labels are read without the images beside them, and neighbours with one request."""
    table = birds()
    part, file = encode(table, codec=codec)
    message = file[slice(*(lambda start, length: (start, start + length))(*message_range(part, 1)))]
    small = column_ranges(message, part, 1, ["key"], table.schema)
    assert len(small) == 1
    assert small[0][1] < 0.1 * part.batches[1].length
    assert len(column_ranges(message, part, 1, ["key", "x"], table.schema)) == 1
    assert len(column_ranges(message, part, 1, ["key", "maybe"], table.schema)) == 2
    everything = column_ranges(message, part, 1, table.schema.names, table.schema)
    assert len(everything) == 1
    batch = part.batches[1]
    assert sum(everything[0]) <= batch.offset + batch.meta_length + batch.length


def test_a_column_without_bytes_needs_no_range():
    """All values null or empty."""
    table = pa.table({"a": pa.nulls(3), "b": pa.array([1, 2, 3])})
    part, file = encode(table)
    assert (
        column_ranges(
            file[slice(part.batches[0].offset, part.batches[0].offset + part.batches[0].meta_length)],
            part,
            0,
            ["a"],
            table.schema,
        )
        == []
    )
    assert ranged(part, file, 0, ["a"], table.schema).to_pydict() == {"a": [None] * 3}


# --- parts that outlive a schema --------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_columns_that_the_manifest_does_not_name_are_ignored(codec):
    """After `drop_columns` the file is the same and says more than it should."""
    table = birds(300)
    part, file = encode(table, codec=codec)
    left = replace(part, fields=("key", "maybe"))
    stored = pa.schema([table.schema.field("key"), table.schema.field("maybe")])
    expected = table.select(["key", "maybe"]).combine_chunks().to_batches()[0]

    message = file[left.batches[0].offset :][: left.batches[0].meta_length]
    assert needs_head(message, left, 0, stored)
    assert not needs_head(message, part, 0, table.schema)
    assert same(OpenPart(file, left, stored).batch(0), expected)
    assert same(ranged(left, file, 0, ["key", "maybe"], stored, first_read=True), expected)
    with pytest.raises(FormatError, match="head"):
        decode_batch(left, 0, extent(left, file, 0), None, stored)
    for verify in (True, False):  # also if a column of this name was added again since
        with pytest.raises(ValueError, match="does not hold x"):
            OpenPart(file, left, table.schema).batch(0, ["x"], verify=verify)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_part_is_read_in_the_types_of_the_version(codec):
    """A column of nulls that got a type later, and a list whose offsets another commit made wider."""
    table = pa.table(
        {
            "none": pa.nulls(2),
            "l": pa.array([[1], [None, 2]], pa.list_(pa.int64())),
            "s": pa.array(["a", "b"], pa.large_string()),
        }
    )
    part, file = encode(table, codec=codec)
    now = pa.schema(
        [
            ("none", pa.float32()),
            ("l", pa.large_list(pa.int64())),
            pa.field("s", pa.large_string(), metadata={"a": "b"}),
        ]
    )
    for batch in (OpenPart(file, part, now).batch(0), ranged(part, file, 0, now.names, now, first_read=True)):
        assert batch.schema.equals(now, check_metadata=True)
        assert batch.to_pydict() == {"none": [None, None], "l": [[1], [None, 2]], "s": ["a", "b"]}


def test_the_head_of_another_file_is_refused():
    """It would tell other types of the same bytes."""
    table = pa.table({"a": pa.array([1, 2], pa.int64())})
    part, file = encode(table)
    stranger, other = encode(pa.table({"a": pa.array([1, 2], pa.int32())}))
    assert stranger.batches[0].offset == part.batches[0].offset
    with pytest.raises(IntegrityError, match="schema"):
        decode_batch(part, 0, extent(part, file, 0), None, table.schema, head=other[: part.batches[0].offset])
    with pytest.raises(IntegrityError, match="schema"):
        OpenPart(other[: part.batches[0].offset] + file[part.batches[0].offset :], part, table.schema).batch(
            0, verify=True
        )


# --- damage -----------------------------------------------------------------------------------


def damaged_readers(part: Part, file: bytes, index: int, stored: pa.Schema):
    """Every way of reading a batch from a file of the right length."""
    yield lambda: OpenPart(file, part, stored).batch(index, first_read=True)
    yield lambda: OpenPart(file, part, stored).batch(index, verify=True)
    yield lambda: decode_batch(part, index, extent(part, file, index), None, stored)
    yield lambda: ranged(part, file, index, stored.names, stored)
    for name in stored.names:
        yield lambda name=name: ranged(part, file, index, [name], stored)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["none", "zstd"]), st.randoms(use_true_random=False), st.integers(1, 4))
def test_flipped_bits_give_the_right_rows_or_an_integrity_error(codec, random, flips):
    """Never other rows and never a crash, wherever they are: values, offsets, bitmaps, messages, schema."""
    table = SMALL
    part, file = SMALL_PARTS[codec]
    damaged = bytearray(file)
    for _ in range(flips):
        bit = random.randrange(8 * len(file))
        damaged[bit // 8] ^= 1 << bit % 8
    for index in range(len(part.batches)):
        for read in damaged_readers(part, bytes(damaged), index, table.schema):
            check_rows_or_error(read, table, part, index)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["none", "zstd"]), st.randoms(use_true_random=False))
def test_overwritten_runs_give_the_right_rows_or_an_integrity_error(codec, random):
    """A sector of zeros, or of something else."""
    table = SMALL
    part, file = SMALL_PARTS[codec]
    start, length = random.randrange(len(file)), random.choice([8, 64, 512])
    junk = random.choice([bytes(length), b"\xff" * length, random.randbytes(length)])[: len(file) - start]
    damaged = file[:start] + junk + file[start + len(junk) :]
    for index in range(len(part.batches)):
        for read in damaged_readers(part, damaged, index, table.schema):
            check_rows_or_error(read, table, part, index)


def check_rows_or_error(read, table: pa.Table, part: Part, index: int) -> None:
    size = part.batches[0].rows
    expected = table.slice(index * size, size).combine_chunks().to_batches()[0]
    with suppress(IntegrityError):
        batch = read()
        assert all(
            value_digest([batch[name]]) == value_digest([expected[name]]) for name in batch.schema.names
        )


SMALL = birds(400)
SMALL_PARTS = {codec: encode(SMALL, codec=codec, target=1) for codec in ("none", "zstd")}


def test_a_flipped_bit_of_any_byte_that_matters_is_found():
    """Of message and values; what is not found lies in the padding between buffers."""
    table = SMALL.select(["key", "x"])  # no nulls, so no values that do not matter
    part, file = encode(table)
    batch = part.batches[0]
    message = ipc.read_message(file[batch.offset :][: batch.meta_length])
    matters = set(range(batch.meta_length))
    for offset, length in message.buffers.tolist():
        matters |= set(range(batch.meta_length + offset, batch.meta_length + offset + length))
    for at in range(0, batch.meta_length + batch.length, 97):
        data = bytearray(extent(part, file, 0))
        data[at] ^= 0x10
        with pytest.raises(IntegrityError) if at in matters else nullcontext():
            decode_batch(part, 0, bytes(data), None, table.schema)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_the_error_names_part_batch_and_rows(codec):
    """What `lake repair` and the reader need."""
    table = birds()
    part, file = encode(table, codec=codec)
    size = part.batches[0].rows
    batch = part.batches[2]
    damaged = bytearray(file)
    damaged[batch.offset + 20] ^= 1
    where = f"part {part.digest[:12]}, batch 2, rows {2 * size:,}-{3 * size - 1:,}: "
    with pytest.raises(IntegrityError, match=where) as caught:
        OpenPart(bytes(damaged), part, table.schema).batch(2, verify=True)
    assert caught.value.digest == part.digest


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_truncated_bytes_are_an_integrity_error(codec):
    """At any length, whatever is cut short."""
    table = birds(300)
    part, file = encode(table, codec=codec)
    batch = part.batches[0]
    message = file[batch.offset : batch.offset + batch.meta_length]
    wanted = column_ranges(message, part, 0, ["x"], table.schema)
    for cut in (0, 1, 8, 100):
        with pytest.raises(IntegrityError):
            OpenPart(file[:cut], part, table.schema)
        with pytest.raises(IntegrityError, match="batch 0"):
            decode_batch(part, 0, extent(part, file, 0)[:cut], None, table.schema)
        with pytest.raises(IntegrityError, match="batch 0"):
            column_ranges(message[:cut], part, 0, ["x"], table.schema)
        with pytest.raises(IntegrityError, match="batch 0"):
            decode_columns(part, 0, message, {wanted[0]: file[:cut]}, ["x"], table.schema)


# --- hostile ----------------------------------------------------------------------------------


def signed(part: Part, index: int, data: bytes) -> Part:
    """The part whose manifest vouches for this batch: what a hostile writer would publish."""
    batch = part.batches[index]
    check = hashlib.sha256(data[: batch.meta_length]).digest()[:8]
    return replace(
        part, batches=(*part.batches[:index], replace(batch, check=check), *part.batches[index + 1 :])
    )


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["none", "zstd"]), st.randoms(use_true_random=False), st.integers(1, 3))
def test_a_hostile_message_that_its_manifest_vouches_for_never_crashes_the_reader(codec, random, changes):
    """Lengths, offsets, counts and types in it may be anything; what is read is valid Arrow or an error."""
    table = SMALL
    part, file = SMALL_PARTS[codec]
    data = bytearray(extent(part, file, 0))
    for _ in range(changes):
        at = random.randrange(8, part.batches[0].meta_length - 8)
        value = random.choice([0, 1, -1, 2**31, 2**62, 8, random.randrange(2**16)])
        width = random.choice([1, 2, 4, 8])
        data[at : at + width] = value.to_bytes(9, "little", signed=True)[:width]
    hostile = signed(part, 0, bytes(data))
    for columns in (None, ["key"], ["words"]):
        try:
            batch = decode_batch(hostile, 0, bytes(data), columns, table.schema, first_read=True)
        except (IntegrityError, FormatError):
            continue
        batch.validate(full=True)
        assert batch.num_rows == hostile.batches[0].rows


def rewritten(part: Part, file: bytes, change) -> tuple[Part, bytes]:
    """Batch 0 with its compressed bodies changed, and a manifest that vouches for the message."""
    data = bytearray(extent(part, file, 0))
    message = ipc.read_message(bytes(data[: part.batches[0].meta_length]))
    change(data, part.batches[0].meta_length, message)
    return signed(part, 0, bytes(data)), bytes(data)


@pytest.mark.parametrize("claimed", [2**40, 2**62, -2, -(2**63)])
def test_a_buffer_that_claims_more_than_the_part_is_refused_before_it_is_allocated(claimed):
    """A megabyte may say that it decompresses to a terabyte."""
    table = SMALL
    part, file = SMALL_PARTS["zstd"]

    def lie(data, body, message):
        at = body + int(message.buffers[1][0])
        data[at : at + 8] = claimed.to_bytes(8, "little", signed=True)

    hostile, data = rewritten(part, file, lie)
    with pytest.raises(IntegrityError, match=r"over the part's"):
        decode_batch(hostile, 0, data, None, table.schema)
    with pytest.raises(IntegrityError, match=r"over the part's"):
        decode_batch(hostile, 0, data, ["key"], table.schema)


def test_buffers_that_together_claim_more_than_the_part_are_refused():
    """Each alone might pass."""
    table = SMALL
    part, file = SMALL_PARTS["zstd"]
    with pytest.raises(IntegrityError, match="over the part's 100"):
        decode_batch(replace(part, raw_bytes=100), 0, extent(part, file, 0), None, table.schema)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_batch_that_is_not_as_the_manifest_says_is_a_format_error(codec):
    """Rows, length and codec are there twice, and must agree."""
    table = birds(300)
    part, file = encode(table, codec=codec)
    batch = part.batches[0]
    other = {"none": "zstd", "zstd": "none"}[codec]
    with pytest.raises(FormatError, match="the manifest says otherwise"):
        decode_batch(replace(part, codec=other), 0, extent(part, file, 0), None, table.schema)
    with pytest.raises(FormatError, match="the manifest says otherwise"):
        decode_batch(
            replace(part, batches=(replace(batch, rows=299),)), 0, extent(part, file, 0), None, table.schema
        )


def test_values_that_arrow_calls_invalid_are_a_format_error_on_the_first_read():
    """Checks of a hostile writer may be right and its strings no UTF-8."""
    bad = pa.Array.from_buffers(
        pa.large_string(),
        1,
        [
            None,
            pa.py_buffer((0).to_bytes(8, "little") + (2).to_bytes(8, "little")),
            pa.py_buffer(b"\xff\xfe"),
        ],
    )
    table = pa.table({"s": bad})
    part, file = encode(table)
    assert decode_batch(part, 0, extent(part, file, 0), None, table.schema).num_rows == 1
    with pytest.raises(FormatError, match="column 's'"):
        decode_batch(part, 0, extent(part, file, 0), None, table.schema, first_read=True)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_a_value_error(data):
    """The flatbuffer reader follows no offset out of its bytes."""
    with pytest.raises(ValueError, match=r"message|batch|codec"):
        ipc.read_message(data)
    framed = b"\xff\xff\xff\xff" + len(data).to_bytes(4, "little") + data
    with pytest.raises(ValueError, match=r"message|batch|codec"):
        ipc.read_message(framed)


@settings(max_examples=60, deadline=None)
@given(stored_tables(), CODECS)
def test_the_message_says_what_arrow_says(table, codec):
    """Rows, body, codec and buffers, of every type."""
    part, file = encode(table, codec=codec)
    batch = part.batches[0]
    message = ipc.read_message(file[batch.offset :][: batch.meta_length])
    assert (message.rows, message.body, message.codec) == (table.num_rows, batch.length, codec)
    assert list(message.metadata) == ["schema", "xxh3"]
    assert message.metadata["schema"] == hashlib.sha256(file[8 : batch.offset]).hexdigest()[:16]
    layouts = [ipc.layout(field.type) for field in table.schema]
    assert (len(message.nodes), len(message.buffers)) == tuple(map(sum, zip(*layouts, strict=True)))
    if codec == "none":
        body = file[batch.offset + batch.meta_length :]
        found = [body[offset : offset + length] for offset, length in message.buffers.tolist() if length]
        column = OpenPart(file, part, table.schema).batch(0)
        buffers = [b for c in column.columns for b in c.buffers() if b is not None and b.size]
        assert len(found) == len(buffers)
