"""Segments: runs of a manifest's rows as Parquet, one row per shard. Bytes in, values out, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from lake.format.values import SegmentRef, Shard


def encode_segment(shards: Sequence[Shard], schema: pa.Schema, key: str | None) -> tuple[SegmentRef, bytes]:
    """The segment of these shards, and its bytes."""
    raise NotImplementedError


def decode_segment(data: Any, ref: SegmentRef, schema: pa.Schema, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of a segment, checked against `ref`, statistics cast to `schema`; `columns`: Parquet paths."""
    raise NotImplementedError


def segment_cuts(cuts: Sequence[int]) -> list[int]:
    """Ends of the segments into which shards whose `cut`s these are must be divided; the last is their number."""
    raise NotImplementedError


def tail_to_merge(refs: Sequence[SegmentRef]) -> int:
    """How many segments at the end an append must take apart and divide anew with its own shards: mostly 0."""
    raise NotImplementedError
