"""Parquet, CSV, JSON lines and Arrow files: one or many, local or in a bucket, damaged or not."""

from __future__ import annotations

import gzip
import uuid

import boto3
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.convert import paths, read, table_files
from lake.errors import FormatError, NotFoundError, SchemaError, StoreError
from tests.conftest import BUCKET

TABLE = pa.table({"key": ["a", "b", "c"], "n": [1, 2, None], "x": [0.5, -1.0, 2.0]})


def write(path, data=TABLE):
    kind = path.suffixes[0]
    if kind == ".parquet":
        pq.write_table(data, path)
    elif kind == ".csv":
        pyarrow.csv.write_csv(data, path)
    elif kind == ".jsonl":
        path.write_text(data.to_pandas().to_json(orient="records", lines=True))
    elif kind == ".feather":
        pyarrow.feather.write_feather(data, path)
    elif kind == ".arrows":
        with pa.ipc.new_stream(path, data.schema) as writer:
            writer.write_table(data)
    else:
        with pa.ipc.new_file(path, data.schema) as writer:
            writer.write_table(data)
    return path


def table(found) -> pa.Table:
    whole = pa.Table.from_batches(found.batches, found.schema)
    whole.validate(full=True)
    return whole


KINDS = ["parquet", "csv", "jsonl", "arrow", "arrows", "feather"]


@pytest.mark.parametrize("kind", KINDS)
def test_one_file_and_many_are_one_table(tmp_path, kind):
    """Files of a glob come in order of their names."""
    for name in ("b", "a", "c"):
        write(tmp_path / f"{name}.{kind}", TABLE.set_column(0, "key", pa.array([name + k for k in "xyz"])))
    one, many = read(tmp_path / f"a.{kind}"), read(f"{tmp_path}/*.{kind}")

    assert table(one).select(["n", "x"]).to_pylist() == TABLE.select(["n", "x"]).to_pylist()
    assert table(many)["key"].to_pylist() == [n + k for n in "abc" for k in "xyz"]
    assert many.read == many.bytes == sum(p.stat().st_size for p in tmp_path.iterdir())
    assert many.rows == (9 if kind == "parquet" else None)
    assert table(read([tmp_path / f"c.{kind}", tmp_path / f"a.{kind}"]))["key"].to_pylist()[0] == "cx"


def test_text_may_be_compressed(tmp_path):
    """As its name says."""
    plain = write(tmp_path / "x.csv").read_bytes()
    (tmp_path / "y.csv.gz").write_bytes(gzip.compress(plain))

    assert table(read(tmp_path / "y.csv.gz")).equals(table(read(tmp_path / "x.csv")))


def test_a_byte_order_mark_and_quoted_newlines_are_no_data(tmp_path):
    """Excel writes the one, people the other."""
    (tmp_path / "x.csv").write_bytes(b'\xef\xbb\xbfid,text\n1,"two\nlines"\n')

    assert table(read(tmp_path / "x.csv")).to_pylist() == [{"id": 1, "text": "two\nlines"}]


def test_schema_reads_text_as_it_stands(tmp_path):
    """`007` asked for as a string keeps its zeros."""
    (tmp_path / "x.csv").write_text("key,code\na,007\nb,8\n")
    (tmp_path / "x.jsonl").write_text('{"key": "a", "n": 1}\n{"key": "b"}\n')

    assert table(read(tmp_path / "x.csv", schema={"key": pa.string(), "code": pa.large_string()}))[
        "code"
    ].to_pylist() == [
        "007",
        "8",
    ]
    assert table(read(tmp_path / "x.jsonl", schema={"key": ["b", "a"], "n": pa.float32()})).to_pylist() == [
        {"key": "a", "n": 1.0},
        {"key": "b", "n": None},
    ]


def test_a_late_value_of_another_type_names_file_column_line_and_way_out(tmp_path, monkeypatch):
    """Types come from the first block."""
    monkeypatch.setattr(table_files, "_BLOCK_BYTES", 1 << 10)
    (tmp_path / "x.csv").write_text("id,price\n" + "1,2\n" * 1000 + "1,cheap\n")
    (tmp_path / "x.jsonl").write_text('{"id": 1}\n' * 1000 + '{"id": "one"}\n')

    with pytest.raises(SchemaError, match=r"x\.csv: column 'price', line 1002: .*int64.*'cheap'.*schema="):
        table(read(tmp_path / "x.csv"))
    with pytest.raises(SchemaError, match=r"x\.jsonl: .*schema="):
        table(read(tmp_path / "x.jsonl"))


