"""Damaged and hostile archives: an ArchiveError that names the culprit, in bounded time and memory."""

from __future__ import annotations

import gzip
import io
import random
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

import lake
from lake.archives import Archive
from lake.errors import ArchiveError
from tests.archives.packing import FULL, KINDS, Members, packed, some, tar_of, zip_of

MEMBERS: Members = [("a.bin", b"abc" * 500), ("b.bin", random.Random(0).randbytes(900)), ("c.bin", b"c")]


def opened(folder: Path, name: str, data: bytes, **options) -> Archive:
    path = folder / name
    path.write_bytes(data)
    return lake.archive(path, cache_bytes=0, **options)


def read_all(archive: Archive) -> list[bytes]:
    """Every member, both ways of reading."""
    found = []
    for number in range(len(archive)):
        found.append(archive[number])
        with archive.open(number) as file:
            assert file.read() == found[-1]
    return found


def entry(raw: bytes, number: int) -> int:
    """Where an entry of a zip's directory is."""
    at = -1
    for _ in range(number + 1):
        at = raw.index(b"PK\1\2", at + 1)
    return at


def patched(raw: bytes, at: int, layout: str, *values) -> bytes:
    """The bytes with a structure in them replaced."""
    return raw[:at] + struct.pack(layout, *values) + raw[at + struct.calcsize(layout) :]


def crc_of_c(raw: bytes) -> bytes:
    return patched(raw, entry(raw, 2) + 16, "<L", 1)


def longer_than_true(raw: bytes) -> bytes:
    return patched(raw, entry(raw, 0) + 24, "<L", 1501)


def shorter_than_true(raw: bytes) -> bytes:
    return patched(raw, entry(raw, 0) + 24, "<L", 1499)


def impossible(raw: bytes) -> bytes:
    return patched(raw, entry(raw, 0) + 24, "<L", 1 << 31)


def deflated_called_stored(raw: bytes) -> bytes:
    return patched(raw, entry(raw, 1) + 10, "<H", 0)


def on_top_of_another(raw: bytes) -> bytes:
    return patched(raw, entry(raw, 1) + 42, "<L", 0)


def reaching_into_another(raw: bytes) -> bytes:
    return patched(raw, entry(raw, 0) + 20, "<L", 200)


def beyond_the_end(raw: bytes) -> bytes:
    return patched(raw, entry(raw, 2) + 42, "<L", 1 << 30)


def nowhere(raw: bytes) -> bytes:
    return patched(raw, entry(raw, 1) + 42, "<L", raw.index(b"PK\3\4", 10) + 1)


def header_of_another_name(raw: bytes) -> bytes:
    return raw.replace(b"b.bin", b"x.bin", 1)


def header_of_another_method(raw: bytes) -> bytes:
    return patched(raw, 8, "<H", 0)


def longer_header(raw: bytes) -> bytes:
    return patched(raw, 28, "<H", 60_000)


def encrypted(raw: bytes) -> bytes:
    return patched(raw, entry(raw, 1) + 8, "<H", 1)


def unknown_method(raw: bytes) -> bytes:
    return patched(raw, entry(raw, 1) + 10, "<H", 98)


def damaged_data(raw: bytes) -> bytes:
    return patched(raw, 40, "<B", raw[40] ^ 255)


def ending_early(raw: bytes) -> bytes:
    """An empty last block where the first should be: the stream ends before its bytes do."""
    return patched(raw, 35, "<2s", b"\x03\x00")


SPOILED: dict[Callable[[bytes], bytes], str] = {
    crc_of_c: "'c.bin' in .*CRC-32",
    longer_than_true: "'a.bin' in .*shorter",
    shorter_than_true: "'a.bin' in .*longer",
    impossible: "'a.bin' in .*impossible",
    deflated_called_stored: "'b.bin' in .*impossible",
    on_top_of_another: "'[ab].bin' in .*overlaps",
    reaching_into_another: "'a.bin' in .*overlaps 'b.bin'",
    beyond_the_end: "'c.bin' in .*overlaps the directory",
    nowhere: "'[ab].bin' in .*",
    header_of_another_name: "'b.bin' in .*something else",
    header_of_another_method: "'a.bin' in .*something else",
    longer_header: "'a.bin' in .*reaches into what follows",
    encrypted: "'b.bin' in .*encrypted.*password",
    unknown_method: "'b.bin' in .*ppmd",
    damaged_data: "'a.bin' in .*",
    ending_early: "'a.bin' in .*follows the deflate stream",
}


@pytest.mark.parametrize("spoil", SPOILED, ids=lambda spoil: spoil.__name__)
def test_a_lying_zip_is_refused_by_name(tmp_path, spoil):
    """Whether at opening or at reading: never a wrong byte."""
    raw = zip_of(MEMBERS)
    assert spoil(raw) != raw

    with pytest.raises(ArchiveError, match=SPOILED[spoil]):
        read_all(opened(tmp_path, "x.zip", spoil(raw)))


