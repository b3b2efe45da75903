"""The way to a device, walked without one: same values, bounded slots, and the position of what was handed out."""

from __future__ import annotations

from collections import namedtuple
from itertools import islice
from typing import Any

import pytest
import torch

from lake.dataset import Dataset
from lake.torch import DeviceFeed, loader
from lake.torch.device import AHEAD, Mover, PlainRoute
from tests.torch.conftest import ROWS

Pair = namedtuple("Pair", "x y")


class Watched(PlainRoute):
    """A route that notes what happens, and whose events are numbers."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.log: list[tuple[str, Any]] = []

    def send(self, staged: torch.Tensor) -> tuple[torch.Tensor, Any]:
        event = sum(kind == "send" for kind, _ in self.log)
        self.log.append(("send", event))
        return super().send(staged)[0], event

    def receive(self, sent: torch.Tensor, event: Any) -> None:
        self.log.append(("receive", event))

    def wait(self, event: Any) -> None:
        self.log.append(("wait", event))


def item(n: int) -> Any:
    return {
        "x": torch.full((n % 3, 5), n),
        "pair": Pair(torch.tensor(n, dtype=torch.bfloat16), [torch.arange(n).bool(), "text"]),
        "strided": torch.arange(12).reshape(3, 4).t() + n,
        "none": None,
    }


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and left.equal(right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return type(left) is type(right) and all(map(same, left, right))
    return bool(left == right)


def test_items_arrive_as_they_were_though_slots_are_used_again() -> None:
    """All types and shapes, in containers; kept ones stay what they were."""
    feed = DeviceFeed([item(n) for n in range(20)], "cpu")
    kept = list(feed)

    assert len(feed) == 20
    assert all(same(item(n), found) for n, found in enumerate(kept))
    assert isinstance(kept[3]["pair"], Pair)


def test_a_slot_is_written_again_only_after_its_copy() -> None:
    """And what is handed out was waited for on the stream of who uses it."""
    route = Watched()
    mover = Mover(route, slots=2)
    moved = [mover.begin(torch.tensor([n])) for n in range(5)]
    values = [mover.end(each).item() for each in moved]

    assert values == list(range(5))
    assert route.log[:7] == [
        ("send", 0),
        ("send", 1),
        ("wait", 0),
        ("send", 2),
        ("wait", 1),
        ("send", 3),
        ("wait", 2),
    ]
    assert [event for kind, event in route.log if kind == "receive"] == list(range(5))


def test_cuda_where_there_is_none_is_refused_with_the_device(
    ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Feeds and loaders say so when they are made, and what to do."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for make in (lambda: DeviceFeed([], "cuda:0"), lambda: loader(ds.scan(), device="cuda:0")):
        with pytest.raises(ValueError, match="device='cuda:0': torch finds no CUDA device here"):
            make()


def test_items_without_tensors_need_no_transfer() -> None:
    """Nor do empty tensors."""
    route = Watched()
    mover = Mover(route)
    given = {"text": "a", "empty": torch.empty(0, 3)}

    assert mover.end(mover.begin(given)) is given
    assert not route.log


def test_the_position_is_that_of_the_item_in_use_not_of_those_on_their_way(ds: Dataset) -> None:
    """Of a scan, a pipeline, and somebody else's iterable."""
    for make in (lambda: ds.scan(["n"], batch_size=8), lambda: ds.samples(columns=["n"]).map(row).batch(8)):
        made = loader(make(), device="cpu", num_workers=0)
        stream = iter(made)
        first = next(stream)
        state = made.state_dict()
        rest = list(stream)
        again = loader(make(), device="cpu", num_workers=0)
        again.load_state_dict(state)

        assert same(list(again), rest)
        assert (
            sum(len(batch["n"]) if isinstance(batch, dict) else len(batch) for batch in [first, *rest])
            == ROWS
        )

    feed = DeviceFeed(ds.scan(["n"], batch_size=8).to_torch(), "cpu")
    assert len(list(islice(feed, 3))) == 3
    assert feed.state_dict()["rows"] == 24
    feed.load_state_dict(feed.state_dict())
    assert next(iter(feed))["n"][0] == 24


def test_a_scan_as_tensors_on_a_device_goes_the_same_way(ds: Dataset) -> None:
    """Ahead of who uses them, with the position of the batch in use; dropped half way, it goes on from there."""
    plain = list(ds.scan(["n"], batch_size=8).to_torch())
    moved = ds.scan(["n"], batch_size=8).to_torch(device="cpu")
    got = list(islice(moved, 4))
    state = moved.state_dict()
    again = ds.scan(["n"], batch_size=8).to_torch(device="cpu")
    again.load_state_dict(state)

    assert state["rows"] == 32
    assert same(got + list(again), plain)
    assert again.state_dict()["rows"] == ROWS
    with pytest.raises(RuntimeError, match=r"read through scan.to_torch\(\)"):
        moved.scan.state_dict()


def test_what_is_inside_a_feed_names_the_feed(ds: Dataset) -> None:
    """Pipelines, tensors of a scan, loaders; the feed goes on from its own positions."""
    for inner in (
        ds.samples(columns=["n"]).map(row),
        ds.scan(["n"], batch_size=1).to_torch(),
        loader(ds.scan(["n"], batch_size=1)),
    ):
        feed = DeviceFeed(inner, "cpu")
        items = list(islice(feed, 3))
        for ask in (inner.state_dict, lambda inner=inner: inner.load_state_dict({})):
            with pytest.raises(
                RuntimeError, match=r"read through DeviceFeed\(.*: call .*state_dict\(\) of that"
            ):
                ask()
        state = feed.state_dict()
        following = next(iter(feed))
        feed.load_state_dict(state)
        assert len(items) == 3
        assert not same(next(iter(feed)), following)


def test_a_bar_counts_batches(ds: Dataset, capfd: pytest.CaptureFixture[str]) -> None:
    """Where it is asked for; nothing goes to stdout."""
    made = loader(ds.scan(["n"], batch_size=8), progress=True)
    count = len(list(made))

    said = capfd.readouterr()
    assert f"{count} batches" in said.err
    assert not said.out


def row(sample: Any) -> torch.Tensor:
    return torch.tensor(sample[1]["n"])


def test_so_many_items_are_ahead_and_errors_come_in_their_place() -> None:
    """After the last item before them."""
    read: list[int] = []

    def items() -> Any:
        for n in range(9):
            read.append(n)
            if n == 5:
                raise OSError("five")
            yield torch.tensor(n)

    stream = iter(DeviceFeed(items(), "cpu"))
    assert next(stream) == 0
    assert len(read) == 1 + AHEAD
    assert [int(n) for n in islice(stream, 4)] == [1, 2, 3, 4]
    with pytest.raises(OSError, match="five"):
        next(stream)
