"""The peers' side of the protocol, and the making of their environments.

python -m benchmarks.peers serve NAME       answers requests, one JSON document a line, until stdin ends
python -m benchmarks.peers build [NAME...]  makes environments; one that cannot be made is skipped, with why
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import shutil
import subprocess
import sys
import traceback
from typing import Any

from benchmarks import peers


def serve(name: str) -> None:
    """Answer requests. The first line out is the versions of what answers, or why nothing will."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not look like an answer

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        adapter = importlib.import_module(f"benchmarks.peers.{name}")
        versions = adapter.load()
        from benchmarks.peers.picks import PICKS
        from benchmarks.peers.tasks import TASKS
    except ImportError as error:
        say({"error": f"cannot be imported: {error}"})
        return
    say(versions)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            say((TASKS | PICKS)[request.pop("task")](adapter, **request))
        except Exception:
            say({"error": traceback.format_exc()})


def build(names: list[str]) -> None:
    """Make a virtual environment for each peer that needs one."""
    known = [module.name for module in pkgutil.iter_modules(peers.__path__)]
    for name in names or known:
        adapter = importlib.import_module(f"benchmarks.peers.{name}")
        if packages := getattr(adapter, "PACKAGES", ()):
            print(f"{name}: {_built(name, packages, adapter.PYTHON)}", flush=True)


def _built(name: str, packages: tuple[str, ...], least: tuple[int, int]) -> str:
    """What became of a peer's environment."""
    base = _python(least)
    if base is None:
        return f"skipped: needs Python {'.'.join(map(str, least))} or newer, and none is on the PATH"
    try:
        subprocess.run([base, "-m", "venv", peers.HOME / name], check=True)
        install = [peers.interpreter(name), "-m", "pip", "install", "--quiet", *packages]
        subprocess.run(install, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        shutil.rmtree(peers.HOME / name, ignore_errors=True)
        return f"skipped: {error}"
    return f"ready, with {', '.join(packages)}"


def _python(least: tuple[int, int]) -> str | None:
    """An interpreter that is new enough: this one, else the oldest such on the PATH that runs."""
    if sys.version_info >= least:
        return sys.executable
    for minor in range(least[1], least[1] + 4):
        found = shutil.which(f"python{least[0]}.{minor}")
        if found and not subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode:
            return found
    return None


if __name__ == "__main__":
    verb, *rest = sys.argv[1:] or [""]
    if verb == "serve" and len(rest) == 1:
        serve(rest[0])
    elif verb == "build":
        build(rest)
    else:
        sys.exit(__doc__)
