"""Gathering: any rows of any units, in any order, as batches that are what Arrow would pick."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.parts import Chunk, Pool, Views, array_of
from lake.scan.gather import WIDE, gather, loaded

KINDS: Final = ("long", "any", "text", "narrow", "wide", "gaps", "bits")


@st.composite
def arrays(draw: st.DrawFn, kind: str, rows: int) -> pa.Array:
    """So many values of a kind: octets that are all long, of any length or null, vectors, vectors or null, bits."""
    if kind in ("narrow", "wide", "gaps"):
        width = 3 if kind == "narrow" else WIDE
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        array = pa.FixedSizeListArray.from_arrays(
            pa.array(rng.integers(0, 99, rows * width, np.uint8)), width
        )
        holes = pa.array(rng.random(rows) < 0.2) if kind == "gaps" else pa.array([False] * rows)
        return pa.compute.if_else(holes, pa.scalar(None, array.type), array) if kind == "gaps" else array
    values: st.SearchStrategy[object] = st.booleans() | st.none()
    if kind == "long":
        values = st.binary(min_size=13, max_size=40)
    elif kind == "any":
        values = st.binary(max_size=30) | st.none()
    elif kind == "text":
        values = st.text(max_size=9) | st.none()
    types = {"bits": pa.bool_(), "text": pa.large_string()}
    return pa.array(draw(st.lists(values, min_size=rows, max_size=rows)), types.get(kind, pa.large_binary()))


@st.composite
def chunks(draw: st.DrawFn, kind: str, rows: list[int]) -> tuple[list[Chunk], pa.Array]:
    """Chunks of so many rows each, whole, cut or picked from others, some of them side by side; and their values."""
    found, expected = [], []
    shared = draw(arrays(kind, sum(rows) + 2 * len(rows)))
    at = 0
    for count in rows:
        way = draw(st.sampled_from(["beside", "cut", "picked"]))
        if way == "beside":
            array = shared.slice(at, count)
            found.append(Chunk(array))
        else:
            source = draw(arrays(kind, count + 3))
            if way == "cut":
                start = draw(st.integers(0, 3))
                array = source.slice(start, count)
                found.append(Chunk(source).slice(start, start + count))
            else:
                picked = np.array(
                    draw(st.lists(st.integers(0, count + 2), min_size=count, max_size=count)), np.int64
                )
                array = source.take(pa.array(picked))
                found.append(Chunk(source).take(picked))
        at += count + draw(st.sampled_from([0, 2]))
        expected.append(array)
    return found, pa.concat_arrays(expected)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_batches_are_the_rows_asked_for(data: st.DataObject) -> None:
    """Of one unit or several, permuted or not; what is the receiver's own can be written to."""
    pool, columns = Pool(), data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    own, size = data.draw(st.booleans()), data.draw(st.integers(1, 6))
    units, tables = [], []
    for _ in range(data.draw(st.integers(1, 3))):
        rows = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
        made = [data.draw(chunks(kind, rows)) for kind in columns]
        order = None
        if data.draw(st.booleans()):
            order = np.array(data.draw(st.permutations(range(sum(rows)))), np.int64)
        start = data.draw(st.integers(0, sum(rows) - 1))
        stop = data.draw(st.integers(start + 1, sum(rows)))
        units.append((loaded([found for found, _ in made], order, pool), start, stop))
        places = np.arange(sum(rows)) if order is None else order
        tables.append([values.take(pa.array(places[start:stop])) for _, values in made])
    total = sum(stop - start for _, start, stop in units)
    batches = total // size
    while batches and total % batches:
        batches -= 1
    batches = max(1, batches)

    loose = data.draw(st.booleans())

    found = gather(units, batches, pool, own=own, loose=loose)

    assert len(found) == batches
    for number in range(len(columns)):
        expected = pa.concat_arrays([table[number] for table in tables])
        values = [
            array_of(batch[number], expected.type) if isinstance(batch[number], np.ndarray) else batch[number]
            for batch in found
        ]
        assert {len(array) for array in values} == {total // batches}
        for array in values:
            array.validate(full="view" not in str(array.type))  # whose prefixes are left out
        assert [value for array in values for value in array.to_pylist()] == expected.to_pylist()
        if loose and columns[number] in ("long", "any", "text"):
            continue  # views, or several arrays
        together = pa.concat_arrays(values)
        together.validate(full=True)
        assert together.equals(expected)
        if own and columns[number] in ("narrow", "wide"):
            for batch in found:
                batch[number][...] = 0  # the receiver's own


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_views_bring_values_together(data: st.DataObject) -> None:
    """From any number of chunks, in any order; without a copy before that one."""
    kind = data.draw(st.sampled_from(["long", "any", "text", "wide"]))
    made, values = data.draw(chunks(kind, data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=4))))
    views = Views.of(made)
    assert views is not None
    order = np.array(data.draw(st.permutations(range(len(values)))), np.int64)

    found = views.take(order).copied(values.type)

    found.validate(full=True)
    expected = values.take(pa.array(order))
    if kind == "wide":
        assert found.to_pylist() == [bytes(row) for row in expected.to_pylist()]
    else:
        assert found.equals(expected)


def test_what_views_cannot_tell_of_is_said() -> None:
    """Bits, lists, numbers and strings with 32-bit offsets are gathered in another way."""
    for array in (pa.array([True]), pa.array([[1]]), pa.array([1]), pa.array(["a"])):
        assert Views.of([Chunk(array)]) is None
