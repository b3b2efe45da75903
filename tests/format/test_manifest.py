"""Manifests: columns for planning, shards on demand, and memory that a million shards do not exhaust."""

from __future__ import annotations

import hashlib
import tracemalloc
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.errors import FormatError
from lake.format.manifest import Manifest
from lake.format.part import MIB, batch_rows
from lake.format.segment import ROW_GROUP, encode_segment
from lake.format.values import Batch, ColumnStats, Part, Shard

SCHEMA = pa.schema(
    [("key", pa.large_string()), ("img", pa.large_binary()), ("n\0", pa.int64()), ("new", pa.int32())]
)
TARGET = 64 * MIB


def make_part(name: str, rows: int, raw: int, fields: tuple[str, ...]) -> Part:
    size = batch_rows(rows, raw, TARGET)
    batches, offset = [], 264
    for start in range(0, rows, size):
        batches.append(Batch(offset, 200, 800, min(size, rows - start), b"12345678"))
        offset += 1000
    digest = hashlib.sha256(name.encode()).hexdigest()
    return Part(digest, digest, offset + 8, raw, "none", fields, tuple(batches))


@st.composite
def shard_lists(draw: st.DrawFn, *, min_size: int = 1) -> list[Shard]:
    shards = []
    for i in range(draw(st.integers(min_size, 8))):
        rows = draw(st.integers(1, 50))
        groups = draw(
            st.sampled_from(
                [[("key",), ("img", "n\0")], [("key", "img", "n\0")], [("key", "img")], [(), ("key",)], []]
            )
        )
        parts = tuple(
            make_part(f"{i}-{fields}", rows, draw(st.sampled_from([0, 100, 20 * MIB, 60 * MIB])), fields)
            for fields in groups
        )
        stats = {"key": ColumnStats(f"{i}", f"{i}~", 0, 0), "img": ColumnStats(None, None, 1, 0)}
        shards.append(Shard(rows, draw(st.integers(0, 2**40)), f"{i}", f"{i}~", i, parts, stats))
    return shards


def open_manifest(segments: list[list[Shard]], **options: int) -> Manifest:
    encoded = [encode_segment(shards, SCHEMA, "key") for shards in segments]
    return Manifest.open(SCHEMA, [ref for ref, _ in encoded], [data for _, data in encoded], **options)


@settings(max_examples=40, deadline=None)
@given(st.lists(shard_lists(), max_size=3), st.data())
def test_a_manifest_is_its_shards_in_order(segments, data):
    """By number, as a run, and by row; whatever segments they lie in."""
    shards = [shard for segment in segments for shard in segment]
    manifest = open_manifest(segments, target=TARGET)

    full = {name: ColumnStats() for name in SCHEMA.names}
    expected = [replace(shard, stats=full | shard.stats) for shard in shards]
    assert len(manifest) == len(shards)
    assert list(manifest.shards()) == expected
    assert [manifest.shard(i) for i in range(len(shards))] == expected
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(shards) + 1)] * 2)))
    assert list(manifest.shards(start, stop)) == expected[start:stop]
    assert manifest.rows.tolist() == [shard.rows for shard in shards]
    assert manifest.raw_bytes.tolist() == [shard.raw_bytes for shard in shards]
    assert manifest.starts.tolist() == np.cumsum([0, *(shard.rows for shard in shards)]).tolist()
    places = [(i, row) for i, shard in enumerate(shards) for row in range(shard.rows)]
    assert [manifest.find(row) for row in range(len(places))] == places


@settings(max_examples=40, deadline=None)
@given(st.lists(shard_lists(), max_size=3), st.sets(st.sampled_from(SCHEMA.names)))
def test_planning_knows_sizes_batches_and_digests_of_the_parts_it_needs(segments, columns):
    """Those that hold any of the columns, as a loop over shards would find."""
    shards = [shard for segment in segments for shard in segment]
    manifest = open_manifest(segments)
    held = [[part for part in shard.parts if columns & set(part.fields)] for shard in shards]

    stored, raw = manifest.sizes(sorted(columns))
    assert stored.tolist() == [sum(part.bytes for part in parts) for parts in held]
    assert raw.tolist() == [sum(part.raw_bytes for part in parts) for parts in held]
    assert manifest.batch_rows(sorted(columns), TARGET).tolist() == [
        max(parts, key=lambda part: part.raw_bytes).batches[0].rows if parts else shard.rows
        for shard, parts in zip(shards, held, strict=True)
    ]
    for i, parts in enumerate(held):
        assert manifest.digests(i, sorted(columns)) == [part.digest for part in parts]
        assert manifest.digests(i) == [part.digest for part in shards[i].parts]
    assert manifest.every_digest() == [part.digest for shard in shards for part in shard.parts]


