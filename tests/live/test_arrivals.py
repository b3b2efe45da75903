"""What has arrived, and what makes a sample: by property, over any interleaving of writing and looking."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake import filenames
from lake.live.arrivals import Arrivals, Stamp, grouped, ignored, present
from lake.live.policy import Every

PATHS = ["a.jpg", "a.JPG", "a.json", "b.jpg", "d/a.jpg", "c"]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(PATHS)),
        st.tuples(st.just("remove"), st.sampled_from(PATHS)),
        st.tuples(st.just("list"), st.just("")),
        st.tuples(st.just("take"), st.just("")),
        st.tuples(st.just("wait"), st.floats(0, 3)),
    ),
    max_size=60,
)


@given(STEPS)
def test_every_content_that_stays_is_handed_over_once_and_quiet(steps):
    """No content twice, none before it was quiet for `settle`, none of what is there in the end missing."""
    arrivals, now, writes = Arrivals(2.0, {}), 0.0, 0
    there: dict[str, Stamp] = {}
    seen_at: dict[tuple[str, Stamp], float] = {}
    taken: Counter[tuple[str, Stamp]] = Counter()
    keys: set[str] = set()

    def look() -> None:
        for path, stamp in there.items():
            arrivals.see(path, stamp, now)
            seen_at.setdefault((path, stamp), now)
        arrivals.miss(there)

    def take() -> None:
        samples = arrivals.quiet(now)
        before = set(keys)
        first: set[str] = set()
        for sample in samples:
            fields = [filenames.split(file.path)[1] for file in sample.files]
            assert {filenames.split(file.path)[0] for file in sample.files} == {sample.key}
            assert fields == sorted(set(fields))
            assert sample.late == (sample.key in before or sample.key in first)
            first.add(sample.key)
            for file in sample.files:
                assert now - seen_at[file] >= 2.0
                taken[file] += 1
        keys.update(first)
        arrivals.take(samples)

    for what, value in [*steps, ("list", ""), ("wait", 2.5), ("list", ""), ("take", "")]:
        if what == "write":
            writes += 1
            there[value] = Stamp(writes % 3, writes)
        elif what == "remove":
            there.pop(value, None)
        elif what == "wait":
            now += value
        else:
            look() if what == "list" else take()

    assert all(count == 1 for count in taken.values())
    assert {tuple(file) for file in there.items()} <= {tuple(file) for file in taken}
    assert len(arrivals) == 0


def test_a_sample_waits_for_its_last_file():
    """A json that comes a moment after its wav is part of the same sample."""
    arrivals = Arrivals(2.0, {})
    arrivals.see("x.wav", Stamp(1, 1), 0.0)
    arrivals.see("x.json", Stamp(1, 1), 1.5)
    assert arrivals.quiet(3.0) == []
    [sample] = arrivals.quiet(3.5)
    assert [file.path for file in sample.files] == ["x.json", "x.wav"]
    arrivals.disturb("x.wav", 3.5)
    assert arrivals.quiet(4.0) == []


@given(st.lists(st.sampled_from(PATHS), unique=True))
def test_what_changed_or_went_is_taken_out_and_nothing_else(gone):
    """Samples keep the files that are as they were; a sample without one is no more."""
    arrivals = Arrivals(0.0, {})
    for path in PATHS:
        arrivals.see(path, Stamp(1, 1), 0.0)
    samples = arrivals.quiet(1.0)
    kept, lost = present(samples, lambda path: None if path in gone else Stamp(1, 1))
    assert sorted(file.path for file in lost) == sorted(gone)
    assert sorted(file.path for sample in kept for file in sample.files) == sorted(set(PATHS) - set(gone))
    assert all(sample.files for sample in kept)


def test_names_that_are_not_finished_are_ignored():
    """Hidden files, and those that will be renamed."""
    assert all(map(ignored, [".a", "x/.y/z.jpg", "a.jpg.part", "A.TMP", "d/b.tmp"]))
    assert not any(map(ignored, ["a.jpg", "part", "x.tmp/y.jpg", "ü b.log"]))
    assert [sample.late for sample in grouped("k", [], late=False)] == []


def test_every_is_a_duration_or_a_size():
    """Bytes end a batch early, time in any case."""
    assert Every.of("64MB").due(1.0, 64_000_000)
    assert not Every.of("64MB").due(1.0, 63_999_999)
    assert Every.of("64MB").due(60.0, 1)
    assert Every.of("10s").due(10.0, 0)
    assert not Every.of(10).due(9.9, 1 << 40)
    for wrong in ("soon", "64", "0MB", "-1s", "unlimited"):
        with pytest.raises(ValueError, match="every="):
            Every.of(wrong)
