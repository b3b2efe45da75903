"""Whether data lies sorted by something that a training run would want mixed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.snapshot import Snapshot

_SHARDS: Final = 4  # below which every block has all of them
_CONSTANT: Final = 0.5  # of the shards have one value only


def sorted_labels(snapshot: Snapshot, columns: Sequence[str]) -> list[str]:
    """The columns that look like labels and are constant in most shards, though not in all together."""
    if len(snapshot.manifest) < _SHARDS:
        return []
    types = {name: snapshot.document.schema.field(name).type for name in columns}
    return [name for name, type_ in types.items() if _may_be_label(type_) and _is_sorted(snapshot, name)]


def _may_be_label(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_dictionary(type_)
        or pa.types.is_integer(type_)
        or pa.types.is_boolean(type_)
        or pa.types.is_large_string(type_)
    )


def _is_sorted(snapshot: Snapshot, column: str) -> bool:
    stats = snapshot.manifest.stats(column).combine_chunks()
    low, high = pc.struct_field(stats, "min"), pc.struct_field(stats, "max")
    constant = np.asarray(pc.fill_null(pc.equal(low, high), False))
    values = pc.unique(low.filter(pa.array(constant)))
    return bool(constant.mean() > _CONSTANT and len(values) > 1)
