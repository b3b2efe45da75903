"""Folders as samples: which file becomes which field of which sample, in which order; what is left out."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import sysconfig
import threading
import unicodedata
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lake.convert import files, read
from lake.errors import NotFoundError, SchemaError


def fill(root: Path, contents: dict[str, bytes]) -> Path:
    for name, data in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def rows(source) -> list[dict]:
    table = pa.Table.from_batches(source.batches, source.schema)
    table.validate(full=True)
    return table.to_pylist()


def test_files_of_one_name_are_one_sample(tmp_path):
    """`a/x.wav` and `a/x.json` are the sample `a/x` with the fields `wav` and `json`."""
    source = read(fill(tmp_path, {"a/x.wav": b"w", "a/x.json": b"{}", "a/y.wav": b"", "README": b"r"}))

    assert source.schema == pa.schema(
        [("key", pa.large_string()), *((name, pa.large_binary()) for name in ("file", "json", "wav"))]
    )
    assert (source.key, source.rows, source.bytes, source.read) == ("key", 3, 4, 0)
    assert rows(source) == [
        {"key": "README", "file": b"r", "json": None, "wav": None},
        {"key": "a/x", "file": None, "json": b"{}", "wav": b"w"},
        {"key": "a/y", "file": None, "json": None, "wav": b""},
    ]
    assert source.read == 4


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.lists(st.sampled_from(["a", "b c", "é", "日本", "x.y", "-"]), min_size=1, max_size=3).map(
            "/".join
        ),
        st.dictionaries(
            st.sampled_from(["jpg", "json", "tar.gz", "e x"]), st.binary(max_size=20), min_size=1
        ),
        max_size=8,
    ),
    st.integers(1, 40),
)
def test_a_folder_gives_back_every_byte_in_order_of_keys(tmp_path_factory, monkeypatch, samples, batch_bytes):
    """Whatever the names and sizes, and wherever batches end."""
    root = tmp_path_factory.mktemp("folder")
    named = {f"{key}/{'k'}": fields for key, fields in samples.items()}  # a file never also is a folder
    fill(root, {f"{key}.{field}": data for key, fields in named.items() for field, data in fields.items()})
    if not samples:
        return
    monkeypatch.setattr(files, "BATCH_BYTES", batch_bytes)

    source = read(root)
    found = rows(source)

    assert [row["key"] for row in found] == sorted(named)
    assert {row.pop("key"): {f: v for f, v in row.items() if v is not None} for row in found} == named


def test_the_same_files_elsewhere_and_later_are_the_same_data(tmp_path):
    """Neither place, nor time of change, nor order of creation enters the data."""
    contents = {"b/2.txt": b"2", "a/1.txt": b"1", "a b/3.TXT": b"3"}
    one = fill(tmp_path / "one", contents)
    two = fill(tmp_path / "elsewhere" / "two", dict(reversed(contents.items())))
    os.utime(two / "a/1.txt", (0, 0))

    assert rows(read(one)) == rows(read(str(two) + "/"))


def test_part_of_the_standard_library_reads_back_exactly(tmp_path):
    """Real files with real names."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    root = tmp_path / "lib"
    for name in ("json", "email", "wsgiref"):
        shutil.copytree(stdlib / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    expected = {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}

    found = rows(read(root))

    assert {
        f"{row['key']}.{name}": data for row in found for name, data in row.items() if data and name != "key"
    } == {name: data for name, data in expected.items() if data}


def test_hidden_and_special_files_are_counted_and_left_out(tmp_path):
    """Nothing is dropped without a word."""
    fill(
        tmp_path, {"x.txt": b"x", ".DS_Store": b"", "a/.hidden.txt": b"", ".git/config": b"", "a/y.txt": b"y"}
    )
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.txt")

    source = read(tmp_path)

    assert [row["key"] for row in rows(source)] == ["a/y", "x"]
    assert source.notes[:2] == ["2 hidden files skipped", "1 hidden folder skipped"]
    assert source.notes[2:] == (["1 special file skipped"] if hasattr(os, "mkfifo") else [])


@pytest.mark.parametrize("second", ["x.PNG", unicodedata.normalize("NFD", "ü") + ".png"])
def test_two_files_for_one_field_are_an_error_that_names_both(tmp_path, second):
    """Silence would lose one of them."""
    first = "x.png" if second == "x.PNG" else "ü.png"
    fill(tmp_path, {first: b"1", second: b"2"})
    if len(list(tmp_path.iterdir())) < 2:
        pytest.skip("this file system takes the two names for one")

    with pytest.raises(SchemaError) as caught:
        read(tmp_path)

    assert repr(first) in str(caught.value)
    assert repr(second) in str(caught.value)


def test_a_file_that_would_be_the_key_column_is_named(tmp_path):
    """`server.key` cannot be a field named `key`."""
    with pytest.raises(SchemaError, match=r"'server\.key'.*rename"):
        read(fill(tmp_path, {"server.key": b"", "server.pem": b""}))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_name_that_is_not_utf8_is_an_error_that_shows_it(tmp_path):
    """Keys are text."""
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff.txt")).write_bytes(b"")

    with pytest.raises(SchemaError, match=r"bad\\udcff\.txt.*not UTF-8"):
        read(tmp_path)


def test_an_unreadable_file_is_named(tmp_path):
    """With what to do about it."""
    fill(tmp_path, {"ok.txt": b"", "broken.txt": b""})
    (tmp_path / "broken.txt").unlink()
    (tmp_path / "broken.txt").symlink_to(tmp_path / "nowhere")

    with pytest.raises(FileNotFoundError, match=r"broken\.txt") as caught:
        read(tmp_path)

    assert "take it out of the folder" in str(caught.value)


@pytest.mark.parametrize("change", ["longer", "shorter", "gone"])
def test_a_file_that_changes_under_the_reader_is_an_error_that_names_it(tmp_path, change):
    """Never a torn sample."""
    fill(tmp_path, {"x.txt": b"12345"})
    source = read(tmp_path)
    if change == "gone":
        (tmp_path / "x.txt").unlink()
    else:
        (tmp_path / "x.txt").write_bytes(b"123" if change == "shorter" else b"1234567")

    with pytest.raises(OSError, match=r"x\.txt"):
        rows(source)


def test_links_are_followed_but_not_in_circles(tmp_path):
    """A link to a folder above ends; a link to a file or to another folder is what it points to."""
    fill(tmp_path / "data", {"a/x.txt": b"x"})
    fill(tmp_path / "other", {"y.txt": b"y"})
    (tmp_path / "data/a/up").symlink_to(tmp_path / "data", target_is_directory=True)
    (tmp_path / "data/b").symlink_to(tmp_path / "other", target_is_directory=True)
    (tmp_path / "data/z.txt").symlink_to(tmp_path / "other/y.txt")

    source = read(tmp_path / "data")

    assert {row["key"]: row["txt"] for row in rows(source)} == {"a/x": b"x", "b/y": b"y", "z": b"y"}
    assert source.notes == ["1 link to a folder above it skipped"]


def test_an_empty_folder_says_what_was_looked_for(tmp_path):
    """Unless `schema=` says what there could have been."""
    fill(tmp_path, {".hidden": b""})

    with pytest.raises(ValueError, match=r"no files in folder .*1 hidden file skipped"):
        read(tmp_path)

    empty = read(tmp_path, schema=pa.schema([("txt", pa.large_binary())]))
    assert rows(empty) == []
    assert empty.schema.names == ["key", "txt"]


def test_a_path_that_is_not_there_is_not_found(tmp_path):
    """Naming it."""
    with pytest.raises(NotFoundError, match="brids"):
        read(tmp_path / "brids")


def test_schema_gives_fields_other_types_and_names_what_does_not_fit(tmp_path):
    """Text is text on request; a folder's other fields need a place in the schema."""
    fill(tmp_path, {"a.txt": "ä".encode(), "b.txt": b"\xff"})
    schema = pa.schema([("txt", pa.large_string())])

    with pytest.raises(SchemaError, match=r"'txt' of a folder, row 1"):
        rows(read(tmp_path, schema=schema))
    (tmp_path / "b.txt").write_bytes(b"b")
    assert rows(read(tmp_path, schema=schema)) == [{"key": "a", "txt": "ä"}, {"key": "b", "txt": "b"}]
    with pytest.raises(SchemaError, match="'txt'"):
        read(tmp_path, schema=pa.schema([("jpg", pa.large_binary())]))


def test_a_folder_of_tables_says_how_to_commit_their_rows(tmp_path):
    """A folder is always samples."""
    fill(tmp_path, {"a.parquet": b"", "b/c.parquet": b""})
    assert read(tmp_path).notes == [
        f"the folder's tables are kept as files: for their rows commit '{tmp_path}/**/*.parquet'"
    ]

    fill(tmp_path, {"c.txt": b""})
    assert read(tmp_path).notes == []


def test_reading_leaves_no_thread_behind(tmp_path):
    """Neither at the end, nor when the reader stops early."""
    fill(tmp_path, {f"{i}.txt": b"x" * 1000 for i in range(50)})
    source = read(tmp_path)
    next(source.batches)
    source.batches.close()
    rows(read(tmp_path))

    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lake-read")]


# --- labels -----------------------------------------------------------------------------------


def test_labels_take_the_class_from_the_first_directory(tmp_path):
    """Columns `key`, `label`, `image`; class names sorted; shuffled unless told otherwise."""
    names = [f"{c}/{i}.{ext}" for c in ("dog", "cat", "ape") for i, ext in enumerate(["jpg", "PNG", "jpeg"])]
    fill(tmp_path, {name: name.encode() for name in names} | {"dog/notes.txt": b"", "loose.jpg": b""})

    source = read(tmp_path, labels=True)
    given = read(tmp_path, labels=True, order="given")

    assert source.schema.names == ["key", "label", "image"]
    assert source.vocab == {"label": ["ape", "cat", "dog"]}
    assert source.notes == ["1 file outside a class folder skipped", "1 other file skipped"]
    assert (source.sorted_by, given.sorted_by) == (None, "label")
    found, in_order = rows(source), rows(given)
    assert [row["key"] for row in in_order] == sorted(name.partition(".")[0] for name in names)
    assert sorted(found, key=lambda row: row["key"]) == in_order
    assert found != in_order
    assert all(row["key"].startswith(row["label"] + "/") for row in found)


def test_labels_refuse_images_beside_audio(tmp_path):
    """There is one column for either."""
    fill(tmp_path, {"a/x.jpg": b"", "a/y.wav": b""})

    with pytest.raises(SchemaError, match=r"a/x\.jpg.*a/y\.wav"):
        read(tmp_path, labels=True)


def test_labels_refuse_two_images_of_one_key(tmp_path):
    """Both would be the sample's `image`."""
    fill(tmp_path, {"a/x.jpg": b"", "a/x.png": b""})

    with pytest.raises(SchemaError, match=r"a/x\.jpg.*a/x\.png"):
        read(tmp_path, labels=True)


def test_labels_without_any_media_say_so(tmp_path):
    """An empty result is a mistake of the caller."""
    with pytest.raises(ValueError, match="no images or audio files in class folders"):
        read(fill(tmp_path, {"a/x.txt": b""}), labels=True)


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no unix sockets")
def test_a_socket_is_a_special_file(tmp_path, monkeypatch):
    """Reading one would fail or hang."""
    fill(tmp_path, {"x.txt": b"x"})
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind("s.txt")

        assert read(tmp_path).notes == ["1 special file skipped"]


def test_a_broken_file_far_below_is_explained_once(tmp_path):
    """However deep it lies: its path, and one way out."""
    fill(tmp_path, {"a/b/c/d/ok.txt": b""})
    (tmp_path / "a/b/c/d/broken.txt").symlink_to(tmp_path / "nowhere")

    with pytest.raises(FileNotFoundError, match=r"a/b/c/d/broken\.txt") as caught:
        read(tmp_path)

    assert str(caught.value).count("make it readable") == 1
