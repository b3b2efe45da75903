"""What ranks take: each row once, equal counts, and positions from which any ranks go on exactly."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from lake.plan import Even, Ranks, Share
from tests.plans import batches, every_rank, given, places, worlds

EVENS: list[Even] = ["split", "drop", "pad", None]

rows_ = st.integers(1, 120)
sizes = st.integers(1, 9)
partitions_ = st.integers(1, 7)


def all_shares(rows: int, size: int, world: tuple[int, int], **how: Any) -> list[Share]:
    return [Share.of(rows, size, ranks, **how) for ranks in every_rank(*world)]


def real(share: Share, i: int) -> list[int]:
    batch = share[i]
    return places(batch.runs)[: batch.rows - batch.pads]


def in_rounds(shares: list[Share]) -> list[int]:
    """All places in the order of rounds, and within a round of the ranks' places in it, without repeats."""
    by_slot = sorted(shares, key=lambda share: share.slot)
    rounds = max(len(share) for share in shares)
    return [place for i in range(rounds) for share in by_slot if i < len(share) for place in real(share, i)]


def as_the_docs_say(share: Share, since: int) -> list[int]:
    """The places from row `since` on: row t is of partition t mod P; a round lays partitions end to end."""
    cut = share.partitions
    taken: list[int] = []
    rounds = [share.batch_size * share.world_size] * share.full + list(share.tail)
    for size in rounds:
        drawn: dict[int, list[int]] = {int(number): [] for number in cut.order}
        for row in range(since, since + size):
            drawn[row % cut.count].append(cut.run(row % cut.count)[0] + row // cut.count)
        taken += itertools.chain.from_iterable(drawn.values())
        since += size
    return taken


@given(rows_, sizes, worlds(), partitions_, st.sampled_from(EVENS))
def test_each_row_is_taken_once_and_counts_are_equal(
    rows: int, size: int, world: tuple[int, int], partitions: int, even: Even
) -> None:
    """For any ranks, nodes, partitions, batch sizes and ends; only "drop" leaves some, only None differs."""
    assume(rows >= world[0] and (even != "drop" or rows >= size * world[0]))
    shares = all_shares(rows, size, world, partitions=partitions, even=even)
    taken = [place for share in shares for i in range(len(share)) for place in real(share, i)]

    assert len(taken) == len(set(taken))
    assert set(taken) <= set(range(rows))
    assert rows - len(taken) < (size * world[0] if even == "drop" else 1)
    assert len({len(share) for share in shares}) == 1 or even is None
    assert sorted(share.slot for share in shares) == list(range(world[0]))
    assert all(sum(share[i].rows for i in range(len(share))) == share.rows for share in shares)


@given(rows_, sizes, worlds(), partitions_, st.sampled_from(EVENS))
def test_all_rounds_but_the_last_are_full(
    rows: int, size: int, world: tuple[int, int], partitions: int, even: Even
) -> None:
    """The last two where "split" cuts them together; and there sizes differ by at most one, none is empty."""
    assume(rows >= world[0] and (even != "drop" or rows >= size * world[0]))
    shares = all_shares(rows, size, world, partitions=partitions, even=even)
    counts = [[share[i].rows for share in shares if i < len(share)] for i in range(len(shares[0]))]
    left = rows % (size * world[0])
    cut = 0 if even in ("drop", "pad") or not left else 2 if even == "split" and left < world[0] else 1

    full, last = (counts[:-cut], counts[-cut:]) if cut else (counts, [])
    assert all(batch == size for batch in itertools.chain.from_iterable(full if size > 1 else full[:-1]))
    ends = list(itertools.chain.from_iterable(last))
    if even == "split" and ends and size > 1:
        assert 1 <= min(ends) <= max(ends) <= min(size, min(ends) + 1)
    if even == "split" and size == 1:
        assert {1} <= set(itertools.chain.from_iterable(counts)) <= {1, 2}


def test_the_last_rounds_are_cut_level() -> None:
    """Every small case of "split": the sizes of the rounds after the full ones, largest first, as divided."""
    for rows, size, world in itertools.product(range(1, 30), range(2, 5), range(1, 6)):
        full, left = divmod(rows, size * world)
        if rows < world or not left:
            continue
        rounds = 1 if left >= world else 2
        together, slots = left + (rounds - 1) * size * world, rounds * world
        level = [together // slots + (slot < together % slots) for slot in range(slots)]

        shares = all_shares(rows, size, (world, 1))

        assert [len(share) for share in shares] == [full + 1] * world
        assert [share[i].rows for i in range(full + 1 - rounds, full + 1) for share in shares] == level


@given(rows_, sizes, worlds(), partitions_, st.sampled_from(EVENS))
def test_rounds_take_what_the_docs_say(
    rows: int, size: int, world: tuple[int, int], partitions: int, even: Even
) -> None:
    """The closed form of the runs agrees with dealing the epoch's rows to partitions one by one."""
    assume(rows >= world[0] and (even != "drop" or rows >= size * world[0]))
    shares = all_shares(rows, size, world, partitions=partitions, even=even)
    assert in_rounds(shares) == as_the_docs_say(shares[0], 0)


@given(rows_, sizes, worlds(), st.sampled_from(["split", "pad", None]))
def test_with_one_partition_the_order_is_the_same_for_all_ranks(
    rows: int, size: int, world: tuple[int, int], even: Even
) -> None:
    """Round by round, rank by rank, rows come in the epoch's order, whatever ranks and batch size are."""
    assume(rows >= world[0])
    assert in_rounds(all_shares(rows, size, (world[0], 1), even=even)) == list(range(rows))


@given(rows_, partitions_)
def test_partitions_are_equal_runs(rows: int, count: int) -> None:
    """They follow each other, cover the epoch, and differ by at most one row."""
    cut = Share.of(rows, 1, partitions=count).partitions
    runs = [cut.run(number) for number in range(count)]
    assert [0, *(stop for _, stop in runs)] == [*(start for start, _ in runs), rows]
    lengths = [stop - start for start, stop in runs]
    assert max(lengths) - min(lengths) <= 1


def foreign(ranks: Ranks, share: Share) -> list[int]:
    """Places of partitions that are not congruent to the rank's node."""
    cut = share.partitions
    modulus = min(ranks.nodes, cut.count)
    of_place = [number for number in range(cut.count) for _ in range(*cut.run(number))]
    return [p for batch in batches(share) for p in batch if (of_place[p] - ranks.node) % modulus]


@given(st.data(), st.integers(1, 4), st.integers(1, 3), sizes, st.sampled_from(["split", "pad", "drop"]))
def test_each_row_is_fetched_by_one_node(
    data: st.DataObject, nodes: int, ranks_each: int, size: int, even: Even
) -> None:
    """With a partition a node, or fewer for several nodes each, node n takes partitions congruent to n only,
    in the last rounds too."""
    partitions = data.draw(st.sampled_from([d for d in range(1, nodes + 1) if nodes % d == 0]))
    world = nodes * ranks_each
    rows = data.draw(st.integers(world * (size if even == "drop" else 1), 200))
    for ranks in every_rank(world, nodes):
        share = Share.of(rows, size, ranks, partitions=partitions, even=even)
        assert even == "pad" or foreign(ranks, share) == []
        assert [p for i in range(len(share)) for p in real(share, i) if p in foreign(ranks, share)] == []


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 8))
def test_each_row_is_fetched_by_one_node_of_a_smaller_cluster(
    nodes: int, ranks_each: int, times: int, factor: int, rounds: int
) -> None:
    """Resumed on fewer nodes, each takes several partitions, in whole batches of any size they divide."""
    world, partitions = nodes * ranks_each, nodes * times
    size = factor * times
    for ranks in every_rank(world, nodes):
        share = Share.of(world * size * rounds, size, ranks, partitions=partitions)
        assert foreign(ranks, share) == []


