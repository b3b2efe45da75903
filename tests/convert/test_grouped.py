"""Noticing data that is sorted by class."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.convert import SortedByClass

LABELS = np.repeat(np.arange(10), 200)
MIXED = np.random.default_rng(0).permutation(LABELS)
FORMS = {
    "ints": lambda codes: pa.array(codes),
    "bools": lambda codes: pa.array(codes > 4),
    "strings": lambda codes: pa.array([f"class {c}" for c in codes], pa.large_string()),
    "views": lambda codes: pa.array([f"class {c}" for c in codes], pa.string_view()),
    "dictionary": lambda codes: pa.array([f"class {c}" for c in codes]).dictionary_encode(),
    "with nulls": lambda codes: pa.array([None if c == 9 else int(c) for c in codes]),
}


def warning(column: pa.Array, *, rows: int = 100, name: str = "label", key: str | None = None) -> str | None:
    seen = SortedByClass(key)
    for batch in pa.table({name: column, "x": np.arange(len(column)) * 1.5}).to_batches(max_chunksize=rows):
        seen.see(batch)
    return seen.warning()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [7, 100, 5000])
def test_sorted_labels_are_noticed_in_whatever_form(form, rows):
    """Wherever batches end; the warning names the column and the way out."""
    said = warning(FORMS[form](LABELS), rows=rows)

    assert said is not None
    assert "'label'" in said
    assert 'order="shuffled"' in said
    assert warning(FORMS[form](MIXED), rows=rows) is None


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 50), st.integers(0, 2**32), st.integers(1, 500))
def test_data_in_random_order_raises_no_alarm(classes, seed, rows):
    """Even where one class is nearly all there is."""
    random = np.random.default_rng(seed)
    weights = random.dirichlet(np.full(classes, 0.3))

    assert warning(pa.array(random.choice(classes, 3000, p=weights)), rows=rows) is None


@pytest.mark.parametrize(
    ("column", "name"),
    [
        (np.zeros(1000, np.int64), "label"),
        (np.repeat([0, 1], 20), "label"),
        (np.arange(1000), "label"),
        (np.repeat(np.arange(1, 13), 100), "month"),
        (LABELS, "split"),
        (LABELS * 0.5, "label"),
        ([f"{i:05} a text" for i in range(1000)], "text"),
        ([chr(97 + c) * 500 for c in LABELS], "text"),
    ],
    ids=["one class", "few rows", "unique", "months", "split", "floats", "unique texts", "long texts"],
)
def test_what_is_no_label_raises_no_alarm(column, name):
    """Time stamps, row numbers and texts may be sorted."""
    assert warning(pa.array(column), name=name) is None


def test_the_key_is_no_label():
    """It may well be sorted."""
    assert warning(pa.array(LABELS), name="speaker", key="speaker") is None
    assert warning(pa.array(LABELS), name="speaker") is not None


def test_labels_that_begin_at_one_are_known_by_their_name():
    """Numbers that do not count from 0 are taken for labels only if they are called so."""
    assert warning(pa.array(LABELS + 1), name="class_label") is not None
    assert warning(pa.array(LABELS + 1), name="size") is None


def test_nothing_seen_is_nothing_said():
    """An empty commit is not sorted."""
    assert SortedByClass().warning() is None


def test_dictionaries_of_string_views_are_seen():
    """As polars gives its enums and categories."""
    data = pl.DataFrame({"x": pl.Series(["a"] * 200 + ["b"] * 200, dtype=pl.Enum(["b", "a"]))})
    watch = SortedByClass()

    for batch in pa.RecordBatchReader.from_stream(data):
        watch.see(batch)

    assert "sorted by 'x'" in watch.warning()
