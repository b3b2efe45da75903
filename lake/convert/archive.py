"""The members of a .zip or .tar, compressed or not, and their bytes. Nothing is extracted.

A plain tar and a zip are read member by member, in any order. A compressed tar can only be streamed: once to
learn its members, once more to read them if each batch of samples lies behind the one before; if not, it is
first decompressed into a temporary file, and then is a plain tar. It is never held in memory.
"""

from __future__ import annotations

import gzip
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Protocol

import pyarrow as pa
import zstandard

from lake import filenames
from lake.archives import tar
from lake.archives.damage import Limits, damage
from lake.archives.tar import Forward
from lake.archives.zip import ZipContent
from lake.convert.files import Member, Reader, Skipped
from lake.errors import ArchiveError

_CHUNK = 1 << 20
_TRUSTED = Limits(float("inf"), 1 << 62)  # what is committed is written by the batch: no member is too large
_DECOMPRESSORS: dict[str, Callable[[Any], Any]] = {
    "gz": lambda raw: gzip.GzipFile(fileobj=raw),
    "zst": lambda raw: zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True),
}
SUFFIXES = {  # of archives: what their tar is compressed with, if it is a tar
    ".zip": None, ".tar": "", ".tar.gz": "gz", ".tgz": "gz", ".tar.zst": "zst", ".tzst": "zst",
}  # fmt: skip


class Place(Protocol):
    """A file that can be opened any number of times, local or in a bucket."""

    @property
    def name(self) -> str:
        """What the user would call it."""

    def open(self) -> pa.NativeFile:
        """A seekable file, at its start."""


class Archive(Protocol):
    """An archive whose members are known."""

    members: list[Member]

    def reader(self, batches: list[Sequence[Member]]) -> Reader:
        """A reader of these members, batch after batch."""


def is_archive(name: str) -> bool:
    """Whether the file's name says that it is an archive."""
    return name.lower().endswith(tuple(SUFFIXES))


def open_archive(place: Place, skipped: Skipped) -> Archive:
    """List an archive's members; hidden and special ones are counted instead.

    Raises:
        ArchiveError: the archive is damaged, hostile or encrypted.
    """
    suffix = max((s for s in SUFFIXES if place.name.lower().endswith(s)), key=len)
    codec = SUFFIXES[suffix]
    if codec is None:
        return _Zip(place, skipped)
    return _CompressedTar(place, codec, skipped) if codec else _Tar(place, skipped)


class _Zip:
    def __init__(self, place: Place, skipped: Skipped) -> None:
        with _damage(place.name):
            self._zip = ZipContent(_Opened(place), _TRUSTED)
        table = self._zip.table
        skipped.counts.update(table.skipped)
        self.members = []
        for number, (name, size) in enumerate(zip(table.names, table.size, strict=True)):
            if filenames.hidden(name):
                skipped.add("hidden file")
                continue
            self._zip.check(number)
            self.members.append(Member(name, size, number))

    def reader(self, batches: list[Sequence[Member]]) -> Reader:
        return _ZipReader(self._zip)


class _ZipReader:
    threads = 2

    def __init__(self, archive: ZipContent) -> None:
        self._zip = archive

    def read(self, member: Member, view: memoryview) -> None:
        if len(view) <= _CHUNK:
            view[:] = self._zip.read(member.where)
            return
        done = 0
        for chunk in self._zip.chunks(member.where):
            view[done : done + len(chunk)] = chunk
            done += len(chunk)

    def close(self) -> None:
        self._zip.close()


