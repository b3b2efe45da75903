"""What leaves a lake for others, and what they make of it: every type, every format, their own readers."""

from __future__ import annotations

import io
import json
import uuid
import wave
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

import lake
from lake.dataset import Dataset
from lake.errors import SchemaError
from lake.repo import Lake

# --- types --------------------------------------------------------------------------------------

_T = pa.timestamp
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False]),
    **{
        str(kind): (kind, [0, 100])
        for kind in (
            pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
        )
    },
    "float16": (pa.float16(), [np.float16(0.5), np.float16(-2)]),
    "float32": (pa.float32(), [0.5, float("inf")]),
    "float64": (pa.float64(), [0.1, -1e300]),
    "decimal32": (pa.decimal32(7, 2), [Decimal("1.25"), Decimal("-3.50")]),
    "decimal64": (pa.decimal64(15, 2), [Decimal("1.25"), Decimal("-3.50")]),
    "decimal128": (pa.decimal128(38, 4), [Decimal("1.2500"), Decimal("-3.5000")]),
    "decimal256": (pa.decimal256(60, 2), [Decimal("1.25"), Decimal("-3.50")]),
    "date32": (pa.date32(), [0, 20_000]),
    "date64": (pa.date64(), [0, 86_400_000 * 20_000]),
    "time32[s]": (pa.time32("s"), [0, 86_399]),
    "time32[ms]": (pa.time32("ms"), [0, 86_399_999]),
    "time64[us]": (pa.time64("us"), [0, 86_399_999_999]),
    "time64[ns]": (pa.time64("ns"), [0, 86_399_999_999_000]),
    **{f"timestamp[{unit}]": (_T(unit), [0, 1_700_000_000]) for unit in ("s", "ms", "us", "ns")},
    **{f"timestamp[{unit}, tz]": (_T(unit, "UTC"), [0, 1_700_000_000]) for unit in ("s", "ms", "us", "ns")},
    **{f"duration[{unit}]": (pa.duration(unit), [0, 1_000]) for unit in ("s", "ms", "us", "ns")},
    "string": (pa.string(), ["", "né"]),
    "large_string": (pa.large_string(), ["", "né"]),
    "string_view": (pa.string_view(), ["", "a text that is longer than twelve bytes"]),
    "binary": (pa.binary(), [b"", b"\xff\0"]),
    "large_binary": (pa.large_binary(), [b"", b"\xff\0"]),
    "binary_view": (pa.binary_view(), [b"", b"\xff" * 20]),
    "fixed_size_binary": (pa.binary(2), [b"ab", b"cd"]),
    "null": (pa.null(), [None, None]),
    "dictionary": (pa.dictionary(pa.int16(), pa.string()), ["owl", "tit"]),
    "list": (pa.list_(pa.int32()), [[], [1, None]]),
    "large_list": (pa.large_list(pa.string()), [[], ["a", None]]),
    "fixed_size_list": (pa.list_(pa.float32(), 2), [[1, 2], [3, 4]]),
    "struct": (pa.struct({"a": pa.int8(), "b": pa.list_(pa.string())}), [{"a": 1, "b": ["x"]}, {"a": None, "b": []}]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], []]),
    "tensor": (pa.fixed_shape_tensor(pa.float32(), [2, 2]), [[1, 2, 3, 4], [5, 6, 7, 8]]),
    "uuid": (pa.uuid(), [b"0123456789abcdef", b"fedcba9876543210"]),
    "list of structs": (pa.list_(pa.struct({"x": pa.int64()})), [[{"x": 1}, {"x": None}], []]),
}  # fmt: skip


