"""The objects that a lake's store holds, as Arrow: the table beneath `lake.objects`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.dataset as pads

from lake.format import names
from lake.refs import Refs
from lake.roots import reached, read_roots
from lake.survey import Survey
from lake.virtual import VirtualDataset, columns_of

OBJECTS: Final = pa.schema(
    {
        "key": pa.string(),
        "kind": pa.string(),
        "digest": pa.string(),
        "bytes": pa.int64(),
        "time": pa.string(),
        "reached": pa.bool_(),
    }
)


class _Lake(Protocol):
    @property
    def refs(self) -> Refs: ...


def stored_objects(lake: _Lake) -> VirtualDataset:
    """Every copy of a version document, segment or part, to be scanned; costs a LIST of the whole store."""

    def read(columns: list[str], where: pads.Expression | None) -> Iterator[pa.RecordBatch]:
        used = {*columns, *(columns_of(where, OBJECTS) if where is not None else ())}
        table = _objects(lake.refs, with_reached="reached" in used)
        yield from (table if where is None else table.filter(where)).select(columns).to_batches()

    return VirtualDataset(OBJECTS, read)


def _objects(refs: Refs, *, with_reached: bool) -> pa.Table:
    """All of them; roots are read after the listing, so that nothing written meanwhile looks like an orphan."""
    blobs = Survey.of(refs.store).blobs
    kept = reached(refs, read_roots(refs)) if with_reached else {}
    rows = []
    for stem, copies in sorted(blobs.items()):
        for copy in copies:
            parsed = names.parse_key(copy.key)
            rows.append(
                {
                    "key": copy.key,
                    "kind": parsed.kind if parsed else None,
                    "digest": parsed.digest if parsed else None,
                    "bytes": copy.size,
                    "time": datetime.fromtimestamp(copy.modified, UTC).isoformat(),
                    "reached": stem in kept if with_reached else None,
                }
            )
    return pa.Table.from_pylist(rows, OBJECTS)
