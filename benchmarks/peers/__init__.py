"""Peers: other libraries that do what lake does, each in an interpreter of its own, asked in JSON lines.

A peer is a module here with

- `PACKAGES`, what its environment is made of, and `PYTHON`, the least version that these need;
- `load()`, which imports the library and tells its versions, or raises ImportError;
- a function for each task that it can do (see `benchmarks.peers.tasks`).

`python -m benchmarks.peers build [peer...]` makes the environments under `.bench/`, or in the folder that
LAKE_BENCH_PEERS names. lake itself and plain Arrow run in the interpreter of the benchmark.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.report import ROOT

HOME = Path(os.environ.get("LAKE_BENCH_PEERS") or ROOT / ".bench")


class PeerMissing(Exception):
    """The peer cannot be asked on this machine; says why."""


class PeerFailed(Exception):
    """The peer's own error, as its interpreter printed it."""


def interpreter(name: str) -> Path:
    """The Python that has the peer's packages; this one if it needs none of its own."""
    if not importlib.import_module(f"benchmarks.peers.{name}").PACKAGES:
        return Path(sys.executable)
    scripts = ("Scripts", "python.exe") if sys.platform == "win32" else ("bin", "python")
    return HOME.joinpath(name, *scripts).absolute()


class Peer:
    """A running peer. `ask` gives a task and waits for the answer; leaving the `with` block ends the process.

    Raises:
        PeerMissing: there is no environment for it, or its library cannot be imported.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        python = interpreter(name)
        if not python.exists():
            raise PeerMissing(f"no {python}: `make bench-env` builds it")
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.peers", "serve", name],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self.versions: dict[str, str] = self._answer()
        except PeerFailed as error:
            self.close()
            raise PeerMissing(str(error)) from None

    def ask(self, task: str, **arguments: Any) -> dict[str, Any]:
        """The answer to one request.

        Raises:
            PeerFailed: the task failed over there.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone; the missing answer says so
            self._process.stdin.write(json.dumps({"task": task, **arguments}) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerFailed(f"{self.name} ended with exit code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerFailed(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._process.kill()
        self.close()
