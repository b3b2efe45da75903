"""An archive as a sequence of its members, read in place: nothing is extracted unless it is asked for."""

from __future__ import annotations

import io
import operator
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, overload

from lake.archives.content import CHUNK, Chunks, Content
from lake.archives.damage import Limits
from lake.archives.extract import extract
from lake.archives.folder import Folder, FolderContent
from lake.archives.place import Place, open_place
from lake.archives.ring import Counters, Ring
from lake.archives.samples import Samples
from lake.archives.stream import open_tar
from lake.archives.table import Member
from lake.archives.zip import ZipContent
from lake.config import parse_bytes
from lake.errors import ArchiveError, NotFoundError

if TYPE_CHECKING:
    from lake.cache import Cache
    from lake.pipeline import Pipeline

_SUFFIXES = {".zip": "zip", ".tar": "", ".tar.gz": "gz", ".tgz": "gz", ".tar.zst": "zst", ".tzst": "zst"}
_MAGIC = {b"PK\3\4": "zip", b"PK\5\6": "zip", b"\x1f\x8b": "gz", b"\x28\xb5\x2f\xfd": "zst"}


class Archive(Sequence[bytes]):
    """The members of an archive, in its order: `a[i]` and `a.read(name)` are their bytes.

    Directories and links are left out. Two members may have one name; the later one is then meant by it. May be
    used by any number of threads, pickled, and used on in forked processes; what one process has read is kept
    for all that it started, within one budget. Make it with `lake.archive`.
    """

    def __init__(self, kind: str, content: Content, kept: Ring | None) -> None:
        self.kind = kind  # "zip", "tar", "tar.gz", "tar.zst" or "folder"
        self._content, self._kept = content, kept
        self.names = tuple(content.table.names)
        self.skipped = dict(content.table.skipped)  # how many of what is no file
        self._numbers: dict[str, int] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Archive, (self.kind, self._content, self._kept)

    def __repr__(self) -> str:
        return f"lake.archive({self.name!r}): {self.kind}, {len(self):,} members"

    @property
    def name(self) -> str:
        """Where it is, as it was given."""
        return self._content.place.name

    @property
    def size(self) -> int:
        """Bytes of the archive itself."""
        return self._content.place.size

    @property
    def counters(self) -> Counters:
        """How many reads found their member kept in memory, in all processes that share it, and how many not."""
        return self._kept.counters if self._kept else Counters(0, 0)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._places()

    @overload
    def __getitem__(self, number: int) -> bytes: ...
    @overload
    def __getitem__(self, number: slice) -> list[bytes]: ...
    def __getitem__(self, number: int | slice) -> Any:
        if isinstance(number, slice):
            return self.read_many(range(*number.indices(len(self))))
        return self._read(self._number(number))

    def __iter__(self) -> Iterator[bytes]:
        return self._content.forward()  # what is read once, in order, is not worth keeping

    def member(self, which: str | int) -> Member:
        """What the archive says of a member, without reading it."""
        return self._content.member(self._number(which))

    def read(self, name: str) -> bytes:
        """The member's bytes, checked.

        Raises:
            NotFoundError: there is no member of that name.
            ArchiveError: it is damaged, encrypted, or grows out of proportion.
            BudgetError: the cache is too small for this archive (one without small frames).
        """
        return self._read(self._number(name))

    def read_many(self, which: Sequence[str | int]) -> list[bytes]:
        """The bytes of several members, in the order asked for; those that lie close together are read at once."""
        numbers = [self._number(each) for each in which]
        kept = self._kept
        if kept is None:
            return self._content.read_many(numbers)
        dear = self._content.dear
        found = [kept.get(number) if dear(number) else None for number in numbers]
        missing = [number for number, data in zip(numbers, found, strict=True) if data is None]
        fresh = dict(zip(missing, self._content.read_many(missing), strict=True))
        for number, data in fresh.items():
            if dear(number):
                kept.put(number, data)
        return [fresh[n] if data is None else data for n, data in zip(numbers, found, strict=True)]

    def open(self, which: str | int) -> IO[bytes]:
        """The member as a file that is read forward in bounded memory; what it promises is checked at its end."""
        return io.BufferedReader(Chunks(self._content.chunks(self._number(which))), CHUNK)

    def samples(self) -> Pipeline:
        """The members as samples `(key, {field: bytes})`, grouped by name as `commit` does it."""
        from lake.pipeline import from_iterable

        return from_iterable(Samples(self))

    def extract(self, which: str | int, folder: str | os.PathLike[str]) -> Path:
        """Write one member below `folder`, under its name; the file's path.

        Raises:
            ArchiveError: it is damaged, or would lie outside of the folder.
        """
        number = self._number(which)
        return extract(self.names[number], self._content.chunks(number), folder)

    def verify(self) -> Iterator[tuple[Member, str | None]]:
        """Every member with what is wrong with it, None if nothing is. Reads everything, in bounded memory."""
        for number in range(len(self)):
            wrong = None
            try:
                for _ in self._content.chunks(number):
                    pass
            except ArchiveError as error:
                wrong = str(error)
            yield self._content.member(number), wrong

    def close(self) -> None:
        """Let go of the file; reading is an error from then on."""
        self._content.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _read(self, number: int) -> bytes:
        kept = self._kept
        if kept is None or not self._content.dear(number):
            return self._content.read(number)
        data = kept.get(number)
        if data is None:
            data = self._content.read(number)
            kept.put(number, data)
        return data

    def _number(self, which: str | int) -> int:
        if isinstance(which, str):
            number = self._places().get(which)
            if number is None:
                raise NotFoundError(f"no member {which!r} in {self.name}{self._nearest(which)}")
            return number
        number, count = operator.index(which), len(self.names)
        if not -count <= number < count:
            raise IndexError(f"no member {number}: {self.name} has {count:,}")
        return number % count

    def _places(self) -> dict[str, int]:
        if self._numbers is None:
            self._numbers = {name: number for number, name in enumerate(self.names)}
        return self._numbers

    def _nearest(self, name: str) -> str:
        import difflib

        near = difflib.get_close_matches(name, self.names[:10_000], 1)
        return f"; nearest: {near[0]!r}" if near else ""


