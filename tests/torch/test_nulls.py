"""What `nulls=` of `to_torch` may name."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lake


def test_a_column_that_is_not_there_is_named(tmp_path: Path):
    """With those that are; whether or not anything is null."""
    lk = lake.open(tmp_path)
    lk.commit("birds", pa.table({"x": [1.0, None], "y": [1.0, 2.0]}), key=None)
    ds = lk.dataset("birds")

    assert [batch["x"].tolist() for batch in ds.scan(["x"]).to_torch(nulls={"x": 7})] == [[1.0, 7.0]]
    for columns in (["x"], ["y"]):
        with pytest.raises(ValueError, match=f"'typo', 'tyqo'; columns of this scan are '{columns[0]}'"):
            next(iter(ds.scan(columns).to_torch(nulls={"typo": 0, "tyqo": 0, columns[0]: 0})))
