"""SQL over a lake: its documents as `lake.*`, its datasets as tables. See `lake.catalog.engine`."""

from lake.catalog.answers import new_file, write_answer
from lake.catalog.engine import Catalog, Error, Mistake, cause_of
from lake.catalog.files import Statement, query, statements

__all__ = [
    "Catalog",
    "Error",
    "Mistake",
    "Statement",
    "cause_of",
    "new_file",
    "query",
    "statements",
    "write_answer",
]