def test_a_late_new_json_field_is_an_error(tmp_path, monkeypatch):
    """It would be dropped without a word."""
    monkeypatch.setattr(table_files, "_BLOCK_BYTES", 1 << 10)
    (tmp_path / "x.jsonl").write_text('{"id": 1}\n' * 1000 + '{"id": 2, "new": 3}\n')

    with pytest.raises(SchemaError, match=r"x\.jsonl: .*unexpected"):
        table(read(tmp_path / "x.jsonl"))


def test_types_of_several_files_widen(tmp_path):
    """Null to anything, ints to floats; columns may stand in any order."""
    write(tmp_path / "1.parquet", pa.table({"a": pa.nulls(1), "b": [1]}))
    write(tmp_path / "2.parquet", pa.table({"b": [1.5], "a": ["x"]}))

    assert table(read(f"{tmp_path}/*.parquet")).to_pylist() == [{"a": None, "b": 1.0}, {"a": "x", "b": 1.5}]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"a": ["x"]}, r"column 'a' is int64 in .*1\.parquet and string in .*2\.parquet"),
        ({"a": [1], "b": [1]}, r"2\.parquet has a column 'b' and .*1\.parquet has not"),
        ({"c": [1]}, r"1\.parquet has a column 'a' and .*2\.parquet has not"),
    ],
)
def test_files_that_are_no_one_table_are_named(tmp_path, other, message):
    """Both, and the column."""
    write(tmp_path / "1.parquet", pa.table({"a": [1]}))
    write(tmp_path / "2.parquet", pa.table(other))

    with pytest.raises(SchemaError, match=message):
        read(f"{tmp_path}/*.parquet")


