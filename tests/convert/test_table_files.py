"""Parquet, CSV, JSON lines and Arrow files: one or many, local or in a bucket, damaged or not."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import io
import json
import uuid

import boto3
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lake.convert import csv_text, paths, read, table_files
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


# --- text that is not what it seems -----------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('a,b\n1,x\n2,"d', 3),
        ('a,b\n1,"x"\n2,"d\n3,e\n4,f\n', 3),
        ('a,b\n1,"x""y"\n2,"d""', 3),
        ('a,b\n1,"x\ny"\n2,"', 4),
    ],
    ids=range(4),
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_csv_that_ends_inside_a_quote_is_cut_short(tmp_path, text, line, packed):
    """Arrow takes all that follows for one cell."""
    path = tmp_path / ("x.csv.gz" if packed else "x.csv")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())

    with pytest.raises(FormatError, match=rf"x\.csv.* line {line}: it was cut short"):
        table(read(path))


@given(st.lists(st.sampled_from(['"', '""', ",", "\n", "x", "1,2\n"]), max_size=30), st.integers(1, 5))
def test_quotes_are_followed_as_python_follows_them(pieces, chunk):
    """Whether a text ends inside one, read in whatever pieces."""
    text = "".join(pieces)
    try:
        list(csv.reader(io.StringIO(text, newline=""), strict=False))
        list(csv.reader(io.StringIO(text, newline=""), strict=True))
        ends_inside = False
    except csv.Error as error:
        ends_inside = "unexpected end of data" in str(error)
        assume(ends_inside)  # strict also refuses letters after a quote, and then says no more

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_text, "_CHUNK", chunk)
        assert (csv_text.unclosed(io.BytesIO(text.encode()), ",") is not None) == ends_inside


def test_quotes_that_are_only_letters_are_no_quotes(tmp_path):
    """An odd number of them, as inches."""
    (tmp_path / "x.csv").write_text('size,n\n5" disk,1\n"a ""b""",2\n')

    assert table(read(tmp_path / "x.csv"))["size"].to_pylist() == ['5" disk', 'a "b"']


@pytest.mark.parametrize("where", ["in the first block", "later"])
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_text_in_another_encoding_is_refused(tmp_path, monkeypatch, kind, where):
    """Not stored as bytes: the error names file, encoding and a way to convert it."""
    monkeypatch.setattr(table_files, "_BLOCK_BYTES", 64)
    good = ["n,a", *["1,abcdefg"] * 20] if kind == "csv" else ['{"n": 1, "a": "abcdefg"}'] * 20
    bad = "2,café" if kind == "csv" else '{"n": 2, "a": "café"}'
    lines = [*good, bad, *good[1:]] if where == "later" else [*good[:1], bad]
    (tmp_path / f"x.{kind}").write_bytes("\n".join(lines).encode("latin-1") + b"\n")

    with pytest.raises(SchemaError, match=rf"x\.{kind} is not UTF-8.*iconv"):
        table(read(tmp_path / f"x.{kind}"))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_utf_16_is_named(tmp_path, kind, encoding):
    """As spreadsheets export it."""
    text = "a,b\n1,2\n" if kind == "csv" else '{"a": 1}\n'
    (tmp_path / f"x.{kind}").write_bytes(text.encode(encoding))

    with pytest.raises(SchemaError, match=rf"x\.{kind} is not UTF-8 but.*UTF-16"):
        read(tmp_path / f"x.{kind}")


def test_bytes_that_are_asked_for_are_kept(tmp_path):
    """`schema=` may say binary."""
    (tmp_path / "x.csv").write_bytes(b"a\n\xe9\n")

    assert table(read(tmp_path / "x.csv", schema={"a": pa.binary()}))["a"].to_pylist() == [b"\xe9"]


def test_a_cell_that_turns_numbers_into_text_is_noted(tmp_path):
    """Once the rows are read; a column that is text throughout is no news."""
    (tmp_path / "x.csv").write_text("n,t,e\n1,a,1\n-2.5,b,\nx,c,2\n4e3,1,3\n")

    found = read(tmp_path / "x.csv")
    table(found)

    (note,) = found.notes
    assert "column 'n' of" in note
    assert "x.csv is text" in note
    assert "row 2, 'x'" in note