class _Opened:
    """A place as `lake.archives` reads one."""

    remote = False  # members are read one by one, whatever lies between them
    identity = ""

    def __init__(self, place: Place) -> None:
        self.name, self._file = place.name, place.open()
        self.size = self._file.size()
        self.close = self._file.close

    def read_at(self, start: int, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            more = self._file.read_at(min(length - len(data), 16 * _CHUNK), start + len(data))
            if not more:
                raise ArchiveError(f"{self.name} ends before byte {start + length:,}: it was cut short")
            data += more
        return bytes(data)

    def stream(self) -> Iterator[bytes]:
        return (self.read_at(at, min(_CHUNK, self.size - at)) for at in range(0, self.size, _CHUNK))


class _Tar:
    """A plain tar: every member lies at a known place."""

    def __init__(self, place: Place, skipped: Skipped) -> None:
        self._place = place
        with place.open() as file:
            self.members = _tar_members(Forward(file, seekable=True), place.name, skipped)

    def reader(self, batches: list[Sequence[Member]]) -> Reader:
        return _TarReader(self._place.open(), self._place.name)


class _TarReader:
    threads = 4

    def __init__(self, file: pa.NativeFile, name: str, scratch: str | None = None) -> None:
        self._file, self._name, self._scratch = file, name, scratch

    def read(self, member: Member, view: memoryview) -> None:
        with _damage(self._name, member.name):
            done = 0
            while done < len(view):
                data = self._file.read_at(min(len(view) - done, 16 * _CHUNK), member.where + done)
                if not data:
                    raise EOFError("the archive ends inside it")
                view[done : done + len(data)] = data
                done += len(data)

    def close(self) -> None:
        self._file.close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


class _CompressedTar:
    def __init__(self, place: Place, codec: str, skipped: Skipped) -> None:
        self._place, self._decompress = place, _DECOMPRESSORS[codec]
        with _damage(place.name), place.open() as file, self._decompress(file) as stream:
            forward = Forward(stream, seekable=False)
            self.members = _tar_members(forward, place.name, skipped)
            forward.drain()  # to the checksum at the end

    def reader(self, batches: list[Sequence[Member]]) -> Reader:
        offsets = [offset for batch in batches for offset in sorted(member.where for member in batch)]
        if all(a < b for a, b in pairwise(offsets)):
            return _StreamReader(self._place, self._decompress)
        scratch = tempfile.mkdtemp(prefix="lake-untar-")
        try:
            plain = Path(scratch, "plain.tar")
            with _decompressed(self._place, self._decompress) as stream, plain.open("wb") as out:
                shutil.copyfileobj(stream, out, _CHUNK)
            return _TarReader(pa.OSFile(str(plain)), self._place.name, scratch)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise


@contextmanager
def _decompressed(place: Place, decompress: Callable[[Any], Any]) -> Iterator[IO[bytes]]:
    """The decompressed bytes of a file, from its start."""
    with _damage(place.name), place.open() as file, decompress(file) as stream:
        yield stream


class _StreamReader:
    """Reads members in the order in which they lie in a compressed tar."""

    threads = 1

    def __init__(self, place: Place, decompress: Callable[[Any], Any]) -> None:
        self._name = place.name
        self._opened: AbstractContextManager[IO[bytes]] = _decompressed(place, decompress)
        self._stream = Forward(self._opened.__enter__(), seekable=False)

    def read(self, member: Member, view: memoryview) -> None:
        with _damage(self._name, member.name):
            self._stream.seek(member.where)
            _fill(self._stream, view)

    def close(self) -> None:
        self._opened.__exit__(None, None, None)


def _tar_members(stream: Forward, archive: str, skipped: Skipped) -> list[Member]:
    table = tar.members(stream, archive)
    skipped.counts.update(table.skipped)
    members = []
    for name, size, start in zip(table.names, table.size, table.start, strict=True):
        if filenames.hidden(name):
            skipped.add("hidden file")
        else:
            members.append(Member(name, size, start))
    return members


def _fill(file: Any, view: memoryview) -> None:
    done = 0
    while done < len(view):
        data = file.read(min(len(view) - done, _CHUNK))
        if not data:
            raise EOFError("the archive ends inside it")
        view[done : done + len(data)] = data
        done += len(data)


def _damage(archive: str, member: str | None = None) -> AbstractContextManager[None]:
    return damage(archive, member, pa.ArrowInvalid)
