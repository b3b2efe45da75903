"""A folder as if it were an archive: its files by name, read when asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from lake.archives.content import CHUNK
from lake.archives.damage import Limits
from lake.archives.table import Member, Table
from lake.errors import ArchiveError


class Folder:
    """Where the files lie."""

    remote = False

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        self.path = str(Path(path).absolute())
        self.size = 0  # of all files, once they are listed


class FolderContent:
    """The files below a folder, by name; links are counted, not followed."""

    def __init__(self, place: Folder, limits: Limits) -> None:
        self.place, self._limits = place, limits
        self.table = Table()
        self._list(place.path, "")
        place.size = sum(self.table.size)

    def _list(self, path: str, prefix: str) -> None:
        with os.scandir(path) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            if entry.is_symlink():
                self.table.skipped["link"] += 1
            elif entry.is_dir():
                self._list(entry.path, f"{prefix}{entry.name}/")
            elif entry.is_file():
                self.table.add(prefix + entry.name, 0, entry.stat().st_size)
            else:
                self.table.skipped["special file"] += 1

    def member(self, number: int) -> Member:
        """What was found of a file."""
        size = self.table.size[number]
        return Member(self.table.names[number], size, size, "stored")

    def dear(self, number: int) -> bool:
        """No: the system keeps files itself."""
        return False

    def read(self, number: int) -> bytes:
        """The file's bytes."""
        if self.table.size[number] > self._limits.member:
            self._limits.check_memory(self.table.size[number], repr(self.table.names[number]))
        return b"".join(self.chunks(number))

    def read_many(self, numbers: Sequence[int]) -> list[bytes]:
        """The bytes of several."""
        return [self.read(number) for number in numbers]

    def forward(self) -> Iterator[bytes]:
        """All files, one after the other."""
        return map(self.read, range(len(self.table.names)))

    def chunks(self, number: int) -> Iterator[bytes]:
        """The file's bytes in pieces; that it is as long as when it was listed is checked at the end."""
        name, done = self.table.names[number], 0
        try:
            with Path(self.place.path, name).open("rb", buffering=0) as file:
                while chunk := file.read(min(CHUNK, self.table.size[number] - done + 1)):
                    done += len(chunk)
                    yield chunk
        except FileNotFoundError as error:
            raise ArchiveError(
                f"{name!r} in {self.place.name} is gone since the folder was listed"
            ) from error
        if done != self.table.size[number]:
            raise ArchiveError(f"{name!r} in {self.place.name} has changed since the folder was listed")

    def close(self) -> None:
        """Nothing is held."""
