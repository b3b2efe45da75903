"""What differs between two versions, held against multisets of Python rows; and how little is read to find out."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import lake
from lake.diff import Change
from lake.format.fingerprints import combined, fingerprints
from lake.stores.wrappers import CountingStore
from tests import strategies
from tests.changing import FULL, SHARD, Rows, birds, lake_of, over, table


class Bucket(CountingStore):
    """A folder that is read like a bucket, so that every byte read is counted."""

    def local_path(self, key: str) -> None:
        return None


def frozen(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted(row.items()))


def expected(old: Rows, new: Rows, key: str | None) -> tuple[Counter[Any], Counter[Any], Counter[Any]]:
    """Keys added, removed and changed, as multisets; without a key whole rows."""
    before, after = Counter(map(frozen, old)), Counter(map(frozen, new))
    gone, come = before - after, after - before
    if key is None:
        return come, gone, Counter()
    went: Counter[Any] = Counter()
    came: Counter[Any] = Counter()
    for row, count in gone.items():
        went[dict(row)[key]] += count
    for row, count in come.items():
        came[dict(row)[key]] += count
    return came - went, went - came, came & went


def small(draws: list[tuple[int, int]], pad: int = 900) -> Rows:
    """Rows with few keys, so that they repeat, and heavy enough for several shards."""
    return [
        {"key": f"k{k}", "x": x, "label": "ab"[x % 2], "image": np.random.default_rng(k).bytes(pad)}
        for k, x in draws
    ]


ROWS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3)), max_size=60)


@settings(max_examples=60 if FULL else 15, deadline=None)
@given(old=ROWS, new=ROWS, shared=st.integers(0, 60), keyed=st.booleans())
def test_the_rows_that_differ_are_those_of_multisets(
    old: list[tuple[int, int]], new: list[tuple[int, int]], shared: int, keyed: bool
):
    """Added, removed and changed, keys and numbers, whatever repeats and wherever it moved."""
    before, after = small(old), small(old[:shared] + new)
    with tempfile.TemporaryDirectory() as folder:
        lk = lake.open(folder, progress=False)
        key = "key" if keyed else None
        schema = table([]).schema
        for rows in (before, after):
            lk.commit("n", table(rows), schema=schema, key=key, shard_bytes=SHARD, expect=None)
        versions = ("n@#1", "n@#1" if before == after else "n@#2")

        found = lk.diff(*versions)

        added, removed, changed = expected(before, after, key)
        assert [len(part) for part in (found.added, found.removed, found.changed)] == [
            sum(part.values()) for part in (added, removed, changed)
        ]
        if keyed:
            assert Counter(found.added.keys()) == added
            assert Counter(found.removed.keys()) == removed
            assert Counter(found.changed.keys()) == changed
        else:
            assert Counter(map(frozen, map(after.__getitem__, found.added.keys()))) == added
            assert Counter(map(frozen, map(before.__getitem__, found.removed.keys()))) == removed
        assert bool(found) == bool(added or removed or changed)


def test_every_kind_of_change_is_told(tmp_path: Path):
    """Rows by key in the version's order, columns with both types, meta, and the bytes to fetch."""
    lk = lake_of(tmp_path, birds(100))
    lk.update_rows("birds", table([row | {"label": "z"} for row in birds(100)[40:43]], "key", "label"))
    lk.delete_rows("birds", "x < 5")
    lk.drop_columns("birds", ["x"])
    lk.add_columns("birds", pa.table({"y": range(len(lk.dataset("birds")))}))
    more = birds(3, 100)
    lk.commit("birds", table(more, "key", "label", "image"), mode="append", meta={"license": "CC0", "n": 1})

    found = lk.diff("birds@#1", "birds")

    assert list(found.added.keys()) == [row["key"] for row in more]
    assert list(found.removed.keys()) == [row["key"] for row in birds(5) if row["x"] is not None]
    assert list(found.changed.keys()) == [row["key"] for row in birds(100)[40:43]]
    assert found.schema == (Change("x", "int64", None), Change("y", None, "int64"))
    assert found.meta == (Change("license", None, "CC0"), Change("n", None, 1))
    old = {p.digest for s in lk.dataset("birds@#1").snapshot.manifest.shards() for p in s.parts}
    new = {p.digest: p.bytes for s in lk.dataset("birds").snapshot.manifest.shards() for p in s.parts}
    assert found.bytes == sum(size for digest, size in new.items() if digest not in old) > 0
    back = lk.diff("birds", "birds@#1")
    assert list(back.removed.keys()) == list(found.added.keys())
    assert list(back.added.keys()) == list(found.removed.keys())
    assert list(back.changed.keys()) == list(found.changed.keys())