@pytest.mark.parametrize(
    ("bad", "schema", "message"),
    [
        (
            '{"a": 1, "b": 2}',
            None,
            r"(column 'b', )?line 31 \(row 28\): Column\(/b\) changed from string to number",
        ),
        (
            '{"a": 1.5, "b": ""}',
            {"a": pa.int64(), "b": pa.string()},
            r"column 'a', line 31 \(row 28\): .*1\.5",
        ),
        (
            '{"a": 1, "c": ""}',
            {"a": pa.int64(), "b": pa.string()},
            r"column 'c', line 31 \(row 28\): unexpected",
        ),
        ('{"a": 1, ', None, r"line 31 \(row 28\): "),
    ],
    ids=range(4),
)
@pytest.mark.parametrize("block", [64, 1 << 20])
def test_a_json_value_that_does_not_fit_is_found_in_the_file(
    tmp_path, monkeypatch, bad, schema, message, block
):
    """By its line, wherever blocks end and whatever lines are blank."""
    monkeypatch.setattr(table_files, "_BLOCK_BYTES", block)
    good = '{"a": 1, "b": "x"}'
    lines = [good] * 12 + ["", " "] + [good] * 16 + [bad] + [good] * 9
    (tmp_path / "x.jsonl").write_text("\n".join(lines) + "\n")

    with pytest.raises(SchemaError, match=r"x\.jsonl: " + message):
        table(read(tmp_path / "x.jsonl", schema=schema))


@pytest.mark.parametrize(
    ("times", "kind", "hours"),
    [
        (["2020-01-01T03:00:00Z", "2020-01-01T05:00:00+02:00"], pa.timestamp("s", "UTC"), 3),
        (["2020-01-01T03:00:00", "2020-01-01 03:00:00"], pa.timestamp("s"), 3),
        (["2020-01-01", "2020-01-01"], pa.timestamp("s"), 0),
        (["2020-01-01T03:00:00Z", "2020-01-01T03:00:00"], pa.string(), None),
    ],
    ids=range(4),
)
def test_times_in_json_keep_their_zone(tmp_path, times, kind, hours):
    """At any depth; Arrow would shift them to UTC and say nothing."""
    rows = [{"t": time, "d": {"t": [time]}} for time in times]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    found = table(read(tmp_path / "x.jsonl"))

    moment = dt.datetime(2020, 1, 1, hours or 0, tzinfo=dt.UTC if getattr(kind, "tz", None) else None)
    assert found["t"].type == kind
    assert found["t"].to_pylist() == (times if hours is None else [moment] * 2)
    assert [row["d"]["t"][0] for row in found.to_pylist()] == found["t"].to_pylist()


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1e300", pa.float32()),
        ("1e300", pa.float16()),
        ("2020-01-01 00:00:00.5", pa.timestamp("s")),
        ("2020-01-01 00:00:00", pa.timestamp("s", "UTC")),
        ("2020-01-01 00:00:00Z", pa.timestamp("s")),
    ],
    ids=range(5),
)
def test_a_schema_never_changes_a_value_of_text(tmp_path, kind, text, wanted):
    """Neither parser may overflow, cut or move it."""
    value = float(text) if pa.types.is_floating(wanted) else text
    line = f"a\n{text}\n" if kind == "csv" else json.dumps({"a": value}) + "\n"
    (tmp_path / f"x.{kind}").write_text(line)

    with pytest.raises(SchemaError, match=rf"x\.{kind}"):
        table(read(tmp_path / f"x.{kind}", schema={"a": wanted}))


def test_a_damaged_page_of_parquet_is_named(tmp_path):
    """Where it has checksums, one flipped bit is damage and not another value."""
    path = tmp_path / "x.parquet"
    pq.write_table(
        pa.table({"n": range(1000)}), path, write_page_checksum=True, compression="none", use_dictionary=False
    )
    data = bytearray(path.read_bytes())
    data[4000] ^= 1
    path.write_bytes(data)

    with pytest.raises(FormatError, match=r"x\.parquet is no Parquet file .*CRC"):
        table(read(path))


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