@pytest.mark.parametrize(
    "spoil", [crc_of_c, longer_than_true, header_of_another_name, encrypted], ids=lambda s: s.__name__
)
def test_the_other_members_stay_readable(tmp_path, spoil):
    """One bad member spoils no other; verify says which it is."""
    archive = opened(tmp_path, "x.zip", spoil(zip_of(MEMBERS)))
    wrong = {member.name: why for member, why in archive.verify() if why}

    assert len(wrong) == 1
    good = [number for number, (name, _) in enumerate(MEMBERS) if name not in wrong]
    assert [archive[number] for number in good] == [MEMBERS[number][1] for number in good]


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/../evil", "a\\..\\..\\evil"])
@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
def test_no_name_leads_out(tmp_path, kind, name):
    """Refused by name at opening, or harmless when extracted."""
    data = packed(kind, [(name, b"evil")])
    if kind == "zip" and "\\" in name:
        data = patched(data, entry(data, 0) + 5, "<B", 0)  # made on MS-DOS: a backslash parts folders
    folder = tmp_path / "around" / "out"
    outcome = ""
    try:
        opened(tmp_path, f"x.{kind}", data).extract(0, folder)
    except ArchiveError as error:
        outcome = str(error)
    written = [path for path in (tmp_path / "around").rglob("*") if path.is_file()]
    assert all(folder in path.parents for path in written)
    assert "evil" in outcome or written
    assert not [*tmp_path.glob("*evil*")]


def test_extraction_follows_no_link(tmp_path):
    """Neither a folder's nor a file's; absolute names land below the folder."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "b").write_bytes(b"safe")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "d").symlink_to(outside)
    (folder / "b").symlink_to(outside / "b")
    archive = opened(tmp_path, "x.zip", zip_of([("d/b", b"evil"), ("b", b"new"), ("/etc/x", b"abs")]))

    with pytest.raises(ArchiveError, match="'d/b' would be written through the link"):
        archive.extract("d/b", folder)
    assert archive.extract("b", folder).read_bytes() == b"new"
    assert archive.extract(2, folder) == folder / "etc" / "x"
    assert (outside / "b").read_bytes() == b"safe"


def test_a_member_that_is_damaged_leaves_no_file(tmp_path):
    """Nor half of one."""
    archive = opened(tmp_path, "x.zip", crc_of_c(zip_of(MEMBERS)))
    with pytest.raises(ArchiveError, match="CRC-32"):
        archive.extract("c.bin", tmp_path / "out")
    assert [*(tmp_path / "out").iterdir()] == []


# --- bombs ------------------------------------------------------------------------------------


def zeros(size: int, write: Callable[[bytes], object]) -> None:
    for _ in range(size >> 20):
        write(bytes(1 << 20))


def zip_bomb() -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("bomb", "w") as file:
        zeros(80 << 20, file.write)
    return raw.getvalue()


def tar_bomb(pack: str) -> bytes:
    raw = io.BytesIO()
    packer = (
        gzip.GzipFile(fileobj=raw, mode="wb")
        if pack == "gz"
        else zstandard.ZstdCompressor().stream_writer(raw)
    )
    info = tarfile.TarInfo("bomb")
    info.size = 80 << 20
    packer.write(info.tobuf())
    zeros(info.size + (1 << 20), packer.write)
    packer.flush() if pack == "gz" else packer.flush(zstandard.FLUSH_FRAME)
    if pack == "gz":
        packer.close()
    return raw.getvalue()


@pytest.mark.parametrize("kind", ["zip", "tar.gz", "tar.zst"])
def test_a_bomb_is_refused_before_it_goes_off(tmp_path, kind):
    """By what it makes of its bytes; memory stays small. Who knows better may say so."""
    data = zip_bomb() if kind == "zip" else tar_bomb(kind.removeprefix("tar."))
    tracemalloc.start()
    with pytest.raises(ArchiveError, match="bomb"):
        opened(tmp_path, f"x.{kind}", data)[0]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 24 << 20
    trusted = opened(tmp_path, f"x.{kind}", data, max_ratio=1e9)
    assert trusted.member(0).size == 80 << 20


def test_a_large_member_is_streamed_only(tmp_path):
    """`max_member` bounds what is read into memory."""
    archive = opened(tmp_path, "x.tar", tar_of(MEMBERS), max_member=1000)
    with pytest.raises(ArchiveError, match=r"'a\.bin' in .*open\(\)"):
        archive[0]
    with archive.open(0) as file:
        assert file.read() == MEMBERS[0][1]


def test_a_zip_member_that_grows_beyond_its_size_is_cut_off(tmp_path):
    """A directory that says 1,000 bytes of what inflates to 50 MiB costs little memory."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a.bin", "w") as file:
        zeros(50 << 20, file.write)
    data = raw.getvalue()
    archive = opened(tmp_path, "x.zip", patched(data, entry(data, 0) + 24, "<L", 1000))
    tracemalloc.start()
    for read in (archive.__getitem__, lambda number: archive.open(number).read()):
        with pytest.raises(ArchiveError, match=r"'a\.bin' in .*longer"):
            read(0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def header(name: str, size: bytes, kind: bytes = b"0") -> bytes:
    """A tar header whose size is any field."""
    block = bytearray(tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT))
    block[124:136], block[156:157] = size, kind
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize(
    "data",
    [
        header("back", b"\xff" + b"\xff" * 9 + b"\xfc\x00") + bytes(2048),  # -1024 bytes: a loop
        header("far", b"\x80" + b"\x00" * 3 + b"\x7f" * 8) + bytes(2048),
        header("long", b"77777777777\0", b"x") + bytes(4096),  # an extended header of 8 GB
        header("long", b"77777777777\0", b"L") + bytes(4096),
        (header("pax", b"00000000000\0", b"x")) * 5000 + bytes(1024),
        tar_of([("a.bin", b"abc" * 500)])[:1000],
        b"",
        b"\0" * 511,
        b"garbage" * 200,
    ],
    ids=["back", "far", "pax", "longname", "nested", "cut", "empty", "short", "garbage"],
)
@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tar.zst"])
def test_a_lying_tar_is_refused(tmp_path, kind, data):
    """No endless loop, no memory for what a header claims."""
    pack = {"tar": bytes, "tar.gz": gzip.compress, "tar.zst": zstandard.compress}[kind]
    with pytest.raises(ArchiveError, match=rf"x\.{kind}"):
        read_all(opened(tmp_path, f"x.{kind}", pack(data)))


