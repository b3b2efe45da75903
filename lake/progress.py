"""A progress bar on stderr for long work; silent, and free, where nobody watches.

One bar lives at a time: work inside other work shows in the outer bar only. Never writes to stdout.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

Unit = Literal["rows", "bytes", "batches"]

_live = threading.Lock()  # held while a bar is on the screen


class Bar(Protocol):
    """What long work tells about itself. Any thread may."""

    def advance(self, n: int, *, new: int = 0, reused: int = 0) -> None:
        """Another `n` units are done; `new` bytes were written for them, `reused` found in place."""


class _Silent:
    def advance(self, n: int, *, new: int = 0, reused: int = 0) -> None:
        pass


class _Shown:
    """A bar of `rich`, with running sums of the bytes beside it."""

    def __init__(self, display: Progress, label: str, total: int | None) -> None:
        self._display = display
        self._task = display.add_task(label, total=total, note="")
        self._lock = threading.Lock()
        self._new = self._reused = 0

    def advance(self, n: int, *, new: int = 0, reused: int = 0) -> None:
        with self._lock:
            self._new += new
            self._reused += reused
            note = _note(self._new, self._reused)
        self._display.update(self._task, advance=n, note=note)


@contextmanager
def progress(
    enabled: bool | None, label: str, total: int | None = None, *, unit: Unit = "rows"
) -> Iterator[Bar]:
    """A bar named `label` for the length of a `with` block. `None`: only where stderr is a terminal.

    `total` in units; None where it is unknown: the bar then counts without an end.
    """
    wanted = _watched() if enabled is None else enabled
    if not wanted or not _live.acquire(blocking=False):
        yield _Silent()
        return
    try:
        with _display(unit) as display:
            yield _Shown(display, label, total)
    finally:
        _live.release()


def _watched() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _display(unit: Unit) -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    done: ProgressColumn = (
        DownloadColumn() if unit == "bytes" else TextColumn(f"{{task.completed:,.0f}} {unit}")
    )
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        done,
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=console.is_terminal,  # in a log file, the last state stays
    )


def _note(new: int, reused: int) -> str:
    from lake.config import format_bytes

    shown = [f"{format_bytes(size)} {word}" for size, word in ((new, "new"), (reused, "reused")) if size]
    return ", ".join(shown)
