"""Segments: shards come back, in any schema; where segments end; and what hostile ones are refused for."""

from __future__ import annotations

import hashlib
import io
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.errors import FormatError
from lake.format import segment
from lake.format.schema import canonical_schema, stored_schema
from lake.format.segment import (
    SEGMENT_SHARDS,
    decode_segment,
    encode_segment,
    encode_table,
    segment_cuts,
    tail_to_merge,
)
from lake.format.shards import as_written, segment_schema, shards_of, table_of
from lake.format.stats import shard_stats
from lake.format.values import Batch, ColumnStats, Part, SegmentRef, Shard
from tests.strategies import batches, schemas

SCHEMA = pa.schema(
    [
        ("key", pa.large_string()),
        ("label", pa.dictionary(pa.int32(), pa.large_string())),
        ("when", pa.timestamp("ns", "UTC")),
        ("a.b", pa.float32()),
        ("x", pa.list_(pa.int64())),
    ]
)


def sha(text: object) -> str:
    return hashlib.sha256(str(text).encode()).hexdigest()


def make_part(name: object, rows: int, fields: tuple[str, ...], batch: int, codec: str = "none") -> Part:
    found, offset = [], 264
    for start in range(0, rows, batch):
        count = min(batch, rows - start)
        found.append(Batch(offset, 200, 8 * count, count, sha((name, start)).encode()[:8]))
        offset += 200 + 8 * count
    return Part(sha(name), sha((name, "content")), offset + 100, 9 * rows, codec, fields, tuple(found))


def make_shard(i: int, rows: int = 10) -> Shard:
    parts = (
        make_part(("l", i), rows, ("key", "label", "when"), rows, "zstd"),
        make_part(("h", i), rows, ("a.b", "x"), 4),
    )
    stats = {
        "key": ColumnStats(f"{i:06}", f"{i:06}~", 0, 0),
        "label": ColumnStats("robin", "wren", 1, 0),
        "when": ColumnStats(1_700_000_000_000_000_000 + i, 1_700_000_000_000_000_001 + i, 0, 0),
        "a.b": ColumnStats(None, None, None, None),
        "x": ColumnStats(nulls=3),
    }
    return Shard(rows, 90 * rows, f"{i:06}", f"{i:06}~", i * 2**40 + 1, parts, stats)


SHARDS = [make_shard(i) for i in range(5)]
REF, DATA = encode_segment(SHARDS, SCHEMA, "key")


def test_shards_come_back():
    """Parts, batches and statistics, from bytes and from a file."""
    table = decode_segment(DATA, REF, SCHEMA, writing=True)
    assert list(shards_of(table)) == SHARDS
    assert table.schema.names == segment_schema(SCHEMA, "key").names
    assert (
        SegmentRef(
            hashlib.sha256(DATA).hexdigest(),
            50,
            5,
            sum(part.bytes for shard in SHARDS for part in shard.parts),
            4500,
        )
        == REF
    )


def test_a_segment_is_read_from_a_file(tmp_path):
    """The cache keeps segments as files."""
    path = tmp_path / "x.parquet"
    path.write_bytes(DATA)
    assert list(shards_of(decode_segment(str(path), REF, SCHEMA))) == SHARDS


@st.composite
def described(draw: st.DrawFn) -> tuple[pa.Schema, str | None, list[Shard]]:
    """Shards with the true statistics and keys of rows of any schema."""
    schema = canonical_schema(draw(schemas()))
    stored = stored_schema(schema)
    plain = [name for name in stored.names if not pa.types.is_nested(stored.field(name).type)]
    flat = [name for name in plain if not isinstance(stored.field(name).type, pa.BaseExtensionType)]
    key = draw(st.sampled_from([None, *flat]))
    shards = []
    for i in range(draw(st.integers(1, 3))):
        rows = draw(batches(stored))
        stats = shard_stats([rows], stored, key)
        shards.append(
            replace(make_shard(i, draw(st.integers(1, 9))), first_key=None, last_key=None, stats=stats)
        )
    return schema, key, shards


