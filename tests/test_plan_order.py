"""The order of an epoch's rows: which rows, in which blocks, from which shards; and how good a shuffle is."""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from lake.plan import Layout, Order, order_rows
from lake.plan import order as order_module
from tests.plans import Masks, given, layouts, orders, rows_of_order, selected_rows, selections


@given(layouts(), st.data(), orders)
def test_an_order_has_each_selected_row_once(
    layout: Layout, data: st.DataObject, how: dict[str, Any]
) -> None:
    """Or as many of them as the limit allows, and no other row."""
    selection = data.draw(selections(layout))
    expected = selected_rows(layout, selection)

    order = order_rows(layout, selection=selection, **how)
    rows = rows_of_order(order)

    assert len(rows) == len(set(rows)) == order.rows
    assert set(rows) <= set(expected)
    assert len(rows) == len(expected if how["limit"] is None else expected[: how["limit"]])
    if how["shuffle"] is False:
        assert rows == expected[: len(rows)]


@given(layouts(), st.data(), orders)
def test_a_limit_ends_the_same_order_early(layout: Layout, data: st.DataObject, how: dict[str, Any]) -> None:
    """It changes nothing before its end, and no block after it is planned."""
    selection = data.draw(selections(layout))

    cut = order_rows(layout, selection=selection, **how)
    whole = order_rows(layout, selection=selection, **(how | {"limit": None}))

    assert rows_of_order(cut) == rows_of_order(whole)[: cut.rows]
    assert cut.blocks <= whole.blocks
    assert all(len(cut.block_rows(t)[0]) for t in range(cut.blocks) if t == cut.blocks - 1)


@given(layouts(), st.data(), orders)
def test_every_place_is_found_in_its_block(layout: Layout, data: st.DataObject, how: dict[str, Any]) -> None:
    """`locate` undoes laying the blocks end to end; places outside are errors."""
    order = order_rows(layout, selection=data.draw(selections(layout)), **how)
    found = [order.locate(place) for place in range(order.rows)]

    assert found == [(t, i) for t in range(order.blocks) for i in range(len(order.block_rows(t)[0]))]
    for outside in (-1, order.rows):
        with pytest.raises(IndexError):
            order.locate(outside)


