"""Files that arrive in a folder, handed to a function in batches or one by one, each exactly once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from lake.config import parse_duration
from lake.errors import NotFoundError
from lake.live import policy
from lake.live.batch import Batch
from lake.live.journal import HOME, Journal
from lake.live.keep import keep
from lake.live.kinds import Kind
from lake.live.watcher import How, Watched, Watcher, stoppable


@dataclass(frozen=True, slots=True)
class Arrived:
    """A file that is complete. `name`: below the folder; `kind`: what it holds, by extension and first bytes."""

    name: str
    path: Path
    kind: Kind
    batch: Batch

    def read(self) -> bytes:
        """Its bytes."""
        return self.batch.read(self.name)


def watch(
    folder: str | os.PathLike[str],
    on_batch: Callable[[Batch], object] | None = None,
    *,
    on_file: Callable[[Arrived], object] | None = None,
    every: float | str = "10s",
    delete: bool = False,
    archive: str | os.PathLike[str] | None = None,
    settle: float | str = "2s",
    stop: threading.Event | None = None,
) -> Watched:
    """Hand over every file that arrives in the folder, once; blocks until stopped, and tells how many there were.

    A file has arrived when its writer has closed it and it has not changed for `settle`, or, for `on_file`, at once
    when it is closed or renamed. Files of one key (`a/x.wav`, `a/x.json`) that arrive together are one sample. One
    that comes later, or is written to after it was handed over, comes as a sample of its own and is logged. Hidden
    files, `*.part` and `*.tmp` are ignored until they are renamed; links to folders are not followed.

    What was handed over is kept in `.lake-live` inside the folder. A file is marked when the function has returned:
    after a crash in between it is handed over again, a batch with the same `id` and the same files. Stopping
    (`stop.set()`, SIGTERM, Ctrl-C in the main thread) finishes the batch in hand.

    Args:
        on_batch: called with each `Batch`. If it raises, it is called again after 1, 2, 4 and 8 s; then the batch is
            quarantined: logged as an error and not handed over again. Its files stay.
        on_file: instead of `on_batch`, called with each `Arrived` file the moment that it is complete.
        every: a batch after so long ("10s"), or as soon as so much has arrived ("64MB") or a minute has passed.
        delete: delete files once they were handed over.
        archive: keep each batch in this folder as `<id>.zip`, written before it is handed over.
        stop: set it to end the call.

    Raises:
        NotFoundError: there is no such folder.
        ConflictError: another process watches it.
        ValueError: not exactly one of `on_batch` (or `archive`) and `on_file`, or an `archive` inside the folder.
    """
    root = existing(folder)
    if (on_file is None) == (on_batch is None and archive is None):
        raise ValueError("watch() takes on_batch (or archive) or on_file: one of them")
    for name, given in {"on_batch": on_batch, "on_file": on_file}.items():
        if given is not None and not callable(given):
            raise TypeError(f"watch({name}=) is called with what arrives; {given!r} cannot be")
    kept = None if archive is None else Path(archive).absolute()
    if kept is not None and kept.resolve().is_relative_to(root.resolve()):
        raise ValueError(f"archive={os.fspath(kept)!r} lies inside the folder: its zips would arrive there")
    if kept is not None and kept.exists() and not kept.is_dir():
        raise ValueError(f"archive={os.fspath(kept)!r} is a file; it is to be a folder of zips")

    def hand_over(batch: Batch) -> None:
        if on_file is not None:
            [name] = batch.names
            on_file(Arrived(name, root / name, batch.kinds[name], batch))
            return
        if kept is not None:
            keep(batch, kept)
        if on_batch is not None:
            on_batch(batch)

    how = How(
        policy.Every.of(every),
        parse_duration(settle),
        delete,
        on_file is not None,
        passing=lambda error: False,
    )
    return run(root, "a function", hand_over, how, stop)


def existing(folder: str | os.PathLike[str]) -> Path:
    """The folder's path.

    Raises:
        NotFoundError: there is none.
        ValueError: it is a lake, whose own files are no arrivals; or no name.
    """
    if not os.fspath(folder):
        raise ValueError("the folder to watch has no name: '.' is the working directory")
    root = Path(folder).resolve()  # what is told of a link is told of what it leads to
    if not root.is_dir():
        raise NotFoundError(f"no folder {os.fspath(folder)!r} to watch (in {Path.cwd()})")
    if (root / "lake.json").exists():
        raise ValueError(f"{os.fspath(root)!r} is a lake: its own files would be taken for arrivals")
    return root


def run(
    root: Path, target: str, hand_over: Callable[[Batch], object], how: How, stop: threading.Event | None
) -> Watched:
    """Watch until told to stop. `target`: where the files go, which stays the same for a folder."""
    with stoppable(stop) as stopping, closing(Journal(root, target)) as journal:
        return Watcher(root, journal, hand_over, how).run(stopping)


def release(folder: str | os.PathLike[str]) -> int:
    """Let the quarantined batches of a folder be handed over again by the next call; how many there are."""
    root = existing(folder)
    if not (root / HOME / "journal.sqlite").exists():
        return 0
    with closing(Journal(root, "")) as journal:
        return journal.release()