@pytest.mark.parametrize("kind", KINDS)
def test_cut_short_it_is_refused(tmp_path, kind):
    """Wherever it ends, down to nothing; a plain tar needs no more than the first block of zeros at its end."""
    data = packed(kind, MEMBERS)
    needed = len(data)
    if kind == "tar":
        needed = (max(i for i, byte in enumerate(data) if byte) // 512 + 2) * 512
        assert len(opened(tmp_path, "x.tar", data[:needed])) == len(MEMBERS)
        with pytest.raises(ArchiveError, match=r"after 'c\.bin' without the zeros"):
            opened(tmp_path, "x.tar", data[: needed - 512])
    for end in sorted({0, 1, 3, 20, needed // 3 + 5, needed // 2 + 5, needed - 1}):
        with pytest.raises(ArchiveError):
            read_all(opened(tmp_path, f"x.{kind}", data[:end]))


def test_what_is_no_archive_is_said(tmp_path):
    """By its name it could be one, or not."""
    with pytest.raises(ArchiveError, match=r"photo\.jpg is no \.zip"):
        opened(tmp_path, "photo.jpg", b"\xff\xd8\xff" + bytes(1000))
    with pytest.raises(ArchiveError, match="no directory"):
        opened(tmp_path, "x.zip", b"hello")
    assert list(opened(tmp_path, "no-suffix", packed("tar.zst", MEMBERS))) == [data for _, data in MEMBERS]
    with pytest.raises(lake.NotFoundError, match="nothing"):
        lake.archive(tmp_path / "nothing.zip")


@pytest.mark.parametrize("kind", [*KINDS, "mixed.zip"])
def test_mutated_archives_give_archive_errors_only(tmp_path, kind):
    """No other exception, no hang, and no file outside of the folder; what is read from a zip was there."""
    members = some(8, largest=1500, seed=3)
    good = packed(kind, members)
    draw = random.Random(kind)
    truth = {data for _, data in members}
    path = tmp_path / f"x.{kind}"
    for _ in range(20_000 if FULL else 120):  # of six kinds
        data = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(data))
            match draw.randrange(4):
                case 0:
                    data[at] ^= 1 << draw.randrange(8)
                case 1:
                    data[at : at + 4] = draw.choice([b"\xff" * 4, bytes(4), b"PK\1\2", b"PK\5\6"])
                case 2:
                    del data[at : at + draw.randint(1, 600)]
                case 3:
                    data[at:at] = data[draw.randrange(len(data)) :][: draw.randint(1, 600)]
            data = data or bytearray(b"\0")
        path.write_bytes(data)
        try:
            with lake.archive(path, cache_bytes=0) as archive:
                for number in range(len(archive)):
                    try:
                        found = archive[number]
                        archive.extract(number, tmp_path / "out" / "in")
                    except ArchiveError:
                        continue
                    assert (
                        not kind.endswith("zip")
                        or found in truth
                        or zlib.crc32(found) == archive._content._crc[number]
                    )
        except ArchiveError:
            continue
    assert {each.name for each in tmp_path.iterdir()} <= {path.name, "out", "configured"}
    assert (
        {each.name for each in (tmp_path / "out").iterdir()} <= {"in"}
        if (tmp_path / "out").exists()
        else True
    )
