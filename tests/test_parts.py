"""Columns of parts: fixed-width values as bytes and back, what is kept decoded, requests in parallel."""

from __future__ import annotations

import queue
import threading
import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.parts import Chunk, array_of, raw_of, width
from lake.parts.flight import REQUEST_BYTES, Pace, portions
from lake.parts.kept import Kept
from lake.parts.workers import URGENT, Workers
from tests import strategies


def lies_in(array: pa.Array, other: pa.Array) -> bool:
    """Whether one refers to memory of the other."""
    taken = [range(each.address, each.address + each.size) for each in other.buffers() if each is not None]
    starts = [each.address for each in array.buffers() if each is not None and each.size]
    return any(start in each for start in starts for each in taken)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_bytes_of_values_are_the_values(data: st.DataObject) -> None:
    """An array made of an array's bytes is equal to it, slices included; where there are none, none are given."""
    field = data.draw(strategies.fields())
    array = data.draw(strategies.arrays(field.type))
    if len(array):
        start = data.draw(st.integers(0, len(array)))
        array = array.slice(start, data.draw(st.integers(0, len(array) - start)))

    raw = raw_of(array)

    if raw is None:
        assert width(array.type) is None or _has_nulls(array)
        return
    assert raw.shape == (len(array), width(array.type))
    dictionary = array.dictionary if pa.types.is_dictionary(array.type) else None
    back = array_of(raw.copy(), array.type, dictionary)
    back.validate(full=True)
    assert back.type == array.type
    assert raw_of(back).tobytes() == raw.tobytes()
    assert str(back) == str(array)


def _has_nulls(array: pa.Array) -> bool:
    if array.null_count:
        return True
    if isinstance(array, pa.ExtensionArray):
        return _has_nulls(array.storage)
    if pa.types.is_dictionary(array.type):
        return _has_nulls(array.indices)
    return pa.types.is_fixed_size_list(array.type) and _has_nulls(array.flatten())


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_chunks_are_cut_and_picked_like_arrays(data: st.DataObject) -> None:
    """Whether their values have bytes of their own or not."""
    array = data.draw(
        st.sampled_from(
            [
                pa.array(range(20)),
                pa.array([None, *range(19)]),
                pa.array([f"{n}" for n in range(20)]),
                pa.array([f"{n % 3}" for n in range(20)]).dictionary_encode(),
                pa.FixedSizeListArray.from_arrays(pa.array(range(60)), 3),
                pa.array([n % 2 == 0 for n in range(20)]),
            ]
        )
    )
    start = data.draw(st.integers(0, 20))
    stop = data.draw(st.integers(start, 20))
    rows = np.array(data.draw(st.lists(st.integers(0, 19), max_size=8)), np.int64)

    chunk = Chunk(array)

    assert chunk.slice(start, stop).array.equals(array.slice(start, stop - start))
    assert chunk.slice(start, stop).rows == stop - start
    assert chunk.take(rows).array.to_pylist() == array.take(pa.array(rows)).to_pylist()
    mapped = Chunk(array, mapped=True)
    for some in (mapped, mapped.slice(start, stop), mapped.take(rows)):
        owned = some.owned()
        assert (some.mapped, owned.mapped) == (True, False)
        assert owned.array.equals(some.array)
        assert not lies_in(owned.array, array)


def test_what_is_kept_decoded_stays_within_its_bytes() -> None:
    """The least recently used go first."""
    kept = Kept(1000)
    chunks = {name: Chunk(pa.array(np.zeros(50))) for name in "abc"}  # 400 bytes each
    for name, chunk in chunks.items():
        kept.put(name, chunk)
        kept.get("a")

    assert kept.get("a") is chunks["a"]
    assert kept.get("b") is None
    assert kept.get("c") is chunks["c"]
    kept.put("huge", Chunk(pa.array(np.zeros(500))))
    assert kept.get("huge") is None


def test_urgent_work_comes_first_and_few_work_at_once() -> None:
    """While it is calm nothing else begins at all; threads end when there is nothing to do."""
    workers = Workers(2, "lake-test")
    done: list[int] = []
    at_once, most, lock, together = 0, 0, threading.Lock(), threading.Barrier(2)

    def work(number: int) -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        if number >= 100:
            together.wait(10)
        with lock:
            at_once -= 1
            done.append(number)

    workers.calm = True
    for number in range(10):
        workers.submit(URGENT + 1 + number % 2, lambda number=number: work(number))
    for number in range(100, 104):
        workers.submit(URGENT, lambda number=number: work(number))
    deadline = time.monotonic() + 10
    while len(done) < 4 and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.05)
    assert sorted(done) == [100, 101, 102, 103]
    workers.calm = False
    while len(done) < 14 and time.monotonic() < deadline:
        time.sleep(0.005)

    assert {0, 2, 4} <= set(done[4:12])  # threads may overtake each other by a few
    assert most == 2
    while any(thread.name == "lake-test" for thread in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(thread.name == "lake-test" for thread in threading.enumerate())


def test_work_that_hangs_gives_its_place_to_other_work() -> None:
    """Until it is given up it counts; then its thread ends with it, and takes no more work."""
    workers = Workers(1, "lake-test")
    hangs, threads, done = threading.Event(), queue.SimpleQueue[threading.Thread](), threading.Event()

    def hang() -> None:
        threads.put(threading.current_thread())
        assert hangs.wait(10)

    workers.submit(URGENT, hang)
    hung = threads.get(timeout=10)
    workers.submit(URGENT, done.set)
    assert not done.wait(0.05)
    workers.give_up(hung)
    workers.submit(URGENT, lambda: threads.put(threading.current_thread()))

    assert done.wait(10)
    assert threads.get(timeout=10) is not hung
    hangs.set()
    hung.join(10)
    assert not hung.is_alive()


@given(st.lists(st.integers(1, 9 * 2**20), min_size=1, max_size=60), st.data())
def test_portions_are_all_of_a_run_in_few_requests_of_about_one_size(
    sizes: list[int], data: st.DataObject
) -> None:
    """No more than its bytes make, and none that differs from another by more than two segments."""
    starts = np.cumsum([0, *sizes]).tolist()
    first = data.draw(st.integers(0, len(sizes) - 1))
    run = range(first, data.draw(st.integers(first + 1, len(sizes))))

    found = list(portions(starts, run))

    assert [index for portion in found for index in portion] == list(run)
    assert len(found) <= max(1, round((starts[run.stop] - starts[run.start]) / REQUEST_BYTES))
    taken = [starts[portion.stop] - starts[portion.start] for portion in found]
    assert max(taken) - min(taken) < 2 * max(sizes[index] for index in run)


def test_few_requests_are_sent_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what takes over three times as long as almost all others, and one in twenty at most."""
    monkeypatch.setattr("lake.parts.flight._SLOW_SECONDS", 0.5)
    pace = Pace()
    assert not pace.is_slow(100, 4)
    assert Pace().is_slow(100, 60)
    for _ in range(100):
        pace.note(2**20, 0.2)

    assert not pace.is_slow(2**20, 0.55)
    assert [pace.is_slow(2**20, 0.7) for _ in range(10)] == [True] * 6 + [False] * 4
    assert not Pace().is_slow(1, 0.4)


@pytest.mark.parametrize(
    "type_", [pa.bool_(), pa.large_string(), pa.list_(pa.int8()), pa.null(), pa.list_(pa.bool_(), 3)]
)
def test_types_without_a_width(type_: pa.DataType) -> None:
    """Bits, texts and lists of any length are left to Arrow."""
    assert width(type_) is None