def column_of(name: str) -> pa.Array:
    """The type's values and a null."""
    kind, values = TYPES[name]
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    array = pa.array([*values, None], storage)
    return pa.ExtensionArray.from_storage(kind, array) if isinstance(kind, pa.BaseExtensionType) else array


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, Dataset]:
    """A dataset with a column of each type."""
    lk = lake.open(tmp_path_factory.mktemp("types"), progress=False)
    columns = {name: column_of(name) for name in TYPES}
    lk.commit("types", pa.table({"id": [1, 2, 3]} | columns), key="id")
    return lk, lk.dataset("types")


def plain(values: list[Any]) -> list[Any]:
    """Values as text that compares across libraries: NumPy's numbers, maps and times are spelled in several ways."""

    def one(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: one(each) for key, each in value.items()}
        if isinstance(value, list | tuple | np.ndarray):
            return [one(each) for each in value]
        if isinstance(value, np.generic):
            return value.item()
        return value

    return [one(value) for value in values]


@pytest.mark.parametrize("name", TYPES)
def test_duckdb_has_the_values_of_every_type(typed: tuple[Lake, Dataset], name: str) -> None:
    """Through lk.sql, a column comes back as the same values; a type that DuckDB lacks is shown as the nearest."""
    lk, dataset = typed
    expected = dataset.scan([name]).to_table()[name]

    found = lk.sql(f'select "{name}" from types order by id').to_arrow_table()[name]

    assert found.null_count == expected.null_count
    assert _same(found, expected, name)


@pytest.mark.parametrize("name", TYPES)
def test_polars_has_the_values_of_every_type(typed: tuple[Lake, Dataset], name: str) -> None:
    """Through ds.lazy(); a type that polars lacks is shown as the nearest."""
    _, dataset = typed
    expected = dataset.scan([name]).to_table()[name]

    found = dataset.lazy().select("id", name).collect()

    assert found["id"].to_list() == [1, 2, 3]
    assert found[name].null_count() == expected.null_count
    assert _same(found.to_arrow()[name], expected, name)


def _same(found: pa.ChunkedArray, expected: pa.ChunkedArray, name: str) -> bool:
    kind = expected.type
    if isinstance(kind, pa.BaseExtensionType):
        expected = pa.chunked_array([chunk.storage for chunk in expected.chunks])
    if isinstance(found.type, pa.BaseExtensionType):
        found = pa.chunked_array([chunk.storage for chunk in found.chunks])
    if name == "decimal256":
        return bool(
            [None if v is None else Decimal(str(v)) for v in found.to_pylist()] == expected.to_pylist()
        )
    if name.startswith(("timestamp", "duration", "time", "date")):
        return _moments(found) == _moments(expected)
    if name == "uuid":
        return [_uuid_bytes(value) for value in found.to_pylist()] == expected.to_pylist()
    return plain(found.to_pylist()) == plain(expected.to_pylist())


def _uuid_bytes(value: Any) -> bytes | None:
    return uuid.UUID(value).bytes if isinstance(value, str) else getattr(value, "bytes", value)


def _moments(column: pa.ChunkedArray) -> list[int | None]:
    """Times, dates and durations as nanoseconds, whatever their unit."""
    kind = column.type
    if pa.types.is_interval(kind):  # DuckDB's own, in which a duration has no months and maybe days
        return [None if v is None else v.days * 86_400 * 10**9 + v.nanoseconds for v in column.to_pylist()]
    scale = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
    unit = (
        86_400 * 10**9
        if pa.types.is_date32(kind)
        else 10**6
        if pa.types.is_date64(kind)
        else scale[kind.unit]
    )
    width = pa.int32() if kind.bit_width == 32 else pa.int64()
    values = column.combine_chunks().view(width).to_pylist()
    return [None if value is None else value * unit for value in values]


def test_a_type_that_an_engine_lacks_spoils_its_column_alone(typed: tuple[Lake, Dataset]) -> None:
    """All columns are read together, and filters hold on what is shown of it."""
    lk, dataset = typed
    names = list(TYPES)

    shown = lk.sql("from types order by id").to_arrow_table()
    assert shown.column_names == ["id", *names]
    assert lk.sql('select id from types where "decimal256" = \'1.25\' and "float16" = 0.5').fetchall() == [
        (1,)
    ]
    frame = dataset.lazy().filter((pl.col("id") > 1) & (pl.col("decimal256") == "-3.50")).collect()
    assert frame["id"].to_list() == [2]


