"""Version documents: everything a version is, except its rows, as one canonical JSON document.

The sha256 of the document is the version's id, so it holds no clock, author, path or dataset name. Its
`data` names the logical content alone: versions whose rows, schema, key, vocabularies, meta and recipe are
equal share it, whatever encoders, segments or layouts made them.
"""

from __future__ import annotations

import base64
import hashlib
import math
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from lake.errors import FormatError, IntegrityError
from lake.format.documents import NO_NEEDS, canonical, check_fields, check_needs, parse, sha256_hex
from lake.format.names import check_digest
from lake.format.schema import decode_schema, describe, encode_schema
from lake.format.values import Cuts, SegmentRef, Shard, VersionDocument
from lake.format.vocab import MAX_VALUES

EMPTY_CHAIN = "00" * 32  # the chain of no shards

_FIELDS = (
    *("schema", "fields", "rows", "shards", "bytes", "raw_bytes", "segments", "cuts"),
    *("key", "vocab", "meta", "recipe", "chain", "data", "needs"),
)
_SEGMENT_FIELDS = ("digest", "rows", "shards", "bytes", "raw_bytes")


def chain_step(chain: str, shard: Shard) -> str:
    """The running digest of a version's shards after one more shard.

    It depends on rows, fields and contents only, so that an append goes on from the head's without reading
    earlier shards. `EMPTY_CHAIN` begins it.
    """
    parts = sorted([list(part.fields), part.content] for part in shard.parts)
    digest = hashlib.sha256(canonical([shard.rows, parts])).digest()
    return sha256_hex(bytes.fromhex(chain) + digest)


def data_digest(
    schema: pa.Schema,
    key: str | None,
    vocab: dict[str, list[Any]],
    meta: dict[str, Any] | None,
    recipe: Any,
    chain: str,
) -> str:
    """The digest of a version's logical content: the `data` of its document."""
    return sha256_hex(
        canonical(
            {
                "schema": {"fields": describe(schema), "metadata": _metadata(schema.metadata)},
                "key": key,
                "vocab": _encode_vocab(vocab),
                "meta": meta,
                "recipe": recipe,
                "chain": chain,
            }
        )
    )


def version_id(data: bytes) -> str:
    """The id of the version whose document `data` is."""
    return sha256_hex(data)


def encode_version(document: VersionDocument) -> bytes:
    """The canonical bytes of a version's document; equal documents give equal bytes."""
    return canonical(
        {
            "schema": encode_schema(document.schema),
            "fields": describe(document.schema),
            "rows": document.rows,
            "shards": document.shards,
            "bytes": document.bytes,
            "raw_bytes": document.raw_bytes,
            "segments": [asdict(segment) for segment in document.segments],
            "cuts": asdict(document.cuts),
            "key": document.key,
            "vocab": _encode_vocab(document.vocab),
            "meta": document.meta,
            "recipe": document.recipe,
            "chain": document.chain,
            "data": document.data,
            "needs": document.needs,
        }
    )


def decode_version(data: bytes, version: str, *, writing: bool = False) -> VersionDocument:
    """The version whose id is `version`. Writers refuse what they do not know.

    Raises:
        IntegrityError: the bytes are not what the id names.
        FormatError: not a version document, or one that needs a newer release.
    """
    what = f"version {version[:12]}"
    if version_id(data) != version:
        raise IntegrityError(
            f"{what}: its document differs from its id (sha256 {version_id(data)[:12]})", digest=version
        )
    document = parse(data, what)
    check_needs(document.get("needs", NO_NEEDS), what, writing=writing)
    check_fields(document, _FIELDS, what, writing=writing)
    try:
        return _decode(document, writing)
    except (FormatError, KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise FormatError(f"{what}: {error}") from error


def _decode(document: dict[str, Any], writing: bool) -> VersionDocument:
    schema = decode_schema(document["schema"])
    segments = tuple(_decode_segment(segment, writing) for segment in document["segments"])
    for total in ("rows", "shards"):
        if sum(getattr(segment, total) for segment in segments) != _count(document, total):
            raise ValueError(f"its segments do not add up to {document[total]} {total}")
    if document["key"] is not None and document["key"] not in schema.names:
        raise ValueError(f"key {document['key']!r} is no column")
    if document["meta"] is not None and not isinstance(document["meta"], dict):
        raise ValueError("`meta` is not an object")
    cuts = document["cuts"]
    return VersionDocument(
        schema=schema,
        rows=document["rows"],
        shards=document["shards"],
        bytes=_count(document, "bytes"),
        raw_bytes=_count(document, "raw_bytes"),
        segments=segments,
        cuts=Cuts(_count(cuts, "algorithm"), _count(cuts, "seed"), _count(cuts, "target", least=1)),
        key=document["key"],
        vocab=_decode_vocab(schema, document["vocab"]),
        meta=document["meta"],
        recipe=document["recipe"],
        chain=check_digest(document["chain"]),
        data=check_digest(document["data"]),
        needs=document["needs"],
    )


def _decode_segment(segment: dict[str, Any], writing: bool) -> SegmentRef:
    check_fields(segment, _SEGMENT_FIELDS, "a segment", writing=writing)
    return SegmentRef(
        digest=check_digest(segment["digest"]),
        rows=_count(segment, "rows", least=1),
        shards=_count(segment, "shards", least=1),
        bytes=_count(segment, "bytes"),
        raw_bytes=_count(segment, "raw_bytes"),
    )


def _count(document: dict[str, Any], name: str, *, least: int = 0) -> int:
    value = document[name]
    if type(value) is not int or not least <= value < 2**64:
        raise ValueError(f"`{name}` is {str(value)[:40]}")
    return value


def _metadata(metadata: dict[bytes, bytes] | None) -> dict[str, str]:
    """Schema metadata as JSON can hold it: bytes that are no UTF-8 as their escapes."""
    return {_text(key): _text(value) for key, value in (metadata or {}).items()}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _encode_vocab(vocab: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: [_encode_value(value) for value in values] for name, values in vocab.items()}


def _decode_vocab(schema: pa.Schema, vocab: Any) -> dict[str, list[Any]]:
    dictionaries = {field.name for field in schema if pa.types.is_dictionary(field.type)}
    if not isinstance(vocab, dict) or set(vocab) != dictionaries:
        raise ValueError(f"its vocabularies are not those of the columns {sorted(dictionaries)}")
    return {
        name: _decode_values(values, schema.field(name).type.value_type) for name, values in vocab.items()
    }


def _decode_values(values: list[Any], type_: pa.DataType) -> list[Any]:
    decoded = [_decode_value(value, type_) for value in values]
    if len(decoded) > MAX_VALUES or pa.array(decoded, type_).null_count:
        raise ValueError(f"a vocabulary of over {MAX_VALUES:,} values, or with null among them")
    return decoded


def _encode_value(value: Any) -> Any:
    """One value of a vocabulary as JSON: as it is, but binaries in base64 and what is not finite as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _decode_value(value: Any, type_: pa.DataType) -> Any:
    if value is not None and pa.types.is_floating(type_):
        return float(value)
    if isinstance(value, str) and not pa.types.is_large_string(type_):
        return base64.b64decode(value, validate=True)
    return value
