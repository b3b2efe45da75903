"""A small lake for pipelines to begin with."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import lake
from lake.dataset import Dataset

ROWS = 60


def table(rows: int = ROWS) -> pa.Table:
    """Rows of every kind of value; `blob` makes several shards of a few rows."""
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "key": [f"row-{n:03}" for n in range(rows)],
            "n": np.arange(rows),
            "words": [f"text {n} é" if n % 5 else None for n in range(rows)],
            "blob": [rng.bytes(1500 + n) for n in range(rows)],
            "tokens": pa.array([list(range(n % 7)) for n in range(rows)], pa.list_(pa.int64())),
            "class": pa.array([f"c{n % 3}" for n in range(rows)]).dictionary_encode(),
        }
    )


@pytest.fixture(scope="session")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A dataset of several shards, with a key."""
    lk = lake.open(tmp_path_factory.mktemp("pipeline") / "lake", progress=False)
    lk.commit("rows", table(), shard_bytes="16KiB")
    found = lk.dataset("rows")
    assert found.snapshot.document.shards >= 4
    return found
