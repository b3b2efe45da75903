"""The files of a folder, and their bytes. What they mean is `lake.convert.files`'s business.

Neither where the folder lies nor when a file was touched leaves this module.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lake import filenames
from lake.convert.files import Member, Skipped


def list_folder(root: Path, skipped: Skipped) -> list[Member]:
    """Every file under `root`, hidden and special ones counted instead. Follows links, but not in circles.

    Raises:
        OSError: a folder or file that cannot be looked at, naming it.
    """
    with _explained(os.fspath(root)):
        top = root.stat()
    return list(_walk(os.fspath(root), "", frozenset({(top.st_dev, top.st_ino)}), skipped))


class FolderReader:
    """Reads files of one folder, each opened for itself."""

    threads = 8

    def __init__(self, root: Path) -> None:
        self._root = os.fspath(root)

    def read(self, member: Member, view: memoryview) -> None:
        """Fill `view` with the file's bytes."""
        path = f"{self._root}/{member.name}"
        with _explained(path), io.FileIO(path) as file:
            done = file.readinto(view)
            while 0 < done < len(view) and (more := file.readinto(view[done:])):
                done += more
            if done < len(view) or file.read(1):
                raise OSError(f"{path} changed while it was read: commit again when nothing writes to it")

    def close(self) -> None:
        """Nothing stays open."""


def _walk(path: str, prefix: str, above: frozenset[tuple[int, int]], skipped: Skipped) -> Iterator[Member]:
    with _explained(path), os.scandir(path) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        name = prefix + entry.name
        with _explained(entry.path):  # never around the walk below, which explains its own errors
            folder, hidden = entry.is_dir(), filenames.hidden(entry.name)
            status = entry.stat() if not hidden else None
        if status is None:
            skipped.add("hidden folder" if folder else "hidden file")
        elif folder:
            identity = (status.st_dev, status.st_ino)
            if entry.is_symlink() and identity in above:
                skipped.add("link to a folder above it")
            else:
                yield from _walk(entry.path, name + "/", above | {identity}, skipped)
        elif stat.S_ISREG(status.st_mode):
            yield Member(name, status.st_size)
        else:
            skipped.add("special file")


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """What the system says of a file or folder, as the same kind of error that names it and a way out."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        advice = f"{error.strerror}; make it readable, or take it out of the folder"
        raise type(error)(error.errno, advice, filenames.printable(path)) from None