@settings(max_examples=60, deadline=None)
@given(described())
def test_true_statistics_of_any_column_come_back(given):
    """Types, extremes, NaN-free bounds and unknowns."""
    schema, key, shards = given
    ref, data = encode_segment(shards, schema, key)
    table = decode_segment(data, ref, schema, writing=True)
    table.validate(full=True)
    assert list(map(repr, shards_of(table))) == list(map(repr, shards))
    assert encode_segment(list(shards_of(table)), schema, key) == (ref, data)


@pytest.mark.parametrize(
    ("type_", "keys"),
    [
        (pa.large_string(), ["", "\U0010ffff"]),
        (pa.large_binary(), [b"\x00", b"\xff"]),
        (pa.int64(), [-(2**63), 2**63 - 1]),
        (pa.uint64(), [0, 2**64 - 1]),
        (pa.timestamp("ns"), [1, 2**62 + 1]),
        (pa.timestamp("us", "Europe/Berlin"), [None, 5]),
        (pa.date32(), [0, 20_000]),
        (pa.time64("ns"), [1, 86_399_999_999_999]),
        (pa.float64(), [-0.0, float("inf")]),
        (pa.bool_(), [False, True]),
        (pa.binary(3), [b"abc", None]),
        (pa.decimal128(38, 2), [Decimal("1.25"), None]),
    ],
)
def test_first_and_last_keys_of_any_type_come_back(type_, keys):
    """Moments as the integers that Arrow holds, to the nanosecond."""
    schema = pa.schema([("key", type_)])
    shard = replace(
        SHARDS[0], parts=(make_part(0, 10, ("key",), 10),), first_key=keys[0], last_key=keys[1], stats={}
    )
    ref, data = encode_segment([shard], schema, "key")
    (read,) = shards_of(decode_segment(data, ref, schema))
    assert list(map(repr, [read.first_key, read.last_key])) == list(map(repr, keys))
    assert pq.read_schema(io.BytesIO(data)).field("first_key").type == type_


def test_keys_that_have_no_bounds_are_not_kept():
    """Parquet knows no intervals, and nobody asks for ranges of them."""
    schema = pa.schema([("key", pa.month_day_nano_interval())])
    shard = replace(SHARDS[0], first_key=pa.MonthDayNano([1, 2, 3]), last_key=None, stats={})
    ref, data = encode_segment([shard], schema, "key")
    assert next(shards_of(decode_segment(data, ref, schema))).first_key is None


def test_a_dataset_without_a_key_has_null_keys():
    """The columns are there all the same."""
    shards = [replace(shard, first_key=None, last_key=None) for shard in SHARDS]
    ref, data = encode_segment(shards, SCHEMA, None)
    assert list(shards_of(decode_segment(data, ref, SCHEMA))) == shards


def test_equal_shards_are_equal_bytes():
    """Encoded again, also from what was read, a segment has the same digest."""
    read = list(shards_of(decode_segment(DATA, REF, SCHEMA)))
    assert encode_segment(read, SCHEMA, "key") == (REF, DATA)


def test_the_content_of_a_segment_is_frozen():
    """Names, types and order of its columns, however Parquet encodes them."""
    schema = pq.read_schema(io.BytesIO(DATA))
    assert str(schema.field("parts").type) == (
        "list<element: struct<digest: fixed_size_binary[32], content: fixed_size_binary[32], bytes: int64, "
        "raw_bytes: int64, codec: string, fields: list<element: string>, batches: list<element: struct<"
        "offset: int64, meta_length: int32, length: int64, rows: int64, check: fixed_size_binary[8]>>>>"
    )
    flat = {name: str(schema.field(name).type) for name in schema.names if name not in ("parts", "stats")}
    assert flat == {
        "rows": "int64",
        "raw_bytes": "int64",
        "first_key": "large_string",
        "last_key": "large_string",
        "cut": "uint64",
    }
    stats = schema.field("stats").type
    assert [field.name for field in stats] == SCHEMA.names
    assert (
        str(stats.field("label").type)
        == "struct<min: large_string, max: large_string, nulls: int64, nans: int64>"
    )
    assert str(stats.field("x").type) == "struct<min: null, max: null, nulls: int64, nans: int64>"


