"""Values as they were when their sample arrived, whatever its maker does next."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from lake.convert import read
from lake.errors import SchemaError
from lake.format.types import MAX_DEPTH


def stored(samples) -> list[dict[str, Any]]:
    found = read(samples)
    return pa.Table.from_batches(found.batches, found.schema).to_pylist()


def scribble(value: Any, n: int) -> None:
    """Change what a generator could change of it."""
    if isinstance(value, torch.Tensor):
        value.fill_(n)
    elif isinstance(value, np.ndarray):
        value[...] = n
    elif isinstance(value, (bytearray, memoryview)):
        value[0] = n
    elif isinstance(value, list):
        value[0] = n if isinstance(value[0], int) else value[0]
        scribble(value[0], n)
    elif isinstance(value, dict):
        value["x"] = n if isinstance(value["x"], int) else value["x"]
        scribble(value["x"], n)
    elif isinstance(value, tuple):
        scribble(value[0], n)


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros(3, np.int64),
        lambda: np.zeros(8, np.int64)[::2],
        lambda: np.zeros((2, 2), np.float32),
        lambda: np.array(0),
        lambda: torch.zeros(2),
        lambda: torch.tensor(0),
        lambda: bytearray(2),
        lambda: memoryview(bytearray(2)),
        lambda: memoryview(bytearray(4))[::2],
        lambda: [0, 1],
        lambda: [bytearray(2)],
        lambda: ([0], [1]),
        lambda: [np.zeros(2), np.zeros(3)],
        lambda: {"x": 0},
        lambda: {"x": {"x": [0]}},
        lambda: {"x": np.zeros(2)},
    ],
    ids=range(16),
)
def test_a_buffer_that_is_used_again_stores_each_of_its_states(make):
    """Every sample has the values that it had when it was yielded, fields dict included."""
    value, fields = make(), {}

    def samples(*, anew: bool):
        for n in range(1, 5):
            one = make() if anew else value
            scribble(one, n)
            fields["v"] = one
            yield n, {"v": one} if anew else fields

    assert stored(samples(anew=False)) == stored(samples(anew=True))


def test_keys_may_be_buffers_too():
    """A key is bytes from when it arrives."""
    key = bytearray(b"a")

    def samples():
        for letter in b"abc":
            key[0] = letter
            yield key, {"x": 1}

    assert [row["key"] for row in stored(samples())] == [b"a", b"b", b"c"]


class Lazy(Mapping):
    """A mapping that is no dict."""

    def __getitem__(self, name: str) -> int:
        return {"x": 1}[name]

    def __iter__(self):
        return iter(["x"])

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize("fields", [Lazy(), MappingProxyType({"x": 1})])
def test_fields_may_be_any_mapping(fields):
    """Also one that cannot be changed."""
    assert stored([(1, fields), (2, {"x": 2})]) == [{"key": 1, "x": 1}, {"key": 2, "x": 2}]


def nested(depth: int, wrap) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    "wrap", [lambda v: [v], lambda v: (v,), lambda v: {"x": v}], ids=["list", "tuple", "dict"]
)
@pytest.mark.parametrize("depth", [MAX_DEPTH, 100, 500, 5000])
def test_what_is_nested_too_deep_names_its_sample_and_field(wrap, depth):
    """One level less is stored; Arrow could not write more."""
    stored([("a", {"v": nested(MAX_DEPTH - 1, wrap)})])

    with pytest.raises(SchemaError, match=r"sample 'b' \(row 1\), field 'v': .*64 deep"):
        stored([("a", {"v": nested(1, wrap)}), ("b", {"v": nested(depth, wrap)})])


def test_what_holds_itself_names_its_sample_and_field():
    """A list in itself, a dict in itself."""
    one: list[Any] = []
    one.append(one)
    other: dict[str, Any] = {}
    other["v"] = other

    for value in (one, other):
        with pytest.raises(SchemaError, match=r"sample 'a' \(row 0\), field 'v': .*holds itself"):
            stored([("a", {"v": value})])
