"""What each combinator makes of its input, and what it refuses."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lake
from lake.pipeline import Pipeline
from tests.contracts.stage import items

modest = settings(max_examples=60, deadline=None)

small = st.integers(1, 9)
some = st.lists(st.integers(0, 9), max_size=40)


def of(values: Any) -> Pipeline:
    return lake.from_iterable(list(values) if isinstance(values, str) else values)


def test_map_and_its_kin_do_what_itertools_does() -> None:
    """Names that Python's own tools share mean the same."""
    numbers = range(10)
    assert list(of(numbers).map(str)) == list(map(str, numbers))
    assert list(of(numbers).filter(lambda n: n % 2)) == [1, 3, 5, 7, 9]
    assert list(lake.zip(of(numbers), of("abc")).star_map(lambda n, c: c * n)) == ["", "b", "cc"]
    assert list(of(numbers).flat_map(range)) == [n for m in numbers for n in range(m)]
    assert list(of(numbers).scan(lambda a, b: a + b, 0)) == list(itertools.accumulate(numbers))
    assert list(of(numbers).zip_with(lambda a, b, c: a + b + c, of(range(4)), of(range(9)))) == [0, 3, 6, 9]
    assert list(lake.zip_with(max, of([1, 5]), of([4, 2]))) == [4, 5]
    assert list(lake.concat([of("ab"), of([]), of("c")])) == ["a", "b", "c"]
    assert list(of(numbers).through(lambda stream: itertools.islice(stream, 2, 5))) == [2, 3, 4]


def test_take_reads_no_further_than_it_must() -> None:
    """The item after the last taken is never asked for."""
    seen = []
    assert list(of(range(9)).map(lambda n: seen.append(n) or n).take(3)) == [0, 1, 2]
    assert seen == [0, 1, 2]


@modest
@given(some, small, small, st.booleans())
def test_windows_begin_every_stride_and_the_last_may_be_short(
    values: list[int], size: int, stride: int, drop: bool
) -> None:
    """All full windows; then one more if it has items that were in none."""
    found = list(of(values).window(size, stride, drop_last=drop))
    starts = range(0, max(0, len(values) - size + 1), stride)
    full = [values[start : start + size] for start in starts]
    assert found[: len(full)] == full
    next_start = len(full) * stride
    covered = starts[-1] + size if full else 0
    rest = values[next_start:]
    assert found[len(full) :] == ([] if drop or len(values) <= max(covered, next_start) else [rest])


@modest
@given(st.integers(0, 300), st.integers(1, 400), st.integers(0, 3), st.integers(0, 2))
def test_a_shuffle_is_a_permutation_that_moves_items_no_further_than_about_its_buffer(
    count: int, buffer: int, seed: int, epoch: int
) -> None:
    """Nothing is lost or doubled, and what is held is bounded."""
    pipeline = of(range(count)).shuffle(buffer, seed=seed)
    pipeline.set_epoch(epoch)
    found = list(pipeline)
    assert sorted(found) == list(range(count))
    assert all(item - place <= 2 * buffer for place, item in enumerate(found))


def test_a_shuffle_mixes() -> None:
    """Few neighbours stay neighbours, items move far, and epochs and seeds give different orders."""
    shuffled = of(range(2000)).shuffle(500, seed=1)
    first, second = items(shuffled), items(shuffled)
    assert first != second
    neighbours = sum(abs(a - b) == 1 for a, b in itertools.pairwise(first))
    assert neighbours < 40
    assert np.mean([abs(place - item) for place, item in enumerate(first)]) > 100


