"""What every store promises (`lake.stores.base`), as a suite: subclass it and give it a `store` fixture.

class TestMyStore(StoreContract):
    @pytest.fixture
    def store(self): return MyStore(...)   # empty
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import random
import threading
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from lake.errors import NotFoundError
from lake.stores import Store, probe, probe_identical
from lake.stores.base import check_key


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def keys(found: Any) -> list[str]:
    return [each.key for each in found]


NAMES = [  # in the order of their bytes; "." and "-" sort before "/", so a folder is not where its name is
    "a-b/x",
    "a.txt",
    "a/1",
    "a/10",
    "a/2",
    "a/b-c",
    "a/b/c/deep",
    "a/b0",
    "ab",
    "b/last",
    "é/ü",
    "日本/語",
    "🦆",
]


class StoreContract:
    """Subclasses provide the fixture `store`: a `Store` that is empty."""

    more_than_a_page = 1003  # keys; pages of S3 have 1000

    # --- reading what was written -------------------------------------------------------------

    @pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_001])
    def test_what_was_put_is_what_is_got(self, store: Store, size: int) -> None:
        """`get` returns the very bytes, of any size, none included."""
        data = random.Random(size).randbytes(size)

        assert store.put_new("a/b", data)

        assert store.get("a/b") == data

    def test_names_survive_as_they_are(self, store: Store) -> None:
        """Letters of any script, spaces, percent and plus signs mean nothing to a store."""
        odd = ["ä/ö ü.json", "100%/a%2Fb", "a+b=c&d?e#f", "~tilde'quote\"", "日本語/🦆", "trailing. "]
        for key in odd:
            store.put_new(key, key.encode())

        assert [store.get(key) for key in odd] == [key.encode() for key in odd]
        assert keys(store.list()) == sorted(odd)

    @pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "..", "a/../../b", "./a", "a/.", "a\\b", "a\0b"])
    def test_a_key_that_leads_elsewhere_is_refused(self, store: Store, key: str) -> None:
        """Every verb that takes a key raises ValueError before it does anything."""
        with pytest.raises(ValueError, match="no key"):
            check_key(key)
        with store.stage() as staged:
            staged.write(b"x")
            verbs: list[Callable[[], object]] = [
                lambda: store.get(key),
                lambda: store.get_range(key, 0, 1),
                lambda: store.head(key),
                lambda: store.put(key, b""),
                lambda: store.put_new(key, b""),
                lambda: store.copy(key, "x"),
                lambda: store.delete([key]),
                lambda: staged.publish(key, sha256(b"x")),
            ]
            for verb in verbs:
                with pytest.raises(ValueError, match="no key"):
                    verb()

    def test_what_is_absent_is_not_found(self, store: Store) -> None:
        """`get`s raise NotFoundError naming the key, `head` says None; a folder of keys is no object."""
        store.put_new("there/is", b"x")
        for key in ("nothing", "there/isnt", "there", "there/is/not"):
            with pytest.raises(NotFoundError, match=key):
                store.get(key)
            with pytest.raises(NotFoundError, match=key):
                store.get_range(key, 0, 5)
            with pytest.raises(NotFoundError, match=key):
                store.get_into(key, 0, bytearray(5))
            assert store.head(key) is None

    def test_a_range_ends_where_the_object_ends(self, store: Store) -> None:
        """Ranges inside, across and beyond the end give exactly the bytes that exist there."""
        data = bytes(range(256)) * 40
        store.put_new("r", data)
        for start, length in [
            (0, 1),
            (0, len(data)),
            (5000, 333),
            (10_239, 1),
            (10_000, 999),
            (10_240, 5),
            (99_999, 1),
            (7, 0),
        ]:
            assert store.get_range("r", start, length) == data[start : start + length]
            into = bytearray(b"\xff" * length)
            count = store.get_into("r", start, into)
            assert into[:count] == data[start : start + length]

    def test_a_range_of_an_empty_object_is_empty(self, store: Store) -> None:
        """An object of no bytes has no bytes in any range."""
        store.put_new("empty", b"")

        assert store.get_range("empty", 0, 10) == b""
        assert store.get_into("empty", 0, bytearray(10)) == 0

    @pytest.mark.parametrize(("start", "length"), [(-1, 5), (0, -1)])
    def test_a_range_that_counts_backwards_is_refused(self, store: Store, start: int, length: int) -> None:
        """There are no negative offsets: Python's meaning of them would read the wrong bytes in silence."""
        store.put_new("r", b"0123456789")

        with pytest.raises(ValueError, match="no range"):
            store.get_range("r", start, length)

    def test_a_huge_length_costs_no_memory(self, store: Store) -> None:
        """A length that a hostile document names is bounded by what the object has."""
        store.put_new("r", b"0123456789")

        tracemalloc.start()
        try:
            assert store.get_range("r", 2, 1 << 50) == b"23456789"
            assert tracemalloc.get_traced_memory()[1] < 50 << 20
        finally:
            tracemalloc.stop()

    def test_head_tells_size_and_time(self, store: Store) -> None:
        """`modified` is by the clock that `now` reads, so the difference is an age."""
        before = store.now()
        store.put_new("h", b"12345")

        found = store.head("h")

        assert found is not None
        assert (found.key, found.size) == ("h", 5)
        assert before - 2 <= found.modified <= store.now() + 2  # Date has whole seconds

    # --- creating only what is not there ------------------------------------------------------

    def test_a_taken_key_is_left_alone(self, store: Store) -> None:
        """`put_new` and `publish` say False on a taken key, and the first bytes stay."""
        assert store.put_new("k", b"first")

        assert not store.put_new("k", b"second")
        assert not store.put_new("k", b"first")
        with store.stage() as staged:
            staged.write(b"third")
            assert not staged.publish("k", sha256(b"third"))
        assert store.get("k") == b"first"

    @pytest.mark.parametrize("how", ["put_new", "publish"])
    def test_of_sixteen_racing_creates_one_wins(self, store: Store, how: str) -> None:
        """Exactly one thread is told True, and what is stored is what that one wrote."""
        start = threading.Barrier(16)

        def create(i: int) -> bytes | None:
            data = f"writer {i}".encode() * 100
            if how == "put_new":
                start.wait()
                return data if store.put_new("race/key", data) else None
            with store.stage() as staged:
                staged.write(data)
                start.wait()
                return data if staged.publish("race/key", sha256(data)) else None

        with ThreadPoolExecutor(16) as threads:
            won = [data for data in threads.map(create, range(16)) if data is not None]

        assert len(won) == 1
        assert store.get("race/key") == won[0]

    def test_a_put_replaces(self, store: Store) -> None:
        """`put` creates or replaces, longer by shorter too."""
        store.put("head", b"a long first value")
        store.put("head", b"12")

        assert store.get("head") == b"12"

    def test_a_reader_never_sees_half_a_put(self, store: Store) -> None:
        """While one thread replaces an object, every read gives one of its values, whole."""
        values = [bytes([i]) * 50_000 for i in range(12)]
        store.put("k", values[0])
        done = threading.Event()
        seen: set[bytes] = set()

        def read() -> None:
            while not done.is_set():
                seen.add(store.get("k"))

        reader = threading.Thread(target=read)
        reader.start()
        for value in values:
            store.put("k", value)
        done.set()
        reader.join()

        assert seen
        assert seen <= set(values)

    def test_the_probe_accepts_it(self, store: Store) -> None:
        """The store keeps two writers apart, and the probe leaves nothing behind."""
        store.put_new("lake.json", b"{}")

        probe(store)
        probe_identical(store, "lake.json", b"{}")

        assert keys(store.list()) == ["lake.json"]

    # --- staging ------------------------------------------------------------------------------

    def test_any_buffer_can_be_written(self, store: Store) -> None:
        """Bytes, views of wider items, bytearrays and Arrow buffers are appended and counted as bytes."""
        wide = memoryview(pa.array([1, 2, 3], pa.int64()).buffers()[1]).cast("q")
        pieces: list[Any] = [
            b"abc",
            bytearray(b"de"),
            memoryview(b"xfgx")[1:3],
            pa.py_buffer(b"hi"),
            wide,
            b"",
        ]
        whole = b"".join(bytes(piece) for piece in pieces)

        with store.stage() as staged:
            written = [staged.write(piece) for piece in pieces]
            assert staged.tell() == len(whole)
            assert staged.publish("buffers", sha256(whole))

        assert written == [3, 2, 2, 2, 24, 0]
        assert store.get("buffers") == whole

    def test_large_and_small_pieces_keep_their_order(self, store: Store) -> None:
        """What a buffer keeps and what passes it arrives as it was written, beyond what memory keeps too."""
        rng = random.Random(7)
        pieces = [rng.randbytes(rng.choice([1, 7, 100, 300_000, 2_500_000])) for _ in range(16)]
        whole = b"".join(pieces)

        with store.stage() as staged:
            for piece in pieces:
                staged.write(piece)
            assert staged.publish("pieces", sha256(whole))

        assert sha256(store.get("pieces")) == sha256(whole)

    def test_an_unpublished_stage_leaves_nothing(self, store: Store) -> None:
        """Leaving the block, by its end or by an exception, discards what was written."""
        with store.stage() as staged:
            staged.write(b"forgotten" * 1000)
        with pytest.raises(ZeroDivisionError), store.stage() as staged:
            assert staged.write(b"failed" * 1000) / 0

        assert keys(store.list()) == []

    def test_nothing_staged_is_seen_outside_tmp(self, store: Store) -> None:
        """Before publication no key outside `tmp/` appears, and afterwards `tmp/` is empty."""
        with store.stage() as staged:
            staged.write(b"x" * 100_000)
            assert [key for key in keys(store.list()) if not key.startswith("tmp/")] == []
            staged.publish("seen", sha256(b"x" * 100_000))

            assert keys(store.list()) == ["seen"]

    def test_a_refused_stage_can_be_published_elsewhere(self, store: Store) -> None:
        """After False the bytes are still there."""
        store.put_new("taken", b"other")
        with store.stage() as staged:
            staged.write(b"mine")
            assert not staged.publish("taken", sha256(b"mine"))
            assert staged.publish("free", sha256(b"mine"))

        assert store.get("free") == b"mine"

    def test_an_empty_stage_makes_an_empty_object(self, store: Store) -> None:
        """Publishing without writing is allowed."""
        with store.stage() as staged:
            assert staged.publish("empty", sha256(b""))

        assert store.get("empty") == b""

    # --- listing ------------------------------------------------------------------------------

    def test_listing_is_in_the_order_of_bytes(self, store: Store) -> None:
        """All keys, whole, sorted by their bytes: across folders, not folder by folder."""
        for key in random.Random(1).sample(NAMES, len(NAMES)):
            store.put_new(key, key.encode())

        found = list(store.list())

        assert keys(found) == NAMES == sorted(NAMES, key=str.encode)
        assert [each.size for each in found] == [len(key.encode()) for key in NAMES]

    @pytest.mark.parametrize(
        "prefix", ["", "a", "a/", "a/b", "a/b/", "a/1", "a/1/", "b/last", "nowhere/", "é"]
    )
    def test_a_prefix_is_any_beginning(self, store: Store, prefix: str) -> None:
        """A prefix may end inside a name; it is compared as text, not as a path."""
        for key in NAMES:
            store.put_new(key, b"")

        assert keys(store.list(prefix)) == [key for key in NAMES if key.startswith(prefix)]

    @pytest.mark.parametrize("prefix", ["", "a", "a/b"])
    def test_listing_goes_on_after_any_key(self, store: Store, prefix: str) -> None:
        """`start_after` is exclusive and need not exist."""
        for key in NAMES:
            store.put_new(key, b"")

        for after in [*NAMES, "a", "a/", "a/b", "a/b/", "a/b/c", "a/b/zz", "a/b/c/deeper", "A", "z", "a/b~"]:
            expected = [key for key in NAMES if key.startswith(prefix) and key > after]
            assert keys(store.list(prefix, start_after=after)) == expected, after

    def test_listing_crosses_pages(self, store: Store) -> None:
        """More keys than a page holds are all listed, once."""
        names = [f"many/{i:05}" for i in range(self.more_than_a_page)]
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda key: store.put_new(key, b""), names))

        assert keys(store.list("many/")) == names
        assert store.delete(names) == {}
        assert keys(store.list("many/")) == []

    def test_folders_are_those_that_hold_something(self, store: Store) -> None:
        """Immediate children only, sorted; a folder whose objects are deleted is gone."""
        for key in ("d/a/1", "d/b/c/2", "d/file", "d/ab/3", "e/x"):
            store.put_new(key, b"")
        store.put_new("d/gone/4", b"")
        store.delete(["d/gone/4"])

        assert list(store.list_dirs("d/")) == list(store.list_dirs("d")) == ["a", "ab", "b"]
        assert list(store.list_dirs()) == ["d", "e"]
        assert list(store.list_dirs("d/a")) == []
        assert list(store.list_dirs("nowhere")) == []

    # --- copying, deleting --------------------------------------------------------------------

    def test_a_copy_is_the_same_bytes(self, store: Store) -> None:
        """`copy` creates if absent, and is an object of its own."""
        data = random.Random(3).randbytes(200_000)
        store.put_new("shards/aa/x.arrow", data)

        assert store.copy("shards/aa/x.arrow", "shards/aa/x.g1.arrow")
        store.delete(["shards/aa/x.arrow"])

        assert store.get("shards/aa/x.g1.arrow") == data

    def test_a_copy_is_as_young_as_itself(self, store: Store) -> None:
        """Collectors judge by age: a copy must not inherit the age of its source."""
        store.put_new("old", b"x")
        path = store.local_path("old")
        if path is not None:
            os.utime(path, (0, 0))

        store.copy("old", "new")

        found = store.head("new")
        assert found is not None
        assert abs(found.modified - store.now()) < 60

    def test_a_copy_never_replaces(self, store: Store) -> None:
        """A taken target is left alone; an absent source is NotFoundError and makes nothing."""
        store.put_new("source", b"s")
        store.put_new("target", b"t")

        assert not store.copy("source", "target")
        assert store.get("target") == b"t"
        with pytest.raises(NotFoundError, match="nothing"):
            store.copy("nothing", "new")
        assert store.head("new") is None

    def test_deleting_is_idempotent(self, store: Store) -> None:
        """Absent keys count as deleted; nothing else goes."""
        store.put_new("a/1", b"")
        store.put_new("a/2", b"")

        assert store.delete(["a/1", "a/never", "nowhere/x"]) == {}
        assert store.delete(iter(["a/1"])) == {}
        assert store.delete([]) == {}

        assert keys(store.list()) == ["a/2"]

    def test_a_deleted_key_can_be_created_again(self, store: Store) -> None:
        """Creation depends on what is there now, not on what was."""
        store.put_new("k", b"1")
        store.delete(["k"])

        assert store.put_new("k", b"2")
        assert store.get("k") == b"2"

    # --- processes ----------------------------------------------------------------------------

    def test_it_pickles_to_what_it_was_built_from(self, store: Store) -> None:
        """A copy made by pickle reaches the same objects, also after use."""
        store.put_new("k", b"v")

        copy = pickle.loads(pickle.dumps(store))

        assert copy.url == store.url
        assert copy.get("k") == b"v"

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_it_works_in_a_child_after_use_in_the_parent(self, store: Store, method: str) -> None:
        """A child uses connections of its own; neither it nor the parent is disturbed."""
        if method not in multiprocessing.get_all_start_methods():
            pytest.skip(f"no {method} here")
        store.put_new("parent", b"p" * 50_000)
        context = multiprocessing.get_context(method)
        children: list[Any] = [context.Process(target=_in_child, args=(store, i)) for i in range(2)]
        for child in children:
            child.start()
        for _ in range(20):
            assert store.get("parent") == b"p" * 50_000
        for child in children:
            child.join(60)

        assert [child.exitcode for child in children] == [0, 0]
        assert [store.get(f"child/{i}") for i in range(2)] == [b"c0", b"c1"]

    def test_the_clock_runs(self, store: Store) -> None:
        """`now` never goes back, and is near the time of day that other clocks tell."""
        readings = [store.now() for _ in range(100)]

        assert readings == sorted(readings)

    def test_root_leases_that_are_shared_do_not_wait(self, store: Store) -> None:
        """Two writers may be about to make roots at once."""
        with store.root_lease(), store.root_lease():
            pass
        with store.root_lease(exclusive=True):
            pass


def _in_child(store: Store, i: int) -> None:
    for _ in range(20):
        assert store.get("parent") == b"p" * 50_000
    assert store.put_new(f"child/{i}", f"c{i}".encode())