@settings(max_examples=20, deadline=None)
@given(st.lists(shard_lists(), max_size=3))
def test_statistics_of_a_column_are_one_array(segments):
    """Of a column that no segment knows, all unknown; typed as the column in any case."""
    shards = [shard for segment in segments for shard in segment]
    manifest = open_manifest(segments)
    assert manifest.stats("key").to_pylist() == [
        {"min": shard.first_key, "max": shard.last_key, "nulls": 0, "nans": 0} for shard in shards
    ]
    encoded = [encode_segment(segment, SCHEMA, "key") for segment in segments]
    wider = SCHEMA.append(pa.field("later", pa.int64()))
    later = Manifest.open(wider, [ref for ref, _ in encoded], [data for _, data in encoded]).stats("later")
    assert len(later) == len(shards)
    assert later.null_count == len(shards)
    assert later.type.field("min").type == pa.int64()


def test_an_empty_manifest_has_nothing():
    """A dataset whose rows were all deleted."""
    manifest = open_manifest([])
    assert (len(manifest), manifest.starts.tolist(), list(manifest.shards())) == (0, [0], [])
    assert manifest.batch_rows(["key"], TARGET).tolist() == []
    assert len(manifest.stats("key")) == 0
    with pytest.raises(IndexError):
        manifest.find(0)
    with pytest.raises(IndexError):
        manifest.shard(0)


def one(i: int) -> Shard:
    return Shard(10, 900, f"{i:07}", f"{i:07}", i, (make_part(f"{i}", 10, 900, ("key", "img")),))


def test_a_shard_is_found_in_its_row_group():
    """Around the ends of groups and of segments."""
    shards = [one(i) for i in range(2 * ROW_GROUP + 10)]
    manifest = open_manifest([shards[:-3], shards[-3:]])
    for i in (
        0,
        ROW_GROUP - 1,
        ROW_GROUP,
        2 * ROW_GROUP - 1,
        2 * ROW_GROUP,
        len(shards) - 4,
        len(shards) - 3,
        len(shards) - 1,
    ):
        assert manifest.shard(i).first_key == f"{i:07}"
        assert manifest.find(10 * i + 3) == (i, 3)
    run = manifest.shards(ROW_GROUP - 2, 2 * ROW_GROUP + 9)
    assert [shard.first_key for shard in run] == [f"{i:07}" for i in range(ROW_GROUP - 2, 2 * ROW_GROUP + 9)]
    for out in (-1, len(shards)):
        with pytest.raises(IndexError, match=str(len(shards))):
            manifest.shard(out)


def test_planning_holds_a_few_hundred_bytes_a_shard():
    """So a million take hundreds of megabytes at most, not the gigabytes that objects would."""
    shards = [one(i) for i in range(4000)]
    ref, data = encode_segment(shards, SCHEMA, "key")
    tracemalloc.start()
    manifest = Manifest.open(SCHEMA, [ref] * 10, [data] * 10)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(manifest) == 40_000
    assert held < 300 * len(manifest)


@pytest.mark.parametrize("member", ["rows", "raw_bytes", "bytes"])
def test_a_segment_that_does_not_add_up_to_its_version_is_a_format_error(member):
    """Its totals are in the document."""
    ref, data = encode_segment([one(0), one(1)], SCHEMA, "key")
    with pytest.raises(FormatError, match="add up"):
        Manifest.open(SCHEMA, [replace(ref, **{member: getattr(ref, member) + 1})], [data])


def test_negative_sizes_that_cancel_out_are_a_format_error():
    """Sums alone would not show them."""
    for shard in (replace(one(0), rows=0), replace(one(0), raw_bytes=-1)):
        with pytest.raises(FormatError):
            open_manifest([[shard, one(1)]])


def test_batches_against_the_rule_are_a_format_error():
    """Plans count batches by the rule alone, so a part that breaks it would be read wrong."""
    shard = one(0)
    batch = shard.parts[0].batches[0]
    broken = replace(
        shard.parts[0], batches=(replace(batch, rows=5), replace(batch, offset=batch.offset + 0, rows=5))
    )
    manifest = open_manifest([[replace(shard, parts=(broken,))]], target=TARGET)
    with pytest.raises(FormatError, match="against the format's rule"):
        manifest.shard(0)
    assert len(list(open_manifest([[replace(shard, parts=(broken,))]]).shards())) == 1
