"""An archive as a sequence: what it holds, whatever its kind, from threads and other processes."""

from __future__ import annotations

import io
import multiprocessing
import pickle
import random
import stat
import tarfile
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lake
from lake.archives import Archive, recompress
from lake.archives.stream import PIECE
from lake.cache import Cache
from lake.errors import ArchiveError, BudgetError, NotFoundError, SchemaError
from tests.archives.packing import KINDS, framed, pack, packed, some, tar_of, zip_of

MEMBERS = some()
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0\\"), min_size=1, max_size=6).filter(
    lambda name: name not in (".", "..")
)


@pytest.fixture(params=KINDS)
def opened(request, tmp_path) -> Archive:
    return lake.archive(pack(tmp_path, request.param, MEMBERS))


def test_an_archive_is_a_sequence_of_its_members(opened):
    """In its order; by number from either end, by slice, by name, by iteration."""
    assert opened.names == tuple(name for name, _ in MEMBERS)
    assert len(opened) == len(MEMBERS)
    assert list(opened) == [data for _, data in MEMBERS]
    assert opened[3:9:2] == [data for _, data in MEMBERS][3:9:2]
    assert opened[-1] == MEMBERS[-1][1]
    for number, (name, data) in enumerate(MEMBERS):
        assert opened[number] == data == opened.read(name)
        assert opened.member(name).size == len(data)
        assert name in opened


def test_what_is_not_there_is_said(opened):
    """By name, with the nearest one; by number, with how many there are."""
    with pytest.raises(NotFoundError, match=r"d0/é 0\.bin"):
        opened.read("d0/é 0.bim")
    with pytest.raises(IndexError, match="60"):
        opened[60]
    with pytest.raises(IndexError):
        opened[-61]


def test_many_are_read_in_the_order_asked_for(opened):
    """Twice the same one, too."""
    order = random.Random(1).choices(range(len(MEMBERS)), k=90)

    assert opened.read_many(order) == [MEMBERS[i][1] for i in order]


def test_a_member_streams(opened):
    """In pieces of any size, as any file does."""
    name, data = max(MEMBERS, key=lambda member: len(member[1]))
    with opened.open(name) as file:
        assert file.read(10) + file.read(1) + file.read() == data


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(KINDS),
    members=st.lists(
        st.tuples(st.lists(NAMES, min_size=1, max_size=3).map("/".join), st.binary(max_size=700))
    ),
)
def test_any_names_and_bytes_come_back(tmp_path_factory, kind, members):
    """Unicode, duplicates, empty members, empty archives."""
    path = tmp_path_factory.mktemp("any") / f"x.{kind}"
    with pytest.warns() if kind == "zip" and len({n for n, _ in members}) < len(members) else nullcontext():
        path.write_bytes(packed(kind, members))

    with lake.archive(path, cache_bytes=2000) as opened:
        assert opened.names == tuple(name for name, _ in members)
        assert list(opened) == [data for _, data in members]
        assert {name: opened.read(name) for name in opened.names} == dict(members)


def test_directories_and_links_are_no_members(tmp_path):
    """They are counted; a hard link is another name of its target."""
    tar = tmp_path / "x.tar"
    with tarfile.open(tar, "w") as archive:
        for name, kind, target in [
            ("d", tarfile.DIRTYPE, ""),
            ("a", tarfile.REGTYPE, ""),
            ("s", tarfile.SYMTYPE, "a"),
        ]:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, target, 3 if name == "a" else 0
            archive.addfile(info, io.BytesIO(b"abc"))
        hard = tarfile.TarInfo("h")
        hard.type, hard.linkname = tarfile.LNKTYPE, "a"
        archive.addfile(hard)
    packed_zip = tmp_path / "x.zip"
    with zipfile.ZipFile(packed_zip, "w") as archive:
        archive.mkdir("d")
        archive.writestr("./a", b"abc")
        link = zipfile.ZipInfo("s")
        link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")

    assert [(a.names, list(a), a.skipped) for a in (lake.archive(tar), lake.archive(packed_zip))] == [
        (("a", "h"), [b"abc", b"abc"], {"link": 1}),
        (("a",), [b"abc"], {"link": 1}),
    ]


