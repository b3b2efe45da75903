"""The cache's directory: whose it is, and where in it everything lies.

    lake-cache.json      the marker: without it, a directory with anything in it is somebody else's
    index.sqlite         what is there (lake.cache.index); about 200 bytes a file, not part of the budget
    files/<aa>/<key>     whole files, and nothing else: `<digest>` as stored, `<digest>.open` decoded,
                         `<digest>.block` for blocks
    flights/<key>        a file being written; `<key>.lock` is held by whoever writes it
    members/<uuid>       held by a process that has reservations
    slots/<n>            held by a request to a store while it is under way; `gate` by who waits to be next

Every name is derived here and parsed here; what does not parse is not ours and is left alone.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lake import _os
from lake.errors import ConfigError, FormatError

STORED: Final = ""  # the layouts, as the end of a key
OPEN: Final = ".open"
BLOCK: Final = ".block"

_KEY: Final = re.compile(r"[0-9a-f]{64}(\.open|\.block)?", re.ASCII)
_FLIGHT: Final = re.compile(r"([0-9a-f]{64}(?:\.open|\.block)?)(\.lock)?", re.ASCII)
_PROCESS: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_FORMAT: Final = 1
_NOBODYS: Final = {"lost+found", ".DS_Store"}


class Home:
    """The paths of one cache directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.marker = root / "lake-cache.json"
        self.index = root / "index.sqlite"
        self.files = root / "files"
        self.flights = root / "flights"
        self.members = root / "members"
        self.slots = root / "slots"
        self._index, self._files, self._flights = str(self.index), str(self.files), str(self.flights)

    def claim(self) -> None:
        """Make the directory ours, creating what is missing.

        Raises:
            ConfigError: it holds things that no cache wrote, or cannot be written.
            FormatError: a newer lake made it.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if not self.marker.exists():
                self._mark()
            for folder in (self.files, self.flights, self.members, self.slots):
                folder.mkdir(exist_ok=True)
        except OSError as error:
            raise ConfigError(f"the cache directory {self.root} cannot be used: {error}") from error
        self._check()

    def path(self, key: str) -> str:
        """Where the whole file of `key` lies, if it is there."""
        return f"{self._files}/{key[:2]}/{key}"

    def flight(self, key: str) -> str:
        """Where the file of `key` is written."""
        return f"{self._flights}/{key}"

    def lock(self, key: str) -> str:
        """What the process that writes the file of `key` holds."""
        return f"{self._flights}/{key}.lock"

    def member(self, process: str) -> Path:
        """What a process with reservations holds while it lives."""
        return self.members / process

    def slot(self, name: str) -> str:
        """What a request holds while it is under way."""
        return f"{self.slots}/{name}"

    def inode(self) -> int:
        """Which file the index is; 0 if there is none."""
        try:
            return os.stat(self._index).st_ino  # noqa: PTH116 - asked before every query
        except FileNotFoundError:
            return 0

    def found(self) -> Iterator[tuple[str, os.stat_result]]:
        """Key and stat of every whole file."""
        for folder in _scan(self.files):
            for entry in _scan(folder.path):
                if _KEY.fullmatch(entry.name) and folder.name == entry.name[:2]:
                    with contextlib.suppress(FileNotFoundError):
                        yield entry.name, entry.stat(follow_symlinks=False)

    def kept(self) -> set[str]:
        """Keys of all whole files."""
        return {entry.name for folder in _scan(self.files) for entry in _scan(folder.path)}

    def flying(self) -> set[str]:
        """Keys of all files being written, or left half written by a process that was killed."""
        matches = (_FLIGHT.fullmatch(entry.name) for entry in _scan(self.flights))
        return {match[1] for match in matches if match}

    def processes(self) -> list[str]:
        """Processes that have, or had when they died, reservations."""
        return [entry.name for entry in _scan(self.members) if _PROCESS.fullmatch(entry.name)]

    def _mark(self) -> None:
        names = {entry.name for entry in _scan(self.root)} - _NOBODYS
        foreign = {name for name in names if not name.startswith(self.marker.name)}
        if foreign and not self.marker.exists():
            raise ConfigError(
                f"{self.root} holds {len(foreign)} things that no cache put there (like {min(foreign)!r}); "
                "a cache deletes files, so give it a directory of its own"
            )
        fresh = self.root / f"{self.marker.name}.{uuid.uuid4().hex}"
        fresh.write_text(json.dumps({"lake cache": _FORMAT}) + "\n", "utf-8")
        try:  # never in place of another's: the marker is also what is locked
            _os.link_new(str(fresh), str(self.marker))
        except FileExistsError:
            fresh.unlink(missing_ok=True)
        except OSError as error:
            if error.errno != errno.ENOTSUP:
                raise
            fresh.replace(self.marker)

    def _check(self) -> None:
        try:
            found = json.loads(self.marker.read_text("utf-8")).get("lake cache")
        except (OSError, ValueError, AttributeError) as error:
            raise ConfigError(f"{self.marker} is not the marker of a cache: {error}") from error
        if found != _FORMAT:
            raise FormatError(
                f"{self.root} is a cache of format {found}; this lake knows {_FORMAT}: upgrade it"
            )


def _scan(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        yield from entries