def test_a_batch_of_a_node_with_its_own_partition_is_one_run() -> None:
    """The usual case, one partition a node: eight ranks on two nodes read two streams, batch after batch."""
    shares = all_shares(1600, 10, (8, 2), partitions=2)
    assert [share[3].runs for share in shares[:4]] == [((120 + 10 * r, 130 + 10 * r),) for r in range(4)]
    assert [share[3].runs for share in shares[4:]] == [((920 + 10 * r, 930 + 10 * r),) for r in range(4)]


@given(rows_, sizes, worlds(), partitions_, st.sampled_from(EVENS), st.data())
def test_the_same_ranks_go_on_with_the_same_batches(
    rows: int, size: int, world: tuple[int, int], partitions: int, even: Even, data: st.DataObject
) -> None:
    """Stopping after any number of batches and resuming changes no batch of any rank, cut ones included."""
    assume(rows >= world[0] and (even != "drop" or rows >= size * world[0]))
    shares = all_shares(rows, size, world, partitions=partitions, even=even)
    done = data.draw(st.integers(0, min(len(share) for share in shares)))

    start, _ = shares[0].position(done)
    rest = all_shares(rows, size, world, partitions=partitions, even=even, start=shares[0].taken(done))

    assert [batches(share) for share in rest] == [batches(share)[done:] for share in shares]
    assert start == shares[0].taken(done) or (even is None and done == len(shares[0]))


