"""The user's functions: their randomness, their errors, and the threads they run in."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

import lake
from lake.dataset import Dataset
from lake.pipeline import ahead
from tests.contracts.stage import items, resumed


def draw(sample: Any, rng: np.random.Generator) -> tuple[int, float]:
    return sample[1]["n"], float(rng.random())


def test_randomness_belongs_to_the_row_whatever_the_order(ds: Dataset) -> None:
    """The same row, epoch, seed and stage give the same numbers: shuffled or not, in threads, over other stages."""
    plain = dict(ds.samples(columns=["n"]).map(draw, rng=True, seed=1))
    assert len(set(plain.values())) == len(plain)
    for other in (
        ds.samples(columns=["n"]).map(draw, rng=True, seed=1).shuffle(seed=3),
        ds.samples(columns=["n"]).map(draw, rng=True, seed=1, workers=2),
        ds.samples(columns=["n"], where="n > 5").shuffle(seed=3).map(draw, rng=True, seed=1),
    ):
        assert dict(other).items() <= plain.items()


def test_randomness_differs_by_seed_epoch_stage_and_pass(ds: Dataset) -> None:
    """No two uses share their numbers."""
    base = ds.samples(columns=["n"])
    first = base.map(draw, rng=True, seed=1)
    streams = [
        items(first),
        items(first),
        items(base.map(draw, rng=True, seed=2)),
        items(base.map(lambda s: s).map(draw, rng=True, seed=1)),
        items(base.map(draw, rng=True)),
        items(base.map(draw, rng=True)),
    ]
    numbers = [number for stream in streams for _, number in stream]
    assert len(set(numbers)) == len(numbers)
    repeated = items(base.repeat(2).map(draw, rng=True, seed=1))
    assert [n for n, _ in repeated] == [n for n, _ in streams[0]] * 2
    assert len({number for _, number in repeated}) == len(repeated)


def test_global_generators_are_seeded_for_the_call_and_put_back() -> None:
    """random, NumPy and torch; who draws beside is not disturbed."""
    torch = pytest.importorskip("torch")

    def draws(n: int) -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(1))

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    wanted = draws(0)
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    pipeline = lake.from_iterable(range(5)).map(draws, rng="global", seed=7)
    first = items(pipeline)
    assert draws(0) == wanted
    pipeline.set_epoch(0)
    assert items(pipeline) == first
    assert len(set(first)) == 5


def test_skipping_counts_and_raising_tells_where() -> None:
    """Of filter and flat_map too, also where the iterable fails that flat_map was given."""

    def failing(n: int) -> Any:
        yield n
        if n == 2:
            raise OSError("lost")
        yield n

    for workers in (0, 2):
        pipeline = lake.from_iterable(range(4)).flat_map(failing, on_error="skip", workers=workers)
        assert Counter(pipeline)[2] == (1 if workers == 0 else 0)
        [stage] = pipeline.metrics()["stages"].values()
        assert stage["skipped"] == 1
        with pytest.raises(OSError, match="lost") as caught:
            list(lake.from_iterable(range(4)).flat_map(failing, workers=workers))
        assert "flat_map(" in "".join(caught.value.__notes__)
    samples = [("a", {"x": 1}), ("b", {"x": 0})]
    with pytest.raises(ZeroDivisionError) as caught_too:
        list(lake.from_iterable(samples).filter(lambda s: 1 / s[1]["x"]))
    assert caught_too.value.__notes__ == ["in filter(<lambda>), sample 'b'"]
    with pytest.raises(TypeError, match="an iterable is wanted"):
        list(lake.from_iterable([1]).flat_map(lambda n: n))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stop_iteration_of_a_function_does_not_end_the_stream(workers: int) -> None:
    """It is an error, as in a generator."""
    with pytest.raises(RuntimeError, match=r"StopIteration in map\("):
        list(lake.from_iterable([iter([1]), iter([])]).map(next, workers=workers))


def test_what_is_no_whole_number_is_named(ds: Dataset) -> None:
    """A seed or a number of threads of another type is refused when the stage is made."""
    for seed in ("x", 1.5):
        with pytest.raises(TypeError, match=f"a seed is a whole number or None, not {seed!r}"):
            ds.samples().shuffle(seed=seed)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"map\(\): workers is a whole number, not '2'"):
        ds.samples().map(str, workers="2")  # type: ignore[arg-type]


def test_threads_work_ahead_by_count() -> None:
    """No more than a few items for each thread are begun before they are asked for."""
    begun = []
    stream = iter(lake.from_iterable(range(1000)).map(lambda n: begun.append(n) or n, workers=2))
    assert next(stream) == 0
    deadline = time.monotonic() + 10
    while len(begun) < 2 * ahead.AHEAD and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(begun) == 2 * ahead.AHEAD


def test_threads_work_ahead_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large items, and large results, count by their bytes."""
    monkeypatch.setattr(ahead, "AHEAD_BYTES", 3_000_000)
    taken = []

    def large(n: int) -> bytes:
        taken.append(n)
        return bytes(1_000_000)

    stream = iter(lake.from_iterable(range(100)).map(large).map(len, workers=8))
    assert next(stream) == 1_000_000
    assert len(taken) <= 4
    held = []
    results = iter(
        lake.from_iterable(range(100)).map(lambda n: held.append(n) or bytes(1_000_000), workers=8)
    )
    for _ in range(30):
        next(results)
    deadline = time.monotonic() + 10
    while len(held) < 33 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(held) <= 30 + 2 * 8 * ahead.AHEAD  # those in flight when the bytes were not yet known


