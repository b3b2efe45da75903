"""Threads that end before the interpreter does.

A daemon thread that comes back from C++ to an interpreter that is gone takes the process down with it ("terminate
called without an active exception"). So whoever starts one has `atexit` tell it to end, and this module, which is
called last there, waits for it.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final

_EXIT_SECONDS: Final = 2.0  # that the end of the process waits for all of them

_started: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def start(name: str, target: Callable[..., object], *args: Any) -> threading.Thread:
    """A daemon thread that runs `target(*args)`."""
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    thread.start()
    _started.add(thread)
    return thread


@atexit.register
def _end() -> None:
    deadline = time.monotonic() + _EXIT_SECONDS
    for thread in list(_started):
        thread.join(max(0.0, deadline - time.monotonic()))
