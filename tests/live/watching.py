"""A watcher in a thread of this process, and waiting for what it does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lake import live

SOON = {"every": 0.05, "settle": 0.1}


class Got(list[tuple[str, dict[str, bytes]]]):
    """What a callback was given: each batch's id and the bytes of its files."""

    def __call__(self, batch: live.Batch) -> None:
        self.append((batch.id, {name: batch.read(name) for name in batch.names}))

    @property
    def names(self) -> list[str]:
        """Every file, as often as it was given."""
        return sorted(name for _, files in self for name in files)


@contextmanager
def watched(
    folder: Path, *arguments: Any, call: Callable[..., live.Watched] = live.watch, **more: Any
) -> Iterator[list]:
    """Watch while the body runs; the list then holds what the watcher returned."""
    stop = threading.Event()
    seen: list[live.Watched] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            seen.append(call(folder, *arguments, stop=stop, **(SOON | more)))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
    if failed:
        raise failed[0]


def until(true: Callable[[], object], seconds: float = 30) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def journalled(folder: Path, count: int) -> bool:
    """Whether that many files were handed over and marked. Only where nobody watches the folder."""
    import sqlite3

    with sqlite3.connect(f"file:{folder}/.lake-live/journal.sqlite?mode=ro", uri=True) as db:
        [[found]] = db.execute(
            "select count(*) from files join batches on number = batch where state = 'done'"
        )
    return found == count


def for_a_while() -> None:
    """Give something that must not come many turns of a watcher to come in."""
    time.sleep(10 * SOON["every"])
