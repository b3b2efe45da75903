"""`lake.torch.loader` over a pipeline: feed processes, ranks and workers, and the position of the last item."""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from itertools import islice
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import lake
from lake.dataset import Dataset
from lake.pipeline import Pipeline
from lake.torch import Loader, loader
from tests.remote import remote_lake
from tests.torch.conftest import ROWS

FULL = bool(os.environ.get("LAKE_TEST_FULL"))
TEAMS = (
    [(ranks, workers) for ranks in (1, 2, 3, 4) for workers in (0, 1, 2, 3)]
    if FULL
    else [(1, 2), (2, 0), (3, 1), (2, 3)]
)


def number(sample: Any) -> int:
    return int(sample[1]["n"])


def base(ds: Dataset) -> Pipeline:
    return ds.samples(columns=["n"]).map(number)


def flat(items: Any) -> list[Any]:
    return [n for item in items for n in (flat(item) if isinstance(item, list) else [item])]


def written(state: Any) -> Any:
    return json.loads(json.dumps(state))


def epochs(make: Callable[[], Pipeline], ranks: int, workers: int, **how: Any) -> list[list[Any]]:
    """What each rank's loader gives."""
    found = []
    for rank in range(ranks):
        made = loader(make(), num_workers=workers, rank=rank, world_size=ranks, **how)
        found.append(list(made))
        made.close()
    return found


@pytest.mark.parametrize(("ranks", "workers"), TEAMS)
def test_countable_pipelines_give_each_sample_once_whatever_the_team(
    ds: Dataset, ranks: int, workers: int
) -> None:
    """n times under `repeat(n)`; zipped rows stay paired; `take(5)` gives five; ranks have as many batches."""
    batches = epochs(lambda: base(ds).batch(8), ranks, workers)
    assert sorted(flat(batches)) == list(range(ROWS))
    assert len({len(each) for each in batches}) == 1

    shuffled = ds.samples(columns=["n"]).shuffle(seed=1).map(number)
    assert set(Counter(flat(epochs(lambda: shuffled.repeat(2), ranks, workers))).values()) == {2}
    assert sorted(flat(epochs(lambda: base(ds).take(5), ranks, workers))) == list(range(5))
    pairs = epochs(lambda: lake.zip(shuffled, shuffled.map(str)), ranks, workers)
    assert sorted(pair for each in pairs for pair in each) == sorted((n, str(n)) for n in range(ROWS))


@pytest.mark.parametrize(("ranks", "workers"), TEAMS)
def test_uncountable_pipelines_use_each_row_once_and_obey_steps(
    ds: Dataset, ranks: int, workers: int
) -> None:
    """With `steps` each rank gives exactly so many, from its lanes again and again; alone it needs none."""
    odd = base(ds).filter(lambda n: n % 2)
    alone = epochs(lambda: odd, 1, workers)
    assert sorted(flat(alone)) == list(range(1, ROWS, 2))

    few = epochs(lambda: odd, ranks, workers, steps=10)
    assert [len(each) for each in few] == [10] * ranks
    many = flat(epochs(lambda: odd, ranks, workers, steps=60))
    assert len(many) == 60 * ranks
    if ranks == 1:
        assert max(Counter(many).values()) == 2


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_every_start_method_gives_the_same_items(ds: Dataset, method: str) -> None:
    """Functions that were defined here included; also after this process has read."""
    stream = base(ds).map(lambda n: (n, torch.full((3,), n), np.arange(n))).batch(8)
    expected = list(stream.copied())
    made = loader(stream, multiprocessing_context=method)

    for got, want in zip(made, expected, strict=True):
        for (n, tensor, array), (m, other, sequence) in zip(got, want, strict=True):
            assert n == m
            assert tensor.equal(other)
            assert array.tolist() == sequence.tolist()
    made.close()


def test_a_checkpoint_of_four_workers_goes_on_with_two_to_the_sample(ds: Dataset) -> None:
    """Mid-epoch; what was read ahead does not count, and a plain pipeline goes on from it as well."""

    def stream() -> Pipeline:
        return ds.samples(columns=["n"]).shuffle(seed=5).map(number).batch(4)

    whole = list(stream())
    before = loader(stream(), num_workers=4)
    got = list(islice(before, 9))
    state = written(before.state_dict())
    before.close()
    assert got == whole[:9]

    for workers in (2, 0):
        after = loader(stream(), num_workers=workers)
        after.load_state_dict(state)
        assert list(after) == whole[9:]
        after.close()
    plain = stream()
    plain.load_state_dict(state)
    assert list(plain) == whole[9:]


@pytest.mark.parametrize("workers", [(0, 0), (3, 3), (3, 1), (2, 4)])
def test_lanes_resume_on_other_workers(ds: Dataset, workers: tuple[int, int]) -> None:
    """Exactly where they were; on as many workers in the same order as without a break."""
    stream = base(ds).filter(lambda n: n % 3).shuffle(16, seed=2).batch(3)
    whole = loader(stream, num_workers=workers[0])
    expected = list(whole)
    whole.set_epoch(0)
    got = list(islice(whole, 7))
    state = written(whole.state_dict())
    whole.close()
    after = loader(stream, num_workers=workers[1])
    after.load_state_dict(state)
    rest = list(after)
    after.close()

    assert got + rest == expected
    assert sorted(flat(expected)) == [n for n in range(ROWS) if n % 3]


