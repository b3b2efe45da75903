"""What Arrow's CSV reader does not say: a quote that is never closed, a cell that turned numbers into text. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lake.format import arrays

_CHUNK = 1 << 20
_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"


class Counting:
    """A stream that counts the quotes it gives out."""

    closed = False

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.quotes = 0

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes."""
        data: bytes = self._stream.read(size)
        self.quotes += data.count(b'"')
        return data

    def readable(self) -> bool:
        """As a file says it."""
        return True

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()


def unclosed(stream: Any, delimiter: str) -> int | None:
    """The line of the quote in which the text ends; None if it ends outside of quotes.

    A quote opens where a cell begins, and two within one are a quote in the text; others are only letters.

    >>> import io
    >>> unclosed(io.BytesIO(b'a,b\\n1,"x ""y"\\n2,"z\\n3,4'), ","), unclosed(io.BytesIO(b'5" x'), ",")
    (3, None)
    """
    starts = {delimiter.encode(), b"\n", b"\r", b""}
    opened: int | None = None  # the line
    closing = False  # the last byte was a quote inside quotes
    line, last = 1, b""
    while data := stream.read(_CHUNK):
        at = 0
        while (quote := data.find(b'"', at)) >= 0:
            if quote > at:
                closing, opened, last = _moved(closing, opened, data[quote - 1 : quote])
            line += data.count(b"\n", at, quote)
            if opened is None:
                opened = line if last in starts else None
            else:
                closing = not closing
            last, at = b'"', quote + 1
        if at < len(data):
            closing, opened, last = _moved(closing, opened, data[-1:])
            line += data.count(b"\n", at)
    return None if closing else opened


def _moved(closing: bool, opened: int | None, last: bytes) -> tuple[bool, int | None, bytes]:
    """The state after text without quotes: a quote that it follows has closed."""
    return False, None if closing else opened, last


def noticed(batches: Iterator[pa.RecordBatch], name: str, notes: list[str]) -> Iterator[pa.RecordBatch]:
    """The same batches; a column of text that is mostly numbers in the first is noted."""
    first = next(batches, None)
    if first is None:
        return
    for field, column in zip(first.schema, first.columns, strict=True):
        if arrays.is_text(field.type) and (odd := _odd_one(column)) is not None:
            notes.append(
                f"column {field.name!r} of {name} is text and not numbers because of row {odd:,}, "
                f"{column[odd].as_py()[:40]!r}: correct it, or say a type with schema="
            )
    yield first
    yield from batches


def _odd_one(column: pa.Array) -> int | None:
    """The first value that is no number, in a column of which over half are."""
    number = pc.match_substring_regex(column, _NUMBER)
    odd = pc.and_(pc.invert(number), pc.not_equal(column, ""))
    numbers, others = pc.sum(number).as_py() or 0, pc.sum(odd).as_py() or 0
    return int(pc.index(odd, True).as_py()) if numbers > others > 0 else None