def test_digests_and_checks_have_no_dictionary():
    """They never repeat."""
    group = pq.read_metadata(io.BytesIO(DATA)).row_group(0)
    leaves = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    for path in ("digest", "content", "batches.list.element.check"):
        assert not leaves[f"parts.list.element.{path}"].has_dictionary_page
    assert {leaf.compression for leaf in leaves.values()} == {"ZSTD"}


def test_planning_reads_no_batches():
    """Nested columns are read one by one."""
    columns = ["rows", "parts.list.element.raw_bytes", "parts.list.element.fields"]
    table = decode_segment(DATA, REF, SCHEMA, columns)
    assert table.schema.names == ["rows", "parts"]
    assert [field.name for field in table.schema.field("parts").type.value_type] == ["raw_bytes", "fields"]
    assert table["parts"][0].as_py()[0] == {"raw_bytes": 90, "fields": ["key", "label", "when"]}
    assert decode_segment(DATA, REF, SCHEMA, ["stats.when.min"]).schema.names == ["stats"]
    assert decode_segment(DATA, REF, SCHEMA, ["stats.absent"]).num_columns == 0


def test_statistics_are_read_in_the_types_of_the_version():
    """A column that was null became a number; one that is new is unknown; one that is gone is gone."""
    now = pa.schema(
        [("key", pa.large_string()), ("new", pa.int64()), ("x", pa.list_(pa.int64())), ("a.b", pa.float64())]
    )
    (shard, *_) = shards_of(decode_segment(DATA, REF, now))
    assert set(shard.stats) == {"key", "x", "a.b"}
    before = pa.schema([("n", pa.null())])
    one = replace(
        SHARDS[0],
        parts=(make_part(1, 10, ("n",), 10),),
        first_key=None,
        last_key=None,
        stats={"n": ColumnStats(nulls=10)},
    )
    ref, data = encode_segment([one], before, None)
    after = pa.schema([("n", pa.int32())])
    table = decode_segment(data, ref, after)
    assert table.schema.field("stats").type.field("n").type.field("min").type == pa.int32()
    assert next(shards_of(table)).stats == {"n": ColumnStats(nulls=10)}


@pytest.mark.parametrize("key", [None, "n"])
def test_segments_of_a_longer_version_are_those_of_its_shards(key):
    """Tables put together, under columns that came or were widened since, give the bytes that shards would."""
    before = pa.schema([("n", pa.int16()), ("gone", pa.int8())])
    part = replace(SHARDS[0].parts[0], fields=("n",))
    old = [
        replace(
            SHARDS[0], parts=(part,), cut=cut, first_key=1, last_key=2, stats={"n": ColumnStats(1, 2, 0, 0)}
        )
        for cut in (1, 0, 7)
    ]
    after = pa.schema([("n", pa.int64()), ("new", pa.large_string())])
    ref, data = encode_segment(old, before, key)
    table = decode_segment(data, ref, after)
    same = [replace(shard, stats={"n": ColumnStats(1, 2, 0, 0)}) for shard in shards_of(table)]

    together = pa.concat_tables([as_written(table, after, key), table_of(same, after, key)])

    assert together.combine_chunks().equals(table_of([*same, *same], after, key).combine_chunks())
    for start, end in [(0, 6), (1, 4), (3, 5)]:
        assert encode_table(together.slice(start, end - start)) == encode_segment(
            [*same, *same][start:end], after, key
        )


# --- where segments end -----------------------------------------------------------------------


cut_lists = st.lists(st.sampled_from([0, 1, 2047, 2048, 2**63, 5 * 2048, 2**64 - 1]), max_size=60)


@given(cut_lists, cut_lists)
def test_an_edit_moves_no_boundary_behind_the_next_one(before, tail):
    """Boundaries hang on the shard before them, so those of an unchanged run of shards stay."""
    ends = segment_cuts(before)
    assert ends == sorted(set(ends))
    assert ends[-1:] == ([len(before)] if before else [])
    joined = segment_cuts([*before, 2048, *tail])
    assert {end for end in joined if end > len(before)} == {len(before) + 1} | {
        len(before) + 1 + end for end in segment_cuts(tail)
    }


