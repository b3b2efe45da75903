"""Archives as samples: the same grouping as folders, nothing extracted, damage named."""

from __future__ import annotations

import gzip
import io
import tarfile
import tempfile
import tracemalloc
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lake.convert import read
from lake.errors import ArchiveError, SchemaError

KINDS = ["zip", "tar", "tar.gz", "tar.zst"]
PAIRS = [
    ("b/1.wav", b"w1"),
    ("b/1.json", b"j1"),
    ("a/é x.wav", b""),
    ("a/é x.json", b"j2" * 3000),
    ("README", b"r"),
]


def pack(path: Path, members: list[tuple[str, bytes]]) -> Path:
    kind = path.name.partition(".")[2]
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members:
                archive.writestr(name, data)
        return path
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return compress(path, raw.getvalue())


def compress(path: Path, tar: bytes) -> Path:
    kind = path.name.partition(".")[2]
    packed = {"tar": bytes, "tar.gz": gzip.compress, "tar.zst": zstandard.ZstdCompressor().compress}[kind](
        tar
    )
    path.write_bytes(packed)
    return path


def rows(source) -> list[dict]:
    table = pa.Table.from_batches(source.batches, source.schema)
    table.validate(full=True)
    return table.to_pylist()


def outcome(path: Path) -> tuple[list[dict], str | None]:
    """What reading gives: rows, or what the error says."""
    try:
        return rows(read(path)), None
    except (ArchiveError, ValueError) as error:
        return [], str(error)


def unpacked(root: Path, members: list[tuple[str, bytes]]) -> Path:
    for name, data in members:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_holds_the_samples_of_its_folder(tmp_path, kind):
    """Grouped alike; in the archive's own order, which may mean something."""
    source = read(pack(tmp_path / f"x.{kind}", PAIRS))
    folder = read(unpacked(tmp_path / "x", PAIRS))

    assert source.schema == folder.schema
    assert (source.key, source.rows, source.bytes) == ("key", 3, folder.bytes)
    found = rows(source)
    assert [row["key"] for row in found] == ["b/1", "a/é x", "README"]
    assert sorted(found, key=lambda row: row["key"]) == rows(folder)
    assert source.read == source.bytes


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from(["x", "y", "z"])), unique=True),
    data=st.data(),
)
def test_members_in_any_order_are_found(tmp_path_factory, monkeypatch, kind, names, data):
    """A compressed tar that interleaves its samples takes a temporary file, which is gone afterwards."""
    if not names:
        return
    folder = tmp_path_factory.mktemp("archives")
    scratch = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr("lake.convert.files.BATCH_BYTES", data.draw(st.integers(1, 300)))
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    members = [(f"{key}.{field}", f"{key}{field}".encode() * i) for i, (key, field) in enumerate(names)]

    found = rows(read(pack(folder / f"x.{kind}", members)))

    assert {
        f"{row['key']}.{f}": row[f] for row in found for f in row if f != "key" and row[f] is not None
    } == dict(members)
    assert [row["key"] for row in found] == list(dict.fromkeys(key for key, _ in names))
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_shuffled_archives_and_folders_have_one_order(tmp_path, kind):
    """It is the order of the keys' hashes, so what holds the files does not matter."""
    members = [(f"{c}/{i}.jpg", f"{c}{i}".encode()) for c in "abc" for i in range(20)]
    expected = rows(read(unpacked(tmp_path / "x", members), order="shuffled"))

    found = read(pack(tmp_path / f"x.{kind}", members), order="shuffled")
    labelled = read(pack(tmp_path / f"y.{kind}", members[::-1]), labels=True)

    assert rows(found) == expected
    assert [row["key"] for row in rows(labelled)] == [row["key"] for row in expected]
    assert [row["key"] for row in expected] != sorted(row["key"] for row in expected)


@pytest.mark.parametrize("kind", ["tar.gz", "tar.zst", "zip"])
def test_memory_does_not_grow_with_the_archive(tmp_path, kind):
    """An archive of 64 MiB is read within a few batches' memory."""
    blob = bytes(1 << 20)
    path = pack(tmp_path / f"x.{kind}", [(f"{i:03}.bin", blob) for i in range(64)])
    del blob
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    try:
        for batch in read(path).batches:
            assert batch.num_rows <= 8
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak + pa.total_allocated_bytes() - before < 40 << 20


def test_a_tar_of_several_compressed_frames_is_read_to_its_end(tmp_path):
    """`pzstd` and `cat a.gz b.gz` write such files."""
    tar = pack(tmp_path / "x.tar", PAIRS).read_bytes()
    halves = tar[:1000], tar[1000:]
    (tmp_path / "x.tar.zst").write_bytes(
        b"".join(zstandard.ZstdCompressor().compress(half) for half in halves)
    )
    (tmp_path / "x.tar.gz").write_bytes(b"".join(gzip.compress(half) for half in halves))

    assert (
        rows(read(tmp_path / "x.tar.zst"))
        == rows(read(tmp_path / "x.tar"))
        == rows(read(tmp_path / "x.tar.gz"))
    )


