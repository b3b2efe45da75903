"""Make the lake of this release: `python -m tests.formats.make`, once for each release, before it is out.

Beside the lake lies what its versions hold, as JSON that was made from the input, not read from the lake.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import lake

HOME = Path(__file__).parent
ROWS = 120


def table() -> pa.Table:
    """Rows of most types, a heavy column, nulls."""
    rng = np.random.default_rng(0)
    numbers = list(range(ROWS))
    shape = pa.fixed_shape_tensor(pa.float32(), (2, 2))
    floats = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(4 * ROWS, dtype=np.float32)), 4)
    return pa.table(
        {
            "key": [f"k{number:03}" for number in numbers],
            "count": pa.array([None if number % 7 == 0 else number for number in numbers], pa.int32()),
            "mean": pa.array([number / 4 for number in numbers]),
            "good": [number % 2 == 0 for number in numbers],
            "class": pa.array(["wren" if number % 3 else "tit" for number in numbers]).dictionary_encode(),
            "seen": pa.array([datetime(2026, 1, 1, number % 24, tzinfo=UTC) for number in numbers]),
            "price": pa.array([Decimal(number).scaleb(-2) for number in numbers], pa.decimal128(10, 2)),
            "words": [["a"] * (number % 4) for number in numbers],
            "place": [{"x": number, "y": None} for number in numbers],
            "tensor": pa.ExtensionArray.from_storage(shape, floats),
            "image": [bytes(rng.bytes(400 + number)) for number in numbers],
            "never": pa.nulls(ROWS),
        }
    )


def shown(rows: pa.Table) -> list[Any]:
    """Rows as JSON holds them."""
    plain = pa.table(
        {
            name: pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
            if isinstance(column.type, pa.BaseExtensionType)
            else column
            for name, column in zip(rows.column_names, rows.columns, strict=True)
        }
    )
    return json.loads(json.dumps(plain.to_pylist(), default=_text))


def _text(value: Any) -> str:
    return hashlib.sha256(value).hexdigest()[:16] if isinstance(value, bytes) else str(value)


def make(home: Path, cache: Path) -> None:
    """The lake, and what it holds."""
    lk = lake.open(home / "lake", cache_dir=cache, progress=False)
    whole = table()
    some = whole.slice(0, 100)
    lk.commit("birds/all", some, shard_bytes="16KiB", meta={"made": "for ever"}, message="first")
    lk.commit("birds/all", whole.slice(100), mode="append", txn="nightly-1")
    lk.tag("birds/all", "v1.0")
    lk.delete_rows("birds/all", "count < 10")
    lk.update_rows("birds/all", pa.table({"key": ["k050"], "mean": [0.5]}))
    lk.add_columns(
        "birds/all", lambda batch: {"double": pa.array(2 * np.asarray(batch["mean"]))}, columns=["mean"]
    )
    lk.copy("birds/all@v1.0", "copied")
    lk.commit("gone", some.select(["key"]))
    lk.remove("gone")

    kept = whole.filter(
        pa.array([not (count is not None and count < 10) for count in whole["count"].to_pylist()])
    )
    mean = [
        0.5 if key == "k050" else old
        for key, old in zip(*(kept[name].to_pylist() for name in ("key", "mean")), strict=True)
    ]
    last = kept.set_column(kept.schema.get_field_index("mean"), "mean", pa.array(mean))
    last = last.append_column("double", pa.array([2 * value for value in mean]))
    expected = {
        "birds/all@#1": shown(some),
        "birds/all@v1.0": shown(whole),
        "birds/all@#3": shown(kept),
        "birds/all@head": shown(last),
        "copied": shown(whole),
    }
    (home / "expected.json").write_text(json.dumps(expected, indent=0) + "\n", "utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        make(HOME / lake.__version__, Path(folder) / "cache")
