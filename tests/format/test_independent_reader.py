"""A reader written from docs/format.md alone: pyarrow, json and hashlib, and nothing of lake.

It reads what the format's modules wrote, and recomputes every digest, count and cut that the page defines.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake import open as open_lake
from tests.format import example
from tests.format.handmade import publish, write_lake, write_version

TARGET = 2**20


class Reader:
    """A lake in a folder, read as the page says."""

    def __init__(self, root: Path) -> None:
        self.root = root
        description = json.loads((root / "lake.json").read_bytes())
        assert description["format"] == 1
        assert description["needs"]["read"] == []

    def object(self, stem: str, suffix: str) -> bytes:
        """The bytes named by a digest, of whatever generation."""
        plain = self.root / f"{stem}.{suffix}"
        path = plain if plain.exists() else min(plain.parent.glob(f"{plain.stem}.g*.{suffix}"))
        data = path.read_bytes()
        assert hashlib.sha256(data).hexdigest() == plain.stem
        return data

    def head(self, name: str) -> dict[str, Any]:
        log = self.root / "datasets" / name / "log"
        entries = [json.loads(path.read_bytes()) for path in sorted(log.iterdir())]
        assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
        return entries[-1]

    def version(self, name: str) -> dict[str, Any]:
        return json.loads(self.object(f"datasets/{name}/versions/{self.head(name)['version']}", "json"))

    def shards(self, version: dict[str, Any]) -> list[dict[str, Any]]:
        shards = []
        for segment in version["segments"]:
            data = self.object(f"manifests/{segment['digest'][:2]}/{segment['digest']}", "parquet")
            rows = pq.read_table(pa.BufferReader(data)).to_pylist()
            assert len(rows) == segment["shards"]
            assert sum(row["rows"] for row in rows) == segment["rows"]
            assert sum(row["raw_bytes"] for row in rows) == segment["raw_bytes"]
            assert sum(part["bytes"] for row in rows for part in row["parts"]) == segment["bytes"]
            shards += rows
        return shards

    def table(self, name: str) -> pa.Table:
        version = self.version(name)
        schema = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(version["schema"])))
        tables = [self.shard(shard, schema, version["vocab"]) for shard in self.shards(version)]
        return pa.concat_tables(tables) if tables else schema.empty_table()

    def shard(self, shard: dict[str, Any], schema: pa.Schema, vocab: dict[str, list[Any]]) -> pa.Table:
        found = {}
        for part in shard["parts"]:
            file = self.file(part)
            found |= {field: file[field] for field in part["fields"]}
        columns = []
        for field in schema:
            column = found.get(field.name, pa.chunked_array([pa.nulls(shard["rows"])]))
            if pa.types.is_dictionary(field.type):
                codes = {value: code for code, value in enumerate(vocab[field.name])}
                indices = pa.array([codes.get(value) for value in column.to_pylist()], field.type.index_type)
                values = pa.array(vocab[field.name], field.type.value_type)
                columns.append(pa.DictionaryArray.from_arrays(indices, values, ordered=field.type.ordered))
            else:
                columns.append(column.cast(field.type))
        return pa.Table.from_arrays(columns, schema=schema)

    def file(self, part: dict[str, Any]) -> pa.Table:
        digest = part["digest"].hex()
        with pa.ipc.open_file(self.object(f"shards/{digest[:2]}/{digest}", "arrow")) as reader:
            return reader.read_all()


# --- what the page defines, in plain Python ---------------------------------------------------


def canonical(value: Any) -> bytes:
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def bits(flags: list[bool]) -> bytes:
    return sum(flag << i for i, flag in enumerate(flags)).to_bytes(-(-len(flags) // 8), "little")


def u64(number: int) -> bytes:
    return struct.pack("<Q", number)


PACKED = {pa.int32(): "<i", pa.int64(): "<q", pa.float32(): "<f", pa.float64(): "<d"}


def value_digest(type_: pa.DataType, values: list[Any]) -> bytes:
    """The digest of a column of these values, None where null; of the types that the test has."""
    valid = [value is not None for value in values]
    stream = u64(len(values)) + (b"\0" if all(valid) else b"\1" + bits(valid))
    full = [value for value in values if value is not None]
    if pa.types.is_boolean(type_):
        stream += bits([bool(value) for value in values])
    elif type_ in PACKED:
        stream += b"".join(struct.pack(PACKED[type_], 0 if value is None else value) for value in values)
    elif pa.types.is_timestamp(type_):
        stream += b"".join(struct.pack("<q", value or 0) for value in values)
    elif pa.types.is_large_string(type_) or pa.types.is_large_binary(type_):
        octets = [
            value.encode() if isinstance(value, str) else value or b"" for value in (v or "" for v in values)
        ]
        stream += b"".join(u64(len(each)) for each in octets) + b"".join(octets)
    elif pa.types.is_struct(type_):
        for field in type_:
            stream += value_digest(field.type, [value and value[field.name] for value in values])
    elif pa.types.is_fixed_size_list(type_):
        stream += value_digest(type_.value_type, [item for value in full for item in value])
    elif pa.types.is_list(type_):
        stream += b"".join(u64(len(value or [])) for value in values)
        stream += value_digest(type_.value_type, [item for value in full for item in value])
    else:
        assert pa.types.is_null(type_)
    return hashlib.sha256(stream).digest()


def plain(column: pa.ChunkedArray) -> list[Any]:
    """Values as Python has them; moments as integers."""
    return (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()


def mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def row_hash(key: bytes, seed: int) -> int:
    h = mix(seed)
    for at in range(0, len(key), 8):
        h = mix(h ^ int.from_bytes(key[at : at + 8], "little"))
    return mix(h ^ len(key))


def raw_bits(type_: pa.DataType, value: Any) -> int:
    if value is None:
        return 0
    if pa.types.is_large_string(type_):
        return 64 + 8 * len(value.encode())
    if pa.types.is_large_binary(type_):
        return 64 + 8 * len(value)
    if pa.types.is_struct(type_):
        return sum(raw_bits(field.type, value[field.name]) for field in type_)
    if pa.types.is_fixed_size_list(type_):
        return sum(raw_bits(type_.value_type, item) for item in value)
    if pa.types.is_list(type_):
        return 64 + sum(raw_bits(type_.value_type, item) for item in value)
    return type_.bit_width


def cut(hashes: list[int], sizes: list[int], target: int) -> Iterator[int]:
    """Where shards end, by the two rules."""
    lo, hi = target * 8 // 4, 2 * target * 8
    rank = [(h >> 11) / 2**53 / bits if bits else float("inf") for h, bits in zip(hashes, sizes, strict=True)]
    start = row = size = 0
    while row < len(sizes):
        if row > start and size + sizes[row] > hi:
            reached, candidates = 0, []
            for at in range(start, row):
                reached += sizes[at]
                if reached > lo:
                    candidates.append(at)
            last = min(reversed(candidates), key=lambda at: rank[at], default=row - 1)
            start, size = last + 1, sum(sizes[last + 1 : row])
            yield start
            continue
        size += sizes[row]
        row += 1
        if size >= lo and rank[row - 1] < 1 / (6 * target):
            yield row
            start, size = row, 0
    if start < row:
        yield row


def batch_rows(rows: int, raw_bytes: int, target: int) -> int:
    usual = min(max(target // 64, 262144), 4194304)
    size = 16777216 if raw_bytes < target // 4 else usual
    count = min(max(-(-raw_bytes // size), 1), rows)
    return -(-rows // count)


# --- lakes ------------------------------------------------------------------------------------


def birds() -> pa.Table:
    rows = range(700)
    images = [hashlib.shake_128(str(i).encode()).digest(2000 + 37 * (i % 300)) for i in rows]
    columns = {
        "key": pa.array([f"sound-{i:04}" if i % 3 else f"k{i}" for i in rows], pa.string()),
        "label": pa.array([["robin", "wren", None][i % 3] for i in rows]).dictionary_encode(),
        "image": pa.array(images, pa.binary()),
        "x": pa.array(
            [None if i % 7 == 0 else [i / 3, -0.0, float(i)] for i in rows], pa.list_(pa.float32(), 3)
        ),
        "words": pa.array(
            [[None, "a", "bé"][: i % 4] if i % 5 else None for i in rows], pa.list_(pa.string())
        ),
        "when": pa.array(
            [None if i % 11 == 0 else 1_700_000_000_000_001 + i for i in rows], pa.timestamp("us", "UTC")
        ),
        "place": pa.array(
            [None if i % 13 == 0 else {"lat": i / 7, "ok": i % 2 == 0} for i in rows],
            pa.struct([("lat", pa.float64()), ("ok", pa.bool_())]),
        ),
        "nothing": pa.nulls(len(rows)),
        "n": pa.array(rows, pa.int32()),
    }
    return pa.table(columns)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lake")
    write_lake(root)
    write_version(root, "birds", birds(), key="key", target=TARGET, meta={"license": "CC0", "é": [1.0, None]})
    return root


@pytest.fixture(scope="module")
def reader(lake: Path) -> Reader:
    return Reader(lake)


def test_it_reads_every_row(reader):
    """In order, in the schema that the version has."""
    table, expected = reader.table("birds"), birds()
    assert table.num_rows == expected.num_rows
    assert table.schema.names == expected.schema.names
    assert table.to_pylist() == expected.to_pylist()
    assert {str(table.schema.field(name).type) for name in ("key", "image")} == {
        "large_string",
        "large_binary",
    }


def test_the_lake_has_all_that_the_page_describes(reader):
    """Several shards, light and heavy parts, several batches, both codecs: or the rest would prove little."""
    shards = reader.shards(reader.version("birds"))
    parts = [part for shard in shards for part in shard["parts"]]
    assert len(shards) >= 3
    assert all(len(shard["parts"]) == 2 for shard in shards)
    assert {part["codec"] for part in parts} == {"none", "zstd"}
    assert max(len(part["batches"]) for part in parts) > 2


def test_it_finds_the_ids_and_digests_that_are_stored(reader):
    """Content of every part, chain and data."""
    version = reader.version("birds")
    chain = bytes(32)
    for shard in reader.shards(version):
        for part in shard["parts"]:
            table, hashed = reader.file(part), b""
            for name in part["fields"]:
                for piece in (
                    name.encode(),
                    TEXTS[name].encode(),
                    value_digest(table[name].type, plain(table[name])),
                ):
                    hashed += u64(len(piece)) + piece
            assert hashlib.sha256(hashed).digest() == part["content"]
        parts = sorted([part["fields"], part["content"].hex()] for part in shard["parts"])
        chain = hashlib.sha256(chain + hashlib.sha256(canonical([shard["rows"], parts])).digest()).digest()
    assert version["chain"] == chain.hex()
    logical = {name: version[name] for name in ("key", "vocab", "meta", "recipe", "chain")}
    logical["schema"] = {"fields": version["fields"], "metadata": {}}
    assert version["data"] == hashlib.sha256(canonical(logical)).hexdigest()
    assert {field["name"]: field["type"] for field in version["fields"]} == TEXTS


TEXTS = {
    "key": "string",
    "label": "string",
    "image": "binary",
    "x": "fixed_size_list<float32,3>",
    "words": "list<string>",
    "when": 'timestamp[us,"UTC"]',
    "place": 'struct<"lat":float64,"ok":bool>',
    "nothing": "null",
    "n": "int32",
}


def test_it_finds_the_cuts_and_sizes_that_are_stored(reader):
    """Row hashes, raw sizes, shard ends, and the last row's hash."""
    version = reader.version("birds")
    parts = pa.concat_tables(
        [
            pa.Table.from_arrays(
                [
                    column
                    for part in shard["parts"]
                    for column in reader.file(part).select(part["fields"]).columns
                ],
                [name for part in shard["parts"] for name in part["fields"]],
            )
            for shard in reader.shards(version)
        ]
    )
    hashes = [row_hash(key.encode(), version["cuts"]["seed"]) for key in parts["key"].to_pylist()]
    sizes = [0] * parts.num_rows
    for column in parts.columns:
        sizes = [
            size + raw_bits(column.type, value) for size, value in zip(sizes, plain(column), strict=True)
        ]
    start = 0
    ends = list(cut(hashes, sizes, version["cuts"]["target"]))
    assert len(ends) == version["shards"]
    for end, shard in zip(ends, reader.shards(version), strict=True):
        assert shard["rows"] == end - start
        assert shard["cut"] == hashes[end - 1]
        assert shard["raw_bytes"] == -(-sum(sizes[start:end]) // 8)
        start = end


def test_batches_lie_where_the_manifest_says_and_are_as_long_as_the_rule(reader):
    """So one column of one batch can be fetched alone."""
    version = reader.version("birds")
    for shard in reader.shards(version):
        for part in shard["parts"]:
            digest = part["digest"].hex()
            data = reader.object(f"shards/{digest[:2]}/{digest}", "arrow")
            assert len(data) == part["bytes"]
            size = batch_rows(shard["rows"], part["raw_bytes"], version["cuts"]["target"])
            rows = [batch["rows"] for batch in part["batches"]]
            assert rows == [min(size, shard["rows"] - at) for at in range(0, shard["rows"], size)]
            head = data[8 : part["batches"][0]["offset"]]
            schema = pa.ipc.read_schema(pa.BufferReader(head))
            for batch in part["batches"]:
                start, middle = batch["offset"], batch["offset"] + batch["meta_length"]
                message = data[start:middle]
                assert hashlib.sha256(message).digest()[:8] == batch["check"]
                assert hashlib.sha256(head).hexdigest()[:16].encode() in message
                read = pa.ipc.read_record_batch(pa.py_buffer(data[start : middle + batch["length"]]), schema)
                assert read.num_rows == batch["rows"]
                assert read.nbytes <= part["raw_bytes"]


def test_statistics_bound_what_is_there(reader):
    """And count its nulls."""
    for shard in reader.shards(reader.version("birds")):
        for part in shard["parts"]:
            table = reader.file(part)
            for name in part["fields"]:
                stats = shard["stats"][name]
                values = [value for value in table[name].to_pylist() if value is not None]
                assert stats["nulls"] == table.num_rows - len(values)
                if stats["min"] is not None:
                    assert stats["min"] <= min(values)
                if stats["max"] is not None:
                    assert stats["max"] >= max(values)
        assert (shard["first_key"], shard["last_key"]) == tuple(
            reader.shard(shard, pa.schema([("key", pa.string())]), {})["key"].to_pylist()[
                :: shard["rows"] - 1
            ]
        )


def test_it_reads_a_later_generation_where_the_first_is_gone(lake, reader):
    """A copy that was saved from garbage collection."""
    part = reader.shards(reader.version("birds"))[0]["parts"][0]["digest"].hex()
    path = lake / "shards" / part[:2] / f"{part}.arrow"
    moved = path.rename(path.with_name(f"{part}.g1.arrow"))
    try:
        assert reader.table("birds").num_rows == 700
    finally:
        moved.rename(path)


def test_it_ignores_dropped_columns_and_fills_added_ones_with_null(lake):
    """The parts stay as they are; the version and `fields` say what counts."""
    from lake.format.manifest import Manifest
    from lake.format.version import decode_version

    reader = Reader(lake)
    old = reader.head("birds")["version"]
    document = decode_version((lake / f"datasets/birds/versions/{old}.json").read_bytes(), old)
    data = [reader.object(f"manifests/{ref.digest[:2]}/{ref.digest}", "parquet") for ref in document.segments]
    shards = []
    for shard in Manifest.open(document.schema, document.segments, data).shards():
        parts = [
            replace(part, fields=tuple(name for name in part.fields if name != "n")) for part in shard.parts
        ]
        stats = {name: found for name, found in shard.stats.items() if name != "n"}
        shards.append(replace(shard, parts=tuple(parts), stats=stats))
    schema = document.schema.remove(document.schema.get_field_index("n")).append(
        pa.field("n", pa.large_string())
    )
    publish(lake, "fewer", schema, shards, key="key", target=TARGET, vocab=document.vocab)

    table = reader.table("fewer")

    assert table["n"].type == pa.large_string()
    assert table["n"].null_count == table.num_rows
    assert table["key"].to_pylist() == birds()["key"].to_pylist()


def test_it_reads_the_example_of_the_page(tmp_path):
    """Which is thereby a lake."""
    write_lake(tmp_path)
    write_version(tmp_path, "birds", example.TABLE, key="key", target=2**26)
    assert Reader(tmp_path).table("birds").to_pylist() == example.TABLE.to_pylist()


def test_it_reads_what_commits_wrote(tmp_path):
    """A commit, an append and an edit, made by the library itself."""
    lk = open_lake(tmp_path, progress=False)
    lk.commit("birds", birds(), shard_bytes=TARGET)
    more = birds().slice(0, 50)
    lk.commit("birds", more, mode="append")
    lk.delete_rows("birds", "n = 7")

    table = Reader(tmp_path).table("birds")

    expected = [row for row in [*birds().to_pylist(), *more.to_pylist()] if row["n"] != 7]
    assert table.to_pylist() == expected
    assert lk.dataset("birds").scan(batch_size=100).to_table().to_pylist() == expected