def test_states_of_ranks_are_told_apart_from_states_of_all(ds: Dataset) -> None:
    """Undecided, the first `state_dict` raises; one rank's own cannot be gone on with."""
    odd = base(ds).filter(lambda n: n % 2)

    def made(rank: int, gather: bool | None) -> Loader:
        return loader(odd, num_workers=0, steps=9, rank=rank, world_size=2, gather=gather)

    undecided = made(0, None)
    next(iter(undecided))
    with pytest.raises(ValueError, match=r"gather=True .* gather=False"):
        undecided.state_dict()
    own = [made(rank, gather=False) for rank in range(2)]
    got = [list(islice(each, 4)) for each in own]
    states = [written(each.state_dict()) for each in own]
    fresh = made(1, gather=False)
    fresh.load_state_dict(states[0])
    with pytest.raises(ValueError, match=r"one rank alone, without lane 1 of 2: lake\.merge_states"):
        iter(fresh)

    merged = lake.merge_states(states)
    for rank in range(2):
        again = made(rank, gather=False)
        again.load_state_dict(merged)
        assert got[rank] + list(again) == list(made(rank, gather=False))


def test_what_cannot_be_split_is_refused_before_the_first_item(ds: Dataset) -> None:
    """With the stage and the way out."""
    odd = base(ds).filter(lambda n: n % 2)
    with pytest.raises(ValueError, match=r"filter\(.*2 ranks.*steps=, even='stop', or where="):
        iter(loader(odd, rank=0, world_size=2))
    with pytest.raises(ValueError, match=r"no process group of torch\.distributed"):
        iter(loader(odd, rank=0, world_size=2, even="stop"))
    with pytest.raises(ValueError, match=r"take\(5\) over filter.*per_lane=True"):
        iter(loader(odd.take(5), num_workers=2))
    with pytest.raises(ValueError, match=r"shuffle.*|samples.*drew its seed"):
        iter(loader(ds.samples().shuffle(), rank=0, world_size=2))
    with pytest.raises(ValueError, match="even='pad'"):
        loader(odd, even="pad")
    with pytest.raises(ValueError, match="even='spilt': a pipeline has 'split', 'drop'"):
        loader(odd, even="spilt")  # type: ignore[arg-type]
    for wrong in ({"steps": "3"}, {"num_workers": 1.5}):
        with pytest.raises(TypeError, match=rf"{next(iter(wrong))} is a whole number or None, not "):
            loader(odd, **wrong)
    with pytest.raises(TypeError, match="no end: steps="):
        len(loader(base(ds).repeat()))


def test_errors_of_a_worker_come_in_their_place_with_their_traceback(ds: Dataset) -> None:
    """After all items before; and again to whoever asks again."""

    def bad(n: int) -> int:
        if n == 50:
            raise KeyError("fifty")
        return n

    made = loader(base(ds).map(bad).batch(8), num_workers=2)
    stream = iter(made)
    assert flat(islice(stream, 6)) == list(range(48))
    for _ in range(2):
        with pytest.raises(KeyError, match="fifty") as found:
            next(stream)
    assert "in bad" in str(found.value.__cause__)
    assert "in map(bad)" in "".join(found.value.__notes__)
    assert made.state_dict()["items"] == 48
    made.close()


def test_a_killed_worker_is_an_error_not_a_wait(ds: Dataset) -> None:
    """It names the process and the signal; the next loader is none the worse."""
    made = loader(base(ds).map(lambda n: (n, b"x" * 4_000_000)), num_workers=2)  # more than it can send ahead
    stream = iter(made)
    next(stream)
    victim = next(child for child in active_children() if child.name == "lake-feed-1")
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)

    with pytest.raises(RuntimeError, match=rf"feed process 1 \(pid {victim.pid}\) was killed by SIGKILL"):
        list(stream)
    made.close()
    assert flat(epochs(lambda: base(ds).take(5), 1, 2)) == list(range(5))


def test_nothing_is_left_of_a_loader_that_is_dropped_half_way(ds: Dataset) -> None:
    """Neither processes, nor files in shared memory, nor descriptors."""
    memory = Path("/dev/shm")

    def held() -> tuple[int, set[str]]:
        return len(list(Path("/proc/self/fd").iterdir())), set(memory.iterdir())

    def use() -> None:
        for _ in range(2):
            made = loader(base(ds).map(lambda n: np.full(10_000, n)), num_workers=2)
            next(iter(made))
            list(islice(made, 3))

    use()
    gc.collect()
    before = held()
    use()
    gc.collect()

    assert not [child for child in active_children() if child.name.startswith("lake-feed")]
    assert held() == before