def test_a_version_does_not_differ_from_itself(tmp_path: Path):
    """Nor from a copy, nor from the same rows in another order or other shards."""
    lk = lake_of(tmp_path, birds(60))
    lk.copy("birds", "copy")
    lk.commit("turned", table(birds(60)[::-1]), shard_bytes="1MiB")

    for other in ("birds", "copy", "turned", lk.dataset("copy")):
        found = lk.diff("birds", other)
        assert not found
        assert (len(found.added), len(found.removed), len(found.changed)) == (0, 0, 0)
    assert lk.diff("birds", "copy").bytes == 0
    assert lk.diff("birds", "turned").bytes > 0


def test_rows_that_were_appended_again_are_added(tmp_path: Path):
    """Whole segments may come twice."""
    lk = lake_of(tmp_path, birds(5), birds(5))

    found = lk.diff("birds@#1", "birds")

    assert list(found.added.keys()) == [row["key"] for row in birds(5)]
    assert not len(found.changed)


def test_only_shards_that_differ_are_read(tmp_path: Path):
    """One row of hundreds deleted: only its shard is read, before and after; equal versions cost nothing."""
    lk = lake_of(tmp_path, birds(400))
    lk.delete_rows("birds", "key = 'k00200'")
    store = Bucket(lk.store)
    cached = over(lk, store)
    first, second = cached.dataset("birds@#1"), cached.dataset("birds")
    assert len(first.snapshot.manifest) == len(second.snapshot.manifest) > 10
    store.reset()

    assert list(cached.diff(first, second).removed.keys()) == ["k00200"]

    assert {key for verb, key in store.calls if verb.startswith("get") and key.startswith("shards/")} == {
        f"shards/{digest[:2]}/{digest}.arrow" for digest in differing(first, second)
    }
    store.reset()
    assert not cached.diff(second, second)
    assert [key for _, key in store.calls if key.startswith("shards/")] == []


def differing(first: Any, second: Any) -> set[str]:
    """Digests of the parts that only one of two datasets has."""
    sides = [{p.digest for s in ds.snapshot.manifest.shards() for p in s.parts} for ds in (first, second)]
    return sides[0] ^ sides[1]


def test_correcting_labels_is_told_without_reading_an_image(tmp_path: Path):
    """Of shards that share a part, only the parts they do not share are read."""
    rows = [row | {"image": row["image"] * 10} for row in birds(200)]
    lk = lake.open(tmp_path, progress=False)
    lk.commit("birds", table(rows), shard_bytes="64KiB")
    ten = [row | {"label": "z"} for row in rows[50:55] + rows[150:155]]
    lk.update_rows("birds", table(ten, "key", "label"))
    lk.add_columns("birds", pa.table({"y": range(200)}))
    store = Bucket(lk.store)
    cached = over(lk, store)
    first, last = cached.dataset("birds@#1"), cached.dataset("birds")
    heavy = {p.digest for s in first.snapshot.manifest.shards() for p in s.parts if "image" in p.fields}

    found = cached.diff(first, last)

    assert list(found.changed.keys()) == [row["key"] for row in ten]
    read_digests = {key[-70:-6] for verb, key in store.calls if verb.startswith("get") and "shards/" in key}
    assert heavy
    assert not heavy & read_digests
    assert read_digests <= differing(first, last)


