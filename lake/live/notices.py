"""How a folder tells what happens in it: by the operating system's notifications, and by listing all of it.

Notifications are fast and may be lost (a full queue, a network file system, a folder that was filled before it was
watched), so they only say where to look; the listing is what is relied on.
"""

from __future__ import annotations

import logging
import os
import queue
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lake import filenames
from lake.live.arrivals import Stamp, ignored

Happened = Literal["whole", "there", "gone", "look"]

_log = logging.getLogger("lake")


class Notice(NamedTuple):
    """What happened to a file below the folder; "look": anything may have happened in any of them.

    "whole": a writer has closed it, or it was renamed. "there": it appeared.
    """

    what: Happened
    path: str


class Notices:
    """The notifications of a folder, in a queue."""

    def __init__(self, root: Path) -> None:
        self._root = os.fspath(root)
        self._queue: queue.SimpleQueue[Notice] = queue.SimpleQueue()
        self._observer = _observed(self._root, self._put)

    @property
    def alive(self) -> bool:
        """Whether the system notifies; if not, listings are all there is."""
        return self._observer is not None

    def next(self, timeout: float) -> Notice | None:
        """The next one; None if there is none within so many seconds."""
        try:
            return self._queue.get(timeout=timeout) if timeout > 0 else self._queue.get_nowait()
        except queue.Empty:
            return None

    def close(self) -> None:
        """End them."""
        if self._observer is not None:
            self._observer.stop()
            self._observer.join()

    def _put(self, what: Happened, path: str | bytes) -> None:
        relative = os.path.relpath(os.fsdecode(path), self._root).replace(os.sep, "/")
        if what == "look" or not ignored(relative):
            self._queue.put(Notice(what, relative))


def _observed(root: str, put: Any) -> Any:
    """A thread that calls `put` for what happens below `root`; None where there can be none."""
    try:
        from watchdog import events
        from watchdog.observers import Observer
    except ImportError:
        _log.warning(
            "watchdog is not installed, so folders are listed instead: pip install 'lakeshard[live]'"
        )
        return None

    observer = Observer()
    kinds = [
        events.FileClosedEvent, events.FileCreatedEvent, events.DirCreatedEvent, events.FileDeletedEvent,
        events.FileMovedEvent, events.DirMovedEvent,
    ]  # fmt: skip
    try:
        observer.schedule(_handler(put), root, recursive=True, event_filter=kinds)
        observer.start()
    except OSError as error:  # no watches left, or a file system that has none
        _log.warning("%s cannot be watched (%s), so it is listed instead", root, error)
        return None
    return observer


def _handler(put: Any) -> Any:
    """What watchdog calls, as what `put` is told."""
    from watchdog import events

    class Handler(events.FileSystemEventHandler):
        def on_closed(self, event: Any) -> None:
            put("whole", event.src_path)

        def on_created(self, event: Any) -> None:
            put("look" if event.is_directory else "there", event.src_path)

        def on_deleted(self, event: Any) -> None:
            put("gone", event.src_path)

        def on_moved(self, event: Any) -> None:
            if event.is_directory:
                put("look", event.dest_path)
            else:
                put("gone", event.src_path)
                put("whole", event.dest_path)

    return Handler()


class Listing:
    """The files of a folder that may arrive. Folders behind links are left out, and names that are not UTF-8."""

    def __init__(self, root: Path) -> None:
        self._root = os.fspath(root)
        self._told: set[str] = set()

    def __iter__(self) -> Iterator[tuple[str, Stamp]]:
        return self._walk(self._root, "")

    def _walk(self, folder: str, prefix: str) -> Iterator[tuple[str, Stamp]]:
        try:
            with os.scandir(folder) as found:
                entries = list(found)
        except OSError as error:
            if not prefix:
                raise
            self._tell(prefix, f"cannot be listed ({error.strerror})")
            return
        for entry in entries:
            path = prefix + entry.name
            with suppress(FileNotFoundError):  # it went meanwhile
                if ignored(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    yield from self._walk(entry.path, path + "/")
                elif entry.is_file() and self.nameable(path):
                    status = entry.stat()
                    yield path, Stamp(status.st_size, status.st_mtime_ns)

    def nameable(self, path: str) -> bool:
        """Whether a sample can be named by the path."""
        why = None
        try:
            path.encode()
        except UnicodeEncodeError:
            why = "has a name that is not UTF-8"
        if filenames.split(path)[1] == "key":
            why = "would be a field named 'key', which holds the samples' keys"
        if why:
            self._tell(path, f"{why}: it is left alone, rename it")
        return why is None

    def _tell(self, path: str, why: str) -> None:
        if path not in self._told:
            self._told.add(path)
            _log.warning("'%s' in %s %s", filenames.printable(path), self._root, why)