@modest
@given(some, small, st.booleans())
def test_batches_by_count(values: list[int], size: int, drop: bool) -> None:
    """All of `size`, but the last; their number is known."""
    pipeline = of(values).batch(size, drop_last=drop)
    found = list(pipeline)
    assert len(found) == len(pipeline)
    assert list(itertools.chain(*found)) == values[: len(values) // size * size if drop else None]
    assert all(len(batch) == size for batch in found[:-1])


@modest
@given(some, st.integers(1, 30), st.booleans(), st.none() | st.integers(1, 4))
def test_batches_by_cost_keep_their_bound(
    values: list[int], size: int, padded: bool, buckets: int | None
) -> None:
    """Each item once; no batch of two or more costs more than `size`; no batch could have taken the next item."""

    def cost(batch: list[int]) -> int:
        return max(batch) * len(batch) if padded else sum(batch)

    found = list(of(values).batch(size, by=lambda n: n, padded=padded, buckets=buckets))
    assert Counter(itertools.chain(*found)) == Counter(values)
    assert all(len(batch) == 1 or cost(batch) <= size for batch in found)
    if buckets is None:
        assert list(itertools.chain(*found)) == values
        assert all(cost([*batch, after[0]]) > size for batch, after in itertools.pairwise(found))


def test_buckets_keep_lengths_together() -> None:
    """Padding is less where items were sorted by length first."""
    lengths = np.random.default_rng(0).integers(1, 100, 2000).tolist()

    def waste(pipeline: Pipeline) -> int:
        return sum(max(batch) * len(batch) - sum(batch) for batch in pipeline)

    plain = of(lengths).batch(1000, by=lambda n: n, padded=True)
    bucketed = of(lengths).batch(1000, by=lambda n: n, padded=True, buckets=20)
    assert waste(bucketed) < waste(plain) / 4


documents = st.lists(st.lists(st.integers(1, 99), max_size=12), max_size=15)


@modest
@given(documents, st.integers(1, 10), st.booleans())
def test_packing_lays_documents_end_to_end(texts: list[list[int]], length: int, with_eos: bool) -> None:
    """The rows, laid end to end, are the documents, of which only the last rest is missing; segments are documents."""
    eos = -1 if with_eos else None
    rows = list(of(texts).pack(length, eos=eos))
    stream = [token for text in texts for token in ([*text, -1] if with_eos else text)]
    packed = [token for row in rows for token in row["tokens"].tolist()]
    assert packed == stream[: len(stream) // length * length]
    for row in rows:
        assert {name: len(values) for name, values in row.items()} == dict.fromkeys(row, length)
        steps = np.diff(row["segment_ids"])
        assert row["segment_ids"][0] == 1
        assert set(steps.tolist()) <= {0, 1}
        assert row["positions"][0] == 0
        assert np.array_equal(np.diff(row["positions"])[steps == 0], np.ones((steps == 0).sum()))
        assert not row["positions"][1:][steps == 1].any()


@modest
@given(documents, st.integers(1, 10))
def test_packing_whole_documents_splits_none(texts: list[list[int]], length: int) -> None:
    """Each document is one segment, cut to the length and counted if it is longer; the rest is padding."""
    pipeline = of(texts).pack(length, split=False, pad=0)
    segments = []
    for row in pipeline:
        ids = row["segment_ids"]
        segments += [row["tokens"][ids == n].tolist() for n in range(1, ids.max() + 1)]
        assert not row["tokens"][ids == 0].any()
        assert ids[0] == 1
    assert Counter(map(tuple, segments)) == Counter(tuple(text[:length]) for text in texts if text)
    [meter] = pipeline.metrics()["stages"].values()
    assert meter.get("cut", 0) == sum(len(text) > length for text in texts)


def test_first_fit_fills_rows() -> None:
    """Short documents go into rows that are open, so that little is padding."""
    lengths = np.random.default_rng(0).integers(1, 60, 500).tolist()
    rows = list(of([[1] * n for n in lengths]).pack(100, split=False))
    assert sum(lengths) / (100 * len(rows)) > 0.9


def test_packing_keeps_the_tokens_type_and_finds_their_field() -> None:
    """uint16 stays uint16; samples and dicts have their tokens in `field`."""
    sample = ("key", {"text": np.arange(5, dtype=np.uint16), "other": 1})
    [row] = of([sample]).pack(4, field="text")
    assert row["text"].dtype == np.uint16
    [row] = of([{"text": [1, 2, 3]}]).pack(4, field="text", split=False, pad=9)
    assert row["text"].tolist() == [1, 2, 3, 9]
    with pytest.raises(ValueError, match="no field 'words' in a dict of text, other"):
        list(of([sample]).pack(4, field="words"))
    with pytest.raises(ValueError, match="field= says which"):
        list(of([sample]).pack(4))


@modest
@given(st.lists(some, min_size=1, max_size=4), st.data())
def test_a_mix_of_countable_streams_has_the_length_it_says(inputs: list[list[int]], data: Any) -> None:
    """Whatever the weights; until all are dry it has every item of what may be drawn, each stream in its order."""
    weights = data.draw(st.lists(st.integers(0, 3), min_size=len(inputs), max_size=len(inputs)).filter(any))
    until = data.draw(st.sampled_from(["any", "all"]))
    marked = [of([(place, item) for item in values]) for place, values in enumerate(inputs)]
    pipeline = lake.mix(marked, weights, seed=data.draw(st.integers(0, 5)), until=until)
    found = list(pipeline)
    pipeline.set_epoch(0)
    assert len(found) == len(pipeline)
    for place, values in enumerate(inputs):
        mine = [item for source, item in found if source == place]
        assert mine == values[: len(mine)]
        if not weights[place]:
            assert not mine
        elif until == "all":
            assert mine == values


def test_a_long_mix_is_counted_without_being_drawn_one_by_one() -> None:
    """Streams of hundreds of thousands: the count is exact."""
    pipeline = lake.mix([of(range(150_000)), of(range(100_000)).repeat()], [2, 1], seed=3)
    assert len(pipeline) == sum(1 for _ in pipeline)


def test_a_mix_keeps_its_ratio_and_counts_what_each_gave() -> None:
    """Weights are relative; metrics say how many items came from where."""
    pipeline = lake.mix([of("a").repeat(), of("b").repeat()], [3, 1], seed=0).take(4000)
    counted = Counter(pipeline)
    assert 0.72 < counted["a"] / 4000 < 0.78
    [given_] = pipeline.metrics()["sources"].values()
    assert given_ == [counted["a"], counted["b"]]


def test_choice_and_maybe_follow_their_probabilities() -> None:
    """A float, a function of the item, a pipeline of either."""
    ones, zeros = of([1]).repeat(), of([0]).repeat()
    assert 0.25 < sum(lake.choice([ones, zeros], 0.3, seed=1).take(3000)) / 3000 < 0.35
    always = lake.choice([ones, zeros], of([1.0, 0.0]).repeat(), seed=1)
    assert list(always.take(4)) == [1, 0, 1, 0]
    assert 0.25 < sum(of([0] * 3000).maybe(lambda n: 1, 0.3, seed=2)) / 3000 < 0.35
    assert list(of(range(6)).maybe(str, lambda n: n % 2, seed=2)) == [0, "1", 2, "3", 4, "5"]
    assert list(of(range(6)).maybe(str, of([0.0, 1.0, 1.0]), seed=2)) == [0, "1", "2"]


def test_select_hands_the_turn_to_whom_the_control_names() -> None:
    """Numbers of pipelines; a bad one is an error that says which."""
    letters = lake.select(of([0, 1, 1, 0]), of("ab"), of("xyz"))
    assert list(letters) == ["a", "x", "y", "b"]
    for bad in (2, -1, 0.5, "0"):
        with pytest.raises(ValueError, match="item 1 of the control is"):
            list(lake.select(of([0, bad]), of("ab"), of("xyz")))


def test_repeat_is_the_next_epoch_each_time() -> None:
    """Passes differ as epochs do; the second run of two passes goes on with the third."""
    once = of(range(8)).shuffle(seed=1)
    epochs = [items(once) for _ in range(4)]
    twice = of(range(8)).shuffle(seed=1).repeat(2)
    assert items(twice) == epochs[0] + epochs[1]
    assert items(twice) == epochs[2] + epochs[3]
    assert len(of(range(8)).repeat(2)) == 16
    assert items(of(range(8)).shuffle(seed=1).repeat(), 24) == epochs[0] + epochs[1] + epochs[2]


def test_repeating_nothing_ends() -> None:
    """A stream without items would spin for ever."""
    assert list(of([]).repeat()) == []
    assert list(of(range(3)).filter(lambda n: n > 5).repeat()) == []


def test_one_pipeline_may_stand_in_several_places() -> None:
    """Each place reads a stream of its own; neither disturbs the other."""
    base = of(range(20))
    both = list(lake.concat([base.shuffle(seed=1), base]))
    assert both[20:] == list(range(20))
    assert both[:20] != both[20:]
    assert list(lake.zip(base, base)) == [(n, n) for n in range(20)]


def test_a_graph_of_shared_nodes_is_walked_once() -> None:
    """Counting, checking and naming take time by nodes, not by paths."""
    pipeline = of(range(3))
    for _ in range(60):
        pipeline = lake.zip(pipeline, pipeline)
    assert len(pipeline) == 3
    assert pipeline.check().items == 3
    assert len(pipeline.fingerprint()) == 64
    assert len(repr(pipeline)) < 2000


def test_an_iterable_begins_anew_in_each_epoch_and_an_iterator_cannot() -> None:
    """What can be read once says so, instead of giving an empty epoch."""
    assert [list(p) for p in [of({1: 2}.keys())] * 2] == [[1], [1]]
    made = lake.from_iterable(lambda: (n for n in range(3)))
    assert list(made) == list(made) == [0, 1, 2]
    once = lake.from_iterable(n for n in range(3))
    assert list(once) == [0, 1, 2]
    with pytest.raises(ValueError, match="give a function that makes one"):
        list(once)


COUNTED: list[tuple[Callable[[], Pipeline], int]] = [
    (lambda: of(range(7)).map(str).repeat(3), 21),
    (lambda: lake.random_stream(1).take(5), 5),
    (lambda: lake.concat([of(range(7)), of("ab")]), 9),
    (lambda: lake.zip(of(range(7)), lake.random_stream(1)), 7),
    (lambda: of(range(7)).maybe(str, 0.5, seed=0).batch(2), 4),
    (lambda: lake.choice([of(range(7)).repeat(), of(range(3))], [1, 0], seed=0).take(8), 8),
    (lambda: of(range(7)).filter(bool).take(0), 0),
]


@pytest.mark.parametrize(("make", "count"), COUNTED)
def test_a_countable_pipeline_has_a_length(make: Callable[[], Pipeline], count: int) -> None:
    """It is that of what comes out."""
    assert len(make()) == count == len(list(make()))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: of("ab").filter(bool).map(str), r"filter\(bool\)"),
        (lambda: of("ab").flat_map(str).batch(2), r"flat_map\(str\)"),
        (lambda: of("ab").map(str, on_error="skip"), "on_error='skip'"),
        (lambda: of("ab").shuffle(seed=1), r"shuffle\(\)"),
        (lambda: lake.from_iterable(lambda: "ab"), "from_iterable"),
        (lambda: lake.zip(of("ab"), of("ab").window(2)), r"window\(\)"),
        (lambda: lake.random_stream(1), "no end"),
        (lambda: of("ab").repeat(), "has no end"),
    ],
)
def test_an_uncountable_pipeline_has_none_and_says_why(make: Callable[[], Pipeline], says: str) -> None:
    """`len` names the stage; `check` leaves the number open."""
    with pytest.raises(TypeError, match=says):
        len(make())


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: lake.mix([of("a"), of("b")], [1]), ValueError, "1 weights for 2 streams"),
        (lambda: lake.mix([of("a")], [-1]), ValueError, "not negative"),
        (lambda: lake.mix([of("a"), of("b")], [0, 0]), ValueError, "not all 0"),
        (lambda: lake.mix([]), ValueError, "at least one"),
        (lambda: lake.mix([of("a")], until="one"), ValueError, "'any' or 'all'"),
        (lambda: lake.choice([of("a"), of("b"), of("c")], 0.5), ValueError, "of 3, give weights"),
        (lambda: lake.choice([of("a"), of("b")], 1.5), ValueError, "within 0 and 1"),
        (lambda: of("ab").maybe(str, 2), ValueError, "lies within 0 and 1"),
        (lambda: of("ab").batch(0), ValueError, "1 or more"),
        (lambda: of("ab").batch(2.5), TypeError, "whole number"),
        (lambda: of("ab").batch(4, padded=True), ValueError, "need by="),
        (lambda: of("ab").window(2, 0), ValueError, "stride is 1 or more"),
        (lambda: of("ab").take(-1), ValueError, "0 or more"),
        (lambda: of("ab").shuffle(full=True, seed=0), ValueError, r"goes over ds.samples\(\)"),
        (lambda: of("ab").map(str).shuffle(full=True), ValueError, r"directly over ds.samples\(\)"),
        (lambda: of("ab").map("upper"), TypeError, "takes a function"),
        (lambda: of("ab").map(str, rng="local"), ValueError, "rng is False, True or 'global'"),
        (lambda: of("ab").map(str, rng="global", workers=2), ValueError, "threads share"),
        (lambda: of("ab").map(str, on_error="ignore"), ValueError, "'raise' or 'skip'"),
        (lambda: of("ab").decode(jpg="picture"), ValueError, "no codec 'picture' for 'jpg'"),
        (lambda: of("ab").decode(), ValueError, "takes fields"),
        (lambda: of("ab").through(3), TypeError, "next, state and restore"),
        (lambda: lake.zip(of("ab"), "ab"), TypeError, "takes pipelines, not str"),
        (lambda: lake.from_iterable("ab"), TypeError, "not one str"),
        (lambda: lake.random_stream("x"), TypeError, "a seed is"),
        (lambda: lake.random_stream(2**64), ValueError, "64 bits"),
    ],
)
def test_what_cannot_be_is_refused_at_the_call(
    make: Callable[[], Any], error: type[Exception], says: str
) -> None:
    """A mistake is told where it is made, not when it is read."""
    with pytest.raises(error, match=says):
        make()
