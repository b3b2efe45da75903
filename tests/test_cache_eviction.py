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


def places(files: list[tuple[str, int]], digest: str, position: int) -> tuple[int, int]:
    """Where `digest` is used last before and next from `position`, by looking."""
    before = [i for i, (name, _) in enumerate(files) if name == digest and i < position]
    after = [i for i, (name, _) in enumerate(files) if name == digest and i >= position]
    return (before[-1] if before else -1), (after[0] if after else -1)


@st.composite
def groups(draw: st.DrawFn) -> tuple[Group, list[list[tuple[str, int]]]]:
    epochs = draw(st.lists(uses, min_size=1, max_size=2))
    position = draw(st.integers(0, len(epochs[0])))
    return Group(tuple(map(Needs.of, epochs)), position, draw(st.integers(0, 30))), epochs


def ahead(group: Group, epochs: list[list[tuple[str, int]]], digest: str) -> int:
    """Bytes until the group's hindmost uses `digest` next, by adding them up."""
    total = 0
    for name, size in [*epochs[0][group.position :], *(file for epoch in epochs[1:] for file in epoch)]:
        if name == digest:
            return total
        total += size
    return NEVER


@given(uses, st.sampled_from(DIGESTS), st.integers(0, 12))
def test_needs_know_where_a_file_is_used_last_and_next(
    files: list[tuple[str, int]], digest: str, position: int
) -> None:
    position = min(position, len(files))

    last, next_ = Needs.of(files).around(np.array([prefix(digest)], np.uint64), position)

    assert (int(last[0]), int(next_[0])) == places(files, digest, position)


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
    live: list[tuple[Group, list[list[tuple[str, int]]]]], used: list[int], limit: int
) -> None:
    """Nothing in a live plan's window is a victim, nothing needed before the newcomer is, and all else is."""
    order, free = cached(
        DIGESTS, [5] * 8, [float(u) for u in used], [group for group, _ in live], horizon=limit
    )

    stay = set()
    needed = set()
    for i, digest in enumerate(DIGESTS):
        distances = [(ahead(group, epochs, digest), group.resident) for group, epochs in live]
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
def test_the_order_is_unneeded_then_used_then_needed_last(
    drawn: tuple[Group, list[list[tuple[str, int]]]], used: list[int]
) -> None:
    """Least recently used; newest first, where it is used up; latest first, where it is needed."""
    group, epochs = drawn
    order, free = cached(DIGESTS, [5] * 8, [float(u) for u in used], [group])

    known = {name for epoch in epochs for name, _ in epoch}
    unneeded = [i for i in order[:free] if DIGESTS[i] not in known]
    spent = [i for i in order[:free] if DIGESTS[i] in known]
    assert order[:free] == unneeded + spent
    assert unneeded == sorted(unneeded, key=lambda i: used[i])
    lasts = [places(epochs[0], DIGESTS[i], group.position)[0] for i in spent]
    assert lasts == sorted(lasts, reverse=True)
    distances = [ahead(group, epochs, DIGESTS[i]) for i in order[free:]]
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
    ("digest", "expected"),
    [
        pytest.param(0, -1, id="in the window"),
        pytest.param(3, 30, id="beyond the window: as late as it is used"),
        pytest.param(5, -1, id="in no plan: wanted now"),
    ],
)
def test_a_file_may_wait_only_where_plans_alone_ask_for_it_and_beyond_their_windows(
    digest: int, expected: int
) -> None:
    group = Group((Needs.of([(name, 10) for name in DIGESTS[:4]]),), 0, 20)

    assert horizon(DIGESTS[digest], 10, [group]) == expected


def test_needs_of_a_million_files_answer_in_one_go() -> None:
    """Memory is O(files): 16 bytes a file and an index of as much."""
    rng = np.random.default_rng(0)
    needs = Needs(rng.integers(0, 2**63, 1_000_000).astype(np.uint64), np.full(1_000_000, 64 << 20, np.int64))

    last, next_ = needs.around(needs.prefixes[:1000], 500)

    assert last[:500].tolist() == list(range(500))
    assert next_[500:].tolist() == list(range(500, 1000))
