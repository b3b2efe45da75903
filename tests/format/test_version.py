"""Version documents: ids, the logical digest and its chain, and what is refused."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.errors import FormatError, IntegrityError
from lake.format.documents import canonical
from lake.format.schema import canonical_schema
from lake.format.values import Cuts, Part, SegmentRef, Shard, VersionDocument
from lake.format.version import (
    EMPTY_CHAIN,
    chain_step,
    data_digest,
    decode_version,
    encode_version,
    version_id,
)
from tests.strategies import schemas

SCHEMA = pa.schema(
    [
        pa.field("key", pa.large_string(), nullable=False),
        pa.field("label", pa.dictionary(pa.int32(), pa.large_string()), metadata={"unit": "none"}),
    ],
    metadata={"source": "field"},
)
DOCUMENT = VersionDocument(
    schema=SCHEMA,
    rows=30,
    shards=3,
    bytes=3000,
    raw_bytes=9000,
    segments=(SegmentRef("ab" * 32, 10, 1, 1000, 3000), SegmentRef("cd" * 32, 20, 2, 2000, 6000)),
    cuts=Cuts(1, 0, 2**26),
    key="key",
    vocab={"label": ["robin", "wren"]},
    meta={"license": "CC0", "n": [1, 2.5, None]},
    recipe="resize 224",
    chain="12" * 32,
    data="34" * 32,
)


def edited(**changes) -> tuple[bytes, str]:
    """The document with members of its JSON changed, under the id that it then has."""
    data = json.dumps(json.loads(encode_version(DOCUMENT)) | changes).encode()
    return data, version_id(data)


def test_a_version_is_read_back():
    """Every member, and the schema with all its metadata."""
    data = encode_version(DOCUMENT)
    read = decode_version(data, version_id(data), writing=True)
    assert read == DOCUMENT
    assert read.schema.equals(SCHEMA, check_metadata=True)
    assert encode_version(read) == data


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("aé"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab"), inner, max_size=2),
    max_leaves=5,
)


@settings(max_examples=50, deadline=None)
@given(schemas(), st.none() | st.dictionaries(st.text("ab"), json_values, max_size=2), json_values)
def test_any_schema_and_any_meta_come_back(schema, meta, recipe):
    """Whatever a dataset may hold."""
    schema = canonical_schema(schema)
    vocab = {field.name: [] for field in schema if pa.types.is_dictionary(field.type)}
    document = replace(DOCUMENT, schema=schema, key=None, vocab=vocab, meta=meta, recipe=recipe)
    data = encode_version(document)
    read = decode_version(data, version_id(data), writing=True)
    assert read == document
    assert read.schema.equals(schema, check_metadata=True)


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.large_string(), ["", "é"]),
        (pa.large_binary(), [b"\x00\xff", b""]),
        (pa.int64(), [-(2**63), 2**63 - 1]),
        (pa.uint64(), [2**64 - 1]),
        (pa.bool_(), [False, True]),
        (pa.float64(), [0.1, -0.0, float("inf"), float("-inf"), float("nan"), 3.0]),
        (pa.float32(), [0.5, 1e30]),
        (pa.binary(2), [b"ab"]),
    ],
)
def test_a_vocabulary_of_any_type_comes_back_in_order(type_, values):
    """Codes are positions in it."""
    schema = pa.schema([("x", pa.dictionary(pa.int32(), type_))])
    data = encode_version(replace(DOCUMENT, schema=schema, key=None, vocab={"x": values}))
    read = decode_version(data, version_id(data)).vocab["x"]
    assert list(map(repr, read)) == list(map(repr, values))


def test_the_id_is_the_sha256_of_the_bytes():
    """Bytes that differ in anything are not the version."""
    data = encode_version(DOCUMENT)
    assert version_id(data) == hashlib.sha256(data).hexdigest()
    for wrong in (data + b" ", data[:-1], b"", data.replace(b"30", b"31")):
        with pytest.raises(IntegrityError, match=version_id(data)[:12]) as caught:
            decode_version(wrong, version_id(data))
        assert caught.value.digest == version_id(data)


def test_the_bytes_of_a_version_are_frozen():
    """Ids of versions that exist hang on them."""
    document = json.loads(encode_version(DOCUMENT))
    del document["schema"]  # Arrow's bytes: tested below by what they mean
    assert (
        hashlib.sha256(canonical(document)).hexdigest()
        == "de5850c79c0f48b6fccc29fda3404f2bb58c2bc562c8391702f5853d82cd489d"
    )
    assert (
        version_id(encode_version(DOCUMENT))
        == "4f6913904adb8d2ab4446f7219fe96114d4b38ae6b69b986880c395c6a44c12b"
    )


def part(fields: tuple[str, ...], content: str) -> Part:
    return Part("ff" * 32, content, 1, 1, "none", fields, ())


def shard(rows: int, *parts: Part) -> Shard:
    return Shard(rows, 1, None, None, 0, parts)


def test_the_chain_and_data_digests_are_frozen_and_as_the_format_says():
    """Spelled out with nothing but json and hashlib."""
    one = shard(10, part(("jpg",), "bb" * 32), part(("key", "label"), "aa" * 32))
    two = shard(20, part(("key", "label", "jpg"), "cc" * 32))

    def step(chain: bytes, text: str) -> bytes:
        return hashlib.sha256(chain + hashlib.sha256(text.encode()).digest()).digest()

    chain = step(bytes(32), f'[10,[[["jpg"],"{"bb" * 32}"],[["key","label"],"{"aa" * 32}"]]]')
    assert chain_step(EMPTY_CHAIN, one) == chain.hex()
    chain = step(chain, f'[20,[[["key","label","jpg"],"{"cc" * 32}"]]]')
    assert chain_step(chain_step(EMPTY_CHAIN, one), two) == chain.hex()

    schema = pa.schema([("n", pa.int64())], metadata={"a": "b"})
    text = (
        f'{{"chain":"{chain.hex()}","key":null,"meta":null,"recipe":{{"size":224}},"schema":{{"fields":'
        '[{"name":"n","nullable":true,"type":"int64"}],"metadata":{"a":"b"}},"vocab":{}}'
    )
    assert (
        data_digest(schema, None, {}, None, {"size": 224}, chain.hex())
        == hashlib.sha256(text.encode()).hexdigest()
    )


def test_the_order_of_parts_does_not_show_and_that_of_shards_does():
    """Which part is written first is no property of the data."""
    light, heavy = part(("a",), "aa" * 32), part(("b",), "bb" * 32)
    assert chain_step(EMPTY_CHAIN, shard(1, light, heavy)) == chain_step(EMPTY_CHAIN, shard(1, heavy, light))
    one, two = shard(1, light), shard(1, heavy)
    assert chain_step(chain_step(EMPTY_CHAIN, one), two) != chain_step(chain_step(EMPTY_CHAIN, two), one)


def test_data_changes_with_everything_logical_and_nothing_else():
    """Encoders, segments and digests of files are not in it; each logical member is."""
    shards = [
        shard(1, replace(part(("a",), "aa" * 32), codec=codec, digest=codec * 16, bytes=n))
        for codec, n in (("zstd", 1), ("none", 2))
    ]
    assert chain_step(EMPTY_CHAIN, shards[0]) == chain_step(EMPTY_CHAIN, shards[1])
    given = {
        "schema": SCHEMA,
        "key": "key",
        "vocab": {"label": ["a"]},
        "meta": {},
        "recipe": None,
        "chain": EMPTY_CHAIN,
    }
    changes = {
        "schema": SCHEMA.with_metadata(None),
        "key": None,
        "vocab": {"label": ["b"]},
        "meta": {"a": 1},
        "recipe": "x",
        "chain": "11" * 32,
    }
    digests = {
        data_digest(**given),
        *(data_digest(**(given | {name: value})) for name, value in changes.items()),
    }
    assert len(digests) == 1 + len(changes)


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("rows", 31),
        ("rows", -1),
        ("rows", "30"),
        ("rows", True),
        ("shards", 2),
        ("bytes", 1.0),
        ("raw_bytes", 2**64),
        ("key", "absent"),
        ("key", 5),
        ("meta", []),
        ("meta", "x"),
        ("schema", "AAAA"),
        ("schema", "no base64!"),
        ("schema", None),
        ("segments", None),
        ("segments", [{}]),
        ("segments", [{"digest": "../x", "rows": 30, "shards": 3, "bytes": 1, "raw_bytes": 1}]),
        ("segments", [{"digest": "ab" * 32, "rows": 0, "shards": 3, "bytes": 1, "raw_bytes": 1}]),
        ("cuts", {}),
        ("cuts", None),
        ("cuts", {"algorithm": 1, "seed": 0, "target": 0}),
        ("vocab", {}),
        ("vocab", {"label": None}),
        ("vocab", {"label": [1]}),
        ("vocab", {"label": [None]}),
        ("vocab", {"label": [str(n) for n in range(65_537)]}),
        ("vocab", ["label"]),
        ("vocab", {"label": [], "other": []}),
        ("chain", "x"),
        ("data", ""),
        ("needs", None),
    ],
)
def test_a_member_that_cannot_be_is_a_format_error(member, value):
    """Also where the id is right: whoever wrote it may be hostile."""
    data, version = edited(**{member: value})
    with pytest.raises(FormatError, match=version[:12]):
        decode_version(data, version)


@pytest.mark.parametrize("member", sorted(json.loads(encode_version(DOCUMENT))))
def test_a_missing_member_is_a_format_error(member):
    """Every member is there, always."""
    document = json.loads(encode_version(DOCUMENT))
    del document[member]
    data = json.dumps(document).encode()
    with pytest.raises(FormatError, match=f"lacks {member}"):
        decode_version(data, version_id(data))


def test_readers_skip_what_they_do_not_know_and_writers_refuse_it():
    """A writer would lose it."""
    data, version = edited(colour="blue")
    assert decode_version(data, version) == DOCUMENT
    with pytest.raises(FormatError, match="unknown colour"):
        decode_version(data, version, writing=True)
    segments = [{**segment, "colour": 1} for segment in json.loads(encode_version(DOCUMENT))["segments"]]
    data, version = edited(segments=segments)
    assert decode_version(data, version) == DOCUMENT
    with pytest.raises(FormatError, match="unknown colour"):
        decode_version(data, version, writing=True)


def test_a_version_that_needs_a_newer_release_is_refused():
    """Reading needs mind everybody, writing needs writers."""
    data, version = edited(needs={"read": ["deltas"], "write": []})
    with pytest.raises(FormatError, match="needs deltas: upgrade lake to read"):
        decode_version(data, version)
    data, version = edited(needs={"read": [], "write": ["deltas"]})
    assert decode_version(data, version).rows == 30
    with pytest.raises(FormatError, match="needs deltas: upgrade lake to write"):
        decode_version(data, version, writing=True)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_document_with_a_member_replaced_fails_otherwise(data):
    """A version or a FormatError, whatever JSON it is."""
    member = data.draw(st.sampled_from(sorted(json.loads(encode_version(DOCUMENT)))))
    bytes_, version = edited(**{member: data.draw(json_values)})
    try:
        decode_version(bytes_, version)
    except FormatError:
        assert True
