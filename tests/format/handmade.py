"""A lake laid out by hand through the format's modules alone: no store, no commit, no clock."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from lake.format import cuts, names
from lake.format.content import content_digest
from lake.format.documents import NO_NEEDS, canonical
from lake.format.log import encode_entry
from lake.format.part import encode_part, group_fields
from lake.format.schema import canonical_schema, conform, stored_schema
from lake.format.segment import encode_segment, segment_cuts
from lake.format.stats import shard_stats
from lake.format.values import Cuts, LogEntry, Part, Shard, VersionDocument
from lake.format.version import EMPTY_CHAIN, chain_step, data_digest, encode_version, version_id
from lake.format.vocab import VocabBuilder


def put(root: Path, key: str, data: bytes) -> None:
    """Create one object."""
    path = root / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def write_lake(root: Path) -> None:
    """An empty lake."""
    description = {
        "format": 1,
        "id": "0" * 32,
        "created": "2026-11-01T12:00:00.000000Z",
        "grace": "7d",
        "needs": NO_NEEDS,
    }
    put(root, names.LAKE, canonical(description))


def write_version(
    root: Path,
    name: str,
    table: pa.Table,
    *,
    key: str | None,
    target: int,
    meta: dict[str, object] | None = None,
) -> str:
    """The id of a first version of a dataset, which consists of the rows of `table`."""
    schema = canonical_schema(table.schema)
    builder = VocabBuilder(table.schema)
    for batch in table.to_batches():
        builder.add(batch)
    shards = list(write_shards(root, table, schema, key, target))
    return publish(root, name, schema, shards, key=key, target=target, vocab=builder.finish(), meta=meta)


def publish(
    root: Path,
    name: str,
    schema: pa.Schema,
    shards: Sequence[Shard],
    *,
    key: str | None,
    target: int,
    vocab: dict[str, list[object]],
    meta: dict[str, object] | None = None,
    seq: int = 1,
    parent: str | None = None,
) -> str:
    """The id of a version of these shards, whose parts are stored: segments, document, log entry."""
    document = encode_version(_document(root, schema, shards, key, target, vocab, meta))
    version = version_id(document)
    put(root, names.name_key(name), canonical({"name": name}))
    put(root, names.version_key(name, version), document)
    entry = LogEntry(
        seq=seq,
        version=version,
        parent=parent,
        operation="overwrite",
        time=f"2026-11-01T12:00:{seq:02}.000000Z",
        author="ana@example.org",
        message=None,
        txn=f"{seq:032x}",
        born=1,
        rows_added=sum(shard.rows for shard in shards),
        rows_removed=0,
        bytes_new=sum(part.bytes for shard in shards for part in shard.parts),
        bytes_reused=0,
    )
    put(root, names.log_key(name, seq), encode_entry(entry))
    put(root, names.head_key(name), str(seq).encode())
    return version


def write_shards(
    root: Path, table: pa.Table, schema: pa.Schema, key: str | None, target: int
) -> Iterator[Shard]:
    """The shards of these rows, their parts stored."""
    stored = stored_schema(schema)
    batches = [conform(batch, stored) for batch in table.to_batches() if batch.num_rows]
    rows = pa.Table.from_batches(batches, stored)
    firsts = np.cumsum([0, *(batch.num_rows for batch in batches)])
    hashes = np.concatenate(
        [cuts.row_hashes(batch, key, int(n)) for batch, n in zip(batches, firsts, strict=False)]
    )
    bits = np.concatenate([cuts.row_bits(batch) for batch in batches])
    cutter = cuts.Cutter(target)
    start, groups = 0, None
    for end in [*cutter.push(hashes, bits), *cutter.finish()]:
        chunks = rows.slice(start, end - start).to_batches()
        if groups is None:
            groups = group_fields({name: _mean_bytes(chunks, name) for name in stored.names})
        parts = tuple(
            write_part(root, [chunk.select(list(fields)) for chunk in chunks], target) for fields in groups
        )
        keys = [None, None] if key is None else [chunks[0][key][0].as_py(), chunks[-1][key][-1].as_py()]
        raw = -(-int(bits[start:end].sum()) // 8)
        yield Shard(end - start, raw, *keys, int(hashes[end - 1]), parts, shard_stats(chunks, stored, key))
        start = end


def _mean_bytes(chunks: Sequence[pa.RecordBatch], name: str) -> float:
    bits = [cuts.row_bits(chunk.select([name])) for chunk in chunks]
    return float(np.concatenate(bits).mean()) / 8


def write_part(root: Path, chunks: Sequence[pa.RecordBatch], target: int) -> Part:
    """These columns as one part, stored."""
    fields = list(chunks[0].schema)
    content = content_digest(fields, [[chunk.column(i) for chunk in chunks] for i in range(len(fields))])
    sink = io.BytesIO()
    part = encode_part(chunks, sink, content=content, target=target)
    put(root, names.part_key(part.digest), sink.getvalue())
    return part


def _document(
    root: Path,
    schema: pa.Schema,
    shards: Sequence[Shard],
    key: str | None,
    target: int,
    vocab: dict[str, list[object]],
    meta: dict[str, object] | None,
) -> VersionDocument:
    refs, start, chain = [], 0, EMPTY_CHAIN
    for end in segment_cuts([shard.cut for shard in shards]):
        ref, data = encode_segment(shards[start:end], schema, key)
        put(root, names.segment_key(ref.digest), data)
        refs.append(ref)
        start = end
    for shard in shards:
        chain = chain_step(chain, shard)
    return VersionDocument(
        schema=schema,
        **{
            name: sum(getattr(ref, name) for ref in refs) for name in ("rows", "shards", "bytes", "raw_bytes")
        },
        segments=tuple(refs),
        cuts=Cuts(cuts.ALGORITHM, cuts.SEED, target),
        key=key,
        vocab=vocab,
        meta=meta,
        recipe=None,
        chain=chain,
        data=data_digest(schema, key, vocab, meta, None, chain),
    )