@given(layouts(), st.data(), orders)
def test_a_block_reads_what_its_rows_lie_in(layout: Layout, data: st.DataObject, how: dict[str, Any]) -> None:
    """Its pieces name the record batches of its rows and no others, ascending, of shards that it needs."""
    order = order_rows(layout, selection=data.draw(selections(layout)), **(how | {"limit": None}))

    for t in range(order.blocks):
        shards, rows = order.block_rows(t)
        lie_in = {
            (s, r // int(layout.batch_rows[s])) for s, r in zip(shards.tolist(), rows.tolist(), strict=True)
        }
        read = [(piece.shard, batch) for piece in order.block(t).pieces for batch in piece.batches.tolist()]
        assert len(read) == len(set(read))
        assert set(read) == lie_in
        assert all(sorted(piece.batches) == piece.batches.tolist() for piece in order.block(t).pieces)
        assert {shard for shard, _ in read} <= set(order.shards(t).tolist())


@given(layouts(), st.data(), orders)
def test_arrivals_and_departures_add_up_to_what_is_needed(
    layout: Layout, data: st.DataObject, how: dict[str, Any]
) -> None:
    """A reader that keeps what arrived until it departs has, at each block, exactly its shards."""
    order = order_rows(layout, selection=data.draw(selections(layout)), **how)
    resident: set[int] = set()
    for t in range(order.blocks):
        arriving = order.arrivals(t).tolist()
        assert resident.isdisjoint(arriving)
        resident |= set(arriving)
        assert resident == set(order.shards(t).tolist())
        assert len(arriving) <= (1 if t else order.window)
        resident -= set(order.departures(t).tolist())
    assert not resident


@st.composite
def dealt(draw: st.DrawFn) -> tuple[Layout, int]:
    """Shards that all have at least W record batches, and W."""
    window = draw(st.integers(1, 5))
    counts = draw(st.lists(st.integers(window, 3 * window), min_size=window, max_size=9))
    size = draw(st.integers(1, 6))
    rows = [count * size - draw(st.integers(0, size - 1)) for count in counts]
    return Layout.of(rows, [size] * len(rows)), window


@given(dealt(), st.integers(0, 99))
def test_a_record_batch_is_decoded_once_an_epoch(case: tuple[Layout, int], seed: int) -> None:
    """All its rows are in one block, if its shard has as many batches as the window has shards."""
    layout, window = case
    order = order_rows(layout, shuffle=True, seed=seed, shuffle_window=window)
    read = [
        (piece.shard, batch)
        for t in range(order.blocks)
        for piece in order.block(t).pieces
        for batch in piece.batches.tolist()
    ]
    assert len(read) == len(set(read)) == int((-(-layout.rows // layout.batch_rows)).sum())


@given(dealt(), st.integers(0, 99))
def test_a_deal_is_circular_and_level(case: tuple[Layout, int], seed: int) -> None:
    """Block t has one piece of each of W neighbours in visiting order, equal to within one batch a shard."""
    layout, window = case
    order = order_rows(layout, shuffle=True, seed=seed, shuffle_window=window)
    visit = order.visit.tolist()
    sizes: dict[int, list[int]] = {shard: [] for shard in visit}

    assert sorted(visit) == list(range(len(layout.rows)))
    assert order.blocks == len(visit)
    for t in range(order.blocks):
        pieces = order.block(t).pieces
        assert [piece.shard for piece in pieces] == [visit[(t + k) % len(visit)] for k in range(window)]
        for piece in pieces:
            sizes[piece.shard].append(len(piece.batches))
    assert all(len(of_shard) == window and max(of_shard) - min(of_shard) <= 1 for of_shard in sizes.values())


@given(st.lists(st.integers(1, 30), min_size=2, max_size=7), st.integers(2, 5), st.integers(0, 99))
def test_a_shard_with_few_batches_deals_rows(rows: list[int], window: int, seed: int) -> None:
    """Each block then has a share of them, equal to within one row."""
    order = order_rows(Layout.of(rows, rows), shuffle=True, seed=seed, shuffle_window=window)
    for shard in range(len(rows)):
        taken = [p.count for t in range(order.blocks) for p in order.block(t).pieces if p.shard == shard]
        assert sum(taken) == rows[shard]
        assert max(taken) - min(taken) <= 1


def test_equal_shards_make_equal_blocks() -> None:
    """64 batches over 16 pieces divide evenly: each block is as large as a shard, the first included."""
    order = order_rows(Layout.of([6400] * 20, [100] * 20), shuffle=True, seed=5)
    assert np.diff(order.starts).tolist() == [6400] * 20


@pytest.mark.parametrize("shuffle", [True, "full"])
def test_seed_and_epoch_change_the_order_and_nothing_else_does(shuffle: Any) -> None:
    """The same arguments give the same order, also after pickling; another seed or epoch another."""
    layout = Layout.of([50, 0, 70, 60], [7, 1, 7, 70])
    first = rows_of_order(order_rows(layout, shuffle=shuffle, seed=1))

    assert rows_of_order(order_rows(layout, shuffle=shuffle, seed=1)) == first
    assert rows_of_order(pickle.loads(pickle.dumps(order_rows(layout, shuffle=shuffle, seed=1)))) == first
    others = [(2, 0), (1, 1), (0, 1), (1, 2), (-1, 0)]
    rows = [rows_of_order(order_rows(layout, shuffle=shuffle, seed=s, epoch=e)) for s, e in others]
    assert len({tuple(order) for order in [first, *rows]}) == len(others) + 1


def test_orders_never_change() -> None:
    """Saved positions count on these orders; a change is a new ALGORITHM, never an edit of this test."""
    layout = Layout.of([90, 31, 0, 64, 77, 8], [9, 4, 1, 8, 77, 3])
    selection = Masks([np.arange(rows) % 5 != 3 for rows in layout.rows])
    how: dict[str, Any] = {"seed": 7, "epoch": 2, "shuffle_window": 4}
    digests = {}
    for shuffle in (False, True, "full"):
        for selected in (None, selection):
            rows = rows_of_order(order_rows(layout, shuffle=shuffle, selection=selected, **how))
            digests[shuffle, selected is not None] = hashlib.sha256(str(rows).encode()).hexdigest()[:16]
    assert digests == {
        (False, False): "f077c19209bf0e9b",
        (False, True): "f110ccc5acbdae87",
        (True, False): "8bed9bfc8b10649d",
        (True, True): "45b3b21ca0b4ecfc",
        ("full", False): "163535070f23e8af",
        ("full", True): "020ea5577f9b7415",
    }
    assert order_module.EXACT == 2**20  # where a full shuffle changes its way of finding places


def test_a_full_shuffle_of_many_rows_is_computed_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above EXACT rows no permutation is kept, and the order has each selected row once all the same."""
    monkeypatch.setattr(order_module, "EXACT", 100)
    monkeypatch.setattr(order_module, "FULL_BLOCK", 64)
    layout = Layout.of([500, 300, 0, 777], [100, 7, 1, 777])
    selection = Masks([np.arange(rows) % 3 > 0 for rows in layout.rows])

    rows = rows_of_order(order_rows(layout, shuffle="full", seed=3, selection=selection))

    assert sorted(rows) == selected_rows(layout, selection)
    assert rows != sorted(rows)


@given(layouts(), st.data(), st.integers(1, 9))
def test_a_shuffle_asks_the_selection_for_what_a_block_needs(
    layout: Layout, data: st.DataObject, window: int
) -> None:
    """Whole shards are never asked for, and a block asks only for its own."""
    selection = data.draw(selections(layout).filter(lambda found: found is not None))
    order = order_rows(layout, shuffle=True, selection=selection, shuffle_window=window)
    some = {s for s, mask in enumerate(selection.masks) if 0 < mask.sum() < len(mask)}

    assert set(selection.asked) <= some
    for t in range(order.blocks):
        selection.asked.clear()
        order.block(t)
        assert set(selection.asked) == some & set(order.shards(t).tolist())


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"shuffle": "half"}, "half"),
        ({"shuffle_window": 0}, "shuffle_window"),
        ({"limit": -1}, "limit"),
        ({"seed": 2**64}, "seed"),
        ({"epoch": -1}, "epoch"),
        ({"selection": Masks([np.ones(3, bool), np.ones(3, bool)])}, "selection"),
        ({"selection": Masks([np.ones(11, bool)])}, "selection"),
    ],
)
def test_what_means_nothing_is_refused(changed: dict[str, Any], says: str) -> None:
    """With the name of the argument."""
    with pytest.raises(ValueError, match=says):
        order_rows(Layout.of([10], [5]), **changed)


@pytest.mark.parametrize("arrays", [([1], [0]), ([-1], [1]), ([1, 2], [1]), ([1], [1], [-5]), ([[1]], [[1]])])
def test_a_layout_that_cannot_be_is_refused(arrays: tuple[Any, ...]) -> None:
    """Lengths agree, nothing is negative, and no batch is empty."""
    with pytest.raises(ValueError, match="layout"):
        Layout.of(*arrays)


def test_a_selection_that_miscounts_is_found_out() -> None:
    """A shard whose rows are not as many as counted would shift every row after it."""

    class Miscounts(Masks):
        def rows(self, shard: int) -> np.ndarray:
            return super().rows(shard)[1:]

    order = order_rows(Layout.of([10], [5]), selection=Miscounts([np.arange(10) < 5]))
    with pytest.raises(ValueError, match="gave 4 rows of shard 0, not 5"):
        order.block(0)


# How good a shuffle is. The orders are frozen, so that these tests give the same numbers every time.

SHARDS, BATCHES, BATCH = 64, 64, 16
N = SHARDS * BATCHES * BATCH
UNIFORM = Layout.of([BATCHES * BATCH] * SHARDS, [BATCH] * SHARDS)


def row_numbers(order: Order) -> np.ndarray:
    """The rows' numbers in the version, in the order in which they come out."""
    firsts = np.cumsum(order.layout.rows) - order.layout.rows
    return np.concatenate(
        [firsts[shards] + rows for shards, rows in map(order.block_rows, range(order.blocks))]
    )


def same_shard(numbers: np.ndarray) -> float:
    shards = numbers // (BATCHES * BATCH)
    return float((shards[1:] == shards[:-1]).mean())


def within_window(visit: np.ndarray, window: int, rng: np.random.Generator) -> np.ndarray:
    """The ideal that is compared with: each row in any of the blocks that its shard's window covers."""
    at = np.empty(SHARDS, dtype=int)
    at[visit] = np.arange(SHARDS)
    numbers = np.arange(N)
    block = (at[numbers // (BATCHES * BATCH)] - rng.integers(0, window, N)) % SHARDS
    return np.lexsort((rng.random(N), block))


def displacement(numbers: np.ndarray) -> float:
    return float(np.abs(numbers - np.arange(N)).mean())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("batch_rows", [BATCH, BATCHES * BATCH])
def test_neighbours_are_from_other_shards(seed: int, batch_rows: int) -> None:
    """At the default window the next row is from the same shard at most 1.5 times as often as by chance."""
    layout = Layout.of(UNIFORM.rows, [batch_rows] * SHARDS)
    assert same_shard(row_numbers(order_rows(layout, shuffle=True, seed=seed))) < 1.5 / 16
    assert (
        same_shard(row_numbers(order_rows(layout, shuffle=False))) > 0.9
    )  # what the measure says of no shuffle


@pytest.mark.parametrize("seed", range(5))
def test_rows_move_as_far_as_by_chance(seed: int) -> None:
    """Within 5 % of rows that fall anywhere in their window, in the version and along the visiting order."""
    order = order_rows(UNIFORM, shuffle=True, seed=seed)
    numbers, ideal = row_numbers(order), within_window(order.visit, 16, np.random.default_rng(seed))
    assert displacement(numbers) == pytest.approx(displacement(ideal), rel=0.05)

    at = np.empty(SHARDS, dtype=int)
    at[order.visit] = np.arange(SHARDS)
    moved, by_chance = (
        np.abs((np.arange(N) // (BATCHES * BATCH) - at[rows // (BATCHES * BATCH)]) % -SHARDS).mean()
        for rows in (numbers, ideal)
    )
    assert moved == pytest.approx(by_chance, rel=0.05)


@pytest.mark.parametrize("exact", [True, False])
def test_a_full_shuffle_cannot_be_told_from_chance(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over 200 seeds, chi-squared does not reject that a row falls anywhere, whatever its neighbour does."""
    if not exact:
        monkeypatch.setattr(order_module, "EXACT", 0)
    layout = Layout.of([700, 300, 1000], [100, 30, 1000])

    def statistics(shuffle: Any) -> tuple[float, float]:
        orders_ = [row_numbers(order_rows(layout, shuffle=shuffle, seed=seed)) for seed in range(200)]
        places = np.argsort(np.array(orders_), axis=1)
        bins = places[:, 123] // 200, (places[:, 124] - places[:, 123]) % 2000 // 200
        first, second = (float(((np.bincount(b, minlength=10) - 20) ** 2 / 20).sum()) for b in bins)
        return first, second

    assert max(statistics("full")) < 27.88  # exceeded once in 1,000 by chance, with 9 degrees of freedom
    assert min(statistics(False)) > 27.88