def test_workers_end_when_their_parent_is_killed(ds: Dataset) -> None:
    """Though nobody told them."""
    ours, theirs = os.pipe()
    parent = os.fork()
    if not parent:
        try:
            stream = iter(loader(base(ds).map(lambda n: np.full(100_000, n)).repeat(), num_workers=2))
            next(stream)
            os.write(theirs, b" ".join(str(child.pid).encode() for child in active_children()))
            signal.pause()
        finally:
            os._exit(1)
    os.close(theirs)
    pids = [int(pid) for pid in os.read(ours, 1000).split()]
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)

    assert len(pids) == 2
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "workers outlive who started them"
        time.sleep(0.05)
    os.close(ours)


def test_items_of_any_size_pass_and_kept_ones_stay_what_they_were() -> None:
    """Larger than the ring, empty, of odd types; tensors that are kept are never written over."""
    sizes = [0, 1, 4096, 70 * 2**20, 10]
    stream = lake.from_iterable(range(len(sizes))).map(
        lambda n: {
            "bytes": bytes([n]) * sizes[n],
            "array": np.full(sizes[n], n, np.uint8),
            "tensors": (torch.full((sizes[n] // 2,), n, dtype=torch.bfloat16), torch.empty(0, 3)),
            "set": {n, None},
        }
    )
    made = loader(stream, num_workers=2)
    kept = list(made)
    for n, item in enumerate(kept):
        assert item["bytes"] == bytes([n]) * sizes[n]
        assert (item["array"] == n).all()
        assert (item["tensors"][0] == n).all()
        assert item["tensors"][1].shape == (0, 3)
        assert item["set"] == {n, None}
    made.close()


def test_epochs_follow_one_another_in_living_workers(ds: Dataset) -> None:
    """`set_epoch` reaches them; an epoch that was given up leaves nothing in the next."""
    made = loader(ds.samples(columns=["n"]).shuffle(seed=1).map(number), num_workers=2)
    first = list(made)
    pids = {child.pid for child in active_children()}
    next(iter(made))
    second = list(loader(ds.samples(columns=["n"]).shuffle(seed=1).map(number), num_workers=0))
    made.set_epoch(0)

    assert list(made) == first == second
    assert {child.pid for child in active_children()} == pids
    assert list(made) != first
    assert made.metrics()["stages"]["2 map(number)"]["items"] >= 3 * ROWS
    made.close()


def test_a_mapped_scan_is_made_in_processes_in_order(ds: Dataset) -> None:
    """One by default; its functions run there, and the position is the scan's."""
    scan = ds.scan(["n"], batch_size=8).map(
        lambda batch: {"pid": np.full(len(batch), os.getpid()), "n": batch["n"]}
    )
    for workers in (None, 2):
        made = loader(scan, num_workers=workers)
        batches = list(made)
        pids = {int(batch["pid"][0]) for batch in batches}

        assert [n for batch in batches for n in batch["n"].tolist()] == list(range(ROWS))
        assert os.getpid() not in pids
        assert len(pids) == (workers or 1)
        list(islice(made, 3))
        state = written(made.state_dict())
        assert state["rows"] == 24
        again = loader(scan, num_workers=0)
        again.load_state_dict(state)
        assert next(iter(again))["n"][0] == 24
        made.close()
        again.close()


def test_the_pipeline_inside_says_who_knows_the_position(ds: Dataset) -> None:
    """Asking it raises, and names the loader."""
    stream = base(ds)
    made = loader(stream)
    for ask in (stream.state_dict, lambda: stream.load_state_dict({})):
        with pytest.raises(
            RuntimeError, match=r"lake.torch.loader\(pipeline\): call .*state_dict\(\) of that"
        ):
            ask()
    del made, ask
    gc.collect()
    assert stream.state_dict()["at"] is None


def test_each_part_is_downloaded_once_whatever_the_workers_and_ranks(tmp_path: Path) -> None:
    """By the cache, which all processes of a machine share: four of them fetch what one would."""
    folder, rows = tmp_path / "lake", 6000
    table = pa.table(
        {"n": np.arange(rows), "blob": [bytes(np.random.default_rng(n).bytes(300)) for n in range(rows)]}
    )
    lake.open(folder, progress=False).commit("rows", table, key=None, shard_bytes="64KiB")
    fetched = {}
    for ranks, workers in ((1, 1), (2, 2)):
        data = remote_lake(folder, tmp_path / f"cache-{ranks}").dataset("rows")
        made = [
            loader(
                data.samples().shuffle(seed=1).map(number).batch(16),
                num_workers=workers,
                rank=rank,
                world_size=ranks,
            )
            for rank in range(ranks)
        ]
        seen = [n for step in zip(*made, strict=True) for batch in step for n in batch]
        for each in made:
            list(each)  # another epoch, of which nothing has to be fetched
        fetched[ranks] = sum(each.metrics()["bytes_fetched"] for each in made)
        for each in made:
            each.close()
        assert sorted(seen) == list(range(rows))

    whole = int(data.snapshot.manifest.sizes(["n", "blob"])[0].sum())
    assert whole <= fetched[1] < 1.3 * whole
    assert fetched[2] < 1.3 * whole