def test_an_early_end_leaves_no_thread() -> None:
    """A dropped iteration takes its threads with it."""
    before = set(threading.enumerate())

    def hired() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread not in before and thread.is_alive()}

    stream = iter(lake.from_iterable(range(1000)).map(str, workers=3))
    next(stream)
    assert hired()
    del stream
    deadline = time.monotonic() + 10
    while hired() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not hired()


def test_an_error_of_the_source_comes_in_its_turn() -> None:
    """What threads made of the items before it is handed out first."""

    def source() -> Any:
        yield from range(5)
        raise OSError("gone")

    stream, seen = iter(lake.from_iterable(source).map(str, workers=3)), []
    with pytest.raises(OSError, match="gone"):
        seen.extend(stream)
    assert seen == list("01234")


def test_unordered_results_are_all_there_and_resume_without_loss() -> None:
    """In any order; a position says which were handed out."""
    release = threading.Event()

    def first_waits(n: int) -> int:
        if n == 0:
            release.wait(10)
        return n

    def make() -> lake.Pipeline:
        return lake.from_iterable(range(40)).map(first_waits, workers=3, ordered=False)

    pipeline = make()
    seen = items(pipeline, 5)
    assert 0 not in seen
    release.set()
    rest = items(resumed(make, pipeline.state_dict()))
    assert sorted(seen + rest) == list(range(40))
    assert sorted(make()) == list(range(40))


def test_more_passes_than_anybody_counts_are_refused() -> None:
    """`repeat(10**9)`, meant as "for ever", would be counted pass by pass."""
    numbers = lake.from_iterable(range(3))
    assert len(numbers.repeat(100_000)) == 300_000
    with pytest.raises(ValueError, match=r"up to 100,000; repeat\(\) goes on for ever"):
        numbers.repeat(10**9)


def _rest_of(stream: Any, answer: Any) -> None:
    answer.put(list(stream))


def test_a_forked_child_goes_on_with_threads_of_its_own() -> None:
    """What a parent's threads were doing is done again."""
    stream = iter(lake.from_iterable(range(30)).map(str, workers=2))
    assert [next(stream) for _ in range(3)] == ["0", "1", "2"]
    context = multiprocessing.get_context("fork")
    answer = context.SimpleQueue()
    child = context.Process(target=_rest_of, args=(stream, answer))
    child.start()
    assert answer.get() == [str(n) for n in range(3, 30)]
    child.join(10)
    assert child.exitcode == 0
    assert list(stream) == [str(n) for n in range(3, 30)]
