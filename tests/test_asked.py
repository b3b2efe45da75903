"""Numbers and names that callers give are taken as they are, or refused by the argument's name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lake
from lake import torch as lake_torch
from lake.asked import listed, whole

NO_NUMBERS = ["5", 1.5, True, [1], 1j]

ASKED: dict[str, Callable[[lake.Dataset, Any], object]] = {
    "batch_size": lambda ds, value: ds.scan(batch_size=value),
    "seed": lambda ds, value: ds.scan(shuffle=True, seed=value),
    "epoch": lambda ds, value: ds.scan(epoch=value),
    "shuffle_window": lambda ds, value: ds.scan(shuffle=True, shuffle_window=value),
    "partitions": lambda ds, value: ds.scan(partitions=value),
    "limit": lambda ds, value: ds.scan(limit=value),
    "rank": lambda ds, value: ds.scan(rank=value, world_size=2),
    "world_size": lambda ds, value: ds.scan(rank=0, world_size=value),
    "node": lambda ds, value: ds.scan(rank=0, world_size=2, node=value, nodes=2),
    "nodes": lambda ds, value: ds.scan(rank=0, world_size=2, node=0, nodes=value),
    "epoch of a scan": lambda ds, value: ds.scan().set_epoch(value),
    "epoch of tensors": lambda ds, value: ds.scan().to_torch().set_epoch(value),
    "epoch of a pipeline": lambda ds, value: ds.samples().set_epoch(value),
    "epoch of a loader": lambda ds, value: lake_torch.loader(ds.scan(), num_workers=0).set_epoch(value),
    "epoch of a dataset": lambda ds, value: lake_torch.as_iterable_dataset(ds.scan()).set_epoch(value),
    "size": lambda ds, value: ds.draw(value),
    "n": lambda ds, value: ds.samples().take(value),
    "times": lambda ds, value: ds.samples().repeat(value),
    "buffer": lambda ds, value: ds.samples().shuffle(value),
    "workers": lambda ds, value: ds.samples().map(str, workers=value),
    "prefetch": lambda ds, value: ds.samples(prefetch=value),
    "seed of a split": lambda ds, value: ds.split(0.5, 0.5, seed=value),
    "batch_size of what follows": lambda ds, value: ds.follow(batch_size=value),
    "batch_size of a function": lambda ds, value: ds.lake.add_columns("d", lambda batch: batch, batch_size=value),
    "keep": lambda ds, value: ds.lake.expire("d", keep=value),
}  # fmt: skip


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> lake.Dataset:
    lk = lake.open(tmp_path_factory.mktemp("lake") / "lake")
    lk.commit("d", pa.table({"key": ["a", "b", "c", "d"], "n": [1, 2, 3, 4]}))
    return lk.dataset("d")


@pytest.mark.parametrize("asked", ASKED)
def test_what_is_no_whole_number_is_refused_by_the_name_of_the_argument(ds: lake.Dataset, asked: str) -> None:
    """Neither rounded, nor read, nor found out where something else fails on it."""
    for value in NO_NUMBERS:
        with pytest.raises(
            TypeError, match=re.escape(f"{asked.split()[0]} is a whole number, not {value!r}")
        ):
            ASKED[asked](ds, value)


def test_integers_of_numpy_are_whole_numbers(ds: lake.Dataset) -> None:
    """And mean what they are."""
    scan = ds.scan(batch_size=np.int32(3), limit=np.uint8(4), rank=np.int64(0), world_size=np.int64(1))

    assert [len(batch) for batch in scan] == [3, 1]
    assert len(list(ds.draw(np.int64(2)))) == 2


@pytest.mark.parametrize("columns", ["n", 3, True])
def test_columns_are_a_list_of_names(ds: lake.Dataset, columns: Any) -> None:
    """A text is not taken apart into letters."""
    for ask in (
        lambda: ds.scan(columns),
        lambda: ds.take([0], columns=columns),
        lambda: ds.follow(columns=columns),
        lambda: ds.lake.pull("d", columns=columns),
        lambda: ds.export(Path("never.csv"), columns=columns),
        lambda: ds.lake.drop_columns("d", columns),
    ):
        with pytest.raises(TypeError, match="columns are a list of names"):
            ask()


@pytest.mark.parametrize("fractions", [("x", 1), (None,), (0.5, [0.5])])
def test_fractions_are_numbers(ds: lake.Dataset, fractions: Any) -> None:
    """Whatever else stands among them."""
    with pytest.raises(TypeError, match="fractions are numbers"):
        ds.split(*fractions)


def test_a_feed_needs_something_to_iterate() -> None:
    """It is refused when it is made, not when it is used."""
    with pytest.raises(TypeError, match="DeviceFeed takes an iterable of items with tensors, not int"):
        lake_torch.DeviceFeed(3, "cpu")


def test_a_least_number_is_the_least() -> None:
    """That number and no less."""
    assert whole("n", 1, least=1) == 1
    with pytest.raises(ValueError, match="n is 1 or more: 0"):
        whole("n", 0, least=1)
    assert listed("columns", iter(["a"])) == ["a"]


def test_partitions_are_never_none_at_all(ds: lake.Dataset) -> None:
    """0 is a number that was asked for."""
    with pytest.raises(ValueError, match="at least 1: 0"):
        ds.scan(partitions=0)