def test_a_zip_of_every_method_and_shape_is_read(tmp_path, monkeypatch):
    """Stored, deflated, bzip2, lzma; zip64; streamed (sizes behind the data); a comment; something in front."""
    data = MEMBERS[2][1] * 5
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        (tmp_path / "x.zip").write_bytes(b"#!/bin/sh\n" + zip_of([("a", data), ("b", b"")], method))
        with lake.archive(tmp_path / "x.zip") as opened:
            assert list(opened) == [data, b""]
            assert opened.open("a").read() == data

    class Pipe(io.RawIOBase):
        def __init__(self):
            self.data = b""

        def writable(self):
            return True

        def write(self, data):
            self.data += bytes(data)
            return len(data)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = b"c" * 60_000
        with archive.open("a", "w", force_zip64=True) as file:
            file.write(data)
    (tmp_path / "x.zip").write_bytes(pipe.data)
    assert list(lake.archive(tmp_path / "x.zip")) == [data]

    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 10)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
    raw = zip_of([("a", data), ("b", data)])
    assert b"PK\6\6" in raw
    (tmp_path / "x.zip").write_bytes(raw)
    with lake.archive(tmp_path / "x.zip") as opened:
        assert list(opened) == [data, data]
        assert opened.open("b").read() == data


@pytest.mark.parametrize("sized", [True, False])
def test_zstd_members_of_a_zip_are_read(tmp_path, sized):
    """Whether their frames say how long they are or not."""
    data = MEMBERS[2][1] * 200
    (tmp_path / "x.zip").write_bytes(
        with_method(data, zstandard.ZstdCompressor(write_content_size=sized).compress(data), 93)
    )

    with lake.archive(tmp_path / "x.zip") as opened:
        assert opened.member(0).method == "zstd"
        assert opened[0] == data == opened.open("a").read()


def with_method(data: bytes, stored: bytes, method: int) -> bytes:
    """A zip whose one member `a` was compressed elsewhere."""
    raw = bytearray(zip_of([("a", stored)], zipfile.ZIP_STORED))
    directory = raw.rindex(b"PK\1\2")
    for at in (8, directory + 10):
        raw[at : at + 2] = method.to_bytes(2, "little")
    for at in (14, directory + 16):
        raw[at : at + 4] = zlib.crc32(data).to_bytes(4, "little")
    for at in (22, directory + 24):
        raw[at : at + 4] = len(data).to_bytes(4, "little")
    return bytes(raw)


def test_samples_are_those_of_a_commit(tmp_path):
    """Keys and fields as `commit` makes them, hidden members left out, as a pipeline."""
    members = [("a/1.wav", b"w"), ("a/.x", b"h"), ("README", b"r"), ("a/1.JSON", b"{}")]
    opened = lake.archive(pack(tmp_path, "zip", members))
    expected = {"file": None, "json": b"{}", "wav": b"w"}

    assert list(opened.samples()) == [
        ("a/1", expected),
        ("README", {"file": b"r", "json": None, "wav": None}),
    ]
    lk = lake.open(tmp_path / "lake")
    lk.commit("x", tmp_path / "x.zip")
    assert sorted(lk.dataset("x").samples()) == sorted(opened.samples())


def test_two_members_of_one_field_are_refused(tmp_path):
    """As by a commit."""
    opened = lake.archive(pack(tmp_path, "tar", [("a.x", b""), ("a.X", b"")]))
    with pytest.raises(SchemaError, match=r"'a\.x' and 'a\.X'"):
        opened.samples()


def test_pickled_it_is_the_same(opened):
    """Read before or not; and it notices when the file is another one."""
    opened[0]
    again = pickle.loads(pickle.dumps(opened))
    assert list(again) == list(opened)

    data = pickle.dumps(opened)
    path = Path(opened.name)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(ArchiveError, match="replaced"):
        pickle.loads(data)


def test_threads_read_at_once(opened):
    """Nothing is shared that could get mixed up."""
    order = [i % len(MEMBERS) for i in range(0, 7 * len(MEMBERS), 7)] * 4
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(opened.__getitem__, order)) == [MEMBERS[i][1] for i in order]


