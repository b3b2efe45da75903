"""Archives made by the standard library, and what is in them."""

from __future__ import annotations

import gzip
import io
import os
import random
import tarfile
import zipfile
from pathlib import Path

import zstandard

KINDS = ["zip", "tar", "tar.gz", "tar.zst", "framed.tar.zst"]
FULL = bool(os.environ.get("LAKE_TEST_FULL"))

Members = list[tuple[str, bytes]]


def some(count: int = 60, *, largest: int = 9000, seed: int = 0) -> Members:
    """Members of all sizes in nested folders, half of them compressible."""
    draw = random.Random(seed)
    members = []
    for i in range(count):
        size = draw.randrange(largest)
        data = draw.randbytes(size) if i % 2 else (b"%d lake " % i * size)[:size]
        members.append((f"d{i % 7}/é {i}.bin", data))
    return members


def tar_of(members: Members) -> bytes:
    """A plain tar."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return raw.getvalue()


def framed(tar: bytes, size: int = 4096) -> bytes:
    """A zstd file of frames of `size`, wherever that cuts."""
    packer = zstandard.ZstdCompressor(write_checksum=True)
    return b"".join(packer.compress(tar[at : at + size]) for at in range(0, len(tar), size))


def zip_of(members: Members, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return raw.getvalue()


def mixed_zip_of(members: Members) -> bytes:
    """A zip in which each member is compressed in another way."""
    methods = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for number, (name, data) in enumerate(members):
            archive.writestr(name, data, methods[number % len(methods)])
    return raw.getvalue()


def packed(kind: str, members: Members) -> bytes:
    """The members as an archive of a kind."""
    if kind == "mixed.zip":
        return mixed_zip_of(members)
    if kind == "zip":
        return zip_of(members)
    pack = {"tar": bytes, "tar.gz": gzip.compress, "tar.zst": zstandard.compress, "framed.tar.zst": framed}
    return pack[kind](tar_of(members))


def pack(folder: Path, kind: str, members: Members, name: str = "x") -> Path:
    """The same, as a file."""
    path = folder / f"{name}.{kind}"
    path.write_bytes(packed(kind, members))
    return path
