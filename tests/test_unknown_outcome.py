"""Replies that never come, rivals and retries: what a commit reports is what the log then says, once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import lake
from lake import commit
from lake.repo import Lake
from lake.stores.base import Buffer
from lake.stores.wrappers import CountingStore
from tests.memory import MemoryStore, keys_of, lake_on, rows


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit.time, "sleep", lambda seconds: None)


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a store falls silent for good, a commit gives up soon."""
    monkeypatch.setattr(commit, "DEADLINE", 0.2)


class Deaf(MemoryStore):
    """A store that may lose what it answers about log entries."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []  # bodies of log entries, as each attempt sent them
        self.reply: Callable[[int], str] = lambda attempt: (
            "heard"
        )  # "heard", "lost" or "dropped": not carried out
        self.silent = False  # nor can log entries be read
        self.between: Callable[[], object] = lambda: None  # what happens after a lost reply
        self.deleted: list[str] = []

    def put_new(self, key: str, data: Buffer) -> bool:
        if "/log/" not in key:
            return super().put_new(key, data)
        self.sent.append(bytes(data))
        reply = self.reply(len(self.sent))
        made = reply != "dropped" and super().put_new(key, data)
        if reply == "heard":
            return made
        between, self.between = self.between, lambda: None
        between()
        raise lake.StoreError("no reply", retryable=True)

    def get(self, key: str) -> bytes:
        if self.silent and "/log/" in key:
            raise lake.StoreError("no reply", retryable=True)
        return super().get(key)

    def delete(self, keys: Any) -> dict[str, Exception]:
        keys = list(keys)
        self.deleted += [key for key in keys if not key.startswith("tmp/")]
        return super().delete(keys)


@pytest.fixture
def store() -> Deaf:
    """A lake whose dataset `n` has one row, `a`; from then on replies are as the test says."""
    made = Deaf()
    lake_on(made).commit("n", rows("a"))
    made.sent.clear()
    return made


def append(store: Deaf, key: str, txn: str | None = None) -> int:
    return lake_on(store).commit("n", rows(key), mode="append", txn=txn).seq


def test_no_reply_ever_to_what_was_done_is_success(store: Deaf) -> None:
    """Each create is carried out and its reply lost, however often: the entry is read back, and is there once."""
    store.reply = lambda attempt: "lost"

    assert append(store, "b") == 2

    store.reply = lambda attempt: "heard"
    assert keys_of(lake_on(store), "n") == ["a", "b"]
    assert len(lake_on(store).log("n")) == 2
    assert not store.deleted


@pytest.mark.usefixtures("no_patience")
def test_a_store_that_falls_silent_leaves_a_state_that_the_txn_tells(store: Deaf) -> None:
    """Neither success nor failure is claimed; the same txn finds what landed, and never doubles it."""
    store.reply = lambda attempt: "lost"
    store.between = lambda: setattr(store, "silent", True)

    with pytest.raises(lake.CommitStateUnknown, match="Commit again with txn=") as caught:
        append(store, "b")

    store.silent, store.reply = False, lambda attempt: "heard"
    assert keys_of(lake_on(store), "n") == ["a", "b"]
    assert append(store, "b", txn=None) == 3, "without it, it is another append"
    landed = next(entry for entry in lake_on(store).refs.entries("n") if entry.txn == caught.value.txn)
    assert landed.seq == 2
    assert not store.deleted


@pytest.mark.usefixtures("no_patience")
def test_with_a_txn_of_its_own_a_commit_is_repeated_until_it_is_known(store: Deaf) -> None:
    """Whether it had landed or not."""
    for number, reply in enumerate(("lost", "dropped")):
        store.sent.clear()
        store.reply = lambda attempt, reply=reply: reply
        store.between = lambda: setattr(store, "silent", True)
        with pytest.raises(lake.CommitStateUnknown):
            append(store, f"b{number}", txn=f"t{number}")
        store.silent, store.reply = False, lambda attempt: "heard"

        assert append(store, f"b{number}", txn=f"t{number}") == 2 + number
        assert append(store, f"b{number}", txn=f"t{number}") == 2 + number
    assert keys_of(lake_on(store), "n") == ["a", "b0", "b1"]


def test_an_entry_that_others_have_built_upon_is_success_and_no_conflict(store: Deaf) -> None:
    """Its reply was lost, and the head is another's by the time that it is looked for."""
    store.reply = lambda attempt: "lost" if attempt == 1 else "heard"
    store.between = partial(append, store, "c")

    assert append(store, "b") == 2
    assert keys_of(lake_on(store), "n") == ["a", "b", "c"]