@given(rows_, sizes, worlds(), partitions_, st.data())
def test_other_ranks_go_on_with_exactly_the_rest(
    rows: int, size: int, world: tuple[int, int], partitions: int, data: st.DataObject
) -> None:
    """However often the number of ranks, nodes and the batch size change, each row is taken once, and
    each partition's rows in their order."""
    taken: list[int] = []
    start, even = 0, "split"
    assume(rows >= world[0])
    while start < rows:
        shares = all_shares(rows, size, world, partitions=partitions, even=even, start=start)
        done = data.draw(st.integers(1, len(shares[0])))
        by_slot = sorted(shares, key=lambda share: share.slot)
        taken += [place for i in range(done) for share in by_slot for place in real(share, i)]
        start = shares[0].taken(done)
        assert len(taken) == start
        size, world = data.draw(sizes), data.draw(worlds())
        if rows - start < world[0]:
            even = data.draw(st.sampled_from(["pad", None]))
            if even is None:
                world = (1, 1)
    assert sorted(taken) == list(range(rows))
    cut = Share.of(rows, 1, partitions=partitions).partitions
    for number in range(partitions):
        first, stop = cut.run(number)
        assert [place for place in taken if first <= place < stop] == list(range(first, stop))


@given(rows_, sizes, worlds(), partitions_, st.data())
def test_what_is_taken_does_not_depend_on_ranks_or_batch_sizes(
    rows: int, size: int, world: tuple[int, int], partitions: int, data: st.DataObject
) -> None:
    """After t rows, the same t rows have been taken by any ranks."""
    assume(rows >= world[0])
    shares = all_shares(rows, size, world, partitions=partitions)
    done = data.draw(st.integers(0, len(shares[0])))

    taken = {place for share in shares for i in range(done) for place in real(share, i)}

    one = Share.of(rows, 1, partitions=partitions)
    assert taken == {place for i in range(shares[0].taken(done)) for place in real(one, i)}


@given(rows_, sizes, worlds(), partitions_)
def test_padding_repeats_rows_of_the_last_round(
    rows: int, size: int, world: tuple[int, int], partitions: int
) -> None:
    """Every batch is full, repeats come last in a batch, and are rows that the last round has anyway."""
    assume(rows >= world[0])
    shares = all_shares(rows, size, world, partitions=partitions, even="pad")
    assert all(
        share[i].rows == size == len(places(share[i].runs)) for share in shares for i in range(len(share))
    )
    last = len(shares[0]) - 1
    genuine = {place for share in shares for place in real(share, last)}
    assert {place for share in shares for place in places(share[last].runs)} == genuine
    assert all(not share[i].pads for share in shares for i in range(last))
    for share in shares:  # none of the round's rows is repeated more often than the others
        times = [places(share[last].runs).count(place) for place in genuine]
        assert max(times) - min(times) <= 1
    assert max(share[last].pads for share in shares) - min(share[last].pads for share in shares) <= 1