@pytest.mark.parametrize("kind", ["tar", "tar.gz"])
def test_what_tars_put_beside_files(tmp_path, kind):
    """Hard links are their file; symbolic links, devices and hidden files are counted; `./` means nothing."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, kinds, link in [
            (".", tarfile.DIRTYPE, ""),
            ("./a/x.txt", tarfile.REGTYPE, ""),
            ("./b/hard.txt", tarfile.LNKTYPE, "./a/x.txt"),
            ("soft.txt", tarfile.SYMTYPE, "a/x.txt"),
            ("fifo.txt", tarfile.FIFOTYPE, ""),
            ("./.hidden/y.txt", tarfile.REGTYPE, ""),
            ("long" * 60 + ".txt", tarfile.REGTYPE, ""),
        ]:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kinds, link
            info.size = 3 if kinds == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(b"abc"))

    source = read(compress(tmp_path / f"x.{kind}", raw.getvalue()))

    assert {row["key"]: row["txt"] for row in rows(source)} == dict.fromkeys(
        ["a/x", "b/hard", "long" * 60], b"abc"
    )
    assert source.notes == ["1 hidden file skipped", "1 link skipped", "1 special file skipped"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_twice_is_an_error(tmp_path, kind):
    """One of them would be lost."""
    with pytest.warns(UserWarning, match="Duplicate") if kind == "zip" else io.BytesIO():
        path = pack(tmp_path / f"x.{kind}", [("a.txt", b"1"), ("a.txt", b"2")])

    with pytest.raises(SchemaError, match=r"'a\.txt' and 'a\.txt' in archive .*x\."):
        read(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_that_points_outside_is_refused(tmp_path, kind):
    """Its key would be a trap for whoever exports the samples again."""
    with pytest.raises(ArchiveError, match=r"\.\./etc/passwd"):
        read(pack(tmp_path / f"x.{kind}", [("../etc/passwd", b"")]))


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_cut_short_is_damaged_wherever_it_is_cut(tmp_path, kind):
    """Never fewer samples and no word, as Python's own tarfile would have it."""
    path = pack(tmp_path / f"x.{kind}", [(f"{i}.bin", bytes([i]) * 700) for i in range(5)])
    whole = path.read_bytes()
    expected = rows(read(path))

    for end in range(0, len(whole) - 1, max(1, len(whole) // 60)):
        path.write_bytes(whole[:end])
        at_a_member = kind == "tar" and end % 512 == 0
        found, complaint = outcome(path)
        if complaint is None:
            assert found == expected or (at_a_member and found == expected[: len(found)])
        else:
            assert f"x.{kind}" in complaint


@pytest.mark.parametrize("kind", ["zip", "tar.gz", "tar.zst"])
def test_a_flipped_byte_of_content_is_found(tmp_path, kind):
    """By the archive's own checksums, naming the archive."""
    data = zstandard.ZstdCompressor(write_checksum=True)
    path = pack(tmp_path / f"x.{kind}", [("a.bin", bytes(range(256)) * 40)])
    if kind == "tar.zst":
        path.write_bytes(
            data.compress(pack(tmp_path / "x.tar", [("a.bin", bytes(range(256)) * 40)]).read_bytes())
        )
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2 if kind != "zip" else 120] ^= 0x10
    path.write_bytes(raw)

    with pytest.raises(ArchiveError, match=r"x\."):
        rows(read(path))


def test_a_damaged_header_amid_a_tar_is_no_end(tmp_path):
    """`tarfile` stops there without a word."""
    path = pack(tmp_path / "x.tar", [("a.txt", b"1"), ("b.txt", b"2")])
    raw = bytearray(path.read_bytes())
    raw[1024 + 10] ^= 1
    path.write_bytes(raw)

    with pytest.raises(ArchiveError, match=r"damaged after 'a\.txt'"):
        read(path)


def test_an_encrypted_member_is_named(tmp_path):
    """With the way out."""
    path = pack(tmp_path / "x.zip", [("a.txt", b"secret")])
    raw = bytearray(path.read_bytes())
    raw[6] |= 1
    raw[raw.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(raw)

    with pytest.raises(ArchiveError, match=r"'a\.txt' in .*x\.zip is encrypted.*password"):
        read(path)


def test_an_impossible_size_is_refused_before_memory_is_taken(tmp_path):
    """A hostile directory may claim terabytes."""
    path = pack(tmp_path / "x.zip", [("a.txt", b"x")])
    raw = bytearray(path.read_bytes())
    at = raw.index(b"PK\x01\x02") + 24
    raw[at : at + 4] = (4_000_000_000).to_bytes(4, "little")
    path.write_bytes(raw)

    with pytest.raises(ArchiveError, match=r"claims 4,000,000,000 bytes"):
        read(path)


def test_a_file_that_is_no_archive_is_named(tmp_path):
    """Whatever its name promised."""
    for kind in KINDS:
        path = tmp_path / f"x.{kind}"
        path.write_bytes(b"hello " * 300)

        with pytest.raises(ArchiveError, match=rf"x\.{kind}"):
            read(path)


def test_labels_work_in_archives(tmp_path):
    """As in folders."""
    source = read(
        pack(tmp_path / "x.tar.gz", [("cat/1.jpg", b"c"), ("dog/1.png", b"d"), ("x.txt", b"")]), labels=True
    )

    assert {row["key"]: (row["label"], row["image"]) for row in rows(source)} == {
        "cat/1": ("cat", b"c"),
        "dog/1": ("dog", b"d"),
    }
    assert source.notes == ["1 other file skipped"]


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tar.zst"])
def test_a_tar_cut_between_members_is_cut_short(tmp_path, kind):
    """Without the zeros at its end, nobody knows what else there was."""
    members = [("a.txt", b"x" * 512), ("b.txt", b"y"), ("c.txt", b"")]
    whole = pack(tmp_path / "whole.tar", members).read_bytes()
    ends = [1024, 2048, 2560]  # after each member
    for end, (name, _) in zip(ends, members, strict=True):
        path = compress(tmp_path / f"x.{kind}", whole[:end])
        with pytest.raises(ArchiveError, match=rf"x\.{kind} is cut short: it ends after '{name}'"):
            read(path)

    assert len(rows(read(compress(tmp_path / f"x.{kind}", whole[:3072])))) == 3  # one block of zeros will do
