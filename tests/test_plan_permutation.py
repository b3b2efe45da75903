"""The frozen permutations: what they give, for ever, and that they are permutations and even."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from lake.plan.permutation import ALGORITHM, bijection, key, keys, mix, permutation
from tests.plans import given


def test_what_a_seed_means_never_changes() -> None:
    """These values are in people's checkpoints: a change of any is a new ALGORITHM, never an edit here."""
    assert ALGORITHM == 1
    # The first outputs of splitmix64 started at 0, as published with it.
    assert [
        hex(int(word)) for word in mix(np.arange(1, 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    ] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]
    assert key(1, 2, 3) == 15020427595393229491
    assert permutation(42, 10).tolist() == [4, 1, 6, 2, 8, 3, 9, 0, 7, 5]
    assert bijection(42, 10**12, np.arange(4)).tolist() == [
        681469345324,
        632090573470,
        90219980816,
        743894171773,
    ]


@given(st.integers(0, 2**64 - 1), st.integers(0, 300))
def test_a_permutation_has_each_number_once(word: int, size: int) -> None:
    """No size is special, nothing included."""
    assert sorted(permutation(word, size).tolist()) == list(range(size))


@given(st.integers(0, 2**64 - 1), st.integers(1, 3000))
def test_a_bijection_has_each_number_once(word: int, size: int) -> None:
    """Also where its size is far below the power of two it works in."""
    assert sorted(bijection(word, size, np.arange(size)).tolist()) == list(range(size))


@given(
    st.integers(0, 2**64 - 1), st.integers(1, 2**40), st.lists(st.integers(0, 2**40), min_size=1, max_size=50)
)
def test_a_bijection_is_computed_in_any_pieces(word: int, size: int, asked: list[int]) -> None:
    """What stands at a position does not depend on which others are asked for with it."""
    positions = np.array(asked) % size

    together = bijection(word, size, positions).tolist()

    assert together == [int(bijection(word, size, positions[i : i + 1])[0]) for i in range(len(positions))]
    assert all(0 <= number < size for number in together)


@given(st.lists(st.integers(-(2**63), 2**64 - 1), max_size=3), st.lists(st.integers(0, 2**62), max_size=5))
def test_many_keys_are_the_single_ones(prefix: list[int], last: list[int]) -> None:
    """The vectorised form and the form for one agree."""
    assert keys(key(*prefix), np.array(last, dtype=np.int64)).tolist() == [key(*prefix, x) for x in last]


def chi_squared(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


CRITICAL_9 = 27.88  # chi-squared with 9 degrees of freedom exceeds it once in 1,000


@pytest.mark.parametrize("size", [10, 1000, 1 << 16])
@pytest.mark.parametrize("item", [0, 1, 9])
def test_a_permutation_puts_an_item_anywhere(size: int, item: int) -> None:
    """Over 200 seeds, the position of an item is uniform."""
    where = [int(np.flatnonzero(permutation(key(seed), size) == item)[0]) for seed in range(200)]
    assert chi_squared(np.bincount(np.array(where) * 10 // size, minlength=10)) < CRITICAL_9


@pytest.mark.parametrize("size", [2**20 + 1, 3 * 10**9, 2**40 - 7])
@pytest.mark.parametrize("position", [0, 1, 12345])
def test_a_bijection_puts_anything_at_a_position(size: int, position: int) -> None:
    """Over 2,000 seeds, what stands at a position is uniform, and so is its distance to what follows."""
    pairs = [bijection(key(seed), size, np.array([position, position + 1])) for seed in range(2000)]
    here, after = np.array(pairs).T
    assert chi_squared(np.bincount(here * 10 // size, minlength=10)) < CRITICAL_9
    assert chi_squared(np.bincount((after - here) % size * 10 // size, minlength=10)) < CRITICAL_9
