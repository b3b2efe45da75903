"""Frozen randomness: the same numbers for ever, on every machine."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

import lake
from lake.pipeline.values import LONGEST, Unstorable, decode, encode
from tests.contracts.stage import items, plain


def test_golden() -> None:
    """Saved positions and derived datasets count on these."""
    assert lake.seeded("split", 7) == GOLDEN["seeded"]
    assert items(lake.random_stream(1), 3) == GOLDEN["random_stream"]
    letters = [lake.from_iterable(["a"]).repeat(), lake.from_iterable(["b"]).repeat()]
    assert "".join(lake.mix(letters, [2, 1], seed=5).take(12)) == GOLDEN["mix"]
    assert "".join(lake.choice(letters, 0.5, seed=5).take(12)) == GOLDEN["choice"]
    assert items(lake.from_iterable(range(12)).shuffle(6, seed=5)) == GOLDEN["shuffle"]
    assert items(lake.from_iterable(range(8)).maybe(lambda n: -1, 0.5, seed=5)) == GOLDEN["maybe"]


GOLDEN: dict[str, Any] = {
    "seeded": 1315073518438404016,
    "random_stream": [0.4586366009457423, 0.7816110699249976, 0.2375671439781647],
    "mix": "babaaaaabaaa",
    "choice": "bbbabaabbabb",
    "shuffle": [2, 1, 0, 7, 6, 3, 11, 5, 9, 4, 10, 8],
    "maybe": [0, 1, 2, 3, -1, 5, 6, 7],
}


def test_seeds_of_other_parts_are_other_seeds() -> None:
    """Types and grouping count, not only how parts look."""
    parts: list[tuple[Any, ...]] = [
        (), (1,), ("1",), (b"1",), (1.0,), (None,), (1, 2), (12,), ("1", "2"), ("12",), ((1, 2),), ((1,), 2), (-1,),
        (2**70,), ("",), (b"",),
    ]  # fmt: skip
    assert all(lake.seeded(*a) != lake.seeded(*b) for a, b in combinations(parts, 2))
    assert lake.seeded(np.int64(3), np.float64(0.5)) == lake.seeded(3, 0.5)
    assert all(0 <= lake.seeded(*part) < 2**64 for part in parts)
    with pytest.raises(TypeError, match="not list"):
        lake.seeded([1])


def test_a_seeded_generator_is_numpys() -> None:
    """Equal parts, equal numbers."""
    a, b, c = lake.seeded_rng("x", 1), lake.seeded_rng("x", 1), lake.seeded_rng("x", 2)
    assert a.random() == b.random() != c.random()


def test_a_random_stream_is_even_endless_and_new_in_each_epoch() -> None:
    """Numbers in [0, 1); an epoch never shares its numbers with another."""
    stream = lake.random_stream(3)
    first, second = items(stream, 3000), items(stream, 3000)
    assert all(0 <= number < 1 for number in first)
    assert abs(float(np.mean(first)) - 0.5) < 0.02
    assert len(set(first) | set(second)) == 6000
    assert items(lake.random_stream(), 5) != items(lake.random_stream(), 5)


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, -1.5, float("inf"), "é", b"\x00", [1, (2, [3.0])], {"a": (1,), 2: None}, ("list", 1), [],
        np.arange(6).reshape(2, 3), np.float32(0.5), np.array("text"), {},
    ],
    ids=str,
)  # fmt: skip
def test_values_come_back_as_they_were(value: Any) -> None:
    """Types and bits included."""
    made = decode(encode(value))
    assert type(made) is type(value)
    assert plain(made) == plain(value)


@pytest.mark.parametrize(
    "value", [{1}, object(), "x" * (LONGEST + 1), np.array([None]), [b"x" * LONGEST] * 2]
)
def test_what_a_position_cannot_hold_is_told(value: Any) -> None:
    """Other types, and what is large."""
    with pytest.raises(Unstorable):
        encode(value)