def _child(opened: Archive, queue) -> None:
    queue.put([opened[i] for i in range(0, len(opened), 3)] == [data for _, data in MEMBERS[::3]])


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_other_processes_read_on(tmp_path, method):
    """However they are started, after the parent has read; and they share what was kept."""
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    for kind in ("zip", "tar.zst"):
        opened = lake.archive(pack(tmp_path, kind, MEMBERS))
        assert [opened[i] for i in range(len(opened))] == [data for _, data in MEMBERS]
        before = opened.counters
        process = context.Process(target=_child, args=(opened, queue))
        process.start()
        assert queue.get(timeout=120)
        process.join()
        assert (
            opened.counters.hits - before.hits >= 0.4 * len(MEMBERS) / 3
        )  # what hardly compresses is not kept


def test_a_closed_archive_says_so(opened):
    """Instead of reading from whatever has the descriptor now."""
    opened.close()
    if "zst" not in opened.kind and "gz" not in opened.kind:
        with pytest.raises(ValueError, match="closed"):
            opened[0]


def test_no_descriptor_is_left(tmp_path):
    """Closed or forgotten."""
    path = pack(tmp_path, "zip", MEMBERS)
    before = len([*Path("/proc/self/fd").iterdir()]) if Path("/proc/self/fd").exists() else 0
    for _ in range(20):
        lake.archive(path)[0]
    with lake.archive(path):
        pass
    if before:
        assert len([*Path("/proc/self/fd").iterdir()]) <= before + 1


# --- tars that are compressed as a whole ------------------------------------------------------


def test_members_land_in_the_cache_once(tmp_path, cache):
    """A file of one large frame is decoded once to open it, once to land, for all processes and openings."""
    members = some(30, largest=600_000)
    path = pack(tmp_path, "tar.gz", members)
    opened = lake.archive(path, cache=cache, cache_bytes=0)
    order = random.Random(0).sample(range(30), 30)

    assert [opened[i] for i in order] == [members[i][1] for i in order]

    pieces = -(-len(tar_of(members)) // PIECE)
    landed = [entry for entry in cache.entries() if entry.layout == "open"]
    assert len(landed) == pieces > 1
    misses = cache.counters.misses
    assert lake.archive(path, cache=cache)[order[0]] == members[order[0]][1]
    assert cache.counters.misses == misses


@pytest.mark.parametrize("kind", ["tar.gz", "tar.zst"])
def test_where_there_is_no_room_it_is_read_forward_only(tmp_path, monkeypatch, kind):
    """In order any number of times; out of order names the budget and what to do."""
    monkeypatch.setattr("lake.archives.stream._SMALL", 0)
    monkeypatch.setattr("lake.archives.stream._LARGE", 0)
    opened = lake.archive(
        pack(tmp_path, kind, MEMBERS), cache=Cache(tmp_path / "small", 10_000), cache_bytes=0
    )

    for _ in range(2):
        assert list(opened) == [data for _, data in MEMBERS]
        assert [opened[i] for i in range(0, 60, 7)] == [MEMBERS[i][1] for i in range(0, 60, 7)]
    with pytest.raises(BudgetError, match="lake archive recompress") as raised:
        opened[20]
    assert raised.value.budget == 10_000


def test_small_frames_need_no_cache(tmp_path):
    """Each read decodes the frames that it touches, wherever they were cut."""
    tar = tar_of(MEMBERS)
    path = tmp_path / "x.tar.zst"
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    for size in (100, 5000, 50_000):
        path.write_bytes(skippable + framed(tar, size) + skippable)
        opened = lake.archive(path, cache=Cache(tmp_path / "none", 0), cache_bytes=0)
        order = random.Random(size).sample(range(len(MEMBERS)), len(MEMBERS))
        assert [opened[i] for i in order] == [MEMBERS[i][1] for i in order]


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tar.zst"])
def test_recompressing_keeps_the_tar(tmp_path, kind):
    """Byte for byte, in frames that need no cache; and it replaces nothing."""
    members = some(40, largest=400_000)
    source = pack(tmp_path, kind, members)

    made = recompress(source, tmp_path / "y.tar.zst")

    assert list(made) == [data for _, data in members]
    with (tmp_path / "y.tar.zst").open("rb") as file:
        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        assert reader.read() == tar_of(members)
    assert made._content.source._frames.largest <= 256 << 10
    with pytest.raises(FileExistsError):
        recompress(source, tmp_path / "y.tar.zst")
    assert sorted(path.name for path in tmp_path.iterdir() if "part" in path.name) == []
