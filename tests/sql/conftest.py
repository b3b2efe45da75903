"""Hand-made datasets, so that the catalog is tested against nothing but what a dataset promises."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from lake.catalog import Catalog
from lake.errors import NotFoundError
from lake.virtual import VirtualDataset


@dataclass
class HandMade:
    """A dataset whose rows are a table; `asked` lists the columns and filters that it was read with."""

    rows: pa.Table
    step: int = 1 << 20
    asked: list[tuple[tuple[str, ...], str | None]] = field(default_factory=list)
    given: int = 0  # rows handed out
    open: int = 0  # readings that are not closed
    name: str = ""
    version: str = field(default_factory=lambda: uuid.uuid4().hex)
    failure: Exception | None = None

    @property
    def schema(self) -> pa.Schema:
        return self.rows.schema

    def __len__(self) -> int:
        return len(self.rows)

    def arrow(self) -> VirtualDataset:
        return VirtualDataset(self.rows.schema, lambda columns, where: self._batches(tuple(columns), where))

    def _batches(self, names: tuple[str, ...], where: Any) -> Iterator[pa.RecordBatch]:
        self.asked.append((names, None if where is None else str(where)))
        kept = (self.rows if where is None else self.rows.filter(where)).select(names)
        self.open += 1
        try:
            for batch in kept.to_batches(max_chunksize=self.step):
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