def test_versions_without_a_common_key_are_compared_by_content(tmp_path: Path):
    """Keys are then numbers of rows; nothing counts as changed."""
    lk = lake.open(tmp_path, progress=False)
    lk.commit("n", pa.table({"a": [1, 2, 2, 3], "b": list("wxyz")}), key="a")
    lk.commit("n", pa.table({"a": [2, 1, 3, 9], "b": list("xwzz")}), key="b")

    found = lk.diff("n@#1", "n")

    assert (list(found.added.keys()), list(found.removed.keys()), len(found.changed)) == ([3], [2], 0)


def test_columns_of_another_type_are_a_change_of_schema_alone(tmp_path: Path):
    """Rows are compared in the others; nullability and dictionaries show in the types."""
    lk = lake.open(tmp_path, progress=False)
    lk.commit("n", pa.table({"key": ["a", "b"], "x": [1, 2], "l": ["u", "v"]}))
    lk.commit(
        "n",
        pa.table(
            {"key": ["a", "b"], "x": [1.0, 2.0], "l": pa.array(["u", "w"]).dictionary_encode()},
            pa.schema(
                [
                    pa.field("key", pa.string(), nullable=False),
                    ("x", pa.float64()),
                    ("l", pa.dictionary(pa.int32(), pa.string())),
                ]
            ),
        ),
    )

    found = lk.diff("n@#1", "n")

    assert [change.name for change in found.schema] == ["key", "x", "l"]
    assert found.schema[0] == Change("key", "large_string", "large_string not null")
    assert list(found.changed.keys()) == ["b"]


@settings(max_examples=150 if FULL else 40, deadline=None)
@given(data=st.data())
def test_equal_values_have_equal_fingerprints_and_others_have_not(data: st.DataObject):
    """Of any type, however the array is laid out; each row on its own."""
    type_ = data.draw(strategies.types())
    array = data.draw(strategies.arrays(type_, min_size=0, max_size=12))
    found = fingerprints(array)

    chunks = data.draw(strategies.disguises(array))
    assert np.array_equal(np.concatenate([fingerprints(chunk) for chunk in chunks]), found)
    for row in range(len(array)):
        assert fingerprints(array.slice(row, 1))[0] == found[row]
    shown = [repr(value) for value in array.to_pylist()]
    for one in range(len(array)):
        for other in range(one):
            if shown[one] != shown[other]:
                assert found[one] != found[other], (array[one], array[other])


def test_fingerprints_tell_places_and_lengths_apart():
    """Lists of the same items in another order, nulls and empty values, long binaries by their last byte."""
    lists = pa.array([[1, 2], [2, 1], [1, 2, 0], [], None, [None], [0]])
    long = pa.array([b"x" * 1000 + bytes([n]) for n in range(5)] + [None, b""])

    assert len(set(fingerprints(lists).tolist())) == len(lists)
    assert len(set(fingerprints(long).tolist())) == len(long)
    ones = np.ones(3, np.uint64)
    assert len({*combined(ones, ones * 2).tolist(), *combined(ones * 2, ones).tolist()}) == 2


def test_versions_without_a_common_column_have_no_row_in_common(tmp_path: Path) -> None:
    """All rows of the one are removed, all of the other added; a column of another type is not common."""
    lk = lake.open(tmp_path / "lake")
    lk.commit("a", pa.table({"n": pa.array([1, 2, 3])}), key=None)
    lk.commit("b", pa.table({"x": ["p", "q"]}), key=None)
    lk.commit("c", pa.table({"n": pa.array([1, 2], pa.int8())}), key=None)
    for other, changes in (("b", ["n", "x"]), ("c", ["n"])):
        found = lk.diff("a", other)

        assert (list(found.removed.keys()), list(found.added.keys())) == ([0, 1, 2], [0, 1])
        assert (len(found.changed), [one.name for one in found.schema]) == (0, changes)
