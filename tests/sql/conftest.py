"""Hand-made datasets, so that the catalog is tested against nothing but what a dataset promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from lake.catalog import Catalog
from lake.errors import NotFoundError


@dataclass
class HandMade:
    """A dataset whose rows are a table; `asked` lists the columns and filters of its scans."""

    rows: pa.Table
    step: int = 1 << 20
    asked: list[tuple[tuple[str, ...], str | None]] = field(default_factory=list)
    given: int = 0  # rows handed out
    open: int = 0  # scans that are not closed
    failure: Exception | None = None
    filters: bool = True  # whether a scan takes a filter

    @property
    def schema(self) -> pa.Schema:
        return self.rows.schema

    @property
    def snapshot(self) -> Any:
        rows = self.rows
        return SimpleNamespace(
            document=SimpleNamespace(schema=rows.schema, rows=len(rows), raw_bytes=rows.nbytes)
        )

    def scan(
        self, columns: Sequence[str] | None = None, where: Any = None, /, *, batch_size: int = 1024
    ) -> Iterator[pa.RecordBatch]:
        if where is not None and not self.filters:
            raise NotImplementedError
        return self._batches(tuple(columns or self.rows.column_names), where, batch_size)

    def _batches(self, names: tuple[str, ...], where: Any, batch_size: int) -> Iterator[pa.RecordBatch]:
        self.asked.append((names, None if where is None else str(where)))
        kept = (self.rows if where is None else self.rows.filter(where)).select(names)
        self.open += 1
        try:
            for batch in kept.to_batches(max_chunksize=min(self.step, batch_size)):
                self.given += batch.num_rows
                yield batch
                if self.failure is not None:
                    raise self.failure
        finally:
            self.open -= 1


class HandMadeLake:
    """A lake of hand-made datasets, which has no documents to tell of."""

    def __init__(self, **tables: pa.Table | HandMade) -> None:
        self.tables = {name: t if isinstance(t, HandMade) else HandMade(t) for name, t in tables.items()}
        self.catalog = Catalog(self)  # type: ignore[arg-type]  # it has no refs and no cache
        self.sql = self.catalog.sql

    def datasets(self) -> list[str]:
        return sorted(self.tables)

    def dataset(self, reference: str) -> HandMade:
        if "~" in reference:
            raise ValueError(f"{reference!r} is no name")
        if reference not in self.tables:
            raise NotFoundError(f"no dataset {reference!r}")
        return self.tables[reference]


@pytest.fixture
def hand_made() -> Callable[..., HandMadeLake]:
    """Makes a lake of the tables given by name."""
    return HandMadeLake