def archive(
    path_or_url: str | os.PathLike[str],
    *,
    cache_bytes: int | str = "100MB",
    max_ratio: float = 250.0,
    max_member: int | str = "4GiB",
    cache: Cache | None = None,
    endpoint_url: str | None = None,
    region: str | None = None,
    anonymous: bool = False,
) -> Archive:
    """The members of a .zip, .tar, .tar.gz or .tar.zst, on disk, in a bucket or on the web, as a sequence.

    A zip is open after reading its directory; a tar after one pass over its headers; a compressed tar after one
    pass over all of it, in bounded memory. A folder is taken for an archive of its files.

    Args:
        path_or_url: a path, `s3://bucket/key`, or an `http(s)://` URL of a server that serves ranges.
        cache_bytes: memory for members read before, shared by this process and the workers it starts.
        max_ratio: how many times its stored size something over 64 MiB may grow before it counts as a bomb.
        max_member: the largest member that is read into memory at once; `open` streams any.
        cache: where a compressed tar without small frames lands; by default the configured cache.
        endpoint_url, region, anonymous: how to reach a bucket, as in `lake.open`.

    Raises:
        NotFoundError: there is no such file or object.
        ArchiveError: it is no archive, damaged or hostile.
    """
    if not isinstance(path_or_url, str | os.PathLike):
        raise TypeError(f"an archive is named by a path or URL, not by {type(path_or_url).__name__}")
    if not os.fspath(path_or_url):
        raise ValueError("the path of the archive is empty: '.' names the working directory")
    if not isinstance(max_ratio, int | float) or not max_ratio > 0:
        raise ValueError(f"max_ratio is how many times larger, a number above 0, not {max_ratio!r}")
    most = parse_bytes(max_member)
    limits = Limits(max_ratio, (1 << 62) if most is None else most)
    budget = parse_bytes(cache_bytes)
    if budget is None:
        raise ValueError("cache_bytes is a size such as '100MB': memory has an end")
    kind, content = _opened(
        path_or_url, limits, cache, {"endpoint_url": endpoint_url, "region": region, "anonymous": anonymous}
    )
    dear = any(map(content.dear, range(len(content.table.names))))
    kept = Ring(budget, content.table.size) if budget and dear else None
    return Archive(kind, content, kept)


def _opened(
    path_or_url: str | os.PathLike[str], limits: Limits, cache: Cache | None, access: dict[str, Any]
) -> tuple[str, Content]:
    if Path(path_or_url).is_dir():
        return "folder", FolderContent(Folder(path_or_url), limits)
    place = open_place(path_or_url, **access)
    try:
        codec = _codec(place)
        if codec == "zip":
            return "zip", ZipContent(place, limits)
        return f"tar.{codec}".rstrip("."), open_tar(place, codec, limits, cache)
    except BaseException:
        place.close()
        raise


def _codec(place: Place) -> str:
    """How the archive is packed: by its name, else by how it begins."""
    named = [suffix for suffix in _SUFFIXES if place.name.lower().endswith(suffix)]
    if named:
        return _SUFFIXES[max(named, key=len)]
    head = place.read_at(0, min(512, place.size))
    for magic, codec in _MAGIC.items():
        if head.startswith(magic):
            return codec
    if head[257:262] == b"ustar":
        return ""
    raise ArchiveError(f"{place.name} is no .zip, .tar, .tar.gz or .tar.zst")
