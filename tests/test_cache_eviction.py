"""The order of eviction, judged against a slow and obvious reading of it."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.cache.eviction import NEVER, Group, Needs, horizon, prefix, victims

DIGESTS = [hashlib.sha256(bytes([i])).hexdigest() for i in range(8)]
uses = st.lists(st.tuples(st.sampled_from(DIGESTS), st.integers(1, 9)), max_size=12)


Uses = list[tuple[str, int]]


@st.composite
def groups(draw: st.DrawFn) -> tuple[Group, list[Uses]]:
    """A group, and what it comes to use from its hindmost on: in its own epochs, and in the one after them."""
    *epochs, after = draw(st.lists(uses, min_size=2, max_size=3))
    position = draw(st.integers(0, len(epochs[0])))
    following = draw(st.sampled_from([None, Needs.of(after)]))
    group = Group(tuple(map(Needs.of, epochs)), position, draw(st.integers(0, 30)), following)
    now = [*epochs[0][position:], *(file for epoch in epochs[1:] for file in epoch)]
    return group, [now, epochs[-1] if following is None else after]


def until(files: Uses, digest: str) -> int:
    """Bytes of the files before `digest`, by adding them up."""
    names = [name for name, _ in files]
    return sum(size for _, size in files[: names.index(digest)]) if digest in names else NEVER


@given(uses, st.sampled_from(DIGESTS), st.integers(0, 14))
def test_needs_know_how_far_the_next_use_of_a_file_is(files: Uses, digest: str, position: int) -> None:
    found = Needs.of(files).until(np.array([prefix(digest)], np.uint64), position)

    assert int(found[0]) == until(files[position:], digest)


def cached(
    names: list[str], sizes: list[int], used: list[float], live: list[Group], **options: int
) -> tuple[list[int], int]:
    order, free = victims(
        np.array([prefix(name) for name in names], np.uint64),
        np.array(sizes, np.int64),
        np.array(used, np.float64),
        np.zeros(len(names), np.bool_),
        live,
        **options,
    )
    return order.tolist(), free


@given(st.lists(groups(), max_size=3), st.permutations(range(8)), st.integers(-1, 40))
def test_what_was_promised_or_is_needed_sooner_stays_and_the_rest_may_go(
    live: list[tuple[Group, list[Uses]]], used: list[int], limit: int
) -> None:
    """Nothing in a live plan's window is a victim, nothing needed before the newcomer is, and all else is."""
    order, free = cached(
        DIGESTS, [5] * 8, [float(u) for u in used], [group for group, _ in live], horizon=limit
    )

    stay = set()
    needed = set()
    for i, digest in enumerate(DIGESTS):
        distances = [(until(now, digest), group.resident) for group, (now, _) in live]
        soonest = min((distance for distance, _ in distances), default=NEVER)
        if (
            any(distance != NEVER and distance + 5 <= resident for distance, resident in distances)
            or soonest <= limit
        ):
            stay.add(i)
        if soonest != NEVER:
            needed.add(i)
    assert set(order) == set(range(8)) - stay
    assert set(order[:free]).isdisjoint(needed)
    assert set(order[free:]) <= needed


@given(groups(), st.permutations(range(8)))
def test_the_order_is_unneeded_then_used_up_then_needed(
    drawn: tuple[Group, list[Uses]], used: list[int]
) -> None:
    """Least recently used first where nothing comes back; elsewhere first what comes back last."""
    group, (now, after) = drawn
    order, free = cached(DIGESTS, [5] * 8, [float(u) for u in used], [group])

    unneeded = [i for i in order[:free] if until(after, DIGESTS[i]) == NEVER]
    spent = [i for i in order[:free] if i not in unneeded]
    assert order[:free] == unneeded + spent
    assert unneeded == sorted(unneeded, key=lambda i: used[i])
    returns = [until(after, DIGESTS[i]) for i in spent]
    assert returns == sorted(returns, reverse=True)
    distances = [until(now, DIGESTS[i]) for i in order[free:]]
    assert distances == sorted(distances, reverse=True)


def test_documents_go_after_files_unless_they_have_outgrown_their_share() -> None:
    """The newest documents within the limit are kept until no other file that is not needed is left."""
    order, free = victims(
        np.arange(4, dtype=np.uint64),
        np.array([10, 10, 10, 10], np.int64),
        np.array([1.0, 2.0, 3.0, 4.0]),
        np.array([True, True, True, False]),
        [],
        documents_limit=20,
    )

    assert (order.tolist(), free) == ([0, 3, 1, 2], 4)


@pytest.mark.parametrize(
    ("digest", "spread", "expected"),
    [
        pytest.param(0, False, -1, id="in the window"),
        pytest.param(3, False, 30, id="beyond the window: as late as it is used"),
        pytest.param(3, True, NEVER, id="beyond the window of the hindmost"),
        pytest.param(5, True, -1, id="in no plan: wanted now"),
    ],
)
def test_a_file_may_wait_only_where_plans_alone_ask_for_it_and_beyond_their_windows(
    digest: int, spread: bool, expected: int
) -> None:
    group = Group((Needs.of([(name, 10) for name in DIGESTS[:4]]),), 0, 20, spread=spread)

    assert horizon(DIGESTS[digest], 10, [group]) == expected


def test_needs_of_a_million_files_answer_in_one_go() -> None:
    """Memory is O(files): 16 bytes a file and an index of as much."""
    rng = np.random.default_rng(0)
    needs = Needs(rng.integers(0, 2**63, 1_000_000).astype(np.uint64), np.full(1_000_000, 64 << 20, np.int64))

    found = needs.until(needs.prefixes[:1000], 500)

    assert (found[:500] == NEVER).all()
    assert (found[500:] // (64 << 20)).tolist() == list(range(500))
