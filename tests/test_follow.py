"""Rows as they are committed: each once, by whatever route, as batches or samples."""

from __future__ import annotations

import pickle
import threading
import time
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lake
from lake.errors import StoreError, VersionExpired
from lake.follow import Follow
from lake.refs import Refs
from tests.changing import FULL


@pytest.fixture
def lk(tmp_path: Path) -> lake.Lake:
    return lake.open(tmp_path / "l", cache_dir=tmp_path / "cache")


def rows(*numbers: int) -> pa.Table:
    return pa.table({"key": [f"k{n}" for n in numbers], "n": list(numbers)})


def heard(follow: Follow, count: int) -> list[int]:
    """The next so many numbers."""
    found: list[int] = []
    for batch in follow:
        found += batch.column("n").to_pylist()
        if len(found) >= count:
            return found
    return found


def drained(ds: lake.Dataset, **more) -> tuple[list[int], int]:
    """All there is to hear now, and the seq that it ends at."""
    stop = threading.Event()
    follow = ds.follow(poll=0.001, stop=stop, **more)
    head = ds.lake.refs.head(ds.name)
    found: list[int] = []
    real = follow._wait
    follow._wait = lambda until: stop.set() if follow.seq >= head.seq else real(until)
    for batch in follow:
        found += batch.column("n").to_pylist()
    return found, follow.seq


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 4)),
        st.tuples(st.just("overwrite"), st.integers(1, 4)),
        st.tuples(st.just("delete"), st.integers(0, 30)),
        st.tuples(st.just("insert"), st.integers(1, 3)),
        st.tuples(st.sampled_from(["compact", "update", "column"]), st.just(0)),
    ),
    max_size=7,
)


@settings(
    max_examples=60 if FULL else 8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(STEPS, st.integers(0, 7))
def test_every_new_row_is_heard_once(tmp_path_factory, steps, listened):
    """Appended, inserted and overwriting rows, in order; nothing for what is deleted, updated or compacted."""
    lk = lake.open(tmp_path_factory.mktemp("l") / "l")
    lk.commit("d", rows(0))
    new, fresh, since = [], iter(range(1, 1000)), 1
    for number, (what, count) in enumerate(steps):
        if number == listened:
            new, since = [], lk.refs.head("d").seq
        numbers = [next(fresh) for _ in range(count)]
        ds = lk.dataset("d")
        if what in ("append", "overwrite"):
            lk.commit("d", rows(*numbers), mode=what)
            new += numbers
        elif what == "insert":
            if "x" in ds.schema.names:
                continue
            lk.update_rows("d", rows(*numbers), insert=True)
            new += numbers
        elif what == "delete" and ds.count(f"n = {count}") not in (0, len(ds)):
            lk.delete_rows("d", f"n = {count}")
        elif what == "compact":
            lk.compact("d")
        elif what == "column" and "x" not in ds.schema.names:
            lk.add_columns("d", lambda batch: {"x": batch.column("n")}, columns=["n"])
    if listened > len(steps):
        new, since = [], lk.refs.head("d").seq
    heard_now, seq = drained(lk.dataset("d"), from_=f"#{since}")
    assert heard_now == new
    assert seq == lk.refs.head("d").seq


def test_now_start_and_a_number(lk):
    """Where it begins; and that a number goes on exactly there."""
    lk.commit("d", rows(1, 2))
    follow = lk.dataset("d").follow(poll=0.01)
    lk.commit("d", rows(3), mode="append")
    assert heard(follow, 1) == [3]
    assert heard(lk.dataset("d").follow("start", poll=0.01), 3) == [1, 2, 3]
    lk.commit("d", rows(4), mode="append")
    lk.compact("d")
    lk.commit("d", rows(5), mode="append")
    assert heard(lk.dataset("d").follow("#2", poll=0.01), 2) == [4, 5]
    assert drained(lk.dataset("d"), from_="#2") == ([4, 5], 5)
    for wrong in ("then", "#", "#x", "#99", "2"):
        with pytest.raises(ValueError, match="from_="):
            lk.dataset("d").follow(wrong)


def test_rows_are_heard_while_they_come_until_it_is_stopped(lk):
    """By another thread, as by another machine; also after the dataset was removed and made anew."""
    lk.commit("d", rows(0))
    stop, found = threading.Event(), []

    def listen() -> None:
        other = lake.open(lk.url)
        for batch in other.dataset("d").follow(poll=0.02, stop=stop):
            found.extend(batch.column("n").to_pylist())

    thread = threading.Thread(target=listen)
    thread.start()
    time.sleep(0.2)
    for n in (1, 2):
        lk.commit("d", rows(n), mode="append")
    lk.remove("d")
    lk.commit("d", rows(3))
    deadline = time.monotonic() + 30
    while len(found) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    stop.set()
    thread.join(30)
    assert not thread.is_alive()
    assert found == [1, 2, 3] or found == [3]


def test_samples_have_their_keys_or_numbers(lk):
    """As `ds.samples()` gives them; a pipeline like any other."""
    lk.commit("d", rows(1, 2))
    pipe = lk.dataset("d").follow("start", poll=0.01, columns=["n"]).samples().map(lambda item: item)
    assert list(islice(pipe, 2)) == [("k1", {"n": 1}), ("k2", {"n": 2})]
    lk.commit("e", rows(1, 2).select(["n"]), key=None)
    lk.commit("e", rows(3).select(["n"]), mode="append")
    follow = pickle.loads(pickle.dumps(lk.dataset("e").follow("#1", poll=0.01)))
    assert next(iter(follow.samples())) == (2, {"n": 3})


def test_expired_rows_that_nobody_read_are_an_error_unless_a_later_version_has_them(lk):
    """Appends read together come from the last of them."""
    for n in range(3):
        lk.commit("d", rows(n), mode="append")
    lk.expire("d", keep=1, dry_run=False)
    assert drained(lk.dataset("d"), from_="#1") == ([1, 2], 3)
    lk.commit("d", rows(9), mode="overwrite")
    lk.expire("d", keep=1, dry_run=False)
    with pytest.raises(VersionExpired, match=r"d@#3 was expired before its 2 new rows"):
        drained(lk.dataset("d"), from_="#1")


def test_a_store_that_does_not_answer_is_asked_again(lk, monkeypatch):
    """A following trainer outlives an outage."""
    lk.commit("d", rows(1))
    follow = lk.dataset("d").follow(poll=0.01)
    lk.commit("d", rows(2), mode="append")
    real, calls = Refs.entries, []

    def entries(self, name, *, after=0):
        calls.append(1)
        if len(calls) < 4:
            raise StoreError("no route", retryable=True)
        return real(self, name, after=after)

    monkeypatch.setattr(Refs, "entries", entries)
    assert heard(follow, 1) == [2]


@pytest.mark.parametrize("start", [1, 1.5, None, True, "", "#", "#x", "#-1", "later", ["now"]])
def test_where_to_begin_is_refused_by_name(lk: lake.Lake, start: object) -> None:
    """Text or not."""
    lk.commit("d", rows(1))
    with pytest.raises(ValueError, match=r"from_=.*: it is 'now', 'start', or a log entry such as '#1'"):
        lk.dataset("d").follow(from_=start)
