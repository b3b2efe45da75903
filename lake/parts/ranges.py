"""Some columns of some record batches of a part, by ranged requests; neighbouring ranges with one."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from lake.format import part
from lake.format.values import Part
from lake.parts.copies import Copies
from lake.parts.meter import Meter
from lake.parts.workers import URGENT, Workers

_GAP: Final = 64 * 2**10  # bytes between two ranges that one request may as well fetch

Range: TypeAlias = tuple[int, int]  # start, length


class Ranges:
    """Reads ranges of parts, several at once. Thread-safe."""

    def __init__(self, copies: Copies, workers: Workers) -> None:
        self._copies, self._workers = copies, workers
        self._heads: dict[str, bytes] = {}

    def batches(
        self,
        one: Part,
        indices: Sequence[int],
        columns: Sequence[str],
        stored: pa.Schema,
        meter: Meter,
        first_read: Sequence[bool],
    ) -> list[pa.RecordBatch]:
        """These columns of these record batches, as stored.

        Raises:
            IntegrityError: the bytes are not what the manifest says they are.
        """
        messages = self.get(one, [part.message_range(one, index) for index in indices], meter)
        head = self.head_for(one, messages[0], indices[0], stored, meter) if indices else None
        wanted = [
            part.column_ranges(bytes(message), one, index, columns, stored, head=head)
            for index, message in zip(indices, messages, strict=True)
        ]
        flat = [found for ranges in wanted for found in ranges]
        data = dict(zip(flat, self.get(one, flat, meter), strict=True))
        return [
            part.decode_columns(
                one,
                index,
                bytes(message),
                {key: data[key] for key in ranges},
                columns,
                stored,
                head=head,
                first_read=new,
            )
            for index, message, ranges, new in zip(indices, messages, wanted, first_read, strict=True)
        ]

    def head_for(self, one: Part, batch: Any, index: int, stored: pa.Schema, meter: Meter) -> bytes | None:
        """The head of the part's file, if decoding takes it; `batch` begins with the batch's message."""
        message = bytes(batch[: one.batches[index].meta_length])
        if not part.needs_head(message, one, index, stored):
            return None
        if one.digest not in self._heads:
            start, length = part.head_range(one)
            self._heads[one.digest] = self._copies.read(one, start, length, meter)
        return self._heads[one.digest]

    def get(self, one: Part, ranges: Sequence[Range], meter: Meter) -> list[memoryview]:
        """The bytes of each range."""
        runs: list[list[int]] = []  # start, end
        for start, length in sorted(ranges):
            if runs and start - runs[-1][1] <= _GAP:
                runs[-1][1] = max(runs[-1][1], start + length)
            else:
                runs.append([start, start + length])
        fetched = self._fetched(one, [(start, end - start) for start, end in runs], meter)
        starts = np.array([start for start, _ in runs], dtype=np.int64)
        found = []
        for start, length in ranges:
            at = int(np.searchsorted(starts, start, "right")) - 1
            first = start - int(starts[at])
            found.append(fetched[at][first : first + length])
        return found

    def _fetched(self, one: Part, ranges: Sequence[Range], meter: Meter) -> list[memoryview]:
        """The bytes of each range, all asked for at once."""
        if len(ranges) < 2:
            return [memoryview(self._copies.read(one, start, length, meter)) for start, length in ranges]
        answers: list[memoryview | Exception | None] = [None] * len(ranges)
        left, done = len(ranges), threading.Condition()

        def fetch(number: int, start: int, length: int) -> None:
            nonlocal left
            answer: memoryview | Exception
            try:
                answer = memoryview(self._copies.read(one, start, length, meter))
            except Exception as error:
                answer = error
            with done:
                answers[number] = answer
                left -= 1
                done.notify_all()

        for number, (start, length) in enumerate(ranges):
            self._workers.submit(URGENT, partial(fetch, number, start, length))
        with done:
            while left:
                done.wait()
        found = []
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
            assert answer is not None
            found.append(answer)
        return found