def test_each_attempt_sends_the_same_bytes(store: Deaf) -> None:
    """A create that was not carried out is repeated, not made anew."""
    store.reply = lambda attempt: "dropped" if attempt < 4 else "heard"

    assert append(store, "b") == 2

    assert len(store.sent) == 4
    assert len(set(store.sent)) == 1


def test_what_is_named_is_stored_before_what_names_it() -> None:
    """Parts, segments, version, log entry: each is asked for when all before it were acknowledged. Nothing goes."""
    store = CountingStore(MemoryStore())
    lk = lake_on(store)
    for act in (
        lambda: lk.commit("n", rows(*range(9))),
        lambda: lk.commit("n", rows("x"), mode="append"),
        lambda: lk.delete_rows("n", "key = '3'"),
        lambda: lk.compact("n"),
    ):
        store.reset()
        act()
        order = [_rank(key) for verb, key in store.calls if verb in ("publish", "put_new") and _rank(key)]
        assert order == sorted(order)
        assert order[-1] == 4
        assert order.count(4) == 1
        assert all(key.startswith("tmp/") for verb, key in store.calls if verb == "delete")


def _rank(key: str) -> int:
    kinds = ("shards/", "manifests/", "/versions/", "/log/")
    return next((rank for rank, kind in enumerate(kinds, 1) if kind in key), 0)


def test_fewer_rows_than_announced_are_no_commit(store: Deaf, monkeypatch: pytest.MonkeyPatch) -> None:
    """An input that breaks off quietly moves no head."""
    real = Lake._source
    monkeypatch.setattr(Lake, "_source", lambda *a, **more: replace(real(*a, **more), rows=3))

    with pytest.raises(lake.SchemaError, match="announced 3 rows and gave 2; nothing was committed"):
        lake_on(store).commit("n", rows("b", "c"))

    assert keys_of(lake_on(store), "n") == ["a"]


def test_what_was_built_on_a_version_that_is_expired_is_a_conflict(store: Deaf) -> None:
    """Not success: whoever read it must look again."""
    first = lake_on(store).dataset("n").version
    lake_on(store).commit("n", rows("b"))
    lake_on(store).expire("n", keep=1, dry_run=False)

    for mode in ("overwrite", "append"):
        with pytest.raises(lake.ConflictError):
            lake_on(store).commit("n", rows("c"), mode=mode, expect=first)


def test_statistics_are_those_of_the_version_that_landed(store: Deaf) -> None:
    """Two appends that began on one head: SQL over the table's statistics, and conditions, see both."""
    store.reply = lambda attempt: "lost" if attempt == 1 else "heard"
    pairs = itertools.permutations(["low", "zed"])
    for number, (one, other) in enumerate(pairs):
        name = f"m{number}"
        lake_on(store).commit(name, rows("k"))
        store.sent.clear()
        store.reply = lambda attempt: "dropped" if attempt == 1 else "heard"
        store.between = lambda name=name, other=other: lake_on(store).commit(name, rows(other), mode="append")

        lake_on(store).commit(name, rows(one), mode="append")

        lk = lake_on(store)
        assert sorted(keys_of(lk, name)) == ["k", "low", "zed"]
        for key in ("k", "low", "zed"):
            assert lk.dataset(name).count(f"key = '{key}'") == 1
        stats = lk.dataset(name).snapshot.manifest.stats("key").to_pylist()
        assert sorted((each["min"], each["max"]) for each in stats) == [
            ("k", "k"),
            ("low", "low"),
            ("zed", "zed"),
        ]