def test_segments_have_two_thousand_shards_on_average_and_eight_at_most():
    """Counted over a million hashes."""
    cuts = np.random.default_rng(0).integers(0, 2**64, 10**6, np.uint64).tolist()
    ends = segment_cuts(cuts)
    lengths = np.diff([0, *ends])
    assert 1_500 < lengths.mean() < 2_500
    assert lengths.max() <= SEGMENT_SHARDS
    assert np.diff([0, *segment_cuts([1] * 20_000)]).tolist() == [8192, 8192, 3616]


@pytest.mark.parametrize(("appends", "size"), [(10_000, 1), (500, 100)])
def test_small_appends_leave_few_segments_and_rewrite_little(appends, size):
    """What they make and what they cost, counted in shards."""
    cuts = np.random.default_rng(0).integers(0, 2**64, appends * size, np.uint64).tolist()
    refs: list[SegmentRef] = []
    written = 0
    for count in range(size, len(cuts) + 1, size):
        apart = tail_to_merge(refs)
        start = count - size - sum(ref.shards for ref in refs[len(refs) - apart :])
        written += count - start
        assert count - start <= 32 * 1024 + size
        ends = [0, *segment_cuts(cuts[start:count])]
        refs = refs[: len(refs) - apart] + [SegmentRef("", 1, int(shards), 1, 1) for shards in np.diff(ends)]
        assert sum(ref.shards for ref in refs) == count
    assert len(refs) < 60
    assert written < 30 * len(cuts)


def test_segments_merged_are_those_of_a_fresh_cut():
    """So a later overwrite or compaction finds them again."""
    cuts = np.random.default_rng(1).integers(0, 2**64, 5000, np.uint64).tolist()
    first = next(i for i, cut in enumerate(cuts, 1) if cut % 2048 == 0)
    merged = [first + end for end in segment_cuts(cuts[first:])]
    assert [first, *merged] == segment_cuts(cuts)


def test_thirty_two_short_segments_in_a_row_are_merged():
    """Long ones before them are left alone."""
    long, short = SegmentRef("", 1, 1024, 1, 1), SegmentRef("", 1, 1023, 1, 1)
    assert tail_to_merge([]) == 0
    assert tail_to_merge([long] * 100) == 0
    assert tail_to_merge([long, *[short] * 31]) == 0
    assert tail_to_merge([long, *[short] * 32]) == 32
    assert tail_to_merge([*[short] * 40]) == 40
    assert tail_to_merge([*[short] * 40, long, *[short] * 31]) == 0


# --- hostile ----------------------------------------------------------------------------------


def forged(what: str, changes: dict) -> tuple[bytes, SegmentRef]:
    """A segment with one member of a shard, a part or a batch made up, and a version that vouches for it."""
    shard = SHARDS[0]
    light, heavy = shard.parts
    if what == "batch":
        what, changes = "part", {"batches": (replace(heavy.batches[0], **changes), *heavy.batches[1:])}
    if what == "part":
        changes = {"parts": (light, replace(heavy, **changes))}
    ref, data = encode_segment([replace(shard, **changes), *SHARDS[1:]], SCHEMA, "key")
    return data, ref


@pytest.mark.parametrize(
    ("what", "changes", "message"),
    [
        ("batch", {"offset": 0}, "outside its file"),
        ("batch", {"offset": -8}, "outside its file"),
        ("batch", {"offset": 2**62}, "outside its file"),
        ("batch", {"offset": 2**63 - 1}, "outside its file"),
        ("batch", {"length": -8}, "outside its file"),
        ("batch", {"length": 2**63 - 1}, "outside its file"),
        ("batch", {"meta_length": 0}, "outside its file"),
        ("batch", {"meta_length": 2**31 - 1}, "outside its file"),
        ("batch", {"rows": 0}, "unequal rows"),
        ("batch", {"rows": 5}, "unequal rows"),
        ("batch", {"rows": 2**62}, "unequal rows"),
        ("part", {"bytes": 100}, "outside its file"),
        ("part", {"raw_bytes": -1}, "negative"),
        ("part", {"codec": "lz4"}, "codec"),
        ("part", {"batches": ()}, "without batches"),
        ("part", {"fields": ("key",)}, "same column: key"),
        ("shard", {"rows": 11}, "do not add up"),
    ],
)
def test_shards_that_cannot_be_are_a_format_error(what, changes, message):
    """Before anything is fetched or allocated by what they say."""
    data, ref = forged(what, changes)
    with pytest.raises(FormatError, match=message):
        list(shards_of(decode_segment(data, ref, SCHEMA)))


