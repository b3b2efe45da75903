"""`as_iterable_dataset` in loaders of others: ranks times workers, epochs, positions."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from lake.dataset import Dataset
from lake.pipeline import Pipeline
from lake.torch import as_iterable_dataset
from tests.torch.conftest import ROWS


def number(sample: Any) -> int:
    return int(sample[1]["n"])


def rows(batches: Any) -> list[int]:
    return [n for batch in batches for n in (batch["n"].tolist() if isinstance(batch, dict) else batch)]


def batches(ds: Dataset) -> Pipeline:
    return ds.samples(columns=["n"]).map(number).batch(8)


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_and_workers_see_each_row_once(ds: Dataset, workers: int) -> None:
    """Of a scan and of a pipeline, which comes in its own order."""
    for x in (ds.scan(["n"], batch_size=8), batches(ds)):
        found = []
        for rank in range(2):
            part = as_iterable_dataset(x, rank=rank, world_size=2)
            found += rows(DataLoader(part, batch_size=None, num_workers=workers))
        assert sorted(found) == list(range(ROWS))
    whole = DataLoader(as_iterable_dataset(batches(ds)), batch_size=None, num_workers=workers)
    assert rows(whole) == list(range(ROWS))


@pytest.mark.parametrize("persistent", [False, True])
def test_each_iteration_is_the_next_epoch_and_set_epoch_reaches_workers(
    ds: Dataset, persistent: bool
) -> None:
    """Whether they live on or are started anew."""
    data = as_iterable_dataset(ds.scan(["n"], batch_size=16, shuffle=True, seed=2))
    made = DataLoader(data, batch_size=None, num_workers=2, persistent_workers=persistent)
    first, second = rows(made), rows(made)
    data.set_epoch(0)

    assert rows(made) == first != second
    assert Counter(first) == Counter(second) == Counter(range(ROWS))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_that_is_given_a_scan_or_a_pipeline_says_what_to_give_it(
    ds: Dataset, workers: int
) -> None:
    """It would take both for lists of rows; the error names the loader that trains, and the way to keep this one."""
    for stream in (ds.scan(batch_size=7), ds.scan(batch_size=7).to_torch(), ds.samples()):
        with pytest.raises(TypeError, match=r"as_iterable_dataset\((scan|pipeline)\)"):
            next(iter(DataLoader(stream, num_workers=workers)))


def test_a_data_loader_has_no_position_and_says_what_has(ds: Dataset) -> None:
    """Both of them."""
    with pytest.raises(RuntimeError, match=r"lake\.torch\.loader.*StatefulDataLoader"):
        as_iterable_dataset(ds.scan()).state_dict()


@pytest.mark.filterwarnings("ignore:.set_vital.:UserWarning")  # torchdata calls what torch gave up
@pytest.mark.parametrize("kind", ["scan", "batches", "lanes"])
@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_data_loaders_resume_to_the_sample(ds: Dataset, kind: str, workers: int) -> None:
    """With as many workers; the next epoch follows."""

    def made() -> Any:
        x: Any = ds.scan(["n"], batch_size=8, shuffle=True, seed=1)
        if kind == "batches":
            x = batches(ds)
        if kind == "lanes":
            x = ds.samples(columns=["n"]).map(number).filter(lambda n: n % 3).shuffle(8, seed=1).batch(4)
        return StatefulDataLoader(as_iterable_dataset(x), batch_size=None, num_workers=workers)

    whole = [rows([batch]) for batch in made()]
    before = made()
    got = [rows([batch]) for batch in islice(before, 5)]
    state = before.state_dict()
    after = made()
    after.load_state_dict(state)

    assert got + [rows([batch]) for batch in after] == whole


def test_a_position_of_other_workers_is_refused(ds: Dataset) -> None:
    """With both numbers."""
    stream = iter(as_iterable_dataset(batches(ds)))
    next(stream)
    state = json.loads(json.dumps(stream.state_dict()))  # type: ignore[attr-defined]
    state["workers"] = 2
    with pytest.raises(ValueError, match="a position of 2 workers, and there are 1"):
        iter(as_iterable_dataset(batches(ds))).load_state_dict(state)  # type: ignore[attr-defined]


def test_under_accelerate_the_rank_must_be_said(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Since it cuts the data a second time; with a rank, it is the caller's choice."""
    from accelerate.state import PartialState

    monkeypatch.setattr(PartialState, "_shared_state", {"num_processes": 2, "process_index": 0})
    with pytest.raises(RuntimeError, match=r"Accelerate cuts .* rank=0, world_size=1"):
        next(iter(as_iterable_dataset(batches(ds))))
    assert rows(as_iterable_dataset(batches(ds), rank=0, world_size=1)) == list(range(ROWS))


def test_several_ranks_of_unknown_counts_are_refused(ds: Dataset) -> None:
    """Here nothing can make them even."""
    odd = ds.samples().map(number).filter(lambda n: n % 2)
    with pytest.raises(ValueError, match="2 ranks would yield different"):
        next(iter(as_iterable_dataset(odd, rank=0, world_size=2)))


def test_tensors_go_to_the_loader_as_torch_shares_them(ds: Dataset) -> None:
    """Batches are dicts of tensors; options are those of `to_torch`."""
    data = as_iterable_dataset(ds.scan(["n", "blob"], batch_size=8).to_torch(binary="values"))
    [batch, *_] = DataLoader(data, batch_size=None, num_workers=1)

    assert batch["n"].equal(torch.arange(8))
    assert batch["n"].is_shared()
    assert batch["blob"][0].dtype == torch.uint8
