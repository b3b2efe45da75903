"""The command line: each command parses, calls one public function and prints what it returns.

A family of commands is one module, which registers itself when it is imported here; the order of the imports
is the order in `lake --help`.
"""

from lake.cli.app import app, main

from lake.cli import lakes, datasets, history, upkeep, reading, sql, machine, archive, watch, demo  # isort: skip


__all__ = [
    "app",
    "archive",
    "datasets",
    "demo",
    "history",
    "lakes",
    "machine",
    "main",
    "reading",
    "sql",
    "upkeep",
    "watch",
]
