"""The wrappers: what is counted, and that every fault does what its name says."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lake.errors import StoreError
from lake.stores import LocalStore, Store
from lake.stores.wrappers import FAULTS, CountingStore, FaultStore


def publish(store: Store, key: str, data: bytes) -> bool:
    with store.stage() as staged:
        staged.write(data)
        return staged.publish(key, hashlib.sha256(data).hexdigest())


WRITES: dict[str, Callable[[Store], object]] = {
    "put_new": lambda store: store.put_new("new", b"12345678"),
    "put": lambda store: store.put("new", b"12345678"),
    "publish": lambda store: publish(store, "new", b"12345678"),
    "copy": lambda store: store.copy("old", "new"),
}
READS: dict[str, Callable[[Store], object]] = {
    "get": lambda store: store.get("old"),
    "get_range": lambda store: store.get_range("old", 0, 8),
    "get_into": lambda store: store.get_into("old", 0, bytearray(8)),
    "list": lambda store: [found.key for found in store.list()],
    "list_dirs": lambda store: [*store.list_dirs()],
}


@pytest.fixture
def inside(local_store: LocalStore) -> LocalStore:
    local_store.put_new("old", b"12345678")
    local_store.put_new("other/x", b"")
    return local_store


def test_calls_and_bytes_are_counted(inside: LocalStore) -> None:
    """By verb, in order, both ways; a listing is one call, a stage counts when published."""
    store = CountingStore(inside)
    for call in (*READS.values(), *WRITES.values()):
        call(store)
    store.head("old")
    store.delete(["new"])

    assert store.counts == dict.fromkeys([*READS, *WRITES, "head", "delete"], 1)
    assert [verb for verb, _ in store.calls] == [*READS, *WRITES, "head", "delete"]
    assert (store.bytes_read, store.bytes_written) == (24, 24)
    store.reset()
    assert (store.counts, store.calls, store.bytes_read) == ({}, [], 0)


def test_counting_loses_nothing_among_threads(inside: LocalStore) -> None:
    """Eight threads, one count."""
    store = CountingStore(inside)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: store.get("old"), range(400)))

    assert (store.counts["get"], store.bytes_read) == (400, 3200)


@pytest.mark.parametrize("verb", [*READS, *WRITES])
@pytest.mark.parametrize("fault", ["raise", "503", "dead", ZeroDivisionError()], ids=str)
def test_a_call_that_fails_did_nothing(inside: LocalStore, fault: Any, verb: str) -> None:
    """The fault comes before the call: the store inside is as it was."""
    store = FaultStore(inside, {0: fault})
    expected = type(fault) if isinstance(fault, BaseException) else StoreError

    with pytest.raises(expected) as caught:
        (READS | WRITES)[verb](store)

    assert getattr(caught.value, "retryable", False) is (fault == "503")
    assert [found.key for found in inside.list()] == ["old", "other/x"]


@pytest.mark.parametrize("verb", WRITES)
def test_a_lost_reply_means_done(inside: LocalStore, verb: str) -> None:
    """The call was carried out, and the caller is told that it may not have been."""
    store = FaultStore(inside, {0: "lost"})

    with pytest.raises(StoreError, match="lost") as caught:
        WRITES[verb](store)

    assert caught.value.retryable
    assert inside.get("new") == b"12345678"


@pytest.mark.parametrize("verb", READS)
def test_a_truncated_reply_is_half_of_it(inside: LocalStore, verb: str) -> None:
    """Bytes end half-way in silence; a listing raises there."""
    store = FaultStore(inside, {0: "truncate"})
    if verb.startswith("list"):
        with pytest.raises(StoreError, match="broke off"):
            READS[verb](store)
    else:
        assert READS[verb](store) in (b"1234", 4)


@pytest.mark.parametrize("verb", ["list", "list_dirs"])
def test_a_lost_listing_raises(inside: LocalStore, verb: str) -> None:
    """It never looks like an empty one."""
    with pytest.raises(StoreError, match="broke off"):
        READS[verb](FaultStore(inside, {0: "lost"}))


def test_slow_is_right(inside: LocalStore) -> None:
    """Only later."""
    assert FaultStore(inside, {0: "slow"}, delay=0.001).get("old") == b"12345678"


def test_only_the_planned_calls_fail(inside: LocalStore) -> None:
    """Calls are numbered over all verbs; after "dead" nothing works any more."""
    store = FaultStore(inside, {1: "raise", 4: "dead"})
    outcomes = []
    for _ in range(7):
        try:
            outcomes.append(store.get("old"))
        except StoreError:
            outcomes.append(b"failed")

    good, bad = b"12345678", b"failed"
    assert outcomes == [good, bad, good, good, bad, bad, bad]
    assert store.calls == [("get", "old")] * 7


def test_a_sweep_reaches_every_call(inside: LocalStore) -> None:
    """A clean run tells how many calls there are; each of them can be made to fail, in each way."""

    def work(store: Store) -> None:
        for call in (*READS.values(), *WRITES.values()):
            call(store)
            inside.delete(["new"])

    clean = FaultStore(inside)
    work(clean)
    assert len(clean.calls) == len(READS) + len(WRITES)
    for i in range(len(clean.calls)):
        for fault in set(FAULTS) - {"slow", "truncate"}:
            with pytest.raises(StoreError):
                work(FaultStore(inside, {i: fault}))
            inside.delete(["new"])


def test_calls_of_threads_are_numbered_once(inside: LocalStore) -> None:
    """However they interleave, exactly the planned number of calls fails."""
    store = FaultStore(inside, dict.fromkeys(range(0, 300, 3), "503"))

    def get(_: int) -> bool:
        try:
            return bool(store.get("old"))
        except StoreError:
            return False

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(get, range(300))) == 200


def test_plans_travel(inside: LocalStore) -> None:
    """A worker process gets the same faults, counted from its own first call."""
    store = pickle.loads(pickle.dumps(FaultStore(inside, {0: "503"})))

    with pytest.raises(StoreError, match="503"):
        store.get("old")
    assert store.get("old") == b"12345678"
