"""`lake.torch.loader` over a scan: this rank's batches, in this process, and the position of the last one."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pytest

from lake.dataset import Dataset
from lake.torch import loader
from lake.torch.ranks import launched
from tests.torch.conftest import ROWS


def rows(batches: Any) -> list[int]:
    return [n for batch in batches for n in batch["n"].tolist()]


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_see_each_row_once_in_equally_many_batches(ds: Dataset, world_size: int) -> None:
    """And as many as `len` says, though the rows do not divide."""
    ranks = [
        loader(ds.scan(batch_size=8, shuffle=True), rank=r, world_size=world_size) for r in range(world_size)
    ]
    batches = [list(each) for each in ranks]

    assert {len(each) for each in ranks} == {len(found) for found in batches} == {len(batches[0])}
    assert sorted(n for found in batches for n in rows(found)) == list(range(ROWS))


def test_the_launcher_is_asked_when_iteration_starts(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when the loader is made; what the caller says goes before, and a scan that has a rank keeps it."""
    late, told = loader(ds.scan(batch_size=8)), loader(ds.scan(batch_size=8), rank=0, world_size=1)
    own = loader(ds.scan(batch_size=8, rank=2, world_size=3))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")

    assert rows(islice(late, 1)) == list(range(8, 16))
    assert rows(islice(told, 1)) == list(range(8))
    assert rows(islice(own, 1)) == list(range(16, 24))


def test_nodes_are_known_from_the_ranks_of_each() -> None:
    """A cluster's bytes are cut by node; a script inside an allocation of SLURM is no rank."""
    assert launched({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}).node == 1
    assert (
        launched({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "2"}).nodes == 2
    )
    assert launched({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}).world_size == 1
    assert launched({}).world_size == 1


def test_a_launcher_s_variable_that_is_no_number_is_named() -> None:
    """Of a rank that cannot be read, the error says which variable has it."""
    for said in ({"RANK": "x", "WORLD_SIZE": "2"}, {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "x"}):
        with pytest.raises(ValueError, match=r"the variable \w+ is a whole number, not 'x'"):
            launched(said)


def test_a_position_goes_on_with_other_ranks_and_batch_sizes(ds: Dataset) -> None:
    """One rank's state serves all that step together: nothing is lost or repeated."""
    before = [loader(ds.scan(batch_size=8, shuffle=True), rank=r, world_size=2) for r in range(2)]
    taken = [rows(islice(each, 3)) for each in before]
    states = [json.loads(json.dumps(each.state_dict())) for each in before]
    assert states[0] == states[1]

    after = [loader(ds.scan(batch_size=5, shuffle=True), rank=r, world_size=3) for r in range(3)]
    for each in after:
        each.load_state_dict(states[0])
    rest = [rows(each) for each in after]

    assert sorted(n for found in [*taken, *rest] for n in found) == list(range(ROWS))


def test_the_scan_inside_does_not_know_the_position_and_says_who_does(ds: Dataset) -> None:
    """Until it is iterated itself, which makes it nobody's."""
    scan = ds.scan(batch_size=8)
    made = loader(scan)
    next(iter(made))

    with pytest.raises(RuntimeError, match=r"state_dict\(\) of that|lake.torch.loader\(scan\)"):
        scan.state_dict()
    with pytest.raises(RuntimeError, match=r"lake.torch.loader\(scan\): call load_state_dict"):
        scan.load_state_dict(made.state_dict())
    next(iter(scan))
    assert scan.state_dict()["rows"] == 8


def test_what_the_last_round_does_may_be_said_here(ds: Dataset) -> None:
    """Otherwise the scan says."""
    assert sum(map(len, map(rows, ([b] for b in loader(ds.scan(batch_size=8, even="drop")))))) == 96
    assert len(rows(loader(ds.scan(batch_size=8), even="drop"))) == 96
    assert len(rows(loader(ds.scan(batch_size=8, even="drop"), even="split"))) == ROWS


def test_epochs_follow_one_another_and_may_be_set(ds: Dataset) -> None:
    """A position holds if the epoch set is its own."""
    made = loader(ds.scan(batch_size=50, shuffle=True, seed=3))
    first, second = rows(made), rows(made)
    made.set_epoch(0)
    again = rows(made)

    assert first == again != second
    made.set_epoch(0)
    next(iter(made))
    state = made.state_dict()
    made.load_state_dict(state)
    made.set_epoch(0)
    assert rows(made) == first[50:]


def test_headroom_is_one_batch_again_and_again(ds: Dataset) -> None:
    """As many times as an epoch has batches; the position does not move."""
    made = loader(ds.scan(batch_size=8))
    stream = iter(made)
    next(stream)
    state = made.state_dict()
    batches = list(made.headroom())

    assert len(batches) == len(made)
    assert all(batch is batches[0] for batch in batches)
    assert made.state_dict() == state
    assert rows(islice(made, 1)) == list(range(8, 16))


def test_what_is_neither_scan_nor_pipeline_is_refused(ds: Dataset) -> None:
    """With its type."""
    with pytest.raises(TypeError, match="takes a scan or a pipeline, not Dataset"):
        loader(ds)  # type: ignore[arg-type]


def test_options_that_would_act_on_nothing_are_refused(ds: Dataset) -> None:
    """A name that nobody knows, and what makes tensors of a scan where no scan is made tensors of."""
    for stream in (ds.scan(), ds.scan().to_torch(), ds.samples()):
        with pytest.raises(TypeError, match=r"loader\(\) got an unexpected keyword argument 'workers'"):
            loader(stream, workers=2)
    with pytest.raises(TypeError, match="say ragged= to to_torch"):
        loader(ds.scan().to_torch(), ragged="pad")
    with pytest.raises(TypeError, match=r"loader\(pipeline\): ragged= makes tensors of a scan"):
        loader(ds.samples(), ragged="pad")
