"""A small lake to load from."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import lake
from lake.dataset import Dataset

ROWS = 103  # divides by nothing


@pytest.fixture(scope="session")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Rows that are numbered, in several shards."""
    lk = lake.open(tmp_path_factory.mktemp("loading") / "lake", progress=False)
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "key": [f"row-{n:03}" for n in range(ROWS)],
            "n": np.arange(ROWS),
            "blob": [rng.bytes(700) for _ in range(ROWS)],
        }
    )
    lk.commit("rows", table, shard_bytes="16KiB")
    return lk.dataset("rows")
