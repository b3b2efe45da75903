"""Frames: values inflated straight to memory are those that Arrow decodes, and no bytes do harm."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.errors import IntegrityError
from lake.format.decode import OpenPart
from lake.format.frames import Frame, frame_of, inflate
from lake.parts import raw_of, width
from tests.format.test_decode import encode, stored_tables


def memory(size: int) -> np.ndarray:
    return np.full(size, 0xEE, np.uint8)


@settings(max_examples=300, deadline=None)
@given(stored_tables(), st.sampled_from(["none", "zstd"]), st.data())
def test_inflated_values_are_those_that_arrow_decodes(
    table: pa.Table, codec: str, data: st.DataObject
) -> None:
    """Of any batches in any order, where they are in frames; nulls and what is not compressed are not."""
    part, octets = encode(table, codec=codec)
    opened = OpenPart(octets, part, table.schema)
    for field in table.schema:
        size = width(field.type)
        frames = None if size is None else opened.frames(field.name, size)
        if frames is None:
            continue
        assert codec == "zstd"
        numbers = data.draw(st.lists(st.integers(0, len(frames) - 1), max_size=5))
        found = opened.inflate([frames[number] for number in numbers], memory)
        for number, values in zip(numbers, found, strict=True):
            raw = raw_of(opened.batch(number).column(field.name))
            assert raw is not None
            assert values.tobytes() == raw.tobytes()


def vectors(rows: int = 3000) -> pa.Table:
    rng = np.random.default_rng(1)
    values = rng.integers(0, 50, rows * 100).astype(np.int64)
    return pa.table(
        {"x": pa.FixedSizeListArray.from_arrays(pa.array(values), 100), "y": pa.array(rng.random(rows))}
    )


def test_wide_values_without_nulls_are_in_frames() -> None:
    """All of a part's batches are, and share memory within a mebibyte."""
    table, taken = vectors(), list[int]()
    part, octets = encode(table, codec="zstd")
    opened = OpenPart(octets, part, table.schema)

    def take(size: int) -> np.ndarray:
        taken.append(size)
        return memory(size)

    frames = opened.frames("x", 800)
    assert frames is not None
    assert len(frames) == len(part.batches) > 3
    assert (
        b"".join(values.tobytes() for values in opened.inflate(frames, take))
        == table["x"].chunk(0).flatten().to_numpy().tobytes()
    )
    assert len(taken) < len(frames)
    assert max(taken) == 2**20


@pytest.mark.parametrize("size", [799, 400, 801, 1600])
def test_frames_of_another_size_are_none(size: int) -> None:
    table = vectors()
    part, octets = encode(table, codec="zstd")
    assert OpenPart(octets, part, table.schema).frames("x", size) is None


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_frames_are_an_error_or_as_many_values(data: st.DataObject) -> None:
    table = vectors(600)
    part, octets = encode(table, codec="zstd")
    frames = OpenPart(octets, part, table.schema).frames("x", 800)
    assert frames is not None
    damaged = bytearray(octets)
    for frame in data.draw(st.lists(st.sampled_from(frames), min_size=1)):
        at = frame.start + data.draw(st.one_of(st.integers(0, 16), st.integers(0, frame.length - 1)))
        damaged[at] ^= data.draw(st.integers(1, 255))
    opened, found = OpenPart(bytes(damaged), part, table.schema), None
    with suppress(IntegrityError):
        found = opened.inflate(frames, memory)
    assert found is None or [len(values) for values in found] == [frame.values for frame in frames]


def test_a_damaged_frame_is_an_error_that_names_the_part() -> None:
    part, octets = encode(vectors(600), codec="zstd")
    opened = OpenPart(octets, part, vectors(0).schema)
    frames = opened.frames("x", 800)
    assert frames is not None
    cut = [frame._replace(length=frame.length // 2) for frame in frames]
    with pytest.raises(IntegrityError, match=part.digest[:12]):
        opened.inflate(cut, memory)


def test_what_is_stored_as_it_is_is_in_no_frame() -> None:
    values = np.arange(100, dtype=np.uint8)
    plain = np.concatenate([np.frombuffer((-1).to_bytes(8, "little", signed=True), np.uint8), values])
    assert frame_of(plain, 0, 108, 100) is None
    assert frame_of(plain, 0, 4, 0) is None


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 300), st.integers(0, 300), st.integers(0, 300))
def test_bytes_that_are_no_frames_are_a_value_error(data: bytes, start: int, length: int, size: int) -> None:
    frame = Frame(start, length, size, size)
    try:
        [found] = inflate(np.frombuffer(data, np.uint8), [frame], memory)
    except ValueError:
        return
    assert len(found) == size