def test_schema_reconciles_files_that_differ(tmp_path):
    """A nullable column may be missing from some."""
    write(tmp_path / "1.parquet", pa.table({"a": [1]}))
    write(tmp_path / "2.parquet", pa.table({"a": [2], "b": ["x"]}))

    found = read(f"{tmp_path}/*.parquet", schema={"a": pa.int32(), "b": pa.string()})

    assert table(found).to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_named(tmp_path, kind):
    """Whatever its name promises."""
    path = write(tmp_path / f"x.{kind}")
    path.write_bytes(b"\x00\xff{" + path.read_bytes()[: path.stat().st_size // 2])

    with pytest.raises((FormatError, SchemaError), match=rf"x\.{kind}"):
        table(read(path))


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_file_is_named(tmp_path, kind):
    """Nothing says what its columns are."""
    (tmp_path / f"x.{kind}").write_bytes(b"")

    with pytest.raises((FormatError, ValueError), match=rf"x\.{kind}"):
        table(read(tmp_path / f"x.{kind}"))


def test_text_without_rows_has_no_types(tmp_path):
    """Unless `schema=` says which; Parquet says itself."""
    (tmp_path / "x.csv").write_text("a,b\n")
    write(tmp_path / "x.parquet", TABLE.slice(0, 0))

    with pytest.raises(ValueError, match="schema="):
        read(tmp_path / "x.csv")
    assert table(read(tmp_path / "x.csv", schema={"a": pa.int8(), "b": pa.string()})).num_rows == 0
    assert table(read(tmp_path / "x.parquet")).schema == TABLE.schema


def test_batches_stay_small_however_the_file_was_written(tmp_path):
    """One row group of 40 MB is not one batch; row numbers are counted for the progress bar."""
    pq.write_table(
        pa.table({"x": pa.array([uuid.uuid4().bytes * 640 for _ in range(4000)], pa.large_binary())}),
        tmp_path / "x.parquet",
        use_dictionary=False,
    )
    found = read(tmp_path / "x.parquet")

    first = next(found.batches)

    assert first.nbytes < 16 << 20
    assert 0 < found.read < found.bytes


def test_unknown_and_mixed_formats_are_refused(tmp_path):
    """With what can be read."""
    for name in ("x.xml", "y.csv", "y.jsonl"):
        (tmp_path / name).write_text("a\n1\n")

    with pytest.raises(ValueError, match=r"x\.xml: .*\.parquet"):
        read(tmp_path / "x.xml")
    with pytest.raises(ValueError, match=r"y\.csv and .*y\.jsonl"):
        read(f"{tmp_path}/y.*")
    with pytest.raises(ValueError, match=r"no file matches .*\*\.parquet"):
        read(f"{tmp_path}/*.parquet")
    with pytest.raises(NotFoundError, match="nowhere"):
        read(tmp_path / "nowhere.csv")


def test_a_name_with_wildcards_in_it_is_that_file(tmp_path):
    """`data[1].csv` exists: it is meant."""
    (tmp_path / "data[1].csv").write_text("a\n1\n")

    assert table(read(tmp_path / "data[1].csv")).to_pylist() == [{"a": 1}]


# --- s3 ---------------------------------------------------------------------------------------


@pytest.fixture
def bucket(s3_server):
    """A prefix in a bucket, and a way to put files there."""
    client = boto3.client("s3", endpoint_url=s3_server, region_name="us-east-1")
    prefix = uuid.uuid4().hex
    yield (
        f"s3://{BUCKET}/{prefix}",
        lambda name, data: client.put_object(Bucket=BUCKET, Key=f"{prefix}/{name}", Body=data),
    )
    client.close()


def test_files_in_a_bucket_are_read_in_place(tmp_path, s3_server, bucket):
    """By name and by glob, of every kind; archives too."""
    url, put = bucket
    for kind in KINDS:
        put(f"t/x.{kind}", write(tmp_path / f"x.{kind}").read_bytes())
    put("t/deep/y.parquet", write(tmp_path / "y.parquet").read_bytes())

    for kind in KINDS:
        found = read(f"{url}/t/x.{kind}", endpoint_url=s3_server, region="us-east-1")
        assert table(found)["n"].to_pylist() == [1, 2, None]
    assert table(read(f"{url}/t/*.parquet", endpoint_url=s3_server, region="us-east-1")).num_rows == 3
    assert table(read(f"{url}/**/*.parquet", endpoint_url=s3_server, region="us-east-1")).num_rows == 6


def test_archives_in_a_bucket_are_read_in_place(tmp_path, s3_server, bucket):
    """A zip by ranges, a compressed tar as a stream."""
    from tests.convert.test_archive import PAIRS, pack, rows

    url, put = bucket
    for kind in ("zip", "tar", "tar.zst"):
        put(f"x.{kind}", pack(tmp_path / f"x.{kind}", PAIRS).read_bytes())
        found = read(f"{url}/x.{kind}", endpoint_url=s3_server, region="us-east-1")
        assert rows(found) == rows(read(tmp_path / f"x.{kind}"))


def test_what_a_bucket_does_not_give_is_named(s3_server, bucket):
    """Object, bucket and what to check."""
    url, _ = bucket
    options = {"endpoint_url": s3_server, "region": "us-east-1"}

    with pytest.raises(NotFoundError, match=r"x\.csv"):
        read(f"{url}/x.csv", **options)
    with pytest.raises(ValueError, match=r"no file matches .*\*\.csv"):
        read(f"{url}/*.csv", **options)
    with pytest.raises(ValueError, match="archives and tables"):
        read(f"{url}/", **options)
    with pytest.raises(StoreError, match=r"x\.csv.*endpoint_url"):
        read(f"{url}/x.csv", endpoint_url="http://127.0.0.1:9", region="us-east-1")


@given(st.lists(st.sampled_from(["a", "b.csv", "c", ".h"]), min_size=1, max_size=3).map("/".join))
def test_globs_of_objects_mean_what_globs_of_files_mean(tmp_path_factory, name):
    """For every pattern of a list, on every path."""
    import glob
    import re

    root = tmp_path_factory.mktemp("glob")
    path = root / f"{name}.x"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")

    for pattern in ("*", "*/*", "**/*", "**/b*", "?/*", "[ab]/*", "[!a]/*", "a/**/*.x", "a/b.csv.x"):
        matches = glob.glob(pattern, root_dir=root, recursive=True)  # noqa: PTH207  Path.glob finds hidden files
        found = [p for p in matches if (root / p).is_file()]
        assert bool(found) == bool(re.fullmatch(paths.glob_regex(pattern), f"{name}.x")), pattern
