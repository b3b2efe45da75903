"""What a damaged or hostile archive becomes: one error that names the archive and the member. Reads nothing.

Names are made safe here as well: whatever an archive calls its members, none of them lies outside of it.
"""

from __future__ import annotations

import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import zstandard

from lake.config import format_bytes
from lake.errors import ArchiveError

DAMAGE: tuple[type[Exception], ...] = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, zstandard.ZstdError, gzip.BadGzipFile, lzma.LZMAError,
    EOFError, NotImplementedError,
)  # fmt: skip
_FREE = 64 << 20  # bytes that may come of next to nothing: they harm nobody


@dataclass(frozen=True, slots=True)
class Limits:
    """How far an archive is believed: beyond, it is taken for a bomb."""

    ratio: float = 250.0  # of decoded to stored bytes, once there are more than 64 MiB of them
    member: int = 4 << 30  # bytes that `read` puts into memory at once

    def check(self, size: int, stored: int, what: str) -> None:
        """Refuse what grows too much.

        Raises:
            ArchiveError: it does.
        """
        if size > _FREE and size > self.ratio * max(stored, 1):
            raise ArchiveError(
                f"{what} makes {size:,} bytes of {stored:,}, {size / max(stored, 1):,.0f} times as many: a bomb, "
                f"unless you know better (max_ratio={self.ratio:g})"
            )

    def check_memory(self, size: int, what: str) -> None:
        """Refuse what does not belong into memory at once.

        Raises:
            ArchiveError: it is too large.
        """
        if size > self.member:
            raise ArchiveError(
                f"{what} is {format_bytes(size)}, over the {format_bytes(self.member)} that are read at once: "
                "use open(), which streams, or raise max_member"
            )


@contextmanager
def damage(archive: str, member: str | None = None, *also: type[Exception]) -> Iterator[None]:
    """Whatever a decompressor says of damage, as one error that names the archive and the member."""
    try:
        yield
    except DAMAGE + also as error:
        raise broken(archive, member, str(error) or type(error).__name__) from error


def broken(archive: str, member: str | None, why: str) -> ArchiveError:
    """The error for an archive, or a member of it, that cannot be read."""
    where = archive if member is None else f"{member!r} in {archive}"
    return ArchiveError(f"{where} cannot be read: {why} (damaged, cut short or of another kind)")


def clean(name: str, archive: str) -> str:
    """The member's path without what some packers put in front of it.

    >>> clean("./a//b.txt", "x.tar"), clean("/etc/passwd", "x.tar")
    ('a/b.txt', 'etc/passwd')

    Raises:
        ArchiveError: it points outside the archive.
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in name:
        raise ArchiveError(
            f"{name!r} in {archive} points outside the archive: pack it again from within its folder"
        )
    return "/".join(parts)
