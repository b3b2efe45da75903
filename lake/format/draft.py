"""What a version's document and segments become when shards are written, appended, replaced or described anew.

Pure: given the base's document (and the segments it must take apart), the answer is a document and the bytes
of those segments that the base does not have. `lake.commit` makes it visible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa

from lake.errors import SchemaError
from lake.format.segment import encode_segment, encode_table, segment_cuts
from lake.format.shards import as_written, table_of
from lake.format.values import Cuts, SegmentRef, Shard, VersionDocument
from lake.format.version import EMPTY_CHAIN, chain_step, data_digest
from lake.format.vocab import MAX_VALUES

Segments = tuple[tuple[SegmentRef, bytes | None], ...]  # bytes of those that are not stored yet
Identity = tuple[tuple[tuple[str, tuple[str, ...]], ...], ...]
Known = Mapping[Identity, SegmentRef]  # what a segment's shards are -> the segment


@dataclass(frozen=True)
class Head:
    """All of a version but its shards."""

    schema: pa.Schema  # canonical
    key: str | None
    cuts: Cuts
    vocab: dict[str, list[Any]]
    meta: dict[str, Any] | None
    recipe: Any


def identity(shards: Iterable[Shard]) -> Identity:
    """What tells a segment of these shards from others of the same schema: their parts, and what these speak for."""
    return tuple(tuple((part.digest, part.fields) for part in shard.parts) for shard in shards)


def divide(shards: Sequence[Shard], head: Head, known: Known | None = None) -> Segments:
    """Segments of a run of shards, cut by content; those that `known` has are taken over without bytes."""
    found: list[tuple[SegmentRef, bytes | None]] = []
    start = 0
    for end in segment_cuts([shard.cut for shard in shards]):
        run = shards[start:end]
        stored = known.get(identity(run)) if known else None
        found.append((stored, None) if stored else encode_segment(run, head.schema, head.key))
        start = end
    return tuple(found)


def whole(
    head: Head, shards: Sequence[Shard], known: Known | None = None
) -> tuple[VersionDocument, Segments]:
    """The version that consists of `shards`; `known`: segments of the base, if its schema and key are the same."""
    segments = divide(shards, head, known)
    return _document(head, segments, extend_chain(EMPTY_CHAIN, shards)), segments


def grown(
    base: VersionDocument, head: Head, shards: Sequence[Shard], tail: Sequence[pa.Table] = ()
) -> tuple[VersionDocument, Segments]:
    """The base's version with `shards` after its own.

    `tail`: the decoded tables of the base's last segments, which are divided anew together with the new shards.
    """
    kept = tuple((ref, None) for ref in base.segments[: len(base.segments) - len(tail)])
    own = table_of(shards, head.schema, head.key)
    rows = pa.concat_tables([*(as_written(table, head.schema, head.key) for table in tail), own])
    segments = (*kept, *_divided(rows))
    return _document(head, segments, extend_chain(base.chain, shards)), segments


def _divided(rows: pa.Table) -> Segments:
    """Segments of some rows of a manifest, cut by content."""
    ends = segment_cuts(rows["cut"].to_pylist())
    return tuple(encode_table(rows.slice(start, end - start)) for start, end in pairwise([0, *ends]))


def described(base: VersionDocument, **changes: Any) -> VersionDocument:
    """The base's version, its shards as they are, with another schema, vocab, meta or recipe."""
    changed = replace(base, **changes)
    data = data_digest(
        changed.schema, changed.key, changed.vocab, changed.meta, changed.recipe, changed.chain
    )
    return replace(changed, data=data)


def known_segments(base: VersionDocument | None, shards: Sequence[Shard], head: Head) -> Known:
    """The base's segments by what is in them, as far as a version with this head can take them over."""
    if base is None or not base.schema.equals(head.schema, check_metadata=True) or base.key != head.key:
        return {}
    known: dict[Identity, SegmentRef] = {}
    start = 0
    for ref in base.segments:
        known[identity(shards[start : start + ref.shards])] = ref
        start += ref.shards
    return known


def longer_vocab(
    schema: pa.Schema, base: Mapping[str, list[Any]], found: Mapping[str, list[Any]]
) -> dict[str, list[Any]]:
    """The base's vocabularies with the values found since at their ends, for the dictionary columns of `schema`.

    Raises:
        SchemaError: one becomes longer than codes can tell apart.
    """
    longer: dict[str, list[Any]] = {}
    for field in schema:
        if not pa.types.is_dictionary(field.type):
            continue
        known = base.get(field.name, [])
        seen = set(known)
        longer[field.name] = known + [value for value in found.get(field.name, []) if value not in seen]
        if len(longer[field.name]) > MAX_VALUES:
            raise SchemaError(
                f"column {field.name!r}: over {MAX_VALUES:,} values are too many for a dictionary: "
                "store it as its values"
            )
    return longer


def extend_chain(chain: str, shards: Iterable[Shard]) -> str:
    """The chain after these shards."""
    for shard in shards:
        chain = chain_step(chain, shard)
    return chain


def head_of(document: VersionDocument) -> Head:
    """All of a version but its shards."""
    return Head(document.schema, document.key, document.cuts, document.vocab, document.meta, document.recipe)


def _document(head: Head, segments: Segments, chain: str) -> VersionDocument:
    refs = tuple(ref for ref, _ in segments)
    return VersionDocument(
        schema=head.schema,
        rows=sum(ref.rows for ref in refs),
        shards=sum(ref.shards for ref in refs),
        bytes=sum(ref.bytes for ref in refs),
        raw_bytes=sum(ref.raw_bytes for ref in refs),
        segments=refs,
        cuts=head.cuts,
        key=head.key,
        vocab=head.vocab,
        meta=head.meta,
        recipe=head.recipe,
        chain=chain,
        data=data_digest(head.schema, head.key, head.vocab, head.meta, head.recipe, chain),
    )