# --- exports ------------------------------------------------------------------------------------


ROWS = 500


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> tuple[pa.Table, Dataset]:
    """Rows of the types that all formats can hold, in several shards."""
    table = pa.table(
        {
            "key": [f"k{n:04}" for n in range(ROWS)],
            "n": pa.array([None if n % 50 == 0 else n for n in range(ROWS)], pa.int64()),
            "x": np.random.default_rng(0).random(ROWS),
            "text": [f'text "{n}",\nlines' if n % 9 else "" for n in range(ROWS)],
            "when": pa.array([n * 10**6 for n in range(ROWS)], pa.timestamp("us")),
            "flag": [n % 2 == 0 for n in range(ROWS)],
        }
    )
    lk = lake.open(tmp_path_factory.mktemp("birds"), progress=False)
    assert lk.commit("birds", table, shard_bytes="16KiB").shards > 1
    return lk.dataset("birds").scan().to_table(), lk.dataset("birds")


READERS: dict[str, dict[str, Callable[[str], pa.Table]]] = {
    "parquet": {
        "pyarrow": pq.read_table,
        "duckdb": lambda path: duckdb.sql(f"from '{path}'").to_arrow_table(),
        "polars": lambda path: pl.read_parquet(path).to_arrow(),
        "pandas": lambda path: pa.Table.from_pandas(
            pd.read_parquet(path, dtype_backend="pyarrow"), preserve_index=False
        ),
    },
    "arrow": {
        "pyarrow": lambda path: pads.dataset(path, format="ipc").to_table(),
        "polars": lambda path: pl.read_ipc(path).to_arrow(),
        "pandas": lambda path: pa.Table.from_pandas(
            pd.read_feather(path, dtype_backend="pyarrow"), preserve_index=False
        ),
    },
    "csv": {
        "duckdb": lambda path: duckdb.sql(
            f"from read_csv('{path}', allow_quoted_nulls=false)"
        ).to_arrow_table(),
        "polars": lambda path: pl.read_csv(path, try_parse_dates=True).to_arrow(),
        "pandas": lambda path: pa.Table.from_pandas(
            pd.read_csv(
                path,
                dtype_backend="pyarrow",
                parse_dates=["when"],
                keep_default_na=False,
                na_values={"n": [""]},
            ),
            preserve_index=False,
        ),
    },
    "jsonl": {
        "duckdb": lambda path: duckdb.sql(f"from read_json('{path}')").to_arrow_table(),
        "polars": lambda path: (
            pl.read_ndjson(path).with_columns(pl.col("when").str.to_datetime(time_unit="us")).to_arrow()
        ),
        "pandas": lambda path: pa.Table.from_pandas(
            pd.read_json(path, lines=True, dtype_backend="pyarrow", precise_float=True).assign(
                when=lambda frame: pd.to_datetime(frame["when"]).astype("timestamp[us][pyarrow]")
            ),
            preserve_index=False,
        ),
    },
}


@pytest.mark.parametrize(
    ("form", "reader"), [(form, each) for form, known in READERS.items() for each in known]
)
def test_other_readers_find_the_rows(
    birds: tuple[pa.Table, Dataset], form: str, reader: str, tmp_path: Path
) -> None:
    """The same values in the same order, whoever reads the file that export wrote."""
    table, dataset = birds
    path = tmp_path / f"birds.{form}"
    dataset.export(path)

    found = READERS[form][reader](str(path))

    assert found.column_names == table.column_names
    for name in table.column_names:
        if name == "when":
            assert _moments(found[name]) == _moments(table[name])
        else:
            assert found[name].to_pylist() == table[name].to_pylist(), name