@pytest.mark.parametrize("even", EVENS)
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_fewer_rows_than_ranks_is_refused_on_every_rank(even: Even, rows: int) -> None:
    """With one message, so that no rank starts to wait for another."""
    said = set()
    for ranks in every_rank(4, 2):
        with pytest.raises(ValueError, match="4 ranks") as error:
            Share.of(rows, 2, ranks, even=even)
        said.add(str(error.value))
    assert len(said) == 1


def test_dropping_everything_is_refused() -> None:
    """A training run over nothing is a mistake; one reader alone may look at nothing."""
    with pytest.raises(ValueError, match="drop all 7 rows: a round takes 8"):
        Share.of(7, 2, Ranks(1, 4), even="drop")
    assert len(Share.of(7, 8, even="drop")) == 0
    assert len(Share.of(0, 8)) == 0


def test_too_few_rows_left_for_more_ranks_is_refused_with_ways_out() -> None:
    """One reader took all but three rows; eight ranks cannot share three."""
    with pytest.raises(ValueError, match=r"3 rows are left.*8 ranks.*3 ranks or fewer"):
        Share.of(103, 10, Ranks(0, 8), start=100)
    shares = all_shares(103, 10, (8, 1), start=100, even="pad")
    assert [len(share) for share in shares] == [1] * 8


@pytest.mark.parametrize("even", EVENS)
def test_an_epoch_that_is_over_has_no_batches(even: Even) -> None:
    """Resuming exactly at its end is no error."""
    assert [len(share) for share in all_shares(100, 10, (4, 2), start=100, even=even)] == [0] * 4


@given(rows_, sizes, worlds())
def test_where_counts_differ_an_ended_rank_says_so(rows: int, size: int, world: tuple[int, int]) -> None:
    """With even=None, the last position of a rank holds for all exactly where all have the same count."""
    assume(rows >= world[0])
    shares = all_shares(rows, size, world, even=None)
    same = len({len(share) for share in shares}) == 1
    for share in shares:
        assert share.position(len(share)) == (rows, same)
        assert all(share.position(i) == (i * size * world[0], True) for i in range(len(share)))


@given(worlds(9), partitions_)
def test_ranks_of_a_node_stand_together_in_a_round(world: tuple[int, int], partitions: int) -> None:
    """And each rank has a place of its own."""
    everybody = every_rank(*world)
    assert sorted(ranks.slot(partitions) for ranks in everybody) == list(range(world[0]))
    for node in range(world[1]):
        mine = [ranks for ranks in everybody if ranks.node == node]
        assert [ranks.rank for ranks in mine] == list(mine[0].of_node(node))
        assert [ranks.slot(partitions) for ranks in mine] == list(mine[0].slots(partitions))


@pytest.mark.parametrize(
    "given_",
    [
        (0, None), (None, 2), (2, 2), (-1, 2), (0, 0), (0, 2, 0, None), (0, 2, None, 2), (0, 2, 2, 2),
        (0, 2, 0, 3), (None, None, 0, 1), (0, 2, -1, 2),
    ],
)  # fmt: skip
def test_ranks_that_cannot_be_are_refused(given_: tuple[Any, ...]) -> None:
    """Half a pair, or a number outside its range."""
    with pytest.raises(ValueError, match=r"rank|node"):
        Ranks.of(*given_)


def test_ranks_are_named_or_not() -> None:
    """No rank means one reader of everything."""
    assert Ranks.of(None, None) is None
    assert Ranks.of(1, 2) == Ranks(1, 2, 1)
    assert Ranks.of(3, 4, 1, 2) == Ranks(3, 4, 2)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"even": "cut"}, "even"),
        ({"partitions": 0}, "partitions"),
        ({"start": 11}, "position 11"),
        ({"start": -1}, "position"),
    ],
)
def test_a_share_that_means_nothing_is_refused(how: dict[str, Any], says: str) -> None:
    """With the name of the argument."""
    with pytest.raises(ValueError, match=says):
        Share.of(**({"rows": 10, "batch_size": 2} | how))


def test_batches_outside_are_errors() -> None:
    """A share is a sequence without negative indexes."""
    for i in (-1, 5):
        with pytest.raises(IndexError):
            Share.of(10, 2)[i]
