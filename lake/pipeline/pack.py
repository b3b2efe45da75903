"""Documents of tokens in rows of one length."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np

from lake.pipeline.node import Node, Run, StageMeter
from lake.pipeline.rewind import Rewind, every_of
from lake.pipeline.stage import Stage

Tokens: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

OPEN_ROWS: Final = 16  # that whole documents are fitted into at once


@dataclass(frozen=True, eq=False)
class Pack(Node):
    """Rows as dicts of the tokens, `segment_ids` (from 1, 0 for padding) and `positions` within each segment."""

    name: ClassVar[str] = "pack"
    source: Node
    length: int
    field: str | None
    eos: int | None
    split: bool
    pad: int

    @property
    def outline(self) -> str:
        return f"pack({self.length}, field={self.field}, eos={self.eos}, split={self.split}, pad={self.pad})"

    def open(self, run: Run) -> Stage:
        opened = self.source.open(run)
        return _Run(opened, self) if self.split else _Fit(opened, self, run.meter(self))

    def document(self, item: Any) -> Tokens:
        """The tokens of an item, ended by `eos`."""
        found = item
        if self.field is not None:
            fields = item[1] if isinstance(item, tuple) and len(item) == 2 else item
            if not isinstance(fields, dict) or self.field not in fields:
                raise ValueError(f"pack(): no field {self.field!r} in {_shape_of(fields)}")
            found = fields[self.field]
        elif isinstance(item, tuple | dict | str):
            raise ValueError(
                f"pack(): {_shape_of(item)} is no sequence of tokens: field= says which has them"
            )
        tokens = np.asarray(found)
        if tokens.ndim != 1:
            raise ValueError(f"pack(): tokens are a flat sequence, not of shape {tokens.shape}")
        if not len(tokens):
            tokens = tokens.astype(np.int64)
        return tokens if self.eos is None else np.append(tokens, tokens.dtype.type(self.eos))

    def row(self, parts: list[Tokens]) -> dict[str, Tokens]:
        """Segments side by side, and padding to the length."""
        sizes = [len(part) for part in parts]
        rest = self.length - sum(sizes)
        tokens = np.concatenate(parts)
        if rest:
            tokens = np.append(tokens, np.full(rest, self.pad, tokens.dtype))
        segments = np.repeat(np.arange(1, len(parts) + 1, dtype=np.int32), sizes)
        positions = np.concatenate([np.arange(size, dtype=np.int32) for size in [*sizes, rest]])
        positions[self.length - rest :] = 0
        return {
            self.field or "tokens": tokens,
            "segment_ids": np.append(segments, np.zeros(rest, np.int32)),
            "positions": positions,
        }


def _shape_of(item: Any) -> str:
    if isinstance(item, dict):
        return f"a dict of {', '.join(map(str, item)) or 'nothing'}"
    return f"a {type(item).__name__}"


class _Run:
    """Documents run on from row to row. The position is before the one whose rest is left, and how much it lost."""

    def __init__(self, source: Stage, node: Pack) -> None:
        self._source, self._node = source, node
        self._input = Rewind(source, every_of(node))
        self._rest: Tokens | None = None
        self._used = 0  # tokens of the document that `rest` ends
        self._tag: Any = None

    def next(self) -> dict[str, Tokens]:
        parts: list[Tokens] = []
        missing = self._node.length
        while missing:
            if self._rest is None:
                self._rest, self._used = self._node.document(self._input.next()), 0
                self._input.forget(self._input.count - 1)
            part = self._rest[:missing]
            if len(part):
                if not parts:
                    self._tag = self._source.tag(), self._used
                parts.append(part)
                missing -= len(part)
            self._used += len(part)
            self._rest = self._rest[len(part) :] if len(part) < len(self._rest) else None
        return self._node.row(parts)

    def state(self) -> Any:
        if self._rest is None:
            return [self._input.state(), 0]
        return [self._input.state(self._input.count - 1), self._used]

    def restore(self, state: Any) -> None:
        position, self._used = state
        self._input.restore(position)
        if self._used:
            self._rest = self._node.document(self._input.next())[self._used :]

    def tag(self) -> Any:
        return self._tag

    def close(self) -> None:
        self._source.close()


@dataclass(slots=True)
class _Row:
    """A row being filled; `numbers` are those of its documents in the input."""

    numbers: list[int] = field(default_factory=list)
    parts: list[Tokens] = field(default_factory=list)
    tag: Any = None
    size: int = 0

    def add(self, number: int, document: Tokens, tag: Any) -> None:
        if not self.parts:
            self.tag = tag
        self.numbers.append(number)
        self.parts.append(document)
        self.size += len(document)


class _Fit:
    """Whole documents, each in the first row that has room. The oldest row goes where there are too many.

    The position is before the first document that lies in an open row, and which documents lie in each.
    """

    def __init__(self, source: Stage, node: Pack, meter: StageMeter) -> None:
        self._source, self._node, self._meter = source, node, meter
        self._input = Rewind(source, every_of(node))
        self._rows: deque[_Row] = deque()
        self._is_over = False
        self._tag: Any = None

    def next(self) -> dict[str, Tokens]:
        while not self._is_over and len(self._rows) <= OPEN_ROWS:
            try:
                number, document, tag = self._read()
            except StopIteration:
                self._is_over = True
            else:
                if len(document):
                    self._row_for(len(document)).add(number, document, tag)
        if not self._rows:
            raise StopIteration
        row = self._rows.popleft()
        self._tag = row.tag
        self._input.forget(self._first())
        return self._node.row(row.parts)

    def state(self) -> Any:
        first = self._first()
        rows = [[number - first for number in row.numbers] for row in self._rows]
        return [self._input.state(first), self._input.count - first, rows]

    def restore(self, state: Any) -> None:
        position, read, rows = state
        self._input.restore(position)
        self._rows = deque(_Row() for _ in rows)
        places = {number: row for row, numbers in zip(self._rows, rows, strict=True) for number in numbers}
        for _ in range(read):
            number, document, tag = self._read(again=True)
            if number in places:
                places[number].add(number, document, tag)

    def tag(self) -> Any:
        return self._tag

    def close(self) -> None:
        self._source.close()

    def _first(self) -> int:
        return min((row.numbers[0] for row in self._rows), default=self._input.count)

    def _read(self, *, again: bool = False) -> tuple[int, Tokens, Any]:
        number = self._input.count
        document = self._node.document(self._input.next())
        if len(document) > self._node.length:
            document = document[: self._node.length]
            self._meter.cut += not again
        return number, document, self._source.tag()

    def _row_for(self, size: int) -> _Row:
        for row in self._rows:
            if row.size + size <= self._node.length:
                return row
        self._rows.append(_Row())
        return self._rows[-1]