def test_row_groups_are_shards_with_their_statistics(birds: tuple[pa.Table, Dataset], tmp_path: Path) -> None:
    """So other readers prune as lake does."""
    _, dataset = birds
    dataset.export(tmp_path / "birds.parquet")
    metadata = pq.read_metadata(tmp_path / "birds.parquet")
    shards = list(dataset.snapshot.manifest.shards())

    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [
        s.rows for s in shards
    ]
    for i, shard in enumerate(shards):
        stats = metadata.row_group(i).column(0).statistics
        assert (stats.min, stats.max) == (shard.first_key, shard.last_key)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves its file open
def test_webdataset_reads_what_was_exported(tmp_path: Path) -> None:
    """Its own decoders give the values; a sample lacks the fields that are null."""
    wds = pytest.importorskip("webdataset")
    sound = io.BytesIO()
    with wave.open(sound, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes(bytes(100))
    samples = [
        (
            f"s{n:03}",
            {
                "txt": f"text {n}",
                "cls": n % 3,
                "json": json.dumps({"n": n}),
                "wav": sound.getvalue() if n % 2 else None,
            },
        )
        for n in range(20)
    ]
    lk = lake.open(tmp_path / "lake", progress=False)
    lk.commit("samples", samples)
    lk.dataset("samples").export(tmp_path / "samples.tar")

    reader = wds.WebDataset(str(tmp_path / "samples.tar"), shardshuffle=False)
    found = list(reader.decode())
    reader.close()

    assert [each["__key__"] for each in found] == [key for key, _ in samples]
    for each, (_, fields) in zip(found, samples, strict=True):
        assert (each["txt"], each["cls"], each["json"]) == (
            fields["txt"],
            fields["cls"],
            json.loads(fields["json"]),
        )
        assert each.get("wav") == fields["wav"]
    again = lk.commit("again", str(tmp_path / "samples.tar"))
    assert again.rows == 20


def test_hugging_face_reads_what_was_exported(birds: tuple[pa.Table, Dataset], tmp_path: Path) -> None:
    """From Parquet, and from a folder of its parts."""
    datasets = pytest.importorskip("datasets")
    table, dataset = birds
    dataset.export(tmp_path / "birds.parquet")
    dataset.export(tmp_path / "parts", format="parquet")

    for files in (str(tmp_path / "birds.parquet"), str(tmp_path / "parts" / "*.parquet")):
        found = datasets.Dataset.from_parquet(files, cache_dir=str(tmp_path / "cache"))
        assert found.with_format("arrow")[:].column_names == table.column_names
        assert found["n"][:] == table["n"].to_pylist()


@pytest.mark.parametrize("form", ["parquet", "arrow", "csv", "jsonl"])
def test_what_was_exported_comes_back(birds: tuple[pa.Table, Dataset], form: str, tmp_path: Path) -> None:
    """With the types of the formats that have them, the version is the same one; else with schema=."""
    table, dataset = birds
    dataset.export(tmp_path / f"birds.{form}")
    lk = lake.open(tmp_path / "lake", progress=False)

    made = lk.commit("birds", str(tmp_path / f"birds.{form}"), shard_bytes="16KiB", schema=dataset.schema)

    assert made.data == dataset.snapshot.document.data
    assert lk.dataset("birds").scan().to_table().equals(table)


def test_a_column_that_a_format_lacks_is_named(typed: tuple[Lake, Dataset], tmp_path: Path) -> None:
    """And leaving it out is the way out."""
    _, dataset = typed
    with pytest.raises(SchemaError, match=r"CSV cannot hold column 'binary'"):
        dataset.export(tmp_path / "t.csv", columns=["id", "binary"])
    dataset.export(tmp_path / "t.csv", columns=["id", "string"])
    assert pl.read_csv(tmp_path / "t.csv").height == 3