def test_null_in_the_description_of_a_part_is_a_format_error():
    """Parquet lets any value be null."""
    table = pq.read_table(io.BytesIO(DATA))
    for path in ("digest", "bytes", "fields", "batches"):
        parts = table["parts"].to_pylist()
        parts[0][1][path] = None
        altered = table.set_column(5, "parts", pa.array(parts, table.schema.field("parts").type))
        sink = io.BytesIO()
        pq.write_table(altered, sink)
        with pytest.raises(FormatError, match="null"):
            list(shards_of(decode_segment(sink.getvalue(), REF, SCHEMA)))


def test_a_segment_that_is_not_what_the_version_says_is_a_format_error():
    """The number of shards is known, and limited, before any is decoded."""
    with pytest.raises(FormatError, match="5 shards instead of 4"):
        decode_segment(DATA, replace(REF, shards=4), SCHEMA)
    rows = pa.table({"rows": pa.array(np.ones(9000, np.int64))})
    sink = io.BytesIO()
    pq.write_table(rows, sink)
    with pytest.raises(FormatError, match="at most 8,192"):
        decode_segment(sink.getvalue(), replace(REF, shards=9000), SCHEMA)


def test_a_segment_that_unpacks_to_too_much_is_refused_before_it_is_unpacked(monkeypatch):
    """Only columns that are read count."""
    monkeypatch.setattr(segment, "_UNPACKED", 2000)
    with pytest.raises(FormatError, match="2,000 bytes"):
        decode_segment(DATA, REF, SCHEMA)
    assert decode_segment(DATA, REF, SCHEMA, ["rows"]).num_rows == 5
    monkeypatch.setattr(segment, "_UNPACKED", 2**30)
    monkeypatch.setattr(segment, "_VALUES", 12)
    with pytest.raises(FormatError, match="12 values"):
        decode_segment(DATA, REF, SCHEMA)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.randoms(use_true_random=False))
def test_damaged_bytes_are_a_format_error_or_shards_that_can_be(random):
    """The digest is checked before; this is for whoever vouches for damage. (Some damage aborts Arrow itself.)"""
    data = bytearray(DATA)
    for _ in range(random.randint(1, 3)):
        bit = random.randrange(8 * len(data))
        data[bit // 8] ^= 1 << bit % 8
    try:
        shards = list(shards_of(decode_segment(bytes(data), REF, SCHEMA)))
    except FormatError:
        return
    assert len(shards) == 5


@pytest.mark.parametrize("data", [b"", b"PAR1", DATA[:-1], DATA[: len(DATA) // 2], b"x" * 1000])
def test_bytes_that_are_no_parquet_are_a_format_error(data):
    """Named by the segment's digest."""
    with pytest.raises(FormatError, match=f"segment {REF.digest[:12]}"):
        decode_segment(data, REF, SCHEMA)


def test_readers_skip_columns_they_do_not_know_and_writers_refuse_them():
    """A later release may say more of a shard."""
    table = pq.read_table(io.BytesIO(DATA)).append_column("mood", pa.array(["good"] * 5))
    sink = io.BytesIO()
    pq.write_table(table, sink)
    assert list(shards_of(decode_segment(sink.getvalue(), REF, SCHEMA))) == SHARDS
    with pytest.raises(FormatError, match="unknown columns mood"):
        decode_segment(sink.getvalue(), REF, SCHEMA, writing=True)
